"""The NumPy block kernel's softmax: one pass over the keys, without copies or loss of digits."""

import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import qkv
from qkv import masks, normalizers, scores
from qkv.core import equation
from qkv.core.equation import attend_dense
from qkv.core.tile import Tile
from qkv.core.typing import Array
from qkv.kernels import NumpyBlocksKernel
from qkv.kernels.numpy_blocks import logits as block_logits
from qkv.kernels.numpy_blocks.logits import BINARY, NATURAL, Exponential
from qkv.scores.forms import Product

SMALL = NumpyBlocksKernel(budget=64)
"""Tiles of 8 × 8."""
KINDS: list[Exponential] = [NATURAL, BINARY]


def drawn(*shape: int, dtype: str = "float32", seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def exact(query: Array, key: Array, value: Array, **options: Any) -> Array:
    """The oracle in float64."""
    wide = [np.asarray(x, dtype="float64") for x in (query, key, value)]
    options.setdefault("normalizer", normalizers.Softmax())
    return attend_dense(*wide, **options).output


@dataclass(frozen=True, eq=False)
class Watched(scores.Dot):
    """A dot product that records which keys it lifts."""

    seen: ClassVar[list[tuple[int, int]]] = []

    def lift(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array]:
        self.seen.append(tile.cols)
        return query, key


# -- One pass, no copy -----------------------------------------------------------------------------------


@pytest.mark.parametrize("queries", [1, 30])
def test_every_key_is_projected_once_for_any_number_of_queries(queries: int) -> None:
    for _ in range(2):  # the first call tries the score on drawn arrays
        Watched.seen.clear()
        qkv.attend(drawn(queries, 4), drawn(500, 4), drawn(500, 2), score=Watched(), kernel=SMALL)
    tiles = [cols for cols in Watched.seen if cols != (0, 1)]  # a query is lifted beside the first key
    assert len(tiles) > 1
    assert [start for start, _ in tiles] == [0, *(stop for _, stop in tiles[:-1])]
    assert tiles[-1][1] == 500


@pytest.mark.parametrize("mask", [None, masks.AllowedKeys(np.arange(50) % 3 > 0), masks.Causal("start")])
def test_finiteness_of_data_is_not_checked_beforehand(monkeypatch: pytest.MonkeyPatch, mask: Any) -> None:
    call = (drawn(30, 4), drawn(50, 4), drawn(50, 2))
    monkeypatch.setattr(equation, "all_finite", None)  # to call it would raise
    got = qkv.attend(*call, score=scores.Gaussian(), mask=mask, kernel=SMALL)
    monkeypatch.undo()
    np.testing.assert_allclose(got, exact(*call, score=scores.Gaussian(), mask=mask), rtol=1e-5, atol=1e-6)


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("score", [scores.ScaledDot(), scores.Gaussian(4.0)], ids=str)
def test_memory_mapped_keys_are_never_copied_whole(tmp_path: Path, dtype: str, score: Any) -> None:
    np.save(tmp_path / "keys.npy", drawn(200_000, 32, dtype=dtype))
    key = np.load(tmp_path / "keys.npy", mmap_mode="r")
    query, value = drawn(3, 32, dtype=dtype), drawn(200_000, 1, dtype="float64")
    plan = qkv.explain(query, key, value, score=score, kernel="numpy_blocks")
    tracemalloc.start()
    got = qkv.attend(query, key, value, score=score, kernel="numpy_blocks")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 22_000_000  # a copy in float64 would take 51 million bytes
    assert peak < 1.25 * plan.cost.peak + 10**6
    np.testing.assert_allclose(got, exact(query, key, value, score=score), atol=1e-9)


@pytest.mark.thinned
@pytest.mark.parametrize("score", [scores.ScaledDot(), scores.Gaussian(4.0)], ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(150_000, 20), (60_000, 5000)])
def test_planned_peak_is_within_a_quarter_of_what_is_allocated(score: Any, queries: int, keys: int) -> None:
    query, key, value = drawn(queries, 32), drawn(keys, 32), drawn(keys, 48)
    plan = qkv.explain(query, key, value, score=score, kernel="numpy_blocks")
    tracemalloc.start()
    output = qkv.attend(query, key, value, score=score, kernel="numpy_blocks")
    peak = tracemalloc.get_traced_memory()[1] - output.nbytes
    tracemalloc.stop()
    assert (peak > 32 * 10**6) == (keys > 4096)  # blocks of whole rows are smaller than the sums of all queries
    assert 0.8 < plan.cost.scratch / peak < 1.25


# -- Digits ----------------------------------------------------------------------------------------------


