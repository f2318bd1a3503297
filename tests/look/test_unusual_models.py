"""Models whose layers compute attention in their own way: shown with their own weights, or refused in one sentence."""

import logging

import numpy as np
import pytest

from qkv.errors import DataError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from qkv.look.text_model import TextModel, load_text_model, token_axis  # noqa: E402
from qkv.look.text_views import text_views  # noqa: E402
from qkv.look.tiled_views import recorded_view  # noqa: E402

from .test_tiled_views import tokenizer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*bypass the attention interface")

TEXT = "a b c d e f g"
SMALL = {"vocab_size": 13, "num_hidden_layers": 2, "pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 2}
BERT = {**SMALL, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 32}


def bert_to_bert():
    kinds = (
        transformers.BertConfig(**BERT),
        transformers.BertConfig(**BERT, is_decoder=True, add_cross_attention=True),
    )
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*kinds)
    config.decoder_start_token_id, config.pad_token_id = 3, 1
    return transformers.EncoderDecoderModel(config=config)


def built(kind):
    torch.manual_seed(1)
    if kind == "gpt-neo":
        types = [[["global", "local"], 1]]
        config = transformers.GPTNeoConfig(hidden_size=16, num_heads=2, attention_types=types, window_size=3, **SMALL)
        model = transformers.GPTNeoForCausalLM(config)
    elif kind == "xlnet":
        config = transformers.XLNetConfig(d_model=16, n_layer=2, n_head=2, d_inner=16, initializer_range=0.5, **SMALL)
        model = transformers.XLNetLMHeadModel(config)
    elif kind == "longformer":
        model = transformers.LongformerModel(transformers.LongformerConfig(attention_window=4, sep_token_id=2, **BERT))
    elif kind == "funnel":
        config = transformers.FunnelConfig(
            d_model=16, n_head=2, d_head=8, d_inner=16, block_sizes=[1, 1], vocab_size=13
        )
        model = transformers.FunnelModel(config)
    else:
        model = transformers.MambaForCausalLM(transformers.MambaConfig(hidden_size=16, state_size=4, **SMALL))
    return TextModel(model.eval(), tokenizer(transformers), kind)


@pytest.mark.parametrize("options", [{}, {"generate": 2}], ids=["text", "generated"])
def test_pairs_outside_the_window_of_a_local_layer_of_gpt_neo_are_excluded(options):
    (view,) = text_views(built("gpt-neo"), [TEXT], **options)
    q, k = view.layers[0].codes.shape[1:]
    causal = np.tri(q, k, k - q, dtype=bool)
    window = causal & ~np.tri(q, k, k - q - 3, dtype=bool)
    for i, allowed in enumerate((causal, window, causal)[: len(view.layers)]):
        for head in range(len(view.layers[i].heads)):
            assert np.array_equal(view.allowed(i, head), allowed)


def test_xlnet_is_shown_with_its_own_weights():
    model = built("xlnet")
    (view,) = text_views(model, [TEXT])
    with torch.no_grad():
        own = model.model(**model.tokenizer(TEXT, return_tensors="pt"), output_attentions=True).attentions
    for layer, weights in enumerate(own):
        for head in range(2):
            np.testing.assert_allclose(view.weights(layer, head), weights[0, head].numpy(), rtol=6e-3, atol=1e-6)


def test_a_folder_of_an_encoder_and_a_decoder_is_shown_without_reports(tmp_path, monkeypatch):
    bert_to_bert().save_pretrained(tmp_path)
    tokenizer(transformers).save_pretrained(tmp_path)
    told = []
    monkeypatch.setattr(logging.getLogger("transformers.modeling_utils"), "warning", told.append)
    model = load_text_model(tmp_path)
    assert told == []
    assert [view.kind for view in text_views(model, [TEXT])] == ["self"]
    assert [view.kind for view in text_views(model, [TEXT], targets=["b c"])] == ["cross", "decoder", "self"]
    with pytest.raises(DataError, match="at most 32 tokens"):
        text_views(model, ["a " * 40])


@pytest.mark.parametrize(
    ("kind", "says"),
    [("mamba", "MambaForCausalLM has no such layer"), ("longformer", "no such layer"), ("funnel", "qkv.look.model")],
)
def test_models_without_a_weight_for_each_pair_are_refused_in_one_sentence(kind, says):
    model = built(kind)
    encoded = model.tokenizer(TEXT, return_tensors="pt")
    axis = token_axis(model.tokenizer, encoded)
    with pytest.raises(DataError, match=says):
        text_views(model, [TEXT])
    with pytest.raises(DataError, match=says):
        recorded_view(model.model, {"input_ids": encoded["input_ids"]}, axis, name="", model_name=kind, layers=None)


def test_loading_reports_only_weights_that_are_missing(tmp_path, capfd, recwarn):
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**BERT))
    tokenizer(transformers).save_pretrained(tmp_path)
    kept = {name: value for name, value in model.state_dict().items() if "pooler" not in name}
    model.save_pretrained(tmp_path, state_dict=dict(kept))
    recwarn.clear()
    capfd.readouterr()
    load_text_model(tmp_path)  # without the head, and with a new pooler
    assert "".join(capfd.readouterr()) == ""
    assert not [str(one.message) for one in recwarn if "lacks weights" in str(one.message)]
    del kept[next(name for name in kept if name.endswith("query.weight"))]
    model.save_pretrained(tmp_path, state_dict=dict(kept))
    with pytest.warns(UserWarning, match=r"lacks weights of BertModel, .*query\.weight\."):
        load_text_model(tmp_path)
