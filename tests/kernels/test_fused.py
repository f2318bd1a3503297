"""The fused kernel: PyTorch's fused attention, with mapped batch axes, split masks and a finiteness check."""

import itertools
from typing import Any

import numpy as np
import pytest

import qkv
from qkv import masks, normalizers, scores
from qkv.errors import RefusedError
from qkv.kernels import FusedKernel
from qkv.kernels.fused import kernel as fused_kernel
from qkv.kernels.fused import pair_bias
from qkv.plan.cache import PLANS
from qkv.testing.cases import Case
from qkv.testing.kernels import KernelContract
from qkv.testing.libraries import Setting
from tests.effort import sample

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

# Of PyTorch itself: no batching rule for its fused attention, and a deprecated function it calls.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

TWICE = [
    Case("scaled dot", "softmax", "none"),
    Case("gaussian", "softmax with temperature", "causal at the end"),
    Case("biased per key", "softmax", "keys"),
    Case("cosine", "softmax", "causal at the end", "more queries than keys"),
    Case("dot", "softmax", "none", "heads that share keys"),
]


class TestFused(KernelContract):
    kernel = FusedKernel()

    @pytest.mark.parametrize("case", TWICE, ids=str)
    def test_second_derivatives_of_supported_calls_are_right(self, case: Case) -> None:
        assert self.accepts(case.call(), FLOAT64)
        self.test_second_derivatives_are_right(case)


FLOAT64 = Setting("torch", "float64")

BATCHES: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
    ((), (), ()),
    ((3,), (), ()),
    ((3,), (1,), (3,)),
    ((2, 3), (2, 1), (2, 1)),
    ((2, 3), (1, 3), (1, 3)),
    ((1, 3), (2, 3), (2, 1)),
    ((2, 2, 3), (2, 2, 1), (2, 2, 1)),
    ((2, 2, 3), (1, 2, 1), (2, 2, 1)),
    ((2, 1, 2, 3), (2, 1, 2, 3), (2, 1, 2, 3)),
    ((2, 2, 2, 3), (2, 2, 2, 1), (2, 2, 2, 1)),
]
"""Batch axes of query, key and value."""


def made(*shape: int) -> Any:
    """Return normally distributed numbers that require a gradient."""
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def both(query: Any, key: Any, value: Any, **options: Any) -> list[list[Any]]:
    """Output and gradients, of the fused kernel and of the dense."""
    out = []
    for kernel in ("fused", "dense"):
        output = qkv.attend(query, key, value, kernel=kernel, **options)
        weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
        total, sides = (output * weight).sum(), (query, key, value)
        out.append([output, *torch.autograd.grad(total, sides, allow_unused=True, materialize_grads=True)])
    return out


def twice(query: Any, key: Any, value: Any, **options: Any) -> list[list[Any]]:
    """Second derivatives, of the fused kernel and of the dense."""
    out = []
    for kernel in ("fused", "dense"):
        output, sides = qkv.attend(query, key, value, kernel=kernel, **options), (query, key, value)
        first = torch.autograd.grad(output.square().sum(), sides, create_graph=True)
        out.append(list(torch.autograd.grad(sum(x.square().sum() for x in first), sides)))
    return out


def assert_same(pair: list[list[Any]]) -> None:
    for mine, theirs in zip(*pair, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("q", "k", "start"), [(5, 9, 4), (9, 5, -4), (5, 9, 2), (4, 4, -9), (3, 8, 7)])
def test_causal_from_any_position_is_right(q: int, k: int, start: int) -> None:
    positions = qkv.Positions(query_start=start)
    query, key, value = made(2, 2, q, 4), made(2, 1, k, 4), made(2, 1, k, 4)
    assert_same(both(query, key, value, mask=masks.Causal(), positions=positions))


def test_batch_axes_that_would_have_to_be_copied_are_refused() -> None:
    with pytest.raises(RefusedError, match="cannot be mapped to two without a copy"):
        qkv.attend(made(2, 3, 4, 5, 2), made(2, 1, 4, 6, 2), made(1, 3, 1, 6, 2), kernel="fused")


