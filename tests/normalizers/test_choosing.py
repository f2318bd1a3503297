"""Normalizers that choose keys: exactly as many as asked, ties to the lowest index, whole or in tiles."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.tile import Tile
from qkv.normalizers import Entmax15, Hard, Identity, Sample, Sigmoid, Softmax, Sparsemax, TopK
from qkv.normalizers.selection import is_selected
from qkv.testing.libraries import LIBRARIES, Setting, to_float64
from qkv.testing.normalizers import accumulate_tiles

TIES = st.lists(st.sampled_from([-np.inf, 0.0, 1.0, 2.0]), min_size=1, max_size=9)


def first_best(row, count):
    """Indices of the largest that are not excluded, ties to the lowest index."""
    kept = [j for j, x in enumerate(row) if x > -np.inf]
    return sorted(sorted(kept, key=lambda j: -row[j])[:count])


@given(TIES, st.integers(1, 4))
def test_exactly_k_keys_are_kept_and_ties_go_to_the_lowest_index(row, k):
    for library in set(LIBRARIES) - {"jax"}:
        setting = Setting(library, "float64")
        weights = to_float64(TopK(k).weights(setting.array([row])))[0]
        assert np.flatnonzero(weights).tolist() == first_best(row, k)


def test_ties_go_to_the_lowest_index_in_jax_too():
    setting = Setting("jax", "float32")
    row = [1.0, 2.0, 2.0, -np.inf, 2.0, 1.0]
    assert np.flatnonzero(to_float64(TopK(2).weights(setting.array([row])))).tolist() == [1, 2]
    assert np.flatnonzero(to_float64(Hard().weights(setting.array([row])))).tolist() == [1]


@given(TIES, st.integers(1, 4), st.data())
def test_tile_by_tile_the_same_keys_are_kept(row, k, data):
    """In tiles of any size, merged in any order."""
    n = len(row)
    edges = sorted(data.draw(st.lists(st.integers(0, n), max_size=3)))
    cuts = list(zip([0, *edges], [*edges, n], strict=True))
    tile, logits, value = Tile.whole(1, n, seed=1), np.array([row]), np.eye(n)
    for normalizer in (TopK(k), Hard(), TopK(k, normalizer=Identity())):
        with ignore_numpy_warnings():
            order = lambda size: data.draw(st.permutations(range(size)))[:2]  # noqa: E731 (two words, used once)
            output, summary = accumulate_tiles(normalizer, logits, value, tile, cuts, 0.0, order)
            tiles = [normalizer.tile_weights(logits[:, a:b], summary, tile.restrict((0, 1), (a, b))) for a, b in cuts]
        weights = normalizer.weights(logits, tile)
        assert np.allclose(output, weights, rtol=1e-13)
        assert np.allclose(np.concatenate(tiles, axis=-1), weights, rtol=1e-13)


def test_more_keys_asked_for_than_there_are_is_all_of_them():
    row = np.array([[0.3, -1.0, 2.0]])
    assert np.allclose(TopK(10).weights(row), Softmax().weights(row), rtol=1e-15)


def test_a_key_that_is_not_chosen_is_not_read():
    value = np.array([[1.0], [np.nan], [3.0]])
    logits, tile = np.array([[2.0, -5.0, 2.0]]), Tile.whole(1, 3, seed=1)
    with ignore_numpy_warnings():
        assert accumulate_tiles(TopK(2), logits, value, tile, [(0, 3)], 0.0)[0].tolist() == [[2.0]]
        assert accumulate_tiles(Hard(), logits, value, tile, [(0, 1), (1, 3)], 0.0)[0].tolist() == [[1.0]]


@pytest.mark.parametrize("inner", [Hard(), TopK(1), Sample()], ids=str)
def test_what_chooses_among_the_chosen_says_that_it_must_see_whole_rows(inner):
    assert not TopK(2, normalizer=inner).online
    assert TopK(2, normalizer=Softmax()).online


@pytest.mark.parametrize(
    ("k", "maxima", "bound"),
    [
        (2, [5.0, 1.0, 4.0], 4.0),  # fewer than 4 k groups: the k-th largest maximum
        (3, [5.0, 1.0], -np.inf),  # fewer groups than k
        (2, [5.0, 1.0], 1.0),
        (1, [1.0, 4.0, 2.0, 3.0], 4.0),
        (2, [9.0, 1.0, 2.0, 3.0, 8.0, 1.0, 2.0, 3.0], 3.0),  # 9 and 8 are merged in one group: 9, 1, 2, 3
    ],
)
def test_the_threshold_bound_of_top_k_is_the_kth_largest_of_at_least_2_k_merged_groups(k, maxima, bound):
    assert TopK(k).threshold_bound(np.array([maxima])).tolist() == [[bound]]


def test_top_k_of_a_normalizer_that_selects_keys_has_no_threshold_bound():
    assert TopK(2, Hard()).threshold_bound(np.zeros((1, 8))) is None


@pytest.mark.parametrize("normalizer", [Sparsemax(), Entmax15()])
def test_the_threshold_bound_of_a_sparse_normalizer_is_its_threshold_where_each_group_is_one_key(normalizer):
    logits = np.random.default_rng(0).normal(size=(5, 12)) * 2
    logits[1, 4:] = -np.inf
    weights = normalizer.weights(logits)
    lowest_kept = np.where(weights > 0, logits, np.inf).min(axis=-1, keepdims=True)
    highest_dropped = np.where(weights > 0, -np.inf, logits).max(axis=-1, keepdims=True)
    bound = normalizer.threshold_bound(logits)
    assert (bound < lowest_kept).all()
    assert (bound >= highest_dropped - 1e-6).all()


def test_the_threshold_bound_of_a_one_hot_normalizer_is_the_largest_rank():
    assert Hard().threshold_bound(np.array([[1.0, 5.0, 2.0]])).tolist() == [[5.0]]


@pytest.mark.parametrize("scale", [1.0, 3000.0])
@pytest.mark.parametrize("normalizer", [Sparsemax(), Entmax15()])
def test_the_threshold_bound_merges_many_groups_by_their_maxima_and_leaves_room_for_rounding(normalizer, scale):
    rng = np.random.default_rng(1)
    largest = (rng.normal(size=(3, 300)) * 2 + scale).astype(np.float32)
    merged = np.maximum(largest[:, :150], largest[:, 150:])
    bound = normalizer.threshold_bound(largest)
    assert (bound == normalizer.threshold_bound(merged)).all()
    maximum = merged.max(axis=-1, keepdims=True)
    shifted = (merged - maximum).astype(np.float64)
    exact = normalizer.threshold_bound(shifted) + maximum
    slack = (exact - bound) / (np.finfo(np.float32).eps * (1 + np.abs(maximum)))
    assert (slack > 12).all()
    assert (slack < 20).all()


def test_the_inner_normalizer_suffices_for_at_most_k_keys():
    inner = Softmax()
    top = TopK(3, normalizer=inner)
    assert [top.simplify(k) for k in (2, 3, 4)] == [inner, inner, top]


@pytest.mark.parametrize("normalizer", [Hard(), Sample(), TopK(3), TopK(5, normalizer=Sigmoid())])
def test_weights_from_logits_that_differ_in_the_last_bit_select_the_same_keys(normalizer):
    rng = np.random.default_rng(0)
    value, tile = rng.normal(size=(2, 40, 3)), Tile.whole(30, 40, (2,), seed=1)
    logits = np.where(rng.random((2, 30, 40)) < 0.3, -np.inf, np.round(rng.normal(size=(2, 30, 40)), 1))
    cuts = [(0, 16), (16, 40)]
    output, summary = accumulate_tiles(normalizer, logits, value, tile, cuts, 0.0)
    again = logits * (1 + rng.choice([-1, 0, 1], size=logits.shape) * 2.0**-52)
    parts = [
        normalizer.tile_weights(normalizer.prepare(again[..., a:b]), summary, tile.restrict((0, 30), (a, b)))
        for a, b in cuts
    ]
    weights = np.concatenate(parts, -1)
    assert_allclose(weights, normalizer.weights(logits, tile), atol=1e-14)
    assert_allclose(weights @ value, output, atol=1e-14)


def test_indices_outside_of_a_tile_select_nothing():
    index = np.array([[-1, 3, 6, 9]])
    assert is_selected(index, np.zeros((1, 4)), Tile.whole(1, 9).restrict((0, 1), (3, 7))).tolist() == [
        [True, False, False, True]
    ]


def test_of_several_candidates_the_first_with_the_largest_rank_has_all_weight():
    logits = np.array([[1.0, 5.0, 5.0, 4.0]])
    assert Hard().candidate_weights(logits, logits, Tile.whole(1, 4)).tolist() == [[0.0, 1.0, 0.0, 0.0]]


def test_top_k_draws_from_the_kept_keys_with_the_seed_of_the_call():
    logits, tile = np.array([[3.0, 3.0, 3.0, 0.0]] * 50), Tile.whole(50, 4, seed=1)
    weights = TopK(3, normalizer=Sample()).weights(logits, tile)
    kept = np.where(logits == 0, -np.inf, logits)
    assert (weights == Sample().weights(kept, tile)).all()


def test_a_kept_key_whose_weight_underflows_is_still_read():
    logits, value, tile = np.array([[0.0, -1e4, -2e4]]), np.array([[1.0], [np.nan], [2.0]]), Tile.whole(1, 3)
    top = TopK(2)
    for finite in (False, True):
        output, _ = top.finalize(top.accumulate(logits, value, tile, 0.0, finite), tile, 0.0)
        assert np.isnan(output).all()


@pytest.mark.parametrize("normalizer", [Sparsemax(), Entmax15()])
def test_the_threshold_bound_of_a_batch_is_that_of_each_of_its_rows(normalizer):
    largest = np.random.default_rng(2).normal(size=(2, 3, 20))
    rows = np.concatenate([normalizer.threshold_bound(row) for row in largest.reshape(6, 1, 20)])
    assert normalizer.threshold_bound(largest).reshape(6, 1).tolist() == rows.tolist()
