"""`record` with models of transformers of many kinds: its weights equal those of `output_attentions=True`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from qkv.interop import record  # noqa: E402
from qkv.readouts import Dense  # noqa: E402

SMALL = {
    "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "initializer_range": 0.5,
}  # fmt: skip
TEXT = {**SMALL, "vocab_size": 20, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
VISION = {**SMALL, "image_size": 12, "patch_size": 4}
CODERS = {
    "vocab_size": 20, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "init_std": 0.5,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip
IDS = torch.randint(3, 20, (2, 6), generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))
SPEECH = torch.randn(2, 4, 10, generator=torch.Generator().manual_seed(2))
SEGMENTS = torch.tensor([[0, 0, 0, 1, 1, 1]] * 2)
PADDED = torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0]])

KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "encoder of text": ("BertModel", TEXT, {"input_ids": IDS, "attention_mask": PADDED}),
    "encoder of sentence pairs": ("BertModel", TEXT, {"input_ids": IDS, "token_type_ids": SEGMENTS}),
    "decoder": ("LlamaModel", TEXT, {"input_ids": IDS, "attention_mask": PADDED}),
    "decoder with grouped heads": ("LlamaModel", {**TEXT, "num_key_value_heads": 1}, {"input_ids": IDS}),
    "decoder with a sliding window": (
        "MistralModel",
        {**TEXT, "num_key_value_heads": 2, "sliding_window": 3},
        {"input_ids": IDS},
    ),
    "decoder with learned positions": (
        "GPT2Model",
        {"vocab_size": 20, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 9, "initializer_range": 0.5},
        {"input_ids": IDS},
    ),
    "decoder with sinks": (
        "GptOssModel",
        {**TEXT, "num_key_value_heads": 2, "head_dim": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
        {"input_ids": IDS},
    ),
    "encoder with local layers": (
        "ModernBertModel",
        {**TEXT, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 2},
        {"input_ids": IDS},
    ),
    "vision transformer": ("ViTModel", VISION, {"pixel_values": IMAGES}),
    "vision transformer with registers": ("Dinov2WithRegistersModel", VISION, {"pixel_values": IMAGES}),
    "vision part of CLIP": ("CLIPVisionModel", VISION, {"pixel_values": IMAGES}),
    "vision part with pooling by attention": ("SiglipVisionModel", VISION, {"pixel_values": IMAGES}),
    "encoder and decoder": ("BartModel", CODERS, {"input_ids": IDS, "decoder_input_ids": IDS[:, :4]}),
    "encoder of speech and decoder": (
        "WhisperModel",
        {**CODERS, "num_mel_bins": 4, "max_source_positions": 5, "max_target_positions": 6},
        {"input_features": SPEECH, "decoder_input_ids": IDS[:, :4]},
    ),
    "encoder and decoder with position bias": (
        "T5Model",
        {
            "vocab_size": 20,
            "d_model": 8,
            "d_kv": 4,
            "d_ff": 8,
            "num_layers": 1,
            "num_heads": 2,
            "initializer_factor": 3.0,
        },
        {"input_ids": IDS, "decoder_input_ids": IDS[:, :4]},
    ),
}


def test_the_kinds_are_as_many_as_promised() -> None:
    # Modules of torch.nn and of qkv.nn, Flax and Keras have files of their own.
    assert len({name for name, _, _ in KINDS.values()}) >= 12


def build(name: str, options: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    model = getattr(transformers, name)
    return model(model.config_class(**options)).eval()


def own_weights(model: Any, inputs: dict[str, Any]) -> list[Any]:
    """Return the weights that an eager model returns, in the order in which its layers run."""
    model.set_attn_implementation("eager")
    output = model(**inputs, output_attentions=True)
    if "decoder_input_ids" not in inputs:
        return list(output.attentions)
    pairs = zip(output.decoder_attentions, output.cross_attentions, strict=True)
    return [*output.encoder_attentions, *(weights for pair in pairs for weights in pair)]


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_weights_equal_those_of_the_eager_model(kind: str) -> None:
    name, options, inputs = KINDS[kind]
    model = build(name, options)
    run: Callable[..., Any] = model
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        with record(model, [Dense()]) as seen:
            run(**inputs)
        own = own_weights(model, inputs)
    calls = [one for calls in seen.layers.values() for one in calls]
    if "pooling" in kind:
        pooled = calls.pop()  # by `nn.MultiheadAttention`, whose weights the model does not return
        assert (pooled.queries, pooled.keys, pooled.kind) == (1, 9, "cross")
    assert len(calls) == len(own) > 0
    assert (seen.missed, seen.materialized) == ((), ())
    for one, weights in zip(calls, own, strict=True):
        # Weights of padded queries have no meaning; without a key, they are 0 here.
        rows = PADDED.bool()[:, None, :, None] if "attention_mask" in inputs else torch.ones(1, dtype=torch.bool)
        # T5 does not scale its products, so that the rounding of its logits is larger.
        limit = 2e-5 if "position bias" in kind else 2e-6
        torch.testing.assert_close(one.readouts[0] * rows, weights * rows, rtol=0, atol=limit)
    if "decoder_input_ids" in inputs:
        assert [one.kind for one in calls] == ["self", "self", "cross"]
