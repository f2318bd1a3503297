"""`look.model`: views of models without tokenizers equal the weights that the models compute themselves."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from qkv import look, nn  # noqa: E402
from qkv.errors import DataError, OptionError, ShapeError  # noqa: E402


def assert_shows(view: Any, layer: int, weights: Any) -> None:
    """Compare a layer of a view, which keeps three digits, with weights `(heads, q, k)`."""
    maps = np.stack([view.weights(layer, head) for head in range(weights.shape[0])])
    np.testing.assert_allclose(maps, weights.numpy(), rtol=6e-3, atol=1e-6)


def test_a_vision_transformer_is_shown_by_patches() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2, image_size=12, patch_size=4,
        initializer_range=0.5, attn_implementation="eager",
    )  # fmt: skip
    module, image = transformers.ViTModel(config).eval(), torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        own = module(pixel_values=image, output_attentions=True).attentions
    (view,) = look.model(module, {"pixel_values": image}, element=1)
    assert view.queries.tokens[:3] == ("[CLS]", "0,0", "0,1")
    assert view.queries.tokens[-1] == "2,2"
    assert view.keys is None
    for layer, weights in enumerate(own):
        assert_shows(view, layer, weights[1])
    rollout = look.rollout(torch.stack(own)[:, 1].numpy())
    np.testing.assert_allclose(view.weights(2, 1), rollout, rtol=6e-3)
    # The image is the input, scaled to its range.
    scaled = (image[1] - image[1].min()) / (image[1].max() - image[1].min()) * 255
    assert view.image is not None
    assert np.abs(view.image - scaled.numpy().transpose(1, 2, 0)).max() <= 0.51
    assert view.queries.patches.grid == (3, 3)
    assert view.opening is not None
    assert view.opening.query == 0  # the class token


def test_an_encoder_and_decoder_of_torch_has_a_view_for_each_kind() -> None:
    torch.manual_seed(0)
    module = torch.nn.Transformer(8, 2, 2, 1, 16, batch_first=True).eval()
    views = look.model(
        module, (torch.randn(1, 5, 8), torch.randn(1, 3, 8)), queries=["x", "y", "z"], keys=list("abcde")
    )
    # The encoder of two layers has maps over all heads.
    assert [(view.kind, len(view.layers)) for view in views] == [("self", 3), ("self", 1), ("cross", 1)]
    assert [layer.name for layer in views[0].layers] == ["layer 0", "layer 1", "all heads"]
    assert views[2].queries.tokens == ("x", "y", "z")
    assert views[2].keys is not None
    assert views[2].keys.tokens == tuple("abcde")


def test_a_module_of_qkv_is_shown_with_its_own_weights() -> None:
    from qkv.readouts import Dense

    torch.manual_seed(0)
    module, x = nn.MultiHeadAttention(8, 2), torch.randn(1, 4, 8)
    (view,) = look.model(module, x)
    with torch.no_grad():
        assert_shows(view, 0, module(x, readouts=[Dense()]).readouts[0][0])
    assert view.layers[0].name == "MultiHeadAttention"


def test_models_without_attention_and_wrong_numbers_of_tokens_are_refused() -> None:
    with pytest.raises(DataError, match="must have attention layers"):
        look.model(torch.nn.Linear(2, 2), torch.zeros(1, 2))
    with pytest.raises(ShapeError, match="as many tokens"):
        look.model(nn.MultiHeadAttention(8, 2), torch.randn(1, 4, 8), queries=["a"])


@pytest.mark.parametrize("wrong", ["BertModel", torch.nn.Linear, None], ids=["name", "class", "none"])
def test_what_is_no_model_is_refused(wrong: Any) -> None:
    with pytest.raises(OptionError, match="module must be a model of PyTorch, Keras or Flax, got"):
        look.model(wrong, torch.zeros(1, 2))


def test_special_tokens_are_marked_by_their_names() -> None:
    names = ["[CLS]", "<b>", "s", "</s>", "<|endoftext|>"]
    (view,) = look.model(nn.MultiHeadAttention(8, 2), torch.randn(1, 5, 8), queries=names)
    assert view.queries.special == (True, False, False, True, True)
    assert view.queries.words == (-1, 1, 2, -1, -1)
