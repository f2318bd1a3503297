"""Batch indices: groups of batch elements, what they select from arrays that broadcast, and from a call."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.core.arrays import dtype_name
from qkv.core.batch import batch_indices, batch_shape, take_batch
from qkv.core.equation import attend_dense, bind_call
from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.masks import AllowedKeys, Causal
from qkv.normalizers import Softmax
from qkv.scores import Biased, Dot

BATCHES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@given(BATCHES, st.integers(1, 30))
def test_groups_hold_every_element_once_in_order_and_at_most_the_given_number(batch, most):
    numbers = np.arange(math.prod(batch)).reshape(batch)
    groups = [numbers[index] for index in batch_indices(batch, most)]
    assert [n for group in groups for n in np.ravel(group)] == list(range(numbers.size))
    assert all(group.size <= most for group in groups) or numbers.size == 1 == len(groups)


@pytest.mark.parametrize(
    ("batch", "most", "groups"),
    [
        ((), 5, [()]),
        ((3, 0), 5, [(slice(0, 3), slice(0, 0))]),
        ((3,), 2, [(slice(0, 2),), (2,)]),
        ((2, 1), 1, [(0, 0), (1, 0)]),
        ((2, 3), 3, [(0, slice(0, 3)), (1, slice(0, 3))]),
        ((2, 3), 6, [(slice(0, 2), slice(0, 3))]),
        ((1, 2, 3), 2, [(0, 0, slice(0, 2)), (0, 0, 2), (0, 1, slice(0, 2)), (0, 1, 2)]),
        ((2, 1, 2), 2, [(0, slice(0, 1), slice(0, 2)), (1, slice(0, 1), slice(0, 2))]),
    ],
)
def test_groups_are_whole_inner_batches_where_they_fit_and_single_elements_lose_their_axis(batch, most, groups):
    assert list(batch_indices(batch, most)) == groups


@given(BATCHES.filter(lambda batch: 0 not in batch), st.integers(1, 9), st.integers(0, 7))
def test_the_elements_of_an_array_that_broadcasts_are_those_of_the_broadcast_array(batch, most, ones):
    shape = tuple(1 if ones >> at & 1 else n for at, n in enumerate(batch))
    x = np.random.default_rng(0).normal(size=(*shape, 2))
    whole = np.broadcast_to(x, (*batch, 2))
    for index in batch_indices(batch, most):
        got = take_batch(x, index, 1)
        assert (np.broadcast_to(got, whole[index].shape) == whole[index]).all()
        assert batch_shape(batch, index) == whole[index].shape[:-1]
        assert take_batch(x[(0,) * len(batch)], index, 1).shape == (2,)


@pytest.mark.parametrize("index", [(1, slice(0, 3)), (slice(0, 2), slice(1, 2)), (0, 2)])
def test_a_call_restricted_to_batch_elements_gives_their_part_of_the_whole(index):
    rng = np.random.default_rng(3)
    query, key, value = (rng.normal(size=(2, 3, n, 4)) for n in (5, 6, 6))
    parts = {
        "score": Biased(Dot(), per_key=rng.normal(size=(2, 3, 6))),
        "normalizer": Softmax(temperature=rng.uniform(0.5, 2, size=(2, 3))),
        "mask": AllowedKeys(rng.random((2, 3, 6)) < 0.7) & Causal(),
        "positions": Positions(query_start=rng.integers(0, 3, (2, 3))),
    }
    whole = attend_dense(query, key, value, **parts)
    call = bind_call(query, key, value, dropout=0.3, seed=7, **parts)
    part = call.select_batch(index)
    logits = np.broadcast_to(part.logits((0, 5), (0, 6)), whole.weights[index].shape)
    np.testing.assert_allclose(part.normalizer.weights(logits, part.tile), whole.weights[index], rtol=1e-12)
    drawn = Tile.whole(5, 6, (2, 3), seed=7).dropout_mask(np.zeros(()), 0.3)
    assert (part.tile.dropout_mask(np.zeros(()), 0.3) == drawn[index]).all()


@pytest.mark.parametrize("dtype", [">f4", "<f4", "=f4", ">i8"])
def test_the_name_of_a_dtype_is_the_same_in_every_byte_order(dtype):
    assert dtype_name(np.zeros(2, dtype)) == np.dtype(dtype).newbyteorder("=").name
