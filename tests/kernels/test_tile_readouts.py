"""Pooled maps computed with the output, and readouts accumulated tile by tile."""

import math
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.core.tile import Tile
from qkv.kernels import TiledKernel
from qkv.kernels.runtime.tile_readouts import readable_in_forward
from qkv.kernels.tiled.readouts import ReadoutCollector, align_to_cells
from qkv.readouts import Heads, PooledMap, TopWeights
from qkv.testing.readouts import TileReader

torch = pytest.importorskip("torch")


def drawn(q: int, k: int, batch: tuple[int, ...]) -> Any:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn((*batch, n, 3), generator=generator, dtype=torch.float64) * 2 for n in (q, k))


def test_one_pass_supports_softmax_alone() -> None:
    assert readable_in_forward([PooledMap(4)], qkv.normalizers.Softmax(sink=1.0))
    assert not readable_in_forward([PooledMap(4)], qkv.normalizers.TopK(3))
    assert not readable_in_forward([PooledMap(4)], qkv.normalizers.Sigmoid())


def test_readouts_other_than_maps_and_log_sum_exp_need_a_second_pass() -> None:
    tile, like = Tile.whole(6, 9, (2,)), torch.zeros(())
    assert not _second_pass(ReadoutCollector([PooledMap(4), Heads(PooledMap(4, "max"), (0,))], tile, like))
    assert _second_pass(ReadoutCollector([PooledMap(4), TopWeights(4)], tile, like))


def _second_pass(collector: ReadoutCollector) -> bool:
    return bool(collector.accumulators or collector.selections)


@pytest.mark.parametrize(
    ("side", "length", "size", "aligned"),
    [(512, 16_384, 512, 512), (500, 16_384, 512, 480), (500, 16_384, 4, 500), (512, 1000, 512, 512)],
)
def test_tiles_are_aligned_to_cells_if_possible(side: int, length: int, size: int, aligned: int) -> None:
    assert align_to_cells(side, length, [PooledMap(size)]) == aligned


@pytest.mark.parametrize("most", [1, 2, 3, 6, 7])
def test_readouts_of_tiles_may_take_any_number_of_heads_at_once(most: int) -> None:
    query, key = drawn(6, 9, (2, 3))
    readouts = [
        PooledMap(4, "max"),
        Heads(TopWeights(2), (2, -3, 2)),
        Heads(qkv.readouts.LogSumExp(), (1,)),
        qkv.readouts.Rows((5, 0)),
    ]
    options: Any = {
        "score": qkv.scores.Dot(),
        "normalizer": qkv.normalizers.Softmax(torch.rand(1, 3, dtype=torch.float64) + 0.5, sink=0.3),
        "mask": qkv.masks.Window(2, 0),
        "positions": qkv.Positions(align="start"),
        "readouts": readouts,
    }
    found = qkv.observe(query, key, key, kernel=TileReader(2, 3, most), **options).readouts
    other = qkv.observe(query, key, key, kernel="dense", **options).readouts
    for mine, theirs in zip(found, other, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-14)


@pytest.mark.thinned
@pytest.mark.parametrize("wide", [1.0, 40.0], ids=["bounded", "with a maximum"])
@pytest.mark.parametrize("sink", [None, 0.7])
def test_maps_and_log_sum_exp_need_no_second_pass_over_the_tiles(sink: float | None, wide: float) -> None:
    """Tiles of which the mask excludes all keys, and queries without keys, add nothing."""
    query, key = drawn(300, 520, (2, 3))
    query = query * wide
    total = qkv.readouts.LogSumExp()
    readouts = [total, PooledMap(7), PooledMap(16, "max"), Heads(total, (2, -3)), Heads(PooledMap(5, "max"), (1, 0, 1))]
    options: Any = {
        "normalizer": qkv.normalizers.Softmax(1.5, sink=sink),
        "mask": qkv.masks.Window(40, 0)
        & ~qkv.masks.Documents(np.repeat([0, 1, 2], [2, 100, 198]), np.arange(520) // 2),
        "positions": qkv.Positions(align="start"),
        "readouts": readouts,
    }
    other = qkv.observe(query, key, key, kernel="dense", **options).readouts
    for kernel in (TiledKernel(), TiledKernel(budget=64 * 50)):
        found = qkv.observe(query, key, key, kernel=kernel, **options).readouts
        for mine, theirs in zip(found, other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-13, atol=1e-14)
        assert (found[0] == -math.inf).any() == (sink is None)
    assert not _second_pass(ReadoutCollector(readouts, Tile.whole(300, 520, (2, 3)), query))


@pytest.mark.thinned
@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize("sink", [None, 0.5])
@pytest.mark.parametrize(
    "readout", [qkv.readouts.Dense(), qkv.readouts.ColumnSum(), TopWeights(3), Heads(TopWeights(2), (0,))]
)
def test_readouts_compute_the_logits_of_a_window_alone(readout: Any, sink: float | None, library: str) -> None:
    query, key = drawn(600, 700, (2, 3))
    pairs = []

    def score(query: Any, key: Any) -> Any:
        pairs.append(query.shape[-2] * key.shape[-2] * math.prod(query.shape[:-2]))
        return query @ key.swapaxes(-1, -2)

    options: Any = {
        "score": qkv.scores.Custom(score, elements=3),
        "normalizer": qkv.normalizers.Softmax(sink=sink),
        "mask": qkv.masks.Window(5, 5) & qkv.masks.AllowedKeys(np.arange(700) < 400),  # the last queries have no keys
        "positions": qkv.Positions(align="start"),
        "readouts": [readout],
    }
    (other,) = qkv.observe(query, key, key, kernel="dense", **options).readouts
    if library == "numpy":
        query, key = query.numpy(), key.numpy()
    kernel = "tiled" if library == "torch" else "numpy_blocks"
    qkv.observe(query, key, key, kernel=kernel, **options)
    pairs.clear()
    (found,) = qkv.observe(query, key, key, kernel=kernel, **options).readouts
    assert sum(pairs) < 2 * 3 * 600 * 700 / 2
    for mine, theirs in zip(found, other, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-13, atol=1e-14)
