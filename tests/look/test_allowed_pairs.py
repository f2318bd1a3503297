"""Masks of views: exact from a record, inferred from causal weights, and given by the user."""

import numpy as np
import pytest

from qkv.errors import ShapeError
from qkv.look.allowed_pairs import infer_causal
from qkv.look.quantize import MASKED
from qkv.look.views import View

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def softmax(logits):
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def causal(heads, q, k, seed=0):
    logits = np.random.default_rng(seed).normal(size=(heads, q, k))
    return softmax(np.where(np.tri(q, k, k - q, dtype=bool), logits, -np.inf))


def masked(view, layer=0, head=0):
    return view.layers[layer].codes[head] == MASKED


@pytest.mark.parametrize(("q", "k"), [(5, 5), (2, 2), (3, 8)])
def test_a_causal_mask_is_inferred_from_the_weights(q, k):
    view = View.from_weights(causal(2, q, k)[None], list("abcdefgh")[:q], list("abcdefgh")[:k])
    assert np.array_equal(masked(view), ~np.tri(q, k, k - q, dtype=bool))
    assert view.weights(0, 1)[0, -1] == 0


def test_zeros_that_no_mask_explains_stay_zeros():
    diagonal = np.eye(4)[None]
    some = causal(1, 4, 4)
    some[0, 0, 3] = 1e-9
    single = np.ones((1, 1, 1))
    for weights in (diagonal, some, np.zeros((1, 4, 4)), single):
        assert infer_causal([weights]) is None
        assert not masked(View.from_weights([weights], list("abcd")[: weights.shape[1]])).any()


def test_a_given_mask_decides():
    mask = np.array([[True, True], [False, True]])
    view = View.from_weights(np.full((2, 1, 2, 2), 0.5), ["a", "b"], mask=mask)
    assert np.array_equal(masked(view, 1), ~mask)
    # `mask=True` says that there is none, although the weights look causal.
    assert not masked(View.from_weights(causal(1, 3, 3)[None], list("abc"), mask=True)).any()
    with pytest.raises(ShapeError, match="mask must broadcast"):
        View.from_weights(np.full((1, 1, 2, 2), 0.5), ["a", "b"], mask=np.ones((3, 3), bool))


def test_weights_of_uniform_attention_are_known_only_for_shares_of_one():
    for weights, expected in ((np.full((3, 3), 1 / 3), True), (np.eye(3) - 0.5, False), (np.ones((3, 3)), False)):
        assert View.from_weights(weights[None, None], list("abc")).layers[0].ranges[0].normalized == expected


@pytest.mark.parametrize("save_inputs", [True, False])
def test_a_record_gives_the_mask_of_a_decoder_with_padding_and_a_window(save_inputs):
    from qkv.interop import record
    from qkv.readouts import Dense

    torch.manual_seed(0)
    config = transformers.MistralConfig(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=3 if save_inputs else None,
    )
    model = transformers.MistralModel(config).eval()
    padding = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    with torch.no_grad(), record(model, [Dense()], save_inputs=save_inputs) as recorded:
        model(torch.arange(12).reshape(2, 6), attention_mask=padding)
    distance = np.arange(6)[:, None] - np.arange(6)
    expected = (distance >= 0) & (distance < (3 if save_inputs else 6))
    assert np.array_equal(masked(View.from_record(recorded, list("abcdef"), element=0)), ~expected)
    padded = masked(View.from_record(recorded, list("abcdef"), element=1), head=3)
    assert np.array_equal(padded[2:], ~(expected & (np.arange(6) >= 2))[2:])
