"""Weights of Keras and Flax models are shown by `View.from_weights`, from the arrays that the layers return."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from qkv.look import View

X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")


@pytest.mark.skipif(not importlib.util.find_spec("flax"), reason="Flax is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of `sow` in Flax
def test_weights_that_a_flax_module_sows() -> None:
    import jax
    from flax import nnx

    module = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))
    causal = np.tri(5, dtype=bool)
    module(jax.numpy.asarray(X), mask=causal, sow_weights=True)
    (weights,) = jax.tree.leaves(nnx.state(module, nnx.Intermediate))
    view = View.from_weights([weights[1]], list("abcde"))
    for head in range(2):
        np.testing.assert_allclose(view.weights(0, head), weights[1, head], rtol=6e-3)


@pytest.mark.long  # TensorFlow alone takes ten seconds to import
@pytest.mark.skipif(not importlib.util.find_spec("keras"), reason="Keras is not installed")
def test_weights_that_a_keras_layer_returns() -> None:
    import keras

    layer = keras.layers.MultiHeadAttention(2, 4)
    _, weights = layer(X, X, return_attention_scores=True, use_causal_mask=True)
    view = View.from_weights([weights[1]], list("abcde"))
    for head in range(2):
        np.testing.assert_allclose(view.weights(0, head), np.asarray(weights[1, head]), rtol=6e-3)
