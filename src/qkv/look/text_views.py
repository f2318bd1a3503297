"""Create attention views of texts with a Hugging Face model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.progress import Progress, track
from qkv.errors import DataError, OptionError
from qkv.look.generation import generation_views
from qkv.look.rollout import flow, rollout
from qkv.look.text_model import DenseCall, TextModel, run_dense, token_axis
from qkv.look.tiled_map import TiledView
from qkv.look.tiled_views import check_memory, heads_required_bytes, model_dimensions, recorded_view
from qkv.look.views import LayerMaps, TokenAxis, View
from qkv.plan.cost import memory_bytes

if TYPE_CHECKING:
    import torch
    from transformers import BatchEncoding

    from qkv.core.typing import Bool, Float, Int

__all__ = ["text_views"]

_BYTES_PER_WEIGHT = 6
"""A dense map stores each weight in float32 and as a code of 16 bits."""
_MAX_FLOW_TOKENS = 32
"""Maximum tokens for attention flow, which takes 0.3 s for 32 tokens in six layers, and 3 s for 64 tokens."""


def text_views(
    text_model: TextModel,
    texts: Sequence[str],
    *,
    progress: Progress | None = None,
    all_heads: bool = True,
    generate: int = 0,
    layers: Sequence[int] | None = None,
    memory: int | str = "1 GiB",
    notify: Callable[[str], None] | None = None,
) -> list[View | TiledView]:
    """Run a model on each text and return attention views of all its heads.

    A text whose dense maps fit in the memory limit gives a `View`; a longer text gives a `TiledView`.

    Args:
        text_model: from `load_text_model`.
        texts: the texts; the model runs on each text separately.
        progress: called after each text.
        all_heads: add a layer of maps that aggregate all layers and heads: the mean, the rollout and, for short
            texts, the flow.
        generate: maximum number of tokens to generate; if positive, the views show the attention of the generated
            tokens.
        layers: indices of the layers to show for texts that exceed the memory limit; None: all.
        memory: limit on the memory of the maps of one text.
        notify: function that prints messages, such as the predicted memory of a long text before the model runs.

    Raises:
        DataError: a text is empty, or exceeds the context length of the model.
        OptionError: a layer does not exist.
        RefusedError: the maps of a long text exceed the memory limit.

    Example:
        >>> from qkv.look.text_model import load_text_model
        >>> views = text_views(load_text_model(), ["Hans said that he likes Mary"])  # doctest: +SKIP
        >>> views[0].layers[0].heads[:2]  # doctest: +SKIP
        ('head 0', 'head 1')
    """
    views: list[View | TiledView] = []
    all_layers, heads, _ = model_dimensions(text_model.model)
    _check_layers(text_model, layers, all_layers)
    for text in track(texts, "reading", progress):
        encoded, tokens = _tokenize(text_model, text)
        title = text if len(text) <= 80 else text[:79] + "…"
        accepted = inspect.signature(text_model.model.forward).parameters
        inputs: dict[str, torch.Tensor] = {name: value for name, value in encoded.items() if name in accepted}
        count = len(tokens.tokens)
        if generate:
            _check_generated_length(text_model, count, generate)
            views += generation_views(text_model, inputs, tokens, title, generate)
        elif _BYTES_PER_WEIGHT * all_layers * heads * count**2 <= memory_bytes(memory):
            if layers is not None and notify is not None:
                notify(f"--layers has no effect on a text of {count:,} tokens, so all layers are shown")
            views.append(_dense_view(text_model, title, inputs, tokens, all_heads))
        else:
            _check_tiled_memory(text_model, count, layers, memory_bytes(memory), notify)
            model, name = text_model.model, text_model.name
            views.append(recorded_view(model, inputs, tokens, name=title, model_name=name, layers=layers))
    return views


def _check_layers(text_model: TextModel, layers: Sequence[int] | None, count: int) -> None:
    for layer in layers or ():
        if not 0 <= layer < count:
            raise OptionError(
                f"layers (--layers on the command line) must be between 0 and {count - 1} for {text_model.name}, "
                f"got {layer}. Omit this layer."
            )


def _check_generated_length(text_model: TextModel, count: int, generate: int) -> None:
    encoder_decoder = getattr(text_model.model.config, "is_encoder_decoder", False)
    if text_model.max_tokens is None:
        return
    # The tokens of a text do not exceed the context length, because `_tokenize` has checked them.
    most = text_model.max_tokens if encoder_decoder else text_model.max_tokens - count
    if generate > most:
        raise DataError(
            f"generate (--generate on the command line) must be at most {most:,} for a text of {count:,} tokens, "
            f"because {text_model.name} has a context length of {text_model.max_tokens:,} tokens, got {generate:,}. "
            "Generate fewer tokens, or shorten the text."
        )


def _check_tiled_memory(
    text_model: TextModel, count: int, layers: Sequence[int] | None, allowed: int, notify: Callable[[str], None] | None
) -> None:
    all_layers, heads, width = model_dimensions(text_model.model)
    chosen = all_layers if layers is None else len(layers)
    required = heads_required_bytes(count, width, heads * chosen)
    subject = f"{chosen} layers of {heads} heads over {count:,} tokens"
    advice = "Name fewer layers, or increase memory (--layers and --memory on the command line)."
    check_memory(required, allowed, subject, advice, detail="in tiles", notify=notify)


def _tokenize(text_model: TextModel, text: str) -> tuple[BatchEncoding, TokenAxis]:
    if not text.strip():
        raise DataError(f"text must not be empty, got {text!r}. Add at least one word.")
    encoded = text_model.tokenizer(text, return_tensors="pt", return_special_tokens_mask=True, verbose=False)
    count = encoded["input_ids"].shape[1]
    if text_model.max_tokens is not None and count > text_model.max_tokens:
        raise DataError(
            f"text must have at most {text_model.max_tokens:,} tokens for {text_model.name}, got {count:,} tokens in "
            f"the text that starts with {text[:40]!r}. Shorten the text."
        )
    return encoded, token_axis(text_model.tokenizer, encoded)


def _dense_view(
    text_model: TextModel,
    name: str,
    inputs: Mapping[str, Int[torch.Tensor, "1 tokens"]],
    tokens: TokenAxis,
    all_heads: bool,
) -> View:
    model = text_model.model
    if getattr(model.config, "is_encoder_decoder", False):
        # Without generated tokens, the decoder has no input, so that only the encoder runs.
        model = model.get_encoder()
    layers: list[LayerMaps] = []
    means: list[Float[np.ndarray, "q k"]] = []
    masks: list[Bool[np.ndarray, "q k"]] = []

    def collect(call: DenseCall) -> None:
        weights, allowed = call.weights, call.allowed
        layers.append(LayerMaps.from_weights(f"layer {len(layers)}", weights, None, allowed))
        means.append(weights.mean(axis=0))
        masks.append(np.ones(weights.shape[1:], bool) if allowed is None else np.logical_or.reduce(allowed, axis=0))

    run_dense(model, inputs, collect)
    note, means_of_layers = "", None
    if all_heads and len({mean.shape for mean in means}) == 1:
        # All methods need only the means over the heads of each layer.
        stacked = np.stack(means)[:, None]
        means.clear()
        combined = {"mean": stacked.mean(axis=(0, 1), dtype=np.float64), "rollout": rollout(stacked)}
        if len(tokens.tokens) <= _MAX_FLOW_TOKENS:
            combined["flow"] = flow(stacked)
        else:
            note = (
                f"For more than {_MAX_FLOW_TOKENS} tokens, attention flow is computed for single pairs: select a pair "
                "in the map and press “Flow of this pair”. Exported files do not offer it."
            )
            means_of_layers = stacked[:, 0].astype(np.float32)
        # Tokens reach only earlier tokens in any number of causal layers; other masks may combine to more.
        causal = all(np.array_equal(mask, masks[0]) for mask in masks) and np.array_equal(masks[0], np.tril(masks[0]))
        allowed = np.tril(np.ones_like(masks[0])) if causal else None
        layers.append(LayerMaps.from_weights("all heads", np.stack(list(combined.values())), list(combined), allowed))
    return View(name, text_model.name, "self", tokens, None, tuple(layers), note=note, layer_means=means_of_layers)
