"""Learned scores of the attention layers of a Hugging Face model: one module per layer, with parameters per head.

    layer.qkv_score = Additive(head_width, heads=heads, hidden=16)

The module is part of the layer, so its parameters are trained, moved, saved and loaded with the model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import cast

import torch

from qkv.errors import OptionError, ShapeError
from qkv.interop.huggingface.model_layers import is_attention, uses_interface
from qkv.interop.huggingface.saved_parts import describe_part, is_learned
from qkv.nn import LearnedScore
from qkv.nn.part_module import Groups, align_batch
from qkv.scores import Score

__all__ = ["LearnedOption", "add_learned_scores", "initialize_score", "layer_score"]

LearnedOption = LearnedScore | type[LearnedScore] | functools.partial[LearnedScore]
"""A learned score of `qkv.nn`, its class, or a `functools.partial` of the class with options."""

_NAME = "qkv_score"
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "heads", "encoder_attention_heads")
_HEAD_WIDTHS = ("qk_head_dim", "head_dim", "attention_head_size", "d_kv")
_WIDTHS = ("hidden_size", "embed_dim", "d_model", "n_embd")


def layer_score(layer: torch.nn.Module, option: object, width: int, groups: Groups) -> Score | None:
    """Return the learned score of an attention layer, with arrays that broadcast over `(batch, heads)`.

    Args:
        layer: the attention layer.
        option: the registered score.
        width: width of a head's query and key.
        groups: (key_heads, group) if the heads are two axes of the call, else None.

    Returns:
        The score, or None if `option` is not a learned score.

    Raises:
        OptionError: if the layer has no learned score.
        ShapeError: if the learned score was built for another width.
    """
    if not is_learned(option):
        return None
    module = getattr(layer, _NAME, None)
    if not isinstance(module, LearnedScore):
        raise OptionError(
            f"the attention layer must have the parameters of its learned score, got a {type(layer).__name__} without "
            "them. Register the score before the model is built, or call qkv.interop.huggingface.attach(model, name)."
        )
    if module.query_width != width:
        raise ShapeError(
            f"the learned score of {type(layer).__name__} must be built for the width of its heads, {width}, got "
            f"{module.query_width}. Register a function of the layer that returns a score of qkv.scores instead."
        )
    score: Score = module()
    return align_batch(score, 1, groups, True)


def add_learned_scores(model: torch.nn.Module, options: Callable[[torch.nn.Module], object]) -> None:
    """Add a learned score to each attention layer whose registered score is a learned one and that has none yet.

    Args:
        model: the model; its parameters determine dtype and device of the new ones.
        options: function from an attention layer to the score that is registered for it, or None.

    Raises:
        OptionError: if a layer does not state its number of heads or their width, or the score was built for others.
    """
    for layer in [x for x in model.modules() if is_attention(x) and uses_interface(x)]:
        option = options(layer)
        if not is_learned(option):
            continue
        heads, width = _shape(layer)
        kind, keywords = _split(cast(LearnedOption, option), layer, width)
        keywords = {"heads": heads, **keywords}
        if keywords["heads"] not in (None, heads):
            raise OptionError(
                f"score must be built with heads={heads} for {type(layer).__name__}, got heads={keywords['heads']}. "
                "Pass the class, such as score=nn.Additive."
            )
        old = getattr(layer, _NAME, None)
        if isinstance(old, LearnedScore) and _same(old, kind, keywords, width):
            continue
        like = next((x for x in layer.parameters(recurse=True) if x.is_floating_point()), None)
        score = cast("Callable[..., LearnedScore]", kind)(width, **keywords)
        if like is not None:
            score = score.to(like.device, like.dtype)
        score.train(layer.training)
        # Transformers initializes the parameters of modules that it knows, and would overwrite some of these.
        for module in score.modules():
            module._is_hf_initialized = like is None or like.device.type != "meta"  # type: ignore[assignment]
        layer.add_module(_NAME, score)


def initialize_score(score: LearnedScore) -> None:
    """Set the parameters and constants of a learned score to initial values, except those that were loaded."""
    build = cast("Callable[..., LearnedScore]", type(score))
    initial = build(score.query_width, score.key_width, heads=score.heads, **score.options)
    values = {**dict(initial.named_parameters()), **dict(initial.named_buffers())}
    with torch.no_grad():
        for name, x in (*score.named_parameters(), *score.named_buffers()):
            if not getattr(x, "_is_hf_initialized", False):
                x.copy_(values[name])
    for module in score.modules():
        module._is_hf_initialized = True  # type: ignore[assignment]


def _split(option: LearnedOption, layer: torch.nn.Module, width: int) -> tuple[type[LearnedScore], dict[str, object]]:
    """Return the class of a learned score and the options to build it with."""
    if isinstance(option, functools.partial):
        return cast("type[LearnedScore]", option.func), dict(option.keywords)
    if isinstance(option, type):
        return option, {}
    if (option.query_width, option.key_width) != (width, width):
        raise OptionError(
            f"score must be built for the head width {width} of {type(layer).__name__}, got "
            f"{option.query_width} and {option.key_width}. Pass the class, such as score=nn.Additive."
        )
    return type(option), {"heads": option.heads, **option.options}


def _same(old: LearnedScore, kind: type[LearnedScore], keywords: dict[str, object], width: int) -> bool:
    present = {"heads": old.heads, **old.options}
    if type(old) is not kind or old.query_width != width or present.keys() != keywords.keys():
        return False
    return all(_equal(present[name], keywords[name]) for name in present)


def _equal(a: object, b: object) -> bool:
    described = describe_part(a)
    is_code = isinstance(described, dict) and "code" in described
    return a is b or (not is_code and described == describe_part(b))


def _shape(layer: torch.nn.Module) -> tuple[int, int]:
    """Return the number of heads of an attention layer, and the width of a head's query."""
    places: tuple[object, ...] = (layer, getattr(layer, "config", None))
    heads, width = _first(places, _HEADS), _first(places, _HEAD_WIDTHS)
    if heads and not width and (total := _first(places, _WIDTHS)):
        width = total // heads
    if not heads or not width:
        raise OptionError(
            f"an attention layer with a learned score must state its number of heads and their width, as "
            f"num_attention_heads and head_dim, got a {type(layer).__name__}. Register a function of the layer that "
            "returns a score of qkv.scores instead."
        )
    return heads, width


def _first(places: Iterable[object], names: tuple[str, ...]) -> int | None:
    found = (getattr(place, name, None) for place in places for name in names)
    return next((x for x in found if isinstance(x, int) and not isinstance(x, bool)), None)
