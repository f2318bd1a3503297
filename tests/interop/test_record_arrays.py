"""Weights of Keras and Flax models are shown by `View.from_weights`, from the arrays that the layers return."""

import importlib.util

import numpy as np
import pytest

from qkv.look import View
from tests.processes import run_python

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


@pytest.mark.skipif(not importlib.util.find_spec("flax"), reason="Flax is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_flax_model_is_shown_with_the_weights_of_its_modules() -> None:
    import jax
    from flax import nnx

    from qkv import look

    class Two(nnx.Module):
        def __init__(self) -> None:
            heads = [nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(seed)) for seed in range(2)]
            self.heads = nnx.List(heads)

        def __call__(self, x: object) -> object:
            return self.heads[1](self.heads[0](x, mask=np.tri(5, dtype=bool)), x[:, :4])

    model, x = Two(), jax.numpy.asarray(X)
    expected = model(x)
    before = [one.attention_fn for one in model.heads]
    causal, cross = look.model(model, x, element=1, queries=list("abcde"), keys=list("wxyz"))
    assert [one.attention_fn for one in model.heads] == before
    np.testing.assert_array_equal(model(x), expected)
    assert [(one.kind, one.layers[0].name) for one in (causal, cross)] == [("self", "heads.0"), ("cross", "heads.1")]
    model.heads[0](x, mask=np.tri(5, dtype=bool), sow_weights=True)
    (weights,) = jax.tree.leaves(nnx.state(model, nnx.Intermediate))
    for head in range(2):
        np.testing.assert_allclose(causal.weights(0, head), weights[1, head], rtol=6e-3)
    assert causal.layers[0].codes[0, 0, 1] == 0  # masked
    assert cross.keys is not None
    assert cross.keys.tokens == tuple("wxyz")


KERAS = """
import sys

import keras
import numpy as np

from qkv import look
from qkv.interop.keras import record_layers

x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
array = keras.ops.convert_to_numpy


@keras.saving.register_keras_serializable()
class Block(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.several, self.single = keras.layers.MultiHeadAttention(2, 4), keras.layers.Attention()

    def call(self, x):
        return self.single([self.several(x, x, use_causal_mask=True), x])


entry = keras.Input((5, 8))
model = keras.Model(entry, keras.layers.Dense(3)(Block()(entry)))
block = model.layers[1]
expected = array(model(x))
with record_layers(model) as found:
    np.testing.assert_allclose(array(model(x)), expected, atol=1e-6)
    output, scores = block.several(x, x, return_attention_scores=True)  # as without a record
assert [(one.name, one.kind) for one in found[:2]] == [("multi_head_attention", "self"), ("attention", "cross")]
_, own = block.several(x, x, use_causal_mask=True, return_attention_scores=True)
np.testing.assert_allclose(array(found[0].weights), array(own), atol=1e-6)
assert "call" not in vars(block.several)
causal, cross = look.model(model, x, element=1, queries=list("abcde"))
for head in range(2):
    np.testing.assert_allclose(causal.weights(0, head), array(own)[1, head], rtol=6e-3)
assert (causal.layers[0].codes[0, 0, 1:] == 0).all()
assert cross.layers[0].heads == ("head 0",)
print("shown")
"""


@pytest.mark.long  # Keras takes up to ten seconds to import
@pytest.mark.skipif(not importlib.util.find_spec("keras"), reason="Keras is not installed")
@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_a_keras_model_is_shown_with_the_weights_of_its_layers(backend: str) -> None:
    assert run_python("-c", KERAS, KERAS_BACKEND=backend).strip().endswith("shown")


@pytest.mark.long  # TensorFlow alone takes ten seconds to import
@pytest.mark.skipif(not importlib.util.find_spec("keras"), reason="Keras is not installed")
def test_weights_that_a_keras_layer_returns() -> None:
    import keras

    layer = keras.layers.MultiHeadAttention(2, 4)
    _, weights = layer(X, X, return_attention_scores=True, use_causal_mask=True)
    view = View.from_weights([weights[1]], list("abcde"))
    for head in range(2):
        np.testing.assert_allclose(view.weights(0, head), np.asarray(weights[1, head]), rtol=6e-3)
