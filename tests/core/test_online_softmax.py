"""Partials merge in any order and any grouping."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.online_softmax import ExponentialSums, PartialResult, TopKeys, WeightedSums, merge_all

CELL = st.sampled_from([-np.inf, -800.0, -1.0, 0.0, 0.5, 800.0])
ROWS = st.lists(CELL, min_size=3, max_size=3)


def exp_sum(logit, value):
    x = np.array([[logit]])
    total = np.zeros((1, 1)) if logit == -np.inf else np.ones((1, 1))
    return ExponentialSums(x, total, total * value)


def best(logit, index, size=2):
    x = np.array([[logit]])
    return TopKeys(x, np.array([[-1 if logit == -np.inf else index]]), x, np.array([[[float(index)]]]), size)


def same(one, other):
    fields = [name for name in vars(one) if name != "size"]
    return all(np.allclose(getattr(one, f), getattr(other, f), rtol=1e-13, equal_nan=True) for f in fields)


@given(ROWS)
def test_sums_of_exponentials_merge_in_any_order_and_grouping(logits):
    a, b, c = (exp_sum(logit, value) for value, logit in enumerate(logits, 1))
    with ignore_numpy_warnings():
        assert same(a.merge(b), b.merge(a))
        assert same(a.merge(b).merge(c), a.merge(b.merge(c)))


@given(ROWS)
def test_best_keys_merge_in_any_order_and_grouping(logits):
    a, b, c = (best(logit, index) for index, logit in enumerate(logits))
    left, right = a.merge(b).merge(c), c.merge(b.merge(a))
    kept = left.index >= 0
    assert (left.index == right.index).all()
    assert (left.value[kept] == right.value[kept]).all()


def test_of_equal_keys_the_lower_index_is_kept_whatever_the_order():
    parts = [best(1.0, index) for index in (4, 2, 3)]
    assert merge_all(parts).index.tolist() == merge_all(parts[::-1]).index.tolist() == [[2, 3]]


def test_a_key_that_is_not_a_number_comes_first_so_that_it_shows():
    merged = merge_all([best(5.0, 0), best(np.nan, 1), best(7.0, 2)])
    assert merged.index.tolist() == [[1, 2]]


def test_an_infinite_value_that_was_read_stays_although_later_keys_outweigh_it():
    early = ExponentialSums(np.array([[0.0]]), np.ones((1, 1)), np.array([[np.inf]]))
    late = ExponentialSums(np.array([[2000.0]]), np.ones((1, 1)), np.array([[1.0]]))
    with ignore_numpy_warnings():
        assert early.merge(late).weighted.tolist() == [[np.inf]]


def test_rows_that_met_no_key_merge_to_a_row_that_met_none():
    nothing = exp_sum(-np.inf, 1.0)
    with ignore_numpy_warnings():
        merged = nothing.merge(nothing)
    assert (merged.maximum, merged.total, merged.weighted) == (-np.inf, 0, 0)


def test_a_tree_of_many_is_their_sum():
    parts = [WeightedSums(np.array([[1.0]]), np.array([[float(n)]])) for n in range(11)]
    merged = merge_all(parts)
    assert (merged.total.item(), merged.weighted.item()) == (11, 55)


def test_a_partial_that_does_not_say_how_it_merges_is_an_error():
    with pytest.raises(TypeError, match=r"PartialResult does not say how it merges"):
        PartialResult().merge(PartialResult())
