"""Vectors of texts in a latent space."""

import numpy as np

from qkv.encoders import LatentEncoder

TEXTS = ["gold ring", "gold ring gold", "ring of gold", "silver crown", "silver crown silver", "bread"]


def test_a_text_orthogonal_to_the_latent_space_becomes_zero_not_rounding_errors_of_length_one():
    keys = LatentEncoder(2, weighting=None).fit_encode(TEXTS)
    assert not keys[-1].any()  # no word of "bread" is in one of the two dimensions
    np.testing.assert_allclose(np.linalg.norm(keys[:-1], axis=1), 1.0, atol=1e-6)


def test_a_text_almost_orthogonal_to_the_latent_space_keeps_length_one():
    encoder = LatentEncoder(2, weighting=None)
    encoder.fit_encode(TEXTS)
    mixed = encoder.encode(["bread " * 1000 + "gold"])
    np.testing.assert_allclose(np.linalg.norm(mixed), 1.0, atol=1e-6)
