"""Views of what each generated token attends to.

The model generates greedily, and then runs once over the generated tokens. As no token attends to a later one,
the weights of that run equal those of the single steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from qkv.errors import DataError
from qkv.look.text_model import TextModel, token_axis
from qkv.look.views import LayerMaps, TokenAxis, View

if TYPE_CHECKING:
    import numpy as np
    import torch

    from qkv.core.typing import Float

__all__ = ["generation_views"]


def generation_views(
    text_model: TextModel, encoded: Mapping[str, torch.Tensor], tokens: TokenAxis, name: str, count: int
) -> list[View]:
    """Generate tokens and return views of what each of them attends to.

    An encoder-decoder gives three views: cross-attention to the text, attention to the tokens generated before,
    and the encoder's attention. A decoder gives one view: attention to all tokens before.

    Args:
        text_model: from `qkv.look.text_model.load_text_model`.
        encoded: the tokenized text, without arguments that the model does not accept.
        tokens: the tokens of the text.
        name: title of the text.
        count: maximum number of tokens to generate.

    Raises:
        DataError: the model cannot generate, or generates nothing.
    """
    import torch

    from qkv.interop import record
    from qkv.readouts import Dense

    model = text_model.model
    if not getattr(model, "can_generate", lambda: False)():
        raise DataError(
            f"{text_model.name} cannot generate: it has no language model head. Leave --generate out, or name "
            "a model that was trained to generate text."
        )
    encoder_decoder = bool(getattr(model.config, "is_encoder_decoder", False))
    with torch.no_grad():
        generated = cast("Callable[..., torch.Tensor]", model.generate)(
            **encoded, max_new_tokens=count, do_sample=False, num_beams=1, pad_token_id=_padding_token(text_model)
        )[:1]
        start = 1 if encoder_decoder else encoded["input_ids"].shape[1]
        if generated.shape[1] <= start:
            raise DataError(f"{text_model.name} generated no tokens after {name!r}. Try another text.")
        inputs, outputs = generated[:, :-1], generated[:, start:]
        arguments = {**encoded, "decoder_input_ids": inputs} if encoder_decoder else {"input_ids": inputs}
        with record(model, [Dense()]) as recorded:
            model(**arguments, use_cache=False)
    steps, previous = (token_axis(text_model.tokenizer, {"input_ids": numbers}) for numbers in (outputs, inputs))
    groups: dict[str, list[Float[np.ndarray, "heads q k"]]] = {}
    for layer, calls in recorded.layers.items():
        last = calls[-1]
        in_decoder = not encoder_decoder or "decoder" in layer
        kind = "cross" if last.kind == "cross" else "decoder" if in_decoder else "encoder"
        groups.setdefault(kind, []).append(last.readouts[0][0].float().numpy())

    def view(
        kind: str, title: str, queries: TokenAxis, keys: TokenAxis | None, maps: list[Float[np.ndarray, "heads q k"]]
    ) -> View:
        layers = tuple(LayerMaps.from_weights(f"layer {i}", weights) for i, weights in enumerate(maps))
        return View(title, text_model.name, kind, queries, keys, layers, steps=keys is not None)

    views = []
    if "cross" in groups:
        views.append(view("cross", f"{name} (generated: attention to the text)", steps, tokens, groups["cross"]))
    maps = [weights[:, -len(steps.tokens) :] for weights in groups.get("decoder", [])]
    if maps:
        title = f"{name} (generated: attention to previous tokens)"
        views.append(view("decoder", title, steps, previous, maps))
    if "encoder" in groups:
        views.append(view("self", f"{name} (encoder)", tokens, None, groups["encoder"]))
    return views


def _padding_token(text_model: TextModel) -> int | None:
    """Return the padding token, or else the end token: without one, `generate` warns on every call."""
    config = text_model.model.generation_config
    padding = getattr(config, "pad_token_id", None)
    end = getattr(config, "eos_token_id", None)
    return padding if padding is not None else end[0] if isinstance(end, list) else end
