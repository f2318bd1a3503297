"""Regression tests: calls found by random search for which kernels once differed from the equation."""

import numpy as np
import pytest

import qkv
from qkv import masks, normalizers, readouts, scores
from qkv.core.equation import attend_dense
from qkv.kernels import NumpyBlocksKernel
from qkv.testing.cases import NORMALIZERS, Case
from qkv.testing.libraries import Setting

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("kernel", ["dense", "tiled", "row_blocks"])
def test_key_with_a_weight_that_underflows_is_read(kernel: str) -> None:
    query, key = torch.ones((1, 1), dtype=torch.float64), torch.tensor([[0.0], [2000.0], [1.0]]).double()
    value = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, torch.nan]]).double()
    parts = {"score": scores.Dot(), "normalizer": normalizers.TopK(2)}
    output = qkv.attend(query, key, value, kernel=kernel, **parts)
    assert output[0, 0] == 2
    assert output[0, 1].isnan()


@pytest.mark.parametrize("kernel", ["dense", NumpyBlocksKernel(budget=32)], ids=str)
def test_bytes_in_another_order_are_the_same_numbers(kernel: str | NumpyBlocksKernel) -> None:
    rng = np.random.default_rng(2)
    query, key, value = (rng.normal(size=(n, 3)).astype("f4") for n in (4, 9, 9))
    allowed = np.arange(9) < 6
    wanted = qkv.attend(query, key, value, mask=masks.AllowedKeys(allowed), kernel=kernel)
    key[6:], value[6:] = np.nan, np.inf
    swapped = [x.astype(">f4") for x in (query, key, value)]
    output = qkv.attend(*swapped, mask=masks.AllowedKeys(allowed), kernel=kernel)
    assert output.dtype == np.dtype("float32")
    assert np.allclose(output, wanted, atol=1e-6)
    wide = qkv.attend(query, key[:6].astype(">f8"), value[:6], kernel=kernel)
    assert wide.dtype == np.dtype("float64")
    lengths = masks.Lengths(np.asarray(6, dtype=">i8"))
    assert np.allclose(qkv.attend(query, key, value, mask=lengths, kernel=kernel), wanted, atol=1e-6)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_cache_without_keys_gives_zeros(normalizer: str) -> None:
    from qkv import nn

    case = Case("similarity" if normalizer == "sum" else "dot", normalizer, "none", "no batch axes")
    call = Setting("torch", "float32").part(case.call().score), Setting("torch", "float32").part(case.call().normalizer)
    attention = nn.Attention(score=call[0], normalizer=call[1])
    empty = torch.zeros((1, 0, 4))
    assert (attention(torch.ones((1, 3, 4)), empty, empty, cache=nn.KeyValueCache()) == 0).all()


NORMALIZERS_OF_TILES = [normalizers.Mean(), normalizers.Hard(), normalizers.TopK(3), normalizers.Sigmoid()]


@pytest.mark.thinned
@pytest.mark.parametrize("kernel", ["tiled", "row_blocks"])
@pytest.mark.parametrize("far", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("mask", [None, masks.Causal()], ids=str)
@pytest.mark.parametrize("normalizer", [*NORMALIZERS_OF_TILES, normalizers.Softmax()], ids=str)
def test_gradients_beside_a_value_that_is_not_finite_are_those_of_the_equation(
    normalizer: normalizers.Normalizer, mask: masks.Mask | None, far: float, kernel: str
) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(9, 4)) for _ in range(3)]
    arrays[2][4, 1] = far
    towards = torch.tensor(rng.normal(size=(9, 4)))

    def gradients(attend: object) -> list[torch.Tensor | None]:
        sides = [torch.tensor(x, requires_grad=True) for x in arrays]
        score = scores.Softcap(scores.ScaledDot(), 5.0)
        output = attend(*sides, score=score, normalizer=normalizer, mask=mask)  # type: ignore[operator]
        return list(torch.autograd.grad(output, sides, towards, allow_unused=True))

    got = gradients(lambda *x, **parts: qkv.attend(*x, **parts, kernel=kernel))
    wanted = gradients(lambda *x, **parts: attend_dense(*x, **parts).output)
    for mine, theirs in zip(got, wanted, strict=True):
        mine, theirs = (torch.zeros(9, 4).double() if x is None else x for x in (mine, theirs))
        assert torch.allclose(mine, theirs, rtol=1e-9, atol=1e-11)


def _of(score: str, weight: torch.Tensor, vector: torch.Tensor) -> scores.Score:
    return {
        "bilinear": lambda: scores.Bilinear(weight),
        "gated": lambda: scores.Gated(vector, vector),
        "additive": lambda: scores.Additive(weight, weight, None, vector),
        "softcap": lambda: scores.Softcap(scores.ScaledDot(), 5.0),
        "laplace": scores.Laplace,
    }[score]()


RUN = [("row_blocks", n) for n in (normalizers.Entmax15(), normalizers.Sparsemax(), normalizers.TopK(4))]
RUN += [(kernel, n) for kernel in ("tiled", "row_blocks") for n in (normalizers.Softmax(), normalizers.Sigmoid())]
RUN += [("batched", normalizers.Softmax())]


@pytest.mark.thinned
@pytest.mark.parametrize(("kernel", "normalizer"), RUN, ids=str)
@pytest.mark.parametrize("score", ["bilinear", "gated", "additive", "softcap", "laplace"])
def test_both_passes_ignore_autocast(score: str, normalizer: normalizers.Normalizer, kernel: str) -> None:
    torch.manual_seed(0)
    sides = [torch.randn(2, 40, 8, requires_grad=True) for _ in range(3)]
    parameters = [torch.randn(8, 8, requires_grad=True), torch.randn(8, requires_grad=True)]
    options = {"score": _of(score, *parameters), "normalizer": normalizer, "kernel": kernel}
    output = qkv.attend(*sides, **options)
    towards = torch.randn_like(output)

    def gradients() -> list[torch.Tensor | None]:
        asked = [*sides, *parameters]
        return list(torch.autograd.grad(output, asked, towards, retain_graph=True, allow_unused=True))

    wanted = gradients()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(qkv.attend(*sides, **options), output)
        got = gradients()
    for mine, theirs in zip(got, wanted, strict=True):
        assert (mine is None) == (theirs is None)
        if theirs is None:
            continue
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


@pytest.mark.parametrize("kernel", [None, "dense", "tiled", "row_blocks"])
def test_readouts_of_a_batch_without_elements_have_no_elements(kernel: str | None) -> None:
    query, key = torch.zeros(0, 2, 3, 4), torch.zeros(0, 2, 5, 4)
    every = [readouts.TopWeights(3), readouts.ColumnSum(), readouts.PooledMap(2), readouts.Entropy()]
    top, sums, pooled, entropy = qkv.observe(query, key, key, readouts=every, kernel=kernel).readouts
    shapes = [tuple(x.shape) for x in (*top, sums, pooled, entropy)]
    assert shapes == [(0, 2, 3, 3), (0, 2, 3, 3), (0, 2, 5), (0, 2, 2, 2), (0, 2, 3)]
