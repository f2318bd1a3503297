"""The row-block kernel: its contract, with and without a search for candidates."""

import pytest

import qkv
from qkv import masks, normalizers, readouts, scores
from qkv.core import equation
from qkv.core.equation import attend_dense
from qkv.kernels import RowBlocksKernel
from qkv.kernels.row_blocks.candidates import find_candidates
from qkv.kernels.row_blocks.rows import padded_row_logits
from qkv.testing.kernels import KernelContract

torch = pytest.importorskip("torch")

NORMALIZERS = [
    normalizers.Sparsemax(),
    normalizers.Entmax15(),
    normalizers.TopK(5),
    normalizers.Hard(),
    normalizers.Sample(0.7),
]


class TestStrip(KernelContract):
    kernel = RowBlocksKernel(budget=3000)


@pytest.mark.thinned
@pytest.mark.parametrize("most", [512, 0])
@pytest.mark.parametrize("mask", [None, masks.Causal("end")], ids=str)
@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=str)
@pytest.mark.parametrize("whole", [False, True], ids=["normal", "ties"])
@pytest.mark.parametrize("workers", [1, 3])
def test_output_and_gradients_are_those_of_the_equation_for_rows_of_many_groups(
    normalizer, mask, most, whole, workers, monkeypatch
):
    monkeypatch.setattr(RowBlocksKernel, "_workers", lambda self, problem: workers)
    rng = torch.Generator().manual_seed(0)
    shapes = [(2, 2, 30, 8), (2, 1, 300, 8), (1, 2, 300, 5)]
    inputs = [torch.randn(s, generator=rng, dtype=torch.float64) for s in shapes]
    if whole:
        inputs[0], inputs[1] = inputs[0].sign(), inputs[1].round()
    inputs = [x.requires_grad_() for x in inputs]
    options = {"score": scores.Dot(), "normalizer": normalizer, "mask": mask, "dropout": 0.2, "seed": 3}
    got = qkv.attend(*inputs, kernel=RowBlocksKernel(budget=2**15, max_candidates=most), **options)
    wanted = attend_dense(*inputs, **options).output
    assert torch.allclose(got, wanted, rtol=0, atol=1e-12)
    weight = torch.randn(wanted.shape, generator=rng, dtype=torch.float64)
    pairs = zip(
        torch.autograd.grad(got, inputs, weight, materialize_grads=True, allow_unused=True),
        torch.autograd.grad(wanted, inputs, weight, materialize_grads=True, allow_unused=True),
        strict=True,
    )
    for mine, theirs in pairs:
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-10)


def test_row_with_nan_or_infinity_is_as_in_the_equation():
    query, key, value = torch.ones(4, 2), torch.rand(300, 2), torch.rand(300, 3)
    query[1, 0], query[2, 0] = torch.nan, torch.inf
    for normalizer in NORMALIZERS:
        options = {"score": scores.Dot(), "normalizer": normalizer, "seed": 1}
        got = qkv.attend(query, key, value, kernel="row_blocks", **options)
        wanted = attend_dense(query, key, value, **options).output
        assert torch.allclose(got, wanted, equal_nan=True, atol=1e-6)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_values_of_keys_without_weight_are_not_read_without_a_gradient(
    monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    query, key, value = torch.randn(5, 4), torch.randn(300, 4), torch.randn(300, 6)
    options = {"normalizer": normalizers.TopK(3), "mask": masks.Lengths(290)}
    wanted = qkv.attend(query, key, value, kernel="dense", **options)
    used = int((query @ key[:290].mT)[0].argmax())
    read, whole = [], equation.all_finite
    monkeypatch.setattr(equation, "all_finite", lambda x: read.append(tuple(x.shape)) or whole(x))
    torch.testing.assert_close(qkv.attend(query, key, value, kernel="row_blocks", **options), wanted)
    assert value.shape not in read
    value[295], value[used, 2] = bad, bad
    got = [qkv.attend(query, key, value, kernel=kernel, **options) for kernel in ("row_blocks", "dense")]
    torch.testing.assert_close(*got, equal_nan=True)
    assert not got[0][0, 2].isfinite()


def test_errors_of_a_score_reach_the_caller_from_any_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowBlocksKernel, "_workers", lambda self, problem: 3)

    def broken(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        if query.shape[-2] > 2:
            raise ZeroDivisionError("of the user's own")
        return query @ key.mT

    x, threads = torch.randn(4, 30, 4), torch.get_num_threads()
    with pytest.raises(ZeroDivisionError, match="own"):
        qkv.attend(
            x, x, x, score=scores.Custom(broken), normalizer=normalizers.Sparsemax(), kernel=RowBlocksKernel(1000)
        )
    assert torch.get_num_threads() == threads


def test_a_block_within_a_window_computes_the_keys_that_its_queries_see_and_no_others(monkeypatch):
    computed = []

    def record(call, rows, cols, *more):
        computed.append((rows, cols))
        return padded_row_logits(call, rows, cols, *more)

    monkeypatch.setattr("qkv.kernels.row_blocks.attention.padded_row_logits", record)
    x = torch.randn(1, 1300, 4, generator=torch.Generator().manual_seed(0))
    mask, normalizer = masks.Window(20, 10), normalizers.Sparsemax()
    found = qkv.attend(x, x, x, normalizer=normalizer, mask=mask, kernel="row_blocks")
    assert {rows for rows, _ in computed} == {(i, min(i + 256, 1300)) for i in range(0, 1300, 256)}
    assert all(cols == (max(0, first - 20), min(1300, last + 10)) for (first, last), cols in computed)
    expected = qkv.attend(*(x.double(),) * 3, normalizer=normalizer, mask=mask, kernel="dense")
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("most", [128, 1], ids=["candidates", "all keys"])
@pytest.mark.parametrize("normalizer", NORMALIZERS[:4], ids=str)
def test_readouts_of_candidates_are_those_of_the_equation(normalizer, most, monkeypatch):
    searched = []

    def record(*block):
        searched.append(find_candidates(*block))
        return searched[-1]

    monkeypatch.setattr("qkv.kernels.row_blocks.attention.find_candidates", record)
    x = torch.randn(2, 3, 90, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[0, 1, 40] = torch.nan
    mask = masks.Window(30, 5) & masks.Lengths(torch.tensor([[90, 60, 0], [30, 90, 1]]))
    read = [readouts.Entropy(), readouts.TopWeights(3), readouts.Heads(readouts.TopWeights(2), [0, 2])]
    found, expected = (
        qkv.observe(x, x, x, normalizer=normalizer, mask=mask, readouts=read, kernel=kernel)
        for kernel in (RowBlocksKernel(max_candidates=most), "dense")
    )
    assert any(each is None for each in searched) or most > 1
    assert any(each is not None for each in searched) or most == 1
    torch.testing.assert_close(found.output, expected.output, equal_nan=True)
    torch.testing.assert_close(found.readouts[0], expected.readouts[0], equal_nan=True)
    for mine, other in zip(found.readouts[1:], expected.readouts[1:], strict=True):
        torch.testing.assert_close(mine.weights, other.weights, equal_nan=True)
        torch.testing.assert_close(mine.keys, other.keys)