def test_float64_values_with_float32_keys_give_float64_output() -> None:
    query, key = drawn(1, 2), drawn(300_000, 2)
    value = 1.0 + 1e-9 * np.arange(300_000)[:, None]
    wanted = exact(query, key, value, score=scores.Dot())
    single = qkv.attend(query, key, value.astype("float32"), score=scores.Dot(), kernel="numpy_blocks")
    double = qkv.attend(query, key, value, score=scores.Dot(), kernel="numpy_blocks")
    assert (single.dtype, double.dtype) == ("float32", "float64")
    assert abs(single - wanted).max() < 3e-7
    assert abs(double - wanted).max() < 1e-13


@pytest.mark.parametrize("exp", KINDS, ids=["e^x", "2^x"])
@pytest.mark.parametrize("order", ["rising", "falling", "far below", "far above", "one peak"])
@pytest.mark.parametrize("queries", [1, 40])
def test_logits_of_any_size_in_any_order_agree_with_the_oracle(
    monkeypatch: pytest.MonkeyPatch, exp: Exponential, order: str, queries: int
) -> None:
    monkeypatch.setattr(block_logits, "faster_exponential", lambda dtype: exp)
    rising = np.arange(60.0) * 50
    far = np.zeros(60)
    far[37] = 400
    key = {"rising": rising, "falling": -rising, "far below": far - 9000, "far above": far + 9000}.get(order, far)
    query = np.linspace(0.5, 1, queries, dtype="float32")[:, None]
    call = (query, key.astype("float32")[:, None], drawn(60, 2))
    got = qkv.attend(*call, score=scores.Dot(), kernel=SMALL)
    np.testing.assert_allclose(got, exact(*call, score=scores.Dot()), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("exp", KINDS, ids=["e^x", "2^x"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exponentials_are_right_and_none_is_subnormal(exp: Exponential, dtype: str) -> None:
    least = 90 if dtype == "float32" else 740
    x = np.linspace(-least * 1.5, 10, 4001).astype(dtype)
    got = (x * np.asarray(exp.factor, dtype=dtype)).copy()
    exp.apply_(got)
    wanted = np.exp(x.astype("float64"))
    floor = 2.0 ** (-100 if dtype == "float32" else -900)
    np.testing.assert_allclose(got, wanted, rtol=2e-5 if dtype == "float32" else 2e-13, atol=2 * floor)
    assert ((got == 0) | (got >= np.finfo(dtype).tiny)).all()
    assert (got[wanted < floor / 2] == 0).all()


# -- What is masked --------------------------------------------------------------------------------------


@pytest.mark.parametrize("large", [3e38, -3e38])
def test_masked_value_of_the_largest_number_has_no_effect(large: float) -> None:
    query, key, value = drawn(20, 4), drawn(40, 4), 1e-6 * drawn(40, 2)
    mask = masks.AllowedKeys(np.arange(40) % 5 > 0)
    wanted = qkv.attend(query, key, value, mask=mask, kernel=SMALL)
    value[::5] = large
    np.testing.assert_array_equal(qkv.attend(query, key, value, mask=mask, kernel=SMALL), wanted)


@dataclass(frozen=True, eq=False)
class Halves(masks.Mask):
    """A mask that allows or excludes whole tiles; evaluating the pairs of a tile raises."""

    def coverage(self, tile: Tile) -> masks.base.Coverage:
        return "none" if tile.cols[0] >= 32 else "all" if tile.cols[1] <= 32 else "part"

    def allowed(self, tile: Tile, reference: Array) -> Array:
        raise AssertionError("a tile that is allowed as a whole was looked into")


def test_mask_is_not_evaluated_in_tiles_that_it_allows_or_excludes_as_a_whole() -> None:
    query, key, value = drawn(8, 4), drawn(64, 4), drawn(64, 2)
    value[32:] = np.nan
    Watched.seen.clear()
    got = qkv.attend(query, key, value, score=Watched(), mask=Halves(), kernel=SMALL)
    np.testing.assert_allclose(got, exact(query, key[:32], value[:32], score=scores.Dot()), rtol=1e-5)
    assert max(start for start, _ in Watched.seen) < 32


# -- Facts, not types ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("score", "product"),
    [
        (scores.ScaledDot(), True),
        (scores.Gaussian(), True),
        (scores.Projected(scores.Gaussian()), True),
        (scores.Biased(scores.Dot(), per_key=np.zeros(3)), True),
        (scores.Biased(scores.Gaussian(), per_key=np.zeros(3)), False),
        (scores.QuadraticPosition(scores.Dot()), False),
        (scores.Softcap(scores.Dot()), False),
        (scores.Laplace(), False),
    ],
    ids=str,
)
def test_scores_declare_whether_they_are_inner_products(score: scores.Score, product: bool) -> None:
    assert isinstance(score.form, Product) is product
