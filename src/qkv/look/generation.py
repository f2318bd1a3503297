"""Create attention views of the tokens that a model generates from a text, or of a given target text.

The model first generates tokens greedily, and then runs once over the whole sequence. Because the attention of a
decoder is causal, the weights of this single run equal the weights of the individual generation steps. A target text
takes the place of the generated tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from qkv.errors import DataError
from qkv.look.live_model import LiveModel, output_rows
from qkv.look.predictions import predict
from qkv.look.text_model import DenseCall, TextModel, run_dense, token_axis
from qkv.look.text_roles import mark_roles
from qkv.look.views import LayerMaps, TokenAxis, View

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from qkv.core.typing import Int

__all__ = ["generation_views", "target_views"]


def generation_views(
    text_model: TextModel,
    encoded: Mapping[str, Int[torch.Tensor, "1 tokens"]],
    tokens: TokenAxis,
    name: str,
    count: int,
) -> list[View]:
    """Generate tokens from a text with a model, and return views of the attention weights of the model.

    An encoder-decoder model gives three views: cross-attention to the text, self-attention to previously generated
    tokens, and self-attention of the encoder. A decoder-only model gives one view: self-attention to all previous
    tokens.

    Args:
        text_model: from `qkv.look.text_model.load_text_model`.
        encoded: the tokenized text, restricted to arguments that the model's `forward` accepts.
        tokens: the tokens of the text.
        name: the text, as shown in the titles of the views.
        count: maximum number of tokens to generate.

    Raises:
        DataError: the model cannot generate text, or generates no tokens.
    """
    import torch

    model = text_model.model
    if not getattr(model, "can_generate", lambda: False)():
        raise DataError(
            f"text_model must have a language model head, got {text_model.name}, which cannot generate text. "
            "Name a model that was trained to generate text, or omit generate (--generate on the command line)."
        )
    encoder_decoder = bool(getattr(model.config, "is_encoder_decoder", False))
    with torch.no_grad():
        generated = cast("Callable[..., torch.Tensor]", model.generate)(
            **encoded, max_new_tokens=count, do_sample=False, num_beams=1, pad_token_id=_padding_token(text_model)
        )[:1]
        start = 1 if encoder_decoder else encoded["input_ids"].shape[1]
        if generated.shape[1] <= start:
            raise DataError(
                f"the model must generate at least one token, got none from {text_model.name} for the text {name!r}. "
                "Try another text or another model."
            )
    return _sequence_views(text_model, encoded, tokens, name, generated[:, :-1], generated[:, start:], "generated")


def target_views(
    text_model: TextModel,
    encoded: Mapping[str, Int[torch.Tensor, "1 tokens"]],
    tokens: TokenAxis,
    name: str,
    target: str,
) -> list[View]:
    """Return views of the attention weights of a model that reads a text and predicts each token of a target text.

    The views are those of `generation_views`, with the tokens of the target instead of generated tokens. The target of
    a decoder-only model continues the text.

    Args:
        text_model: from `qkv.look.text_model.load_text_model`.
        encoded: the tokenized text, restricted to arguments that the model's `forward` accepts.
        tokens: the tokens of the text.
        name: the text, as shown in the titles of the views.
        target: the target text, such as a translation of the text.

    Raises:
        DataError: the model has no decoder, or the target is empty or longer than the context of the model.
    """
    import torch

    model, tokenizer = text_model.model, text_model.tokenizer
    encoder_decoder = bool(getattr(model.config, "is_encoder_decoder", False))
    if not encoder_decoder and not getattr(model, "can_generate", lambda: False)():
        raise DataError(
            f"text_model must have a decoder, got {text_model.name} without one. Name an encoder-decoder model or a "
            "language model, or omit the target (--target on the command line)."
        )
    if not target.strip():
        raise DataError(f"target must not be empty, got {target!r}. Add at least one word.")
    if encoder_decoder:
        labels = tokenizer(text_target=target, return_tensors="pt", verbose=False)["input_ids"]
        inputs = _shifted(model, labels)
    else:
        labels = tokenizer(target, add_special_tokens=False, return_tensors="pt", verbose=False)["input_ids"]
        inputs = torch.cat([encoded["input_ids"], labels], dim=1)[:, :-1]
    count = inputs.shape[1]
    if text_model.max_tokens is not None and count > text_model.max_tokens:
        raise DataError(
            f"target (--target on the command line) must fit in the context of {text_model.name}, "
            f"{text_model.max_tokens:,} tokens, got {count:,} tokens. Shorten the target."
        )
    return _sequence_views(text_model, encoded, tokens, name, inputs, labels, "target")


def _shifted(model: PreTrainedModel, labels: Int[torch.Tensor, "1 tokens"]) -> Int[torch.Tensor, "1 tokens"]:
    """Return the decoder inputs from which an encoder-decoder model predicts labels."""
    import torch

    # Some models, such as mBART, move the last token to the front instead of the start token.
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if shift is not None:
        return cast("torch.Tensor", shift(labels=labels))
    first = next(
        (
            token
            for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id")
            if (token := getattr(model.config, name, None)) is not None
        ),
        0,
    )
    return torch.cat([torch.full_like(labels[:, :1], first), labels[:, :-1]], dim=1)


def _sequence_views(
    text_model: TextModel,
    encoded: Mapping[str, Int[torch.Tensor, "1 tokens"]],
    tokens: TokenAxis,
    name: str,
    inputs: Int[torch.Tensor, "1 inputs"],
    outputs: Int[torch.Tensor, "1 outputs"],
    origin: str,
) -> list[View]:
    """Return views of one run of a model whose decoder reads `inputs` and predicts `outputs` from the last of them."""
    model = text_model.model
    encoder_decoder = bool(getattr(model.config, "is_encoder_decoder", False))
    start = inputs.shape[1] - outputs.shape[1] + 1
    arguments = {**encoded, "decoder_input_ids": inputs} if encoder_decoder else {"input_ids": inputs}
    steps, previous = (token_axis(text_model.tokenizer, {"input_ids": numbers}) for numbers in (outputs, inputs))
    groups: dict[str, list[LayerMaps]] = {"cross": [], "decoder": [], "self": []}
    modules: dict[str, list[str]] = {kind: [] for kind in groups}

    def collect(call: DenseCall) -> None:
        in_decoder = not encoder_decoder or "decoder" in call.name
        kind = "cross" if call.kind == "cross" else "decoder" if in_decoder else "self"
        generated_rows = slice(-len(steps.tokens) if kind == "decoder" else None, None)
        allowed = None if call.allowed is None else call.allowed[:, generated_rows]
        layer = f"layer {len(groups[kind])}"
        weights = call.weights[:, generated_rows]
        groups[kind].append(LayerMaps.from_weights(layer, weights, None, allowed, call.value_norms))
        modules[kind].append(call.name)

    output = run_dense(model, arguments, collect, use_cache=False)
    targets = outputs[0].cpu().numpy()
    has_head = getattr(output, "logits", None) is not None
    rows = output_rows(output, start - 1)
    predictions = predict(rows, targets, "step", text_model.tokenizer) if has_head else None
    whole = {**arguments, "use_cache": False}
    parts = {
        "cross": (f"{origin}: attention to the text", steps, tokens),
        "decoder": (f"{origin}: attention to previous tokens", steps, previous),
        "self": ("encoder", tokens, None),
    }
    views = []
    for kind, (part, queries, keys) in parts.items():
        if groups[kind]:
            layers, steps_shown = tuple(groups[kind]), keys is not None
            title = f"{name} ({part})"
            view = View(title, text_model.name, kind, queries, keys, layers, steps=steps_shown)
            if keys is not None:
                offset = 0 if encoder_decoder else start - 1
                tokenizer, names = text_model.tokenizer if has_head else None, tuple(modules[kind])
                live = LiveModel(model, whole, names, start - 1, offset, targets, "step", tokenizer)
                view = replace(view, predictions=predictions, live=live)
            views.append(mark_roles(view))
    return views


def _padding_token(text_model: TextModel) -> int | None:
    """Return the id of the padding token of a model, or of its end token if it has no padding token.

    The result is None if the model has neither. Without a padding token, `generate` warns on every call.
    """
    config = text_model.model.generation_config
    padding = getattr(config, "pad_token_id", None)
    end = getattr(config, "eos_token_id", None)
    return padding if padding is not None else end[0] if isinstance(end, list) else end
