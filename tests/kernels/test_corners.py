"""Regression tests: calls found by random search for which kernels once differed from the equation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import qkv
from qkv import masks, normalizers, scores
from qkv.core.equation import attend_dense
from qkv.kernels import NumpyBlocksKernel, TiledKernel
from qkv.testing.cases import NORMALIZERS, Case
from qkv.testing.execution import run_eagerly
from qkv.testing.libraries import Setting, assert_close, installed, turn

torch = pytest.importorskip("torch")


def test_score_that_holds_indices_is_differentiated_under_a_temperature() -> None:
    rng = np.random.default_rng(0)
    sides = [torch.tensor(rng.normal(size=(n, 3)), requires_grad=True) for n in (20, 17, 17)]
    table = torch.tensor(rng.normal(size=(2, 3)), requires_grad=True)
    classes = [torch.tensor(rng.integers(0, count, size=n)) for n, count in ((20, 2), (17, 3))]

    def gradients(attend: object) -> list[torch.Tensor]:
        score = scores.ClassTable(scores.Dot(), table, *classes)
        output = attend(*sides, score=score, normalizer=normalizers.Softmax(0.5))  # type: ignore[operator]
        return list(torch.autograd.grad((output**2).sum(), [*sides, table]))

    got = gradients(lambda *x, **parts: qkv.attend(*x, **parts, kernel=TiledKernel(budget=64)))
    wanted = gradients(lambda *x, **parts: attend_dense(*x, **parts).output)
    for mine, theirs in zip(got, wanted, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kernel", ["dense", "tiled", "row_blocks"])
def test_query_of_nan_gives_nan_where_a_value_is_infinite(kernel: str) -> None:
    query, key, value = (torch.ones((3, 2), dtype=torch.float64) for _ in range(3))
    query[1, 0], value[2, 1] = torch.nan, torch.inf
    output = qkv.attend(query, key, value, kernel=kernel)
    assert output[1].isnan().all()
    assert output[0].tolist() == [1.0, torch.inf]


@pytest.mark.parametrize("kernel", ["dense", "tiled", "row_blocks"])
def test_key_with_a_weight_that_underflows_is_read(kernel: str) -> None:
    query, key = torch.ones((1, 1), dtype=torch.float64), torch.tensor([[0.0], [2000.0], [1.0]]).double()
    value = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, torch.nan]]).double()
    parts = {"score": scores.Dot(), "normalizer": normalizers.TopK(2)}
    output = qkv.attend(query, key, value, kernel=kernel, **parts)
    assert output[0, 0] == 2
    assert output[0, 1].isnan()


@pytest.mark.parametrize("normalizer", [normalizers.Sparsemax(), normalizers.TopK(4)], ids=str)
def test_row_blocks_of_few_keys_ignore_autocast(normalizer: normalizers.Normalizer) -> None:
    rng = np.random.default_rng(1)
    draw = [torch.tensor(rng.normal(size=shape), dtype=torch.float32) for shape in ((2, 40, 8),) * 3]
    arrays = [torch.tensor(rng.normal(size=n), dtype=torch.float32) for n in ((6, 8), (6, 8), 6, 6)]
    parts = {"score": scores.Additive(*arrays), "normalizer": normalizer, "kernel": "row_blocks"}
    wanted = qkv.attend(*draw, **parts)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(qkv.attend(*draw, **parts), wanted)


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


@pytest.mark.thinned
@pytest.mark.parametrize("library", ["numpy", "torch", "jax", pytest.param("tensorflow", marks=pytest.mark.long)])
@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_chosen_kernel_returns_zeros_if_there_are_no_keys(normalizer: str, library: str) -> None:
    if not installed(library):
        pytest.skip(f"{library} is not installed")
    setting = Setting(library, "float32")
    parts = (("dot", "none"), ("dot", "blocks"), ("gaussian", "keys"), ("additive", "none"))
    # JAX compiles each call.
    for score, mask in turn(parts, list(NORMALIZERS).index(normalizer), 2 if library == "jax" else 1):
        call = Case("similarity" if normalizer == "sum" else score, normalizer, mask, "no keys").call()
        for q in (5, 3000):
            query = np.ones((2, q, 4))
            chosen = replace(call, query=query, mask=None if q != 5 else call.mask)
            output = run_eagerly(chosen, setting, None).output
            assert_close(output, np.zeros((2, q, 5)), 0.0, message=f"{score}, {mask}, {q} queries:")


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
    }[score]()


RUN = [("row_blocks", normalizers.Entmax15())]
RUN += [(kernel, n) for kernel in ("tiled", "row_blocks") for n in (normalizers.Softmax(), normalizers.Sigmoid())]


@pytest.mark.thinned
@pytest.mark.parametrize(("kernel", "normalizer"), RUN, ids=str)
@pytest.mark.parametrize("score", ["bilinear", "gated", "additive", "softcap"])
def test_backward_pass_ignores_autocast(score: str, normalizer: normalizers.Normalizer, kernel: str) -> None:
    torch.manual_seed(0)
    sides = [torch.randn(2, 40, 8, requires_grad=True) for _ in range(3)]
    parameters = [torch.randn(8, 8, requires_grad=True), torch.randn(8, requires_grad=True)]
    output = qkv.attend(*sides, score=_of(score, *parameters), normalizer=normalizer, kernel=kernel)
    towards = torch.randn_like(output)

    def gradients() -> list[torch.Tensor | None]:
        asked = [*sides, *parameters]
        return list(torch.autograd.grad(output, asked, towards, retain_graph=True, allow_unused=True))

    wanted = gradients()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = gradients()
    for mine, theirs in zip(got, wanted, strict=True):
        assert (mine is None) == (theirs is None)
        if theirs is None:
            continue
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))