@pytest.mark.thinned
@pytest.mark.parametrize("side", ["query", "key", "value"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gradient", [True, False])
def test_nonfinite_inputs_give_the_result_of_the_oracle(side: str, bad: float, dtype: Any, gradient: bool) -> None:
    # Few keys, so that no vector of the operator is full, and many; one element, and a whole row.
    for k, width, mask in itertools.product((5, 33), (slice(1, 2), slice(None)), (None, masks.Causal())):
        arrays = {name: torch.randn(1, 2, k, 8).to(dtype) for name in ("query", "key", "value")}
        arrays[side][0, 0, k - 2, width] = bad
        leaves = [x.requires_grad_(gradient) for x in arrays.values()]
        seen = [qkv.attend(*leaves, mask=mask, kernel=kernel) for kernel in ("fused", "dense")]
        torch.testing.assert_close(*seen, equal_nan=True, rtol=2e-2, atol=2e-2)


@pytest.mark.thinned
@pytest.mark.parametrize("k", [5, 33, 600])
@pytest.mark.parametrize("mask", [None, masks.Causal("start"), masks.Lengths(4), masks.Causal("end")])
def test_products_in_bfloat16_stay_within_the_documented_error(k: int, mask: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(fused_kernel, "_multiplies_bfloat16", lambda: True)
    qkv.plan.cache.PLANS.clear()
    sides = [torch.randn(2, 3, n, 16).bfloat16() for n in (7, k, k)]
    exact = qkv.attend(*[x.double() for x in sides], mask=mask, kernel="dense")
    found = [qkv.attend(*sides, mask=mask, kernel="fused") for _ in range(2)]  # the second call has a cached plan
    for output in (*found, qkv.attend(sides[0].float().bfloat16(), *sides[1:], mask=mask, kernel="fused")):
        assert output.dtype == torch.bfloat16
        assert float((output.double() - exact).abs().max() / exact.abs().max()) < 3e-2
    broken = [x.clone() for x in sides]
    broken[1][0, 0, 3, 1] = torch.inf
    seen = [qkv.attend(*broken, mask=mask, kernel=kernel) for kernel in ("fused", "fused", "dense")]
    for output in seen[:2]:
        torch.testing.assert_close(output, seen[2], equal_nan=True, rtol=2e-2, atol=2e-2)
    whole = torch.ones(2, 3, 7, 16, dtype=torch.int64)
    torch.testing.assert_close(
        qkv.attend(whole, *sides[1:], mask=mask, kernel="fused"),
        qkv.attend(whole, *sides[1:], mask=mask, kernel="dense"), rtol=2e-2, atol=2e-2,
    )  # fmt: skip
    qkv.plan.cache.PLANS.clear()


def test_nonfinite_padding_runs_fused_without_leaking() -> None:
    query, key, value = (torch.randn(2, 3, 6, 4, dtype=torch.float64) for _ in range(3))
    mask = masks.Lengths(torch.tensor([[4], [6]]))
    wanted = qkv.attend(query, key, value, mask=mask, kernel="dense")
    for side in (key, value):
        side[0, :, 4:] = torch.nan
    key.requires_grad_()
    seen = qkv.observe(query, key, value, mask=mask, kernel="fused")
    assert seen.plan.guards_taken == ("finite but for masked keys: fused",)
    torch.testing.assert_close(seen.output, wanted)
    (gradient,) = torch.autograd.grad(seen.output.sum(), key)
    assert (gradient[0, :, 4:] == 0).all()
    assert gradient.isfinite().all()


SHARED: dict[str, tuple[Any, dict[str, Any]]] = {
    "heads": (((2, 3),) * 3, {"score": scores.ALiBi(scores.ScaledDot(), torch.rand(2, 3).double())}),
    "elements": (((4, 3),) * 3, {"score": scores.ALiBi(scores.ScaledDot(), torch.rand(1, 3).double())}),
    "grouped heads": (((2, 2, 4), (2, 2, 1), (2, 2, 1)), {"mask": masks.Causal()}),
    "shared keys": (((4,), (1,), (1,)), {"mask": masks.Lengths([7])}),
}


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("case", SHARED)
def test_threads_that_share_the_backward_pass_give_the_gradients_of_one(
    threads: int, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.kernels.fused.sdpa._SHARED_PAIRS", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    batches, options = SHARED[case]
    sides = [made(*batch, n, 4) for batch, n in zip(batches, (13, 17, 17), strict=True)]
    got, wanted = (
        torch.autograd.grad(
            qkv.attend(*sides, kernel=kernel, positions=qkv.Positions(query_start=4), **options).square().sum(), sides
        )
        for kernel in ("fused", "dense")
    )
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
    assert float(torch.tensor(1e-40) * 1.0) > 0.0, "subnormal numbers are flushed after the call"


def test_shared_keys_get_gradients_of_their_own_size_inside_the_operator() -> None:
    plan = qkv.explain((2, 8, 5, 4), (2, 1, 5, 4), (2, 1, 5, 4), library="torch", kernel="fused")
    assert "8 query heads share a key head (enable_gqa)" in str(plan)
    plan = qkv.explain((2, 4, 3, 5, 4), (2, 4, 1, 5, 4), (2, 4, 1, 5, 4), library="torch", kernel="fused")
    assert "3 query heads share a key head (enable_gqa)" in str(plan)


def test_learned_bias_with_one_row_for_all_queries_runs_fused_and_trains() -> None:
    query, key, value = (torch.randn(2, 5, 4, dtype=torch.float64) for _ in range(3))
    bias = made(2, 1, 5)
    found = []
    for kernel in ("fused", "dense"):
        seen = qkv.observe(query, key, value, score=scores.Biased(scores.Dot(), bias), kernel=kernel)
        assert seen.plan.kernel.name == kernel
        found.append(torch.autograd.grad(seen.output.square().sum(), bias)[0])
    torch.testing.assert_close(*found)


def test_class_table_with_few_classes_on_one_side_is_an_inner_product() -> None:
    query, key, value = made(6, 4), made(7, 4), made(7, 4)
    table = made(5, 3)
    classes = torch.arange(6) % 5, torch.arange(7) % 3
    score = scores.ClassTable(scores.ScaledDot(), table, *classes)
    found = [
        torch.autograd.grad(qkv.attend(query, key, value, score=score, kernel=kernel).square().sum(), [query, table])
        for kernel in ("fused", "dense")
    ]
    torch.testing.assert_close(*found)


def test_class_table_with_many_classes_is_looked_up() -> None:
    score = scores.ClassTable(scores.Dot(), np.zeros((70, 80)), np.zeros(4, int), np.zeros(6, int))
    assert score.form.lift is None


# -- what hides the data ---------------------------------------------------------------------------------

HIDDEN: list[dict[str, Any]] = [{}, {"mask": masks.Causal()}, {"mask": masks.Lengths(9)}]


@pytest.mark.parametrize("mask", [masks.Causal(), masks.Lengths(4)], ids=str)
def test_masked_data_does_not_leak_in_traced_calls(mask: masks.Mask) -> None:
    query, key, value = (torch.randn(2, 6, 4, dtype=torch.float64) for _ in range(3))
    wanted = qkv.attend(query, key, value, mask=mask, kernel="dense")
    key[:, 5], value[:, 5, 0] = torch.nan, torch.inf
    seen = torch.func.vmap(lambda *sides: qkv.attend(*sides, mask=mask, kernel="fused"))(query, key, value)
    torch.testing.assert_close(seen[:, :5], wanted[:, :5])
    if isinstance(mask, masks.Causal):
        assert seen[:, 5].isnan().all()


def test_kernels_that_read_data_are_refused_where_forward_mode_moves_the_arrays() -> None:
    x = torch.randn(2, 4, 3)
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(RefusedError, match=r"neither its forward-mode nor its second derivatives"):
            qkv.attend(x, x, x, kernel="fused")
        with pytest.raises(RefusedError, match=r"does not support forward-mode derivatives"):
            qkv.attend(x, x, x, kernel="tiled")


@pytest.mark.parametrize("options", HIDDEN, ids=str)
def test_exported_program_holds_the_public_attention_and_gives_the_same(options: dict[str, Any]) -> None:
    class Attend(torch.nn.Module):
        def forward(self, query: Any, key: Any, value: Any) -> Any:
            return qkv.attend(query, key, value, kernel="fused", **options)

    arrays = tuple(torch.randn(2, 3, 16, 8) for _ in range(3))
    program = torch.export.export(Attend(), arrays)
    assert any("scaled_dot_product_attention" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(*arrays), qkv.attend(*arrays, kernel="dense", **options))


PAIR_MASKS = ["none", "pairs", "window", "pairs of keys and causal", "empty rows"]


@pytest.mark.parametrize(
    ("query", "key", "value", "mask", "rows"),
    sample([(*batch, mask, rows) for batch in BATCHES for mask in PAIR_MASKS for rows in (2, 32)], 7),
    ids=str,
)
def test_masks_and_offsets_of_pairs_run_in_the_operator(
    monkeypatch: pytest.MonkeyPatch, query: Any, key: Any, value: Any, mask: str, rows: int
) -> None:
    monkeypatch.setattr(pair_bias, "_BLOCK_BYTES", 0)
    monkeypatch.setattr(pair_bias, "_MIN_ROWS", rows)
    monkeypatch.setattr(pair_bias, "_ROWS", rows)
    monkeypatch.setattr(pair_bias, "_MANY_PAIRS", 1)
    PLANS.clear()
    q, k = 5, 7
    learned = [made(*query, q, 4), made(*key, k, 4), made(*value, k, 4)]
    sides = [x.detach() for x in learned]
    batch = np.broadcast_shapes(query, key, value)
    allowed = torch.rand(*batch, q, k) > 0.4
    some = {
        "none": None,
        "pairs": masks.AllowedPairs(allowed),
        "window": masks.Window(1, 2),
        "pairs of keys and causal": masks.Causal() & masks.AllowedPairs(allowed[..., :1, :]),
        "empty rows": masks.AllowedPairs(allowed & (torch.arange(q) != 1)[:, None]),
    }
    given: list[scores.Score] = [
        scores.ScaledDot(),
        scores.Biased(scores.ScaledDot(), torch.randn(q, k, dtype=torch.float64)),
        scores.Biased(scores.ALiBi(scores.Dot(0.3), 0.2), torch.randn(*batch, q, k, dtype=torch.float64)),
    ]
    options: dict[str, Any] = {"mask": some[mask], "positions": qkv.Positions(align="end")}
    for score, normalizer in itertools.product(given, (normalizers.Softmax(), normalizers.Softmax(0.5))):
        options |= {"score": score, "normalizer": normalizer}
        seen = [qkv.attend(*sides, kernel=kernel, **options) for kernel in ("fused", "fused", "dense")]
        for output in seen[:2]:  # the second call has a cached plan
            torch.testing.assert_close(output, seen[2], rtol=1e-10, atol=1e-10)
        if score.form.inner is not None or mask not in ("none", "pairs of keys and causal"):
            assert_same(both(*learned, **options))
            assert_same(twice(*learned, **options))
        broken = [x.clone() for x in sides]
        broken[1][..., 3, :] = torch.nan
        broken[2][..., 2, 1] = torch.inf
        seen = [qkv.attend(*broken, kernel=kernel, **options) for kernel in ("fused", "dense")]
        torch.testing.assert_close(*seen, rtol=1e-10, atol=1e-10, equal_nan=True)


class KeysRead(TorchDispatchMode):
    """Records how many keys PyTorch's fused attention gets in each call."""

    counts: list[int]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "attention_for_cpu" in func.name():
            backward = "backward" in func.name()
            self.counts.append(args[2 if backward else 1].shape[-2])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("mask", "start", "keys"),
    [
        (masks.Lengths(torch.tensor([[5], [8]])), 0, 8),
        (masks.Lengths(torch.tensor([[5], [8]])) & masks.Causal(), 0, 8),
        (masks.Lengths(8) & masks.AllowedPairs(torch.arange(96).view(3, 32) % 3 > 0), 0, 8),
        (masks.Window(4, 0), 20, 7),
        (masks.Prefix(6), 4, 7),
        (masks.Lengths(30), 0, 32),
    ],
    ids=str,
)
@pytest.mark.parametrize("score", [scores.ScaledDot(), scores.ALiBi(scores.ScaledDot(), 0.3)], ids=str)
def test_keys_after_the_last_visible_one_are_not_read(
    mask: masks.Mask, start: int, keys: int, score: scores.Score, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_bias, "_FEWEST_PAIRS", 1)
    sides = [made(2, 4, n, 8) for n in (3, 32, 32)]
    options: dict[str, Any] = {"mask": mask, "score": score, "positions": qkv.Positions(query_start=start)}
    assert_same(both(*sides, **options))
    assert_same(twice(*sides, **options))
    sides = [x.detach() for x in sides]
    qkv.attend(*sides, kernel="fused", **options)
    with KeysRead() as seen:
        seen.counts = []
        seen_output = qkv.attend(*sides, kernel="fused", **options)
    assert seen.counts == [keys]
    torch.testing.assert_close(seen_output, qkv.attend(*sides, kernel="dense", **options))


def test_the_plan_does_not_depend_on_lengths() -> None:
    sides = [torch.randn(2, 4, 300, 16) for _ in range(3)]
    for mask in (masks.Lengths(torch.tensor([[3], [5]])), masks.Causal() & masks.Lengths(torch.tensor([[3], [5]]))):
        full = masks.Lengths(torch.tensor([[300], [300]])) if isinstance(mask, masks.Lengths) else masks.Causal()
        assert qkv.explain(*sides, mask=mask).kernel.name == qkv.explain(*sides, mask=full).kernel.name


def test_gradients_of_learned_offsets_are_refused() -> None:
    score, sides = scores.Biased(scores.ScaledDot(), made(5, 5)), [made(5, 4).detach() for _ in range(3)]
    with pytest.raises(RefusedError, match="is not an inner product"):
        qkv.attend(*sides, score=score, kernel="fused")
    fixed = scores.Biased(scores.ScaledDot(), score.bias.detach())
    assert qkv.explain(*[x.requires_grad_() for x in sides], score=fixed).kernel.name == "fused"


@pytest.mark.parametrize(
    ("sentence", "options"),
    [
        ("with dropout PyTorch needs quadratic memory", {"dropout": 0.1}),
        ("would need an array of 64 × 64", {"mask": masks.Window(3, 3), "score": scores.Gaussian()}),
        ("would need an array of 64 × 64", {"mask": ~masks.Causal(), "score": scores.Cosine()}),
    ],
)
def test_calls_without_a_linear_form_are_refused(sentence: str, options: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match=sentence):
        qkv.explain((64, 4), (64, 4), (64, 4), library="torch", kernel="fused", gradient=True, **options)
