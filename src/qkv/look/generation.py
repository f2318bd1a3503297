"""What a model looks at while it writes: each generated token is a query, and is looked at step by step.

The model writes greedily; then it runs once over what it wrote. As no token sees a later one, the weights of
that run are those of the steps, without a cache between them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.errors import DataError
from qkv.look.views import LayerMaps, TokenAxis, View

__all__ = ["generation_views"]


def generation_views(reader: Any, encoded: Any, side: TokenAxis, name: str, count: int) -> list[View]:
    """Views of a text and what the model writes after it, or out of it.

    Of an encoder with a decoder: the encoder's own, what each generated token took from the text (cross), and
    what it took from the tokens before it. Of a decoder alone: what each took from all before it.

    Args:
        reader: see `qkv.look.text_model.load`.
        encoded: the text, as the tokenizer gives it, without what the model does not take.
        side: its words.
        name: what the text is called.
        count: tokens to generate at most.

    Raises:
        DataError: the model cannot generate, or generates nothing.
    """
    import torch

    from qkv.interop import record
    from qkv.readouts import Dense

    model = reader.model
    if not getattr(model, "can_generate", lambda: False)():
        raise DataError(
            f"{reader.name} cannot generate: it has no language model on top. Leave --generate out, or give "
            "a model that was trained to write."
        )
    both = bool(getattr(model.config, "is_encoder_decoder", False))
    with torch.no_grad():
        written = model.generate(
            **encoded, max_new_tokens=count, do_sample=False, num_beams=1, pad_token_id=_padding(reader)
        )[:1]
        begun = 1 if both else encoded["input_ids"].shape[1]
        if written.shape[1] <= begun:
            raise DataError(f"{reader.name} generated nothing after {name!r}.")
        taken, given = written[:, :-1], written[:, begun:]
        inputs = {**encoded, "decoder_input_ids": taken} if both else {"input_ids": taken}
        with record(model, [Dense()]) as seen:
            model(**inputs, use_cache=False)
    steps, before = _side(reader.tokenizer, given), _side(reader.tokenizer, taken)
    groups: dict[str, list[np.ndarray]] = {}
    for layer, calls in seen.layers.items():
        last = calls[-1]
        kind = "cross" if last.kind == "cross" else "decoder" if not both or "decoder" in layer else "encoder"
        weights = last.readouts[0][0].float().numpy()
        groups.setdefault(kind, []).append(weights)

    def view(kind: str, title: str, queries: TokenAxis, keys: TokenAxis | None, maps: list[np.ndarray]) -> View:
        layers = tuple(LayerMaps.of(f"layer {i}", weights) for i, weights in enumerate(maps))
        return View(title, reader.name, kind, queries, keys, layers, steps=keys is not None)

    found = []
    if "cross" in groups:
        found.append(view("cross", f"{name} (generated, from the text)", steps, side, groups["cross"]))
    last_rows = [weights[:, -len(steps.tokens) :] for weights in groups.get("decoder", [])]
    if last_rows:
        title = f"{name} (generated, from what was before)"
        found.append(view("decoder", title, steps, before, last_rows))
    if "encoder" in groups:
        found.append(view("self", f"{name} (encoder)", side, None, groups["encoder"]))
    return found


def _side(tokenizer: Any, numbers: Any) -> TokenAxis:
    from qkv.look.text_model import token_axis

    return token_axis(tokenizer, {"input_ids": numbers})


def _padding(reader: Any) -> int | None:
    """Some models have no padding token, and `generate` says so on every call."""
    config = reader.model.generation_config
    own = getattr(config, "pad_token_id", None)
    end = getattr(config, "eos_token_id", None)
    return own if own is not None else end[0] if isinstance(end, list) else end
