"""Quantization of weights to bytes."""

import numpy as np
import pytest

from qkv.look.quantize import dequantize, quantize, thumbnails


@pytest.mark.parametrize("scale", [1e-6, 0.3, 1.0, 40.0])
def test_a_dequantized_weight_has_an_error_of_at_most_1_255th_of_its_scale(scale):
    weights = np.random.default_rng(0).random((3, 50, 60)) ** 4 * scale
    codes, most = quantize(weights)
    assert codes.dtype == np.uint8
    assert np.allclose(most, weights.max(axis=(1, 2)))
    assert (np.abs(dequantize(codes, most) - weights).max(axis=(1, 2)) <= most / 255).all()


def test_zero_stays_zero_and_the_largest_is_exact():
    codes, scale = quantize(np.array([[0.0, 0.7], [0.1, 0.2]]))
    shown = dequantize(codes, scale)
    assert shown[0, 0] == 0
    assert shown[0, 1] == pytest.approx(0.7)


def test_maps_of_zeros_and_of_nan_are_zeros():
    codes, scale = quantize(np.array([[[0.0]], [[np.nan]]]))
    assert codes.tolist() == [[[0]], [[0]]]
    assert scale.tolist() == [0, 0]


def test_half_precision_tensors_are_accepted():
    torch = pytest.importorskip("torch")
    codes, _ = quantize(torch.eye(3, dtype=torch.bfloat16, requires_grad=True))
    assert codes.tolist() == (255 * np.eye(3, dtype=int)).tolist()


@pytest.mark.parametrize("size", [(3, 5), (32, 32), (33, 100), (512, 7)])
def test_a_thumbnail_keeps_the_largest_weight(size):
    codes = np.zeros((2, *size), np.uint8)
    codes[0, size[0] // 2, size[1] - 1] = 255
    thumbs = thumbnails(codes, 32)
    assert thumbs.shape == (2, 32, 32)
    assert (thumbs[0].max(), thumbs[1].max()) == (255, 0)
