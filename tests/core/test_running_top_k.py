"""The largest elements of a stream are those of the whole, whatever the cuts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.core.ordering import RunningTopK
from tests.effort import cases


def best_of(rank, count, cuts):
    best = RunningTopK(rank.shape[:-1], count, rank.dtype)
    for start, stop in zip([0, *cuts], [*cuts, rank.shape[-1]], strict=True):
        best.update(rank[..., start:stop], start)
    return best


@settings(max_examples=cases(60), deadline=None)
@given(
    st.integers(0, 2**31),
    st.integers(1, 12),
    st.integers(1, 60),
    st.lists(st.integers(0, 60), max_size=4),
    st.sampled_from(["float32", "float64"]),
)
def test_the_best_rows_are_those_of_a_stable_sort(seed, count, rows, cuts, dtype):
    draw = np.random.default_rng(seed)
    rank = draw.integers(0, 6, (3, rows)).astype(dtype)  # many ties
    rank[draw.random(rank.shape) < 0.3] = -np.inf
    best = best_of(rank, count, sorted(min(cut, rows) for cut in cuts))
    for query in range(3):
        order = np.argsort(-rank[query], kind="stable")[:count]
        order = order[rank[query][order] > -np.inf]
        assert best.index[query][best.index[query] >= 0].tolist() == order.tolist()
        assert best.rank[query][: len(order)].tolist() == rank[query][order].tolist()
        assert (best.index[query][len(order) :] == -1).all()


@pytest.mark.parametrize("rows", [8192, 8193, 30_000])
def test_long_rows_are_cut_without_losing_any(rows):
    rank = np.random.default_rng(0).integers(0, 50, (2, rows)).astype(np.float32)
    best = best_of(rank, 100, [20_000] if rows > 20_000 else [])
    for query in range(2):
        assert best.index[query].tolist() == np.argsort(-rank[query], kind="stable")[:100].tolist()


@pytest.mark.parametrize("cuts", [[], [700], [40, 41, 1500]])
def test_axes_of_rows_and_tiles_stored_keys_first_change_nothing(cuts):
    rank = np.random.default_rng(0).normal(size=(2, 3, 2000))
    best = best_of(np.ascontiguousarray(rank.swapaxes(-1, -2)).swapaxes(-1, -2), 7, cuts)
    assert (best.index == np.argsort(-rank, axis=-1)[..., :7]).all()


def test_a_known_largest_element_skips_only_what_cannot_enter():
    best = best_of(np.array([[5.0, 4.0], [1.0, 0.0]]), 1, [])
    rank = np.array([[5.0, 3.0], [0.0, 2.0]])
    best.update(rank, 2, rank.max(axis=-1))
    assert best.index.tolist() == [[0], [3]]
    best.update(np.array([[np.nan], [np.nan]]), 4, np.array([np.nan, np.nan]))
    assert best.index.tolist() == [[4], [4]]


def test_what_is_no_number_ranks_highest_to_be_seen():
    best = best_of(np.array([[1.0, np.nan, 3.0]]), 2, [1])
    assert best.index.tolist() == [[1, 2]]
