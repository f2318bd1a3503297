"""Contract tests of how kernels handle positions, empty and unequal lengths, readouts, memory and sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import qkv
from qkv import masks, normalizers, readouts, scores
from qkv.core.positions import Positions
from qkv.errors import PositionError, RefusedError, ShapeError
from qkv.testing.cases import MASKS, NORMALIZERS, SCORES, SHAPES, Call, Case
from qkv.testing.execution import run_eagerly
from qkv.testing.kernel_harness import KernelHarness
from qkv.testing.libraries import Setting, assert_close, to_float64

__all__ = ["CallSemanticsContract"]

_POSITIONAL: dict[str, Any] = {
    "causal": {"mask": masks.Causal()},
    "window": {"mask": masks.Window(1, 1)},
    "prefix": {"mask": masks.Prefix(1)},
    "not causal, or some keys": {"mask": ~masks.Causal() | masks.Keys(np.ones(4, dtype=bool))},
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
        lambda c: replace(c, mask=masks.Keys(np.ones(3, dtype=bool))),
        r"Keys must have shape \(\*batch, 4\).*\(3,\)",
    ),
    "a mask of pairs": (
        lambda c: replace(c, mask=masks.Pairs(np.ones((4, 2), dtype=bool))),
        r"Pairs must have shape \(\*batch, 2, 4\).*\(4, 2\)",
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
        for align, wanted in (
            ("start", [[1, 0, 0, 0], [0.5, 0.5, 0, 0]]),
            ("end", [[1 / 3] * 3 + [0], [0.25] * 4]),
        ):
            self.assert_output(replace(call, mask=masks.Causal(align)), setting, wanted, align)  # type: ignore[arg-type]

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
        for name, call in self.each_normalizer(setting, 1, mask=masks.Pairs(allowed), value=value):
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
