"""Quantization of weights to codes of three significant digits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.look.quantize import MASKED, dequantize, exponent_of, max_pool, pool_codes, quantize, thumbnails, to_numpy


def digits(weights):
    return [f"{weight:.3g}" for weight in np.ravel(weights)]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_codes_have_the_first_three_digits_of_every_weight(weights):
    array = np.array([weights])
    codes, exponents = quantize(array)
    assert codes.dtype == np.uint16
    # 35 decades below the largest weight, a weight counts as almost 0.
    visible = np.abs(array) >= 10.0 ** max(exponent_of(array), -300)
    assert digits(dequantize(codes, exponents)[visible]) == digits(array[visible])
    assert (np.abs(dequantize(codes, exponents)[~visible]) <= 1e-45).all()
    order = np.argsort(array[0], kind="stable")
    assert (np.diff(codes[0, order].astype(int)) >= 0).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 0.3, 1.0, 4e5])
def test_maps_of_any_scale_keep_three_digits(scale):
    weights = np.random.default_rng(0).random((3, 50, 60)) ** 4 * scale
    codes, exponents = quantize(weights.astype(np.float32))
    assert digits(dequantize(codes, exponents)) == digits(weights.astype(np.float32).astype(float))


@pytest.mark.parametrize("count", [3, 7, 32, 320, 4096])
def test_uniform_weights_which_may_be_ties_round_as_python_does(count):
    codes, exponents = quantize(np.full((4, 4), 1 / count))
    assert set(digits(dequantize(codes, exponents))) == {f"{1 / count:.3g}"}


def test_zero_masked_and_not_finite_weights_have_codes_of_their_own():
    weights = np.array([[0.0, 0.5, np.nan, np.inf, -np.inf]])
    codes, exponents = quantize(weights, np.array([[True, False, True, True, True]]))
    assert codes[0, 1] == MASKED
    shown = dequantize(codes, exponents)
    assert shown[0, :2].tolist() == [0, 0]
    assert np.isnan(shown[0, 2:]).all()


def test_half_precision_tensors_are_accepted():
    torch = pytest.importorskip("torch")
    codes, exponents = quantize(torch.eye(3, dtype=torch.bfloat16, requires_grad=True))
    assert dequantize(codes, exponents).tolist() == np.eye(3).tolist()


@pytest.mark.parametrize("signed", [False, True])
def test_pooled_codes_are_the_weights_of_largest_magnitude(signed):
    rng = np.random.default_rng(0)
    weights = np.round(rng.normal(size=(2, 40, 30)), 2) if signed else np.round(rng.random((2, 40, 30)), 2)
    allowed = rng.random(weights.shape) < 0.2
    codes, exponents = quantize(weights, allowed)
    pooled = pool_codes(codes, 8, 10)
    cells = np.where(allowed, weights, 0).reshape(2, 8, 5, 10, 3).swapaxes(2, 3).reshape(2, 8, 10, 15)
    at = np.abs(cells).argmax(axis=-1)[..., None]
    expected = np.take_along_axis(cells, at, axis=-1)[..., 0]
    assert np.allclose(np.abs(dequantize(pooled, exponents)), np.abs(expected))
    assert np.array_equal(pooled == MASKED, max_pool(allowed.astype(int), 8, 10) == 0)


@pytest.mark.parametrize("size", [(3, 5), (32, 32), (33, 100), (512, 7)])
def test_a_thumbnail_keeps_the_largest_weight(size):
    weights = np.zeros((2, *size))
    weights[0, size[0] // 2, size[1] - 1] = 0.7
    codes, exponents = quantize(weights)
    thumbs = dequantize(thumbnails(codes, 32), exponents)
    assert thumbs.shape == (2, 32, 32)
    assert (thumbs[0].max(), thumbs[1].max()) == (0.7, 0)


def test_tensors_of_booleans_and_integers_keep_their_type():
    torch = pytest.importorskip("torch")
    assert to_numpy(torch.tensor([True, False])).dtype == bool
    assert to_numpy(torch.tensor([1], dtype=torch.int8)).dtype == np.int8
    assert to_numpy(torch.tensor([1.5], dtype=torch.bfloat16)).dtype == np.float32
    assert to_numpy(torch.tensor([1.5], dtype=torch.float64)).dtype == np.float64
