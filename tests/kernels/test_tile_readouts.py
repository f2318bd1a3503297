"""Pooled maps computed with the output, and readouts accumulated tile by tile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.core.tile import Tile
from qkv.kernels.runtime.tile_readouts import readable_in_forward
from qkv.kernels.tiled.readouts import ReadoutCollector, align_to_cells
from qkv.readouts import Heads, PooledMap, Readout, TopWeights
from qkv.testing.readouts import TileReader

torch = pytest.importorskip("torch")


def forward(query: Any, key: Any, readouts: Sequence[Readout], rows: int, cols: int, **how: Any) -> Any:
    """Run a loop over tiles as a kernel does, for softmax of inner products, and return the maps alone.

    `base`: 2 for logits in base 2; `bound`: exponentials relative to one number, without running maxima;
    `allowed`: a mask `(q, k)`, whose empty tiles are passed over.
    """
    base, bound, allowed = how.get("base", 1), how.get("bound"), how.get("allowed")
    exp = torch.exp2 if base == 2 else torch.exp
    tile = Tile.whole(query.shape[-2], key.shape[-2], tuple(query.shape[:-2]))
    collector = ReadoutCollector(readouts, tile, query)
    for index in np.ndindex(*tile.batch):
        blocks = collector.element_maps(index)
        logits = query[index] @ key[index].T * (math.log2(math.e) if base == 2 else 1)
        if allowed is not None:
            logits = logits.where(allowed, -math.inf)
        for r in range(0, tile.q_total, rows):
            some = logits[r : r + rows]
            for one in blocks:
                one.start((r, r + len(some)))
            maximum = torch.full((len(some), 1), -math.inf, dtype=query.dtype)
            total = torch.zeros_like(maximum)
            for c in range(0, tile.k_total, cols):
                piece = some[:, c : c + cols]
                if not (piece > -math.inf).any():
                    continue
                old = maximum
                maximum = maximum.maximum(piece.amax(-1, keepdim=True))
                shift = maximum.where(maximum > -math.inf, 0.0)
                e = exp(piece - (shift if bound is None else bound))
                total = total * exp(old - shift) + e.sum(-1, keepdim=True)
                for one in blocks:
                    one.update(e, (c, c + piece.shape[1]), maximum if bound is None else None)
                e.zero_()  # kernels use it again
            shift = maximum.where(maximum > -math.inf, 0.0)
            if bound is not None:
                shift, total = torch.full_like(maximum, bound), exp(some - bound).sum(-1, keepdim=True)
            for one in blocks:
                one.finalize(shift, total, exp)
    return collector.results()


def drawn(q: int, k: int, batch: tuple[int, ...] = ()) -> Any:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn((*batch, n, 3), generator=generator, dtype=torch.float64) * 2 for n in (q, k))


def wanted(query: Any, key: Any, readouts: Sequence[Readout], mask: Any = None) -> Any:
    seen = qkv.observe(query, key, key, score=qkv.scores.Dot(), mask=mask, readouts=readouts, kernel="dense")
    return seen.readouts


def same(found: Any, other: Any) -> None:
    for mine, theirs in zip(found, other, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-14)


BOTH = [PooledMap(size, how) for size in (1, 4, 5, 16, 100) for how in ("mean", "max")]  # type: ignore[arg-type]


@pytest.mark.thinned
@pytest.mark.parametrize("tile", [(8, 8), (7, 5), (3, 64), (64, 2), (1, 1)], ids=str)
@pytest.mark.parametrize("shape", [(32, 48), (33, 47), (1, 9), (9, 1)], ids=str)
def test_maps_from_one_pass_equal_maps_of_the_weights(shape: tuple[int, int], tile: tuple[int, int]) -> None:
    query, key = drawn(*shape)
    same(forward(query, key, BOTH, *tile), wanted(query, key, BOTH))


@pytest.mark.parametrize("how", [{"base": 2}, {"bound": 3.0}, {"bound": 2.0, "base": 2}], ids=str)
def test_exponentials_may_be_in_base_2_and_relative_to_a_bound(how: Any) -> None:
    query, key = drawn(17, 23)
    same(forward(query, key, BOTH, 5, 4, **how), wanted(query, key, BOTH))


def test_skipped_tiles_and_queries_without_keys_add_nothing() -> None:
    query, key = drawn(24, 24)
    allowed = torch.ones(24, 24, dtype=torch.bool).tril()
    allowed[3], allowed[6:16] = False, False
    found = forward(query, key, BOTH, 8, 8, allowed=allowed)
    same(found, wanted(query, key, BOTH, qkv.masks.AllowedPairs(allowed)))
    assert not found[2][1].any()  # the map of 4 × 4 means: its second row holds queries 6 to 11
    assert found[2][0].any()


def test_only_selected_heads_have_a_map() -> None:
    query, key = drawn(12, 20, (2, 3))
    readouts = [Heads(PooledMap(4), (2, 0, 2)), Heads(PooledMap(3, "max"), (-2,)), PooledMap(6)]
    found = forward(query, key, readouts, 5, 7)
    same(found, wanted(query, key, readouts))
    assert found[0].shape == (2, 3, 4, 4)
    assert found[1].shape == (2, 1, 3, 3)


def test_one_pass_supports_softmax_alone() -> None:
    assert readable_in_forward([PooledMap(4)], qkv.normalizers.Softmax(sink=1.0))
    assert not readable_in_forward([PooledMap(4)], qkv.normalizers.TopK(3))
    assert not readable_in_forward([PooledMap(4)], qkv.normalizers.Sigmoid())


def test_readouts_other_than_maps_and_log_sum_exp_need_a_second_pass() -> None:
    tile, like = Tile.whole(6, 9, (2,)), torch.zeros(())
    assert ReadoutCollector([PooledMap(4), Heads(PooledMap(4, "max"), (0,))], tile, like).in_parallel
    assert not ReadoutCollector([PooledMap(4), TopWeights(4)], tile, like).in_parallel


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
        same(mine if isinstance(mine, tuple) else [mine], theirs if isinstance(theirs, tuple) else [theirs])


@pytest.mark.parametrize("wide", [1.0, 40.0], ids=["bounded", "with a maximum"])
@pytest.mark.parametrize("sink", [None, 0.7])
def test_log_sum_exp_needs_no_second_pass_over_the_tiles(sink: float | None, wide: float) -> None:
    query, key = drawn(300, 520, (2, 3))
    query = query * wide
    total = qkv.readouts.LogSumExp()
    readouts = [total, PooledMap(7), Heads(total, (2, -3))]
    options: Any = {
        "normalizer": qkv.normalizers.Softmax(1.5, sink=sink),
        "mask": qkv.masks.Window(40, 0)
        & ~qkv.masks.Documents(np.repeat([0, 1, 2], [2, 100, 198]), np.arange(520) // 2),
        "positions": qkv.Positions(align="start"),
        "readouts": readouts,
    }
    other = qkv.observe(query, key, key, kernel="dense", **options).readouts
    found = qkv.observe(query, key, key, kernel="tiled", **options).readouts
    for mine, theirs in zip(found, other, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-14, atol=1e-14)
    assert (found[0] == -math.inf).any() == (sink is None)
    assert ReadoutCollector(readouts, Tile.whole(300, 520, (2, 3)), query).in_parallel
