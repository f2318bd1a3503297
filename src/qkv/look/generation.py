"""Create attention views of the tokens that a model generates from a text.

The model first generates tokens greedily, and then runs once over the whole sequence. Because the attention of a
decoder is causal, the weights of this single run equal the weights of the individual generation steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from qkv.errors import DataError
from qkv.look.text_model import DenseCall, TextModel, run_dense, token_axis
from qkv.look.views import LayerMaps, TokenAxis, View

if TYPE_CHECKING:
    import torch

    from qkv.core.typing import Int

__all__ = ["generation_views"]


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
    inputs, outputs = generated[:, :-1], generated[:, start:]
    arguments = {**encoded, "decoder_input_ids": inputs} if encoder_decoder else {"input_ids": inputs}
    steps, previous = (token_axis(text_model.tokenizer, {"input_ids": numbers}) for numbers in (outputs, inputs))
    groups: dict[str, list[LayerMaps]] = {"cross": [], "decoder": [], "self": []}

    def collect(call: DenseCall) -> None:
        in_decoder = not encoder_decoder or "decoder" in call.name
        kind = "cross" if call.kind == "cross" else "decoder" if in_decoder else "self"
        generated_rows = slice(-len(steps.tokens) if kind == "decoder" else None, None)
        allowed = None if call.allowed is None else call.allowed[:, generated_rows]
        layer = f"layer {len(groups[kind])}"
        groups[kind].append(LayerMaps.from_weights(layer, call.weights[:, generated_rows], None, allowed))

    run_dense(model, arguments, collect, use_cache=False)
    parts = {
        "cross": ("generated: attention to the text", steps, tokens),
        "decoder": ("generated: attention to previous tokens", steps, previous),
        "self": ("encoder", tokens, None),
    }
    views = []
    for kind, (part, queries, keys) in parts.items():
        if groups[kind]:
            layers, steps_shown = tuple(groups[kind]), keys is not None
            title = f"{name} ({part})"
            views.append(View(title, text_model.name, kind, queries, keys, layers, steps=steps_shown))
    return views


def _padding_token(text_model: TextModel) -> int | None:
    """Return the id of the padding token of a model, or of its end token if it has no padding token.

    The result is None if the model has neither. Without a padding token, `generate` warns on every call.
    """
    config = text_model.model.generation_config
    padding = getattr(config, "pad_token_id", None)
    end = getattr(config, "eos_token_id", None)
    return padding if padding is not None else end[0] if isinstance(end, list) else end
