"""Contract tests that every kernel must pass, as a class from which the tests of a kernel inherit.

    class TestTiled(KernelContract):
        kernel = TiledKernel(budget=12)

The inherited tests compare output and gradients with the reference for every score, normalizer, mask, dtype, array
library and shape that the kernel supports, and check the twelve rules of semantics. The budget of the kernel should be
so small that a call with a dozen keys needs several tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import qkv
from qkv import masks, normalizers, readouts, scores
from qkv.core.equation import attend_dense
from qkv.core.positions import Positions
from qkv.core.typing import ArrayLike
from qkv.errors import OptionError, PositionError, RefusedError, ShapeError
from qkv.masks import Mask
from qkv.normalizers import Normalizer
from qkv.plan import Kernel
from qkv.scores import Score
from qkv.testing.cases import MASKS, NONNEGATIVE, NORMALIZERS, SCORES, SHAPES, Call, Case
from qkv.testing.data_semantics import DataSemanticsContract
from qkv.testing.execution import inputs_of, oracle, parts_of, run_eagerly
from qkv.testing.kernel_harness import CASES, KernelHarness, assert_agrees, settings_of_kernel
from qkv.testing.libraries import LONG, Setting, assert_close, settings_of, to_float64, turn

if TYPE_CHECKING:
    from torch import Tensor


_FLOAT64 = Setting("torch", "float64")


class _Options(TypedDict):
    """Parts and options of a call."""

    score: Score
    normalizer: Normalizer
    mask: Mask | None
    positions: Positions | None
    dropout: float
    seed: int | None


class _MappedCall:
    """Several example calls of the same shapes, of which some arrays are mapped, and others are those of the first.

    Attributes:
        first: the first call.
        arrays: for each array of a call, the tensor to map, stacked along the axis `in_dims`, or the shared tensor.
        in_dims: for each array, the mapped axis or None.
        size: number of calls.
    """

    def __init__(self, case: Case, mapped: tuple[bool, ...], axis: int, size: int) -> None:
        import torch

        self.first, self.size = case.call(3), size
        each = [_arrays_of(case.call(3 + n)) for n in range(size)]
        self.in_dims: list[int | None] = []
        self.arrays: list[Tensor] = []
        for n, tensors in enumerate(zip(*each, strict=True)):
            stacks = mapped[n % len(mapped)]
            at = min(axis, tensors[0].ndim)
            self.in_dims.append(at if stacks else None)
            self.arrays.append(torch.stack(tensors, dim=at) if stacks else tensors[0])
        if not any(dim is not None for dim in self.in_dims):
            self.in_dims[0], self.arrays[0] = 0, torch.stack([x[0] for x in each])

    def element(self, n: int) -> list[Tensor]:
        """Return the arrays of call `n`."""
        return [x if dim is None else x.select(dim, n) for x, dim in zip(self.arrays, self.in_dims, strict=True)]

    def parts(self, arrays: tuple[Tensor, ...]) -> _Options:
        """Return the parts and options of a call with `arrays`."""
        found: dict[str, object] = {}
        rest = list(arrays[3:])
        for name in ("score", "normalizer", "mask"):
            part = getattr(self.first, name)
            count = 0 if part is None else len(part.arrays())
            found[name] = part.replace_arrays(rest[:count]) if count else part
            del rest[:count]
        first = self.first
        return cast("_Options", found | {"positions": first.positions, "dropout": first.dropout, "seed": first.seed})


def _arrays_of(call: Call) -> list[Tensor]:
    parts = (call.score, call.normalizer, call.mask)
    arrays = [x for part in parts if part is not None for x in part.arrays()]
    return [_FLOAT64.array(x) for x in (call.query, call.key, call.value, *arrays)]


class TransformContract(KernelHarness):
    """Contract tests of kernels under transforms of `torch.func`; kernels of other libraries pass them."""

    @settings(max_examples=25 if LONG else 8, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(CASES, st.lists(st.booleans(), min_size=7, max_size=7).map(tuple), st.integers(0, 2), st.integers(1, 3))
    def test_vmap_and_gradients_of_each_element_are_those_of_one_call_for_each(
        self, case: Case, mapped: tuple[bool, ...], axis: int, size: int
    ) -> None:
        if "torch" not in self.kernel.libraries:
            return  # torch.func transforms only PyTorch
        import torch

        calls = _MappedCall(case, mapped, axis, size)
        floating = tuple(n for n, x in enumerate(calls.arrays) if x.is_floating_point())
        factor = torch.randn(1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

        def attend(*arrays: Tensor) -> Tensor:
            return cast("Tensor", qkv.attend(*arrays[:3], **calls.parts(arrays), kernel=self.kernel))

        def loss(*arrays: Tensor) -> tuple[Tensor, Tensor]:
            output = attend(*arrays)
            return (output.sin() * factor).sum(), output

        each = torch.func.grad(loss, argnums=floating, has_aux=True)
        try:
            self.run(calls.first, _FLOAT64)
        except RefusedError:
            return
        output = torch.func.vmap(attend, in_dims=tuple(calls.in_dims))(*calls.arrays)
        gradients, again = torch.func.vmap(each, in_dims=tuple(calls.in_dims))(*calls.arrays)
        torch.testing.assert_close(again, output, rtol=1e-9, atol=1e-9, equal_nan=True)
        for n in range(size):
            arrays = calls.element(n)
            leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in arrays]
            expected = cast("Tensor", attend_dense(*leaves[:3], **calls.parts(tuple(leaves))).output)
            torch.testing.assert_close(output[n], expected.detach(), rtol=1e-9, atol=1e-9, equal_nan=True)
            inputs = [leaves[i] for i in floating]
            slopes = torch.autograd.grad(
                (expected.sin() * factor).sum(), inputs, allow_unused=True, materialize_grads=True
            )
            for got, slope in zip(gradients, slopes, strict=True):
                torch.testing.assert_close(got[n], slope, rtol=1e-7, atol=1e-8)


class DrawSemanticsContract(KernelHarness):
    """Tests of the random numbers in dropout and in the sampling of keys, which `KernelContract` inherits."""

    def test_nothing_is_dropped_unless_it_is_asked_for(self, setting: Setting) -> None:
        call = Case().call()
        one, other = (self.observe(replace(call, seed=seed), setting).output for seed in (1, 2))
        assert_close(one, to_float64(other), 0.0)

    def test_dropout_is_the_same_draw_whatever_the_tiles(self, setting: Setting) -> None:
        for name, call in self.each_normalizer(setting, 0, dropout=0.4):
            self.assert_as_oracle(call, setting, f"{name}, dropped:")

    def test_another_seed_is_another_draw(self, setting: Setting) -> None:
        call = Case(dropout=0.5).call()
        one, same, other = (to_float64(self.observe(replace(call, seed=seed), setting).output) for seed in (1, 1, 2))
        assert (one == same).all()
        assert (one != other).any()

    def test_dropped_weights_are_0_and_kept_ones_are_scaled_up(self, setting: Setting) -> None:
        n = 64
        call = Call(np.zeros((n, 1)), np.zeros((n, 1)), np.eye(n), scores.Dot(), dropout=0.25)
        weights = to_float64(self.observe(call, setting).output) * n
        assert_close(
            weights[weights != 0], np.full(np.count_nonzero(weights), 4 / 3), max(1e-12, 5 * setting.tolerance)
        )
        # Of 4096 weights, the fraction of zeros is within five standard deviations of the probability.
        assert abs(np.mean(weights == 0) - 0.25) < 5 * np.sqrt(0.25 * 0.75 / n**2)

    def test_readouts_are_of_the_weights_before_dropout(self, setting: Setting) -> None:
        for name, call in self.each_normalizer(setting, 1, dropout=0.4):
            dropped = run_eagerly(call, setting, self.kernel, readouts=[readouts.Dense()])
            whole = run_eagerly(replace(call, dropout=0.0), setting, self.kernel, readouts=[readouts.Dense()])
            assert_close(dropped.readouts[0], to_float64(whole.readouts[0]), 0.0, message=name)

    def test_sampled_key_is_the_same_draw_whatever_the_tiles(self, setting: Setting) -> None:
        if setting.dtype in ("float16", "bfloat16"):
            return  # rounding may cause ties between keys, so only float32 and float64 are tested
        for score in self.sample(setting, ("dot", "gaussian", "additive")):
            call = Case(score, "sample").call()
            self.assert_as_oracle(call, setting, score)

    def test_draws_need_a_seed_where_the_library_has_no_generator(self, setting: Setting) -> None:
        for call in (Case(dropout=0.5).call(), replace(Case().call(), normalizer=normalizers.Sample())):
            unseeded = replace(call, seed=None)
            if not self.accepts(call, setting):
                continue
            if setting.library != "torch":
                with pytest.raises(OptionError, match="such as seed=0"):
                    self.observe(unseeded, setting)
                continue
            import torch

            with torch.random.fork_rng():
                outputs = []
                for seed in (4, 4, 5):
                    torch.manual_seed(seed)
                    outputs.append(to_float64(self.observe(unseeded, setting).output))
            assert (outputs[0] == outputs[1]).all()
            assert (outputs[0] != outputs[2]).any()


_POSITIONAL: dict[str, Any] = {
    "causal": {"mask": masks.Causal()},
    "window": {"mask": masks.Window(1, 1)},
    "prefix": {"mask": masks.Prefix(1)},
    "not causal, or some keys": {"mask": ~masks.Causal() | masks.AllowedKeys(np.ones(4, dtype=bool))},
    "alibi": {"score": scores.ALiBi(scores.Dot(), 0.5)},
    "relative position": {"score": scores.RelativePosition(scores.Dot(), np.zeros(8))},
    "quadratic position": {"score": scores.SumOf((scores.QuadraticPosition(scores.Dot(), 0.5), scores.Dot()))},
}

_INVALID_CALLS: dict[str, tuple[Callable[[Call], Call], str]] = {
    "values": (
        lambda c: replace(c, value=np.ones((3, 2))),
        r"key and value must have the same length, got 4 keys .* and 3 values",
    ),
    "widths": (lambda c: replace(c, query=np.ones((2, 5))), r"got widths 5 and 2"),
    "batch": (lambda c: replace(c, query=np.ones((3, 2, 2)), key=np.ones((2, 4, 2))), r"\(3,\).*\(2,\)"),
    "a mask of keys": (
        lambda c: replace(c, mask=masks.AllowedKeys(np.ones(3, dtype=bool))),
        r"AllowedKeys must have shape \(\*batch, 4\).*\(3,\)",
    ),
    "a mask of pairs": (
        lambda c: replace(c, mask=masks.AllowedPairs(np.ones((4, 2), dtype=bool))),
        r"AllowedPairs must have shape \(\*batch, 2, 4\).*\(4, 2\)",
    ),
    "documents": (
        lambda c: replace(c, mask=masks.Documents(np.zeros(4, dtype=int))),
        r"must have lengths 2 and .*, got lengths 4",
    ),
    "a bias": (lambda c: replace(c, score=scores.Biased(c.score, np.ones((4, 2)))), r"\(4, 2\)"),
    "one axis": (lambda c: replace(c, value=np.ones(4)), r"x\[:, None\]"),
}


class CallSemanticsContract(KernelHarness):
    """Tests of how a kernel handles positions, lengths, readouts, memory and sizes, which `KernelContract` inherits."""

    # -- 4. Positions ------------------------------------------------------------------------------------

    def test_what_depends_on_positions_raises_where_lengths_differ_and_none_are_given(self, setting: Setting) -> None:
        for parts in _POSITIONAL.values():
            with pytest.raises(PositionError, match=r'align="start".*align="end"'):
                run_eagerly(replace(_small(), **parts), setting, self.kernel)

    def test_what_depends_on_positions_runs_where_they_are_given(self, setting: Setting) -> None:
        for what in self.sample(setting, _POSITIONAL):
            for positions in (Positions(align="start"), Positions(align="end"), Positions(query_start=1)):
                call = replace(_small(), positions=positions, **_POSITIONAL[what])
                if self.accepts(call, setting):
                    self.assert_as_oracle(call, setting, f"{what}, {positions}")

    def test_causal_says_where_it_is_aligned(self, setting: Setting) -> None:
        call = replace(_small(), value=np.eye(4), score=scores.Dot(), query=np.zeros((2, 2)))
        for align, expected in (("start", [[1, 0, 0, 0], [0.5, 0.5, 0, 0]]), ("end", [[1 / 3] * 3 + [0], [0.25] * 4])):
            self.assert_output(replace(call, mask=masks.Causal(align)), setting, expected, align)  # type: ignore[arg-type]

    # -- 5. Lengths that do not fit ----------------------------------------------------------------------

    def test_lengths_that_do_not_fit_raise_and_are_named(self, setting: Setting) -> None:
        for change, message in _INVALID_CALLS.values():
            with pytest.raises(ShapeError, match=message):
                run_eagerly(change(_small()), setting, self.kernel)

    # -- 7. Asking for a readout never changes the output ------------------------------------------------

    def test_readouts_change_neither_numbers_nor_zeros_nor_nans(self, setting: Setting) -> None:
        allowed = np.ones((7, 11), dtype=bool)
        allowed[2] = False
        value = Case("dot").call().value.copy()
        value[..., 3, 0] = np.nan
        for name, call in self.each_normalizer(setting, 1, mask=masks.AllowedPairs(allowed), value=value):
            plain = to_float64(self.observe(call, setting).output)
            for readout in (readouts.Dense(), readouts.Rows((1, -1)), readouts.TopWeights(2)):
                if not self.accepts(call, setting, [readout]):
                    with pytest.raises(RefusedError, match="readout"):
                        run_eagerly(call, setting, self.kernel, readouts=[readout])
                    continue
                observation = run_eagerly(call, setting, self.kernel, readouts=[readout])
                assert ((to_float64(observation.output) == 0) == (plain == 0)).all(), f"{name}, {readout}"
                assert_close(
                    observation.output,
                    plain,
                    max(1e-12, setting.tolerance),
                    message=f"{name}, {readout}:",
                    min_scale=0.1,
                )

    # -- 9. Nothing falls to quadratic memory silently ---------------------------------------------------

    def peak(self, n: int, setting: Setting, memory: int | str = "1 TiB") -> float:
        """Return the estimated peak memory of the kernel in bytes, for n queries and keys, width 64 and batch size 2.

        Raises:
            RefusedError: the kernel would allocate more than `memory`.
        """
        shape = (2, n, 64)
        return qkv.explain(
            shape,
            shape,
            shape,
            kernel=self.kernel,
            memory=memory,
            library=setting.library,
            dtype=setting.dtype,
            gradient=setting.library == "torch",
        ).cost.peak

    def test_memory_grows_as_the_kernel_says(self, setting: Setting) -> None:
        growth = self.peak(65_536, setting) / self.peak(32_768, setting)
        assert (3.9 < growth < 4.1) if self.quadratic else growth < 2.2

    def test_hundred_thousand_keys_fit_or_are_refused(self, setting: Setting) -> None:
        if not self.quadratic:
            assert self.peak(100_000, setting, "2 GiB") <= 2**31
            return
        with pytest.raises(RefusedError, match=r"would allocate .*, more than the 2 GiB allowed"):
            self.peak(100_000, setting, "2 GiB")

    def test_pinned_kernel_raises_where_its_memory_is_not_allowed(self, setting: Setting) -> None:
        call = Case("additive").call()
        with pytest.raises(RefusedError, match=rf"kernel {self.kernel.name} cannot run this call: "):
            run_eagerly(call, setting, self.kernel, memory=64)

    # -- 11. Every size works ----------------------------------------------------------------------------

    def test_empty_and_single_axes_work(self, setting: Setting) -> None:
        for shape in self.sample(
            setting, [name for name in SHAPES if "one" in name or "no " in name or name[-1] in "01"]
        ):
            for score, normalizer in (
                ("dot", "softmax"),
                ("dot", "sigmoid"),
                ("dot", "top-k"),
                ("additive", "softmax"),  # keys of width 0 tie but for rounding, so that top-k could take any
                ("gaussian", "sparsemax"),
                ("exact", "sum"),
            ):
                call = Case(score, normalizer, "none", shape).call()
                if self.accepts(call, setting):
                    self.assert_as_oracle(call, setting, f"{score}, {normalizer}, {shape}")

    def test_no_keys_give_zeros_and_gradients_of_zero(self, setting: Setting) -> None:
        cases = [Case("similarity" if name == "sum" else "dot", name, "none", "no keys") for name in NORMALIZERS]
        cases += [Case(name, "softmax", "none", "no keys") for name in SCORES]
        cases += [Case("dot", "softmax", name, "no keys") for name in MASKS]
        for case in self.sample(setting, cases):
            call = case.call()
            if self.accepts(call, setting):
                got = self.run(call, setting)
                assert_close(got.output, np.zeros((2, 5, 5)), 0.0, message=f"{case}, output:")
                assert all((gradient == 0).all() for gradient in got.gradients), f"{case}: {got.gradients}"

    def test_million_keys_work(self, setting: Setting) -> None:
        # All keys but one are equal; the query must find that one for any tiling.
        key = np.zeros((self.many_keys, 1))
        key[int(0.777_777 * self.many_keys)] = 40.0
        kernel = type(self.kernel)()  # with the default sizes of tiles
        call = Call(np.ones((1, 1)), key, key / 8, scores.Dot(), normalizers.Softmax(), seed=None)
        got = run_eagerly(call, setting, kernel).output
        assert_close(got, [[5.0]], max(1e-8, setting.tolerance))


def _small() -> Call:
    """Return a call of softmax attention with two queries and four keys, without positions."""
    rng = np.random.default_rng(2)
    return Call(rng.normal(size=(2, 2)), rng.normal(size=(4, 2)), rng.normal(size=(4, 3)), scores.Dot())


TWICE = [
    Case("additive", "softmax with temperature", "causal at the end"),
    Case("gaussian", "softmax with sink", "pairs"),
    Case("dot", "top-k with temperature and sink"),
    Case("dot", "sparsemax", "keys"),
    Case("similarity", "sum", "window"),
]


class KernelContract(
    DataSemanticsContract, CallSemanticsContract, DrawSemanticsContract, TransformContract, KernelHarness
):
    """Contract tests of kernels. Subclasses must set `kernel`, and set `quadratic` if its memory grows with q · k."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize `setting` with the libraries and dtypes of the kernel, `score` and `twice` with example calls."""
        if "setting" in metafunc.fixturenames:
            metafunc.parametrize("setting", settings_of_kernel(self.kernel), ids=str)
        if "score" in metafunc.fixturenames:
            metafunc.parametrize("score", sorted(SCORES))
        if "twice" in metafunc.fixturenames:  # in short runs, two tests take turns, and so do classes
            test = metafunc.definition.name.startswith("test_second")
            metafunc.parametrize("twice", turn(TWICE, self.number + test, 2), ids=str)

    def test_runs_scaled_dot_product_attention(self, setting: Setting) -> None:
        case = Case("scaled dot", "softmax", "none")
        assert self.accepts(case.call(), setting)
        self.check_cases(setting, [case])

    def test_agrees_with_the_oracle_for_every_score(self, setting: Setting) -> None:
        self.check_cases(setting, (Case(score, "softmax", "window") for score in self.sample(setting, SCORES)))

    def test_agrees_with_the_oracle_for_every_normalizer(self, setting: Setting) -> None:
        names = self.sample(setting, NORMALIZERS)
        self.check_cases(setting, (Case("similarity", normalizer, "causal at the end") for normalizer in names))

    def test_agrees_with_the_oracle_for_every_mask(self, setting: Setting) -> None:
        self.check_cases(setting, (Case("gaussian", "softmax", mask) for mask in self.sample(setting, MASKS)))

    @settings(max_examples=40 if LONG else 20, suppress_health_check=list(HealthCheck))
    @given(case=CASES)
    def test_agrees_with_the_oracle_for_combinations_drawn_at_random(self, case: Case) -> None:
        for setting in settings_of(tuple({"numpy", "torch"} & set(self.kernel.libraries)), ("float64",)):
            self.check_cases(setting, [case])

    @pytest.mark.long
    def test_agrees_with_the_oracle_for_all_combinations(self, setting: Setting, score: str) -> None:
        names = [name for name in NORMALIZERS if name != "sum" or score in NONNEGATIVE]
        masks = self.sample(setting, MASKS)
        if setting.library == "jax":  # compiling each call takes half a second
            names, masks = ["softmax", "top-k"], masks[::4]
        self.check_cases(setting, (Case(score, name, mask) for name in names for mask in masks))

    @pytest.mark.long
    def test_agrees_with_the_oracle_for_every_shape(self, setting: Setting, score: str) -> None:
        name = "sum" if score in NONNEGATIVE else "softmax"
        shapes = list(SHAPES)
        if setting.library == "jax":  # each dtype compiles a quarter of the shapes for a score, and all for four scores
            shapes = shapes[sorted(SCORES).index(score) % 4 :: 4]
        self.check_cases(setting, (Case(score, name, "causal by positions", shape) for shape in shapes))

    def check_cases(self, setting: Setting, cases: Iterable[Case]) -> None:
        """Assert that output and gradients agree with the reference for all cases that the kernel supports."""
        for case in cases:
            try:
                got = self.run(case.call(), setting)
            except RefusedError:
                continue
            # These scores are logarithms of kernels with compact support, which are steep at the boundary.
            slack = 10.0 if case.score in ("epanechnikov", "triangular") else 1.0
            assert_agrees(got, oracle(case, setting.dtype), setting, str(case), slack)

    def test_second_derivatives_are_right(self, twice: Case) -> None:
        if "torch" not in self.kernel.libraries:
            return  # other libraries are not tested
        import torch

        call, float64 = twice.call(), Setting("torch", "float64")

        def attend(*leaves: ArrayLike) -> ArrayLike:
            return qkv.attend(*leaves[:3], **parts_of(call, float64, leaves[3:]), kernel=self.kernel)

        leaves = [x.requires_grad_() for x in inputs_of(call, float64)]
        if self.twice:
            assert torch.autograd.gradgradcheck(attend, leaves, fast_mode=True)
            return
        with pytest.raises(RuntimeError, match=r"not implemented|cannot run this"):
            torch.autograd.gradgradcheck(attend, leaves, fast_mode=True)

    def test_differentiable_gradients_are_right_where_one_tensor_is_given_three_times(self, twice: Case) -> None:
        if "torch" not in self.kernel.libraries or not self.twice:
            return
        import torch

        call, float64 = replace(twice.call(), mask=None), Setting("torch", "float64")

        def gradients(kernel: Kernel | str) -> list[ArrayLike]:
            x, _, _, *arrays = (leaf.requires_grad_() for leaf in inputs_of(call, float64))
            output = cast("torch.Tensor", qkv.attend(x, x, x, **parts_of(call, float64, arrays), kernel=kernel))
            first = torch.autograd.grad(output.sin().sum(), [x, *arrays], create_graph=True)
            return [*first, *torch.autograd.grad([g.square().sum() for g in first], [x, *arrays])]

        for got, expected in zip(gradients(self.kernel), gradients("dense"), strict=True):
            torch.testing.assert_close(got, expected)

    def test_arrays_laid_out_in_strides_give_the_same(self, setting: Setting) -> None:
        self.assert_as_oracle(Case("scaled dot", "softmax", "none", "strided").call(), setting)
