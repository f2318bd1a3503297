"""The array API functions of TensorFlow compute what those of NumPy compute."""

import importlib.util
import os

import numpy as np
import pytest

if not all(importlib.util.find_spec(name) for name in ("tensorflow", "keras")):
    pytest.skip("TensorFlow or Keras is not installed", allow_module_level=True)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
X = np.random.default_rng(0).integers(0, 6, (2, 3, 4)).astype(np.float32)


@pytest.fixture(name="tf")
def _tf():
    return pytest.importorskip("tensorflow")


@pytest.fixture(name="xp")
def _xp(tf):
    from qkv.core.arrays import namespace

    return namespace(tf.constant(X))


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((4, 5), (5, 3)),
        ((2, 4, 5), (2, 5, 3)),
        ((2, 4, 5), (1, 5, 3)),
        ((1, 4, 5), (2, 5, 3)),
        ((4, 5), (2, 5, 3)),
        ((3, 1, 4, 5), (1, 2, 5, 6)),
        ((4, 5), (1, 1, 5, 3)),
        ((2, 4, 5), (1, 1, 5, 3)),
        ((1, 4, 5), (1, 5, 3)),
        ((0, 4), (4, 0)),
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_products_broadcast_batch_axes_with_their_shapes(tf, xp, left, right, compiled):
    a, b = (np.random.default_rng(1).normal(size=shape) for shape in (left, right))
    function = tf.function(xp.matmul) if compiled else xp.matmul
    got = function(tf.constant(a), tf.constant(b))
    np.testing.assert_allclose(got, a @ b, atol=1e-12)
    assert tuple(got.shape) == (a @ b).shape


def test_lengths_unknown_to_the_tracer_give_the_same_product(tf, xp):
    x, y = np.random.default_rng(1).normal(size=(2, 4, 5)), np.random.default_rng(2).normal(size=(1, 5, 3))
    for left, right in ((x, y), (y.swapaxes(-1, -2), x.swapaxes(-1, -2)), (x, y[0])):
        signature = [tf.TensorSpec((None,) * side.ndim, tf.float64) for side in (left, right)]
        product = tf.function(xp.matmul, input_signature=signature)(left, right)
        np.testing.assert_allclose(product, left @ right, atol=1e-12)


def test_sorting_is_stable_in_both_directions_and_indices_are_int64(tf, xp):
    x = tf.constant(X)
    assert xp.argsort(x, axis=-1).dtype == tf.int64
    np.testing.assert_array_equal(xp.argsort(x, axis=-1), np.argsort(X, axis=-1, kind="stable"))
    np.testing.assert_array_equal(xp.argsort(x, axis=-2), np.argsort(X, axis=-2, kind="stable"))
    np.testing.assert_array_equal(xp.argsort(x, axis=-1, descending=True), np.argsort(-X, axis=-1, kind="stable"))
    np.testing.assert_array_equal(xp.argsort(x), xp.argsort(x, axis=-1))
    np.testing.assert_array_equal(xp.sort(x), np.sort(X))
    np.testing.assert_array_equal(xp.sort(x, axis=0), np.sort(X, axis=0))
    np.testing.assert_array_equal(xp.sort(x, descending=True), -np.sort(-X))


def test_the_largest_and_ranges_and_dtypes_are_those_of_numpy(tf, xp):
    x = tf.constant(X)
    assert xp.argmax(x, axis=-1).dtype == tf.int64
    np.testing.assert_array_equal(xp.argmax(x, axis=-1), X.argmax(axis=-1))
    np.testing.assert_array_equal(xp.argmax(x, axis=1, keepdims=True), X.argmax(axis=1, keepdims=True))
    assert xp.arange(2, 5).dtype == tf.int64
    assert xp.arange(2, 5).numpy().tolist() == [2, 3, 4]
    assert xp.finfo(tf.float32).max == np.finfo(np.float32).max
    assert xp.result_type(tf.float32, tf.float64) == tf.float64
    assert xp.result_type(tf.int32, tf.float32) == tf.float32
    assert xp.max(tf.zeros((2, 0)), axis=-1).numpy().tolist() == [-np.inf, -np.inf]
    assert xp.bool == tf.bool
    assert xp.inf == np.inf
    assert np.isnan(xp.nan)


def test_arrays_are_broadcast_to_one_shape(tf, xp):
    one, other = xp.broadcast_arrays(tf.zeros((3, 1)), tf.ones((2, 1, 4)))
    assert tuple(one.shape) == tuple(other.shape) == (2, 3, 4)
    assert float(one[0, 0, 0]) == 0.0
    assert float(other[0, 0, 0]) == 1.0


@pytest.mark.parametrize("axis", [-1, 2, 1, 0])
def test_entries_are_taken_along_an_axis(tf, xp, axis):
    index = np.random.default_rng(3).integers(0, 2, X.shape)
    got = xp.take_along_axis(tf.constant(X), tf.constant(index), axis)
    np.testing.assert_array_equal(got, np.take_along_axis(X, index, axis))


@pytest.mark.parametrize("by", [1, 13, 31])
def test_bits_are_shifted_to_the_right_and_rotated_to_the_left(tf, xp, by):
    words = np.array([0x80000001, 0x12345678, 0xFFFFFFFF, 1], np.uint32)
    np.testing.assert_array_equal(xp.shift(tf.constant(words), by), words >> np.uint32(by))
    rotated = [((int(word) << by) | (int(word) >> (32 - by))) & 0xFFFFFFFF for word in words]
    assert xp.rotate(tf.constant(words), by).numpy().tolist() == rotated
