"""Tiled maps: every tile of every level, compared with the dense weights."""

import json
import math

import numpy as np
import pytest

from qkv.core.tile import Tile
from qkv.errors import OptionError
from qkv.look.axis import Axis
from qkv.look.page import Page
from qkv.look.quantize import MASKED, dequantize
from qkv.look.tiled_map import TILE_SIZE, TiledLayer, TiledMap, TiledView
from qkv.masks import AllowedKeys, AllowedPairs, Causal, Documents, Window

torch = pytest.importorskip("torch")


def problem(q, k, library="torch", seed=0):
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=(n, 8)) * 1.5 for n in (q, k)]
    return [torch.from_numpy(each) for each in arrays] if library == "torch" else arrays


def dense(query, key, causal=False):
    logits = np.asarray(query) @ np.asarray(key).T / np.sqrt(8)
    if causal:
        logits = np.where(np.tri(*logits.shape, dtype=bool), logits, -np.inf)
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize("causal", [False, True])
def test_any_range_of_weights_is_exact(library, causal):
    query, key = problem(700, 700, library)
    long = TiledMap.from_arrays(query, key, mask=Causal() if causal else None, size=16)
    whole = dense(query, key, causal)
    for rows, cols in (((0, 5), (0, 700)), ((650, 700), (3, 9)), ((10, 20), (600, 700))):
        assert np.allclose(long.weights(rows, cols), whole[slice(*rows), slice(*cols)], atol=1e-12)


