"""Corners where kernels once differed from the equation: each was found by random calls."""

from __future__ import annotations

import numpy as np
import pytest

import qkv
from qkv import masks, normalizers, scores
from qkv.core.equation import attend_dense
from qkv.kernels import StreamedKernel, TiledKernel

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


@pytest.mark.parametrize("kernel", ["dense", "tiled", "strip"])
def test_query_of_nan_gives_nan_where_a_value_is_infinite(kernel: str) -> None:
    query, key, value = (torch.ones((3, 2), dtype=torch.float64) for _ in range(3))
    query[1, 0], value[2, 1] = torch.nan, torch.inf
    output = qkv.attend(query, key, value, kernel=kernel)
    assert output[1].isnan().all()
    assert output[0].tolist() == [1.0, torch.inf]


@pytest.mark.parametrize("kernel", ["dense", "tiled", "strip"])
def test_kept_key_of_a_weight_too_small_for_a_number_is_read(kernel: str) -> None:
    query, key = torch.ones((1, 1), dtype=torch.float64), torch.tensor([[0.0], [2000.0], [1.0]]).double()
    value = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, torch.nan]]).double()
    parts = {"score": scores.Dot(), "normalizer": normalizers.TopK(2)}
    output = qkv.attend(query, key, value, kernel=kernel, **parts)
    assert output[0, 0] == 2
    assert output[0, 1].isnan()


@pytest.mark.parametrize("normalizer", [normalizers.Sparsemax(), normalizers.TopK(4)], ids=str)
def test_strips_of_few_keys_do_not_follow_autocast(normalizer: normalizers.Normalizer) -> None:
    rng = np.random.default_rng(1)
    draw = [torch.tensor(rng.normal(size=shape), dtype=torch.float32) for shape in ((2, 40, 8),) * 3]
    arrays = [torch.tensor(rng.normal(size=n), dtype=torch.float32) for n in ((6, 8), (6, 8), 6, 6)]
    parts = {"score": scores.Additive(*arrays), "normalizer": normalizer, "kernel": "strip"}
    wanted = qkv.attend(*draw, **parts)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(qkv.attend(*draw, **parts), wanted)


@pytest.mark.parametrize("kernel", ["dense", StreamedKernel(budget=32)], ids=str)
def test_bytes_in_another_order_are_the_same_numbers(kernel: str | StreamedKernel) -> None:
    rng = np.random.default_rng(2)
    query, key, value = (rng.normal(size=(n, 3)).astype("f4") for n in (4, 9, 9))
    allowed = np.arange(9) < 6
    wanted = qkv.attend(query, key, value, mask=masks.Keys(allowed), kernel=kernel)
    key[6:], value[6:] = np.nan, np.inf
    swapped = [x.astype(">f4") for x in (query, key, value)]
    output = qkv.attend(*swapped, mask=masks.Keys(allowed), kernel=kernel)
    assert output.dtype == np.dtype("float32")
    assert np.allclose(output, wanted, atol=1e-6)
    wide = qkv.attend(query, key[:6].astype(">f8"), value[:6], kernel=kernel)
    assert wide.dtype == np.dtype("float64")
    lengths = masks.Lengths(np.asarray(6, dtype=">i8"))
    assert np.allclose(qkv.attend(query, key, value, mask=lengths, kernel=kernel), wanted, atol=1e-6)
