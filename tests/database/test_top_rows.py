"""The best rows of a stream are those of the whole, whatever the cuts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.database.execute.top_rows import TopRows
from tests.effort import cases


def best_of(rank, count, cuts):
    best = TopRows(len(rank), count)
    for start, stop in zip([0, *cuts], [*cuts, rank.shape[1]], strict=True):
        best.update(rank[:, start:stop], start)
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
        assert best.row[query][best.row[query] >= 0].tolist() == order.tolist()
        assert best.rank[query][: len(order)].tolist() == rank[query][order].tolist()
        assert (best.row[query][len(order) :] == -1).all()


@pytest.mark.parametrize("rows", [8192, 8193, 30_000])
def test_long_rows_are_cut_without_losing_any(rows):
    rank = np.random.default_rng(0).integers(0, 50, (2, rows)).astype(np.float32)
    best = best_of(rank, 100, [20_000] if rows > 20_000 else [])
    for query in range(2):
        assert best.row[query].tolist() == np.argsort(-rank[query], kind="stable")[:100].tolist()


def test_what_is_no_number_ranks_highest_to_be_seen():
    best = best_of(np.array([[1.0, np.nan, 3.0]]), 2, [1])
    assert best.row.tolist() == [[1, 2]]


def test_the_union_ascends_and_leaves_out_empty_places():
    best = best_of(np.array([[5.0, -np.inf, 1.0], [-np.inf, 2.0, -np.inf]]), 2, [])
    assert best.union().tolist() == [0, 1, 2]
    assert TopRows(2, 3).union().tolist() == []