@pytest.mark.parametrize(("q", "k"), [(700, 700), (1024, 1024), (300, 1500)])
def test_every_tile_of_every_level_is_the_maximum_and_mean_of_its_weights(q, k):
    query, key = problem(q, k)
    long = TiledMap.from_arrays(query, key, size=64)
    whole = dense(query, key)
    assert long.levels == long.base + max(0, math.ceil(math.log2(64 / TILE_SIZE)))
    for level in range(long.base):
        reach = 2**level
        for y in range(math.ceil(q / TILE_SIZE / reach)):
            for x in range(math.ceil(k / TILE_SIZE / reach)):
                codes = long.tile(level, y, x)
                shown = dequantize(codes, long.range.exponent)
                part = whole[
                    y * TILE_SIZE * reach : (y + 1) * TILE_SIZE * reach,
                    x * TILE_SIZE * reach : (x + 1) * TILE_SIZE * reach,
                ]
                high, wide = (math.ceil(n / reach) for n in part.shape)
                for i, j in ((0, 0), (high - 1, wide - 1), (high // 2, wide // 3)):
                    spot = part[i * reach : (i + 1) * reach, j * reach : (j + 1) * reach]
                    assert shown[0, i, j] == pytest.approx(spot.max(), rel=5.1e-3)
                    assert shown[1, i, j] == pytest.approx(spot.mean(), rel=5.1e-3)
                assert (codes[:, high:] == MASKED).all()
                assert (codes[:, :, wide:] == MASKED).all()
    top = dequantize(long.tile(long.base, 0, 0), long.range.exponent)
    rows, columns = (np.arange(n) * 64 // n for n in (q, k))
    for i, j in ((0, 0), (63, 63), (20, 41)):
        cell = whole[np.ix_(rows == i, columns == j)]
        assert top[0, i, j] == pytest.approx(cell.max(), rel=5.1e-3)
        assert top[1, i, j] == pytest.approx(cell.mean(), rel=5.1e-3)


def test_levels_above_the_overview_pool_its_cells_up_to_one_tile():
    query, key = problem(1200, 1200)
    long = TiledMap.from_arrays(query, key, size=600)
    assert (long.base, long.levels) == (1, 3)
    top = long.tile(3, 0, 0)
    assert dequantize(top, long.range.exponent)[0].max() == pytest.approx(long.max_overview.max(), rel=5.1e-3)
    with pytest.raises(IndexError):
        long.tile(3, 0, 1)
    joined = long.max_overview[:4, :4].max()
    assert dequantize(top, long.range.exponent)[0, 0, 0] == pytest.approx(joined, rel=5.1e-3)


def test_a_single_large_weight_is_visible_at_every_level():
    query, key = problem(900, 900)
    query[:], key[:] = 0, 0
    key[333, 0], query[555, 0] = 40.0, 40.0
    long = TiledMap.from_arrays(query, key, size=64)
    assert long.max_overview.max() == pytest.approx(1.0)
    for level in range(long.base):
        y, x = 555 // 2**level, 333 // 2**level
        tile = dequantize(long.tile(level, y // TILE_SIZE, x // TILE_SIZE), long.range.exponent)
        assert tile[0, y % TILE_SIZE, x % TILE_SIZE] == 1
    overview = dequantize(long.tile(long.base, 0, 0), long.range.exponent)
    assert overview[0, 555 * 64 // 900, 333 * 64 // 900] == 1


def test_a_row_gives_its_keys_of_largest_weight_with_ties_to_the_lowest():
    query, key = problem(300, 300)
    long = TiledMap.from_arrays(query, key, size=16)
    whole = dense(query, key)
    found = long.row(7, 5)
    assert [at for at, _ in found] == np.argsort(-whole[7], kind="stable")[:5].tolist()
    assert np.allclose([weight for _, weight in found], np.sort(whole[7])[::-1][:5])
    query[8] = 0
    assert [at for at, _ in TiledMap.from_arrays(query, key, size=16).row(8, 3)] == [0, 1, 2]


@pytest.mark.parametrize("tile", [(0, 3, 0), (0, -1, 0), (9, 0, 0), (-1, 0, 0)])
def test_a_tile_that_does_not_exist_is_refused(tile):
    with pytest.raises(IndexError):
        TiledMap.from_arrays(*problem(600, 600), size=64).tile(*tile)


def test_the_memory_of_a_tiled_map_is_predicted():
    assert 2**20 < TiledMap.required_bytes(65536, 65536, 64) < 300 * 2**20


def long_view(tokens=600):
    side = Axis.from_words([f"w{i}" for i in range(tokens)])
    maps = {f"head {h}": TiledMap.from_arrays(*problem(tokens, tokens, seed=h), size=64) for h in range(2)}
    return TiledView("long", "", "self", side, None, (TiledLayer("layer 0", maps),))


def test_a_page_serves_tiled_maps_in_tiles_and_rows():
    view = long_view()
    page = Page.from_views(view)
    assert len(page.read("tile", (0, 0, 1, 0, 1, 1))) == 2 * 2 * TILE_SIZE * TILE_SIZE
    assert page.read("row", (0, 0, 1, 5)) == json.dumps(view.head(0, 1).row(5)).encode()
    exact = view.head(0, 1).weights((5, 6), (7, 8))[0, 0]
    assert float(json.loads(page.read("weight", (0, 0, 1, 5, 7)))) == pytest.approx(exact, rel=1e-5)
    assert json.loads(page.read("pair", (0, 0, 1, 5, 7)))["weight"] == pytest.approx(exact, rel=1e-5)
    assert len(page.read("thumbnails", (0,))) == 2 * 2 * 32 * 32
    assert np.frombuffer(page.read("key_counts", (0, 0, 1)), "<u4").tolist() == [600] * 600
    with pytest.raises(LookupError, match="must be one of thumbnails"):
        page.read("map", (0, 0, 0))
    meta = page.meta()["views"][0]
    assert (meta["levels"], meta["base"], meta["overview"]) == (4, 4, [64, 64])


MASKS = {
    "causal": Causal(),
    "window": Causal() & Window(40, 0),
    "documents": Documents(np.repeat(np.arange(7), 100)),
    "pairs": AllowedPairs(np.random.default_rng(0).random((700, 700)) < 0.7),
    "keys": AllowedKeys(np.arange(700) % 300 < 200),
}


@pytest.mark.parametrize("name", MASKS)
def test_cells_whose_pairs_are_all_masked_are_marked_at_every_level(name):
    query, key = problem(700, 700, "numpy")
    mask = MASKS[name]
    long = TiledMap.from_arrays(query, key, mask=mask, size=64)
    allowed = np.broadcast_to(mask.allowed(Tile.whole(700, 700), query), (700, 700))
    for level in range(long.levels + 1):
        for y, x in ((0, 0), (1, 0), (0, 1)) if TILE_SIZE * 2**level < 700 else ((0, 0),):
            codes = long.tile(level, y, x)
            if level < long.base:
                cell = np.arange(700) // 2**level
            else:
                cell = (np.arange(700) * 64 // 700) // 2 ** (level - long.base)
            pooled = np.zeros((cell[-1] + 1, cell[-1] + 1), bool)
            np.logical_or.at(pooled, (cell[:, None], cell[None, :]), allowed)
            part = pooled[y * TILE_SIZE : (y + 1) * TILE_SIZE, x * TILE_SIZE : (x + 1) * TILE_SIZE]
            high, wide = part.shape
            assert np.array_equal(codes[:, :high, :wide] != MASKED, np.stack([part, part])), (level, y, x)
    # Only a part of the queries is counted one by one.
    counts = long.key_counts
    assert (counts == allowed.sum(axis=1)).mean() > (0.99 if name == "causal" else 0.5)
    row = long.row(150, 700)
    assert sorted(at for at, _ in row) == np.flatnonzero(allowed[150]).tolist()


def test_a_record_without_saved_inputs_is_refused():
    from qkv.interop.huggingface.attention_record import AttentionRecord

    record = AttentionRecord(0, "self", False, (1, 2, 1, 4), (), (0,), 2, 2)
    with pytest.raises(OptionError, match="save_inputs=True"):
        TiledMap.from_record(record, 0)
