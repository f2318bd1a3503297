"""Views of generated tokens, compared with the weights of each step of the model's own generation."""

import numpy as np
import pytest

from qkv.errors import DataError, OptionError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from qkv.look.quantize import MASKED  # noqa: E402
from qkv.look.text_model import TextModel  # noqa: E402
from qkv.look.text_views import text_views  # noqa: E402

from .test_tiled_views import tokenizer  # noqa: E402

TEXT = "a b c d e f g"
SMALL = {"vocab_size": 13, "pad_token_id": 1, "eos_token_id": 2}


def reader(kind):
    torch.manual_seed(5)
    if kind == "t5":
        config = transformers.T5Config(
            d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, decoder_start_token_id=1, **SMALL
        )
        model = transformers.T5ForConditionalGeneration(config)
    elif kind == "bart":
        names = ("encoder_layers", "encoder_attention_heads", "decoder_layers", "decoder_attention_heads")
        config = transformers.BartConfig(
            d_model=16,
            encoder_ffn_dim=16,
            decoder_ffn_dim=16,
            max_position_embeddings=64,
            decoder_start_token_id=2,
            forced_eos_token_id=None,
            **dict.fromkeys(names, 2),
            **SMALL,
        )
        model = transformers.BartForConditionalGeneration(config)
    else:
        config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, **SMALL)
        model = transformers.GPT2LMHeadModel(config)
    # Larger parameters, so that the maps differ; and no end token, so that generation does not stop early.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6.0)
    model.generation_config.eos_token_id = None
    return TextModel(model.eval(), tokenizer(transformers), kind)


def steps_of(kind, count):
    """Return the cross- and self-attention weights of each step of `generate` with a cache."""
    found = reader(kind)
    found.model.set_attn_implementation("eager")
    encoded = found.tokenizer(TEXT, return_tensors="pt")
    inputs = {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}
    out = found.model.generate(
        **inputs, max_new_tokens=count, do_sample=False, output_attentions=True, return_dict_in_generate=True
    )
    own = out.decoder_attentions if kind != "gpt2" else out.attentions
    return out, own


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_cross_attention_maps_equal_those_of_the_generation_steps(kind):
    out, own = steps_of(kind, 5)
    cross, decoder, encoder = text_views(reader(kind), [TEXT], generate=5)
    assert (cross.kind, decoder.kind, encoder.kind) == ("cross", "decoder", "self")
    names = reader(kind).tokenizer.convert_ids_to_tokens(out.sequences[0].tolist())
    assert list(cross.queries.tokens) == names[1:]
    assert list(cross.keys.tokens) == TEXT.split()
    assert list(decoder.keys.tokens) == names[:-1]
    for layer in range(2):
        for head in range(2):
            shown = cross.weights(layer, head)
            wanted = np.stack([step[layer][0, head, -1].numpy() for step in out.cross_attentions])
            assert np.allclose(shown, wanted, rtol=5.2e-3)
            shown = decoder.weights(layer, head)
            for number, step in enumerate(own):
                row = step[layer][0, head, -1].numpy()
                assert np.allclose(shown[number, : len(row)], row, rtol=5.2e-3)
                # Later tokens are masked, and do not have a weight of 0.
                assert (decoder.layers[layer].codes[head, number, len(row) :] == MASKED).all()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_a_decoder_shows_the_attention_of_each_generated_token_to_all_before():
    out, own = steps_of("gpt2", 4)
    (view,) = text_views(reader("gpt2"), [TEXT], generate=4)
    names = reader("gpt2").tokenizer.convert_ids_to_tokens(out.sequences[0].tolist())
    assert list(view.queries.tokens) == names[7:]
    assert list(view.keys.tokens) == names[:-1]
    assert view.note.startswith("Each row is named by the token that was generated")
    for number, step in enumerate(own):
        row = step[1][0, 1, -1].numpy()
        assert np.allclose(view.weights(1, 1)[number, : len(row)], row, rtol=5.2e-3)


def test_without_generation_an_encoder_decoder_shows_its_encoder():
    (view,) = text_views(reader("t5"), [TEXT])
    assert view.kind == "self"
    assert [layer.name for layer in view.layers] == ["layer 0", "layer 1", "all heads"]


def test_generation_is_refused_without_a_language_model_head_or_beyond_the_context():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=13, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    bert = TextModel(transformers.BertModel(config).eval(), tokenizer(transformers), "bert")
    with pytest.raises(DataError, match="cannot generate text"):
        text_views(bert, [TEXT], generate=3)
    with pytest.raises(DataError, match="Generate fewer"):
        text_views(reader("gpt2"), [TEXT], generate=60)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_a_target_shows_the_weights_of_the_eager_model(kind):
    views = text_views(reader(kind), [TEXT, "a"], targets=["c a b", "e"])
    assert [view.kind for view in views] == ["cross", "decoder", "self"] * 2
    found = reader(kind)
    found.model.set_attn_implementation("eager")
    encoded, labels = (
        found.tokenizer(TEXT, return_tensors="pt"),
        found.tokenizer("c a b", return_tensors="pt").input_ids,
    )
    with torch.no_grad():
        out = found.model(input_ids=encoded.input_ids, labels=labels, output_attentions=True)
    for view, own in zip(views, (out.cross_attentions, out.decoder_attentions, out.encoder_attentions), strict=False):
        for layer, weights in enumerate(own):
            for head in range(2):
                assert np.allclose(view.weights(layer, head), weights[0, head], rtol=5.2e-3, atol=1e-9)
    cross, decoder, _ = views[:3]
    assert list(cross.queries.tokens) == ["c", "a", "b"]
    assert list(decoder.keys.tokens[1:]) == ["c", "a"]
    assert "target: attention to the text" in cross.name
    # The loss of the model is the mean over the target.
    assert cross.predictions.targets == ("c", "a", "b")
    assert cross.predictions.loss == pytest.approx(float(out.loss), rel=1e-3)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_the_target_of_a_decoder_continues_the_text():
    (view,) = text_views(reader("gpt2"), [TEXT], targets=["c a"])
    assert list(view.queries.tokens) == ["c", "a"]
    assert list(view.keys.tokens) == [*TEXT.split(), "c"]
    (whole,) = text_views(reader("gpt2"), [f"{TEXT} c a"])
    for head in range(2):
        assert np.array_equal(view.weights(1, head), whole.weights(1, head)[-3:-1, :-1])


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_a_target_without_a_language_model_head():
    bart = reader("bart")
    bare = TextModel(bart.model.model, bart.tokenizer, "bare")
    cross, _, _ = text_views(bare, [TEXT], targets=["c a b"])
    same, _, _ = text_views(bart, [TEXT], targets=["c a b"])
    assert np.array_equal(cross.weights(1, 1), same.weights(1, 1))
    assert cross.predictions is None


def test_targets_that_do_not_fit_are_refused():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=13, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    bert = TextModel(transformers.BertModel(config).eval(), tokenizer(transformers), "bert")
    with pytest.raises(DataError, match="must have a decoder"):
        text_views(bert, [TEXT], targets=["a"])
    with pytest.raises(OptionError, match="got 1 targets for 2 texts"):
        text_views(reader("bart"), [TEXT, TEXT], targets=["a"])
    with pytest.raises(OptionError, match="generate must be 0"):
        text_views(reader("bart"), [TEXT], targets=["a"], generate=2)
    with pytest.raises(DataError, match="target must not be empty"):
        text_views(reader("bart"), [TEXT], targets=[" "])
    with pytest.raises(DataError, match="Shorten the target"):
        text_views(reader("bart"), [TEXT], targets=["a b c d " * 30])
