"""Scores and normalizers with parameters as parts of the attention layers of a Hugging Face model.

    layer.qkv_score = Additive(head_width, heads=heads, hidden=16)          one module per layer, parameters per head
    layer.qkv_normalizer = PartModule(Entmax(alpha))                        alpha: a parameter per head

The modules are parts of the layers, so their parameters are trained, moved, saved and loaded with the model. The
parameters of a registered normalizer are the initial values of those of each layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, cast

import torch

from qkv.core.map_batch import Groups, align_batch
from qkv.core.typing import Array, Shaped
from qkv.errors import OptionError, ShapeError
from qkv.interop.huggingface.model_layers import is_attention, uses_interface
from qkv.interop.huggingface.saved_parts import describe_part, is_learned
from qkv.nn import LearnedScore
from qkv.nn.part_module import PartModule
from qkv.normalizers import Normalizer
from qkv.scores import Score

LearnedOption = LearnedScore | type[LearnedScore] | functools.partial[LearnedScore]
"""A learned score of `qkv.nn`, its class, or a `functools.partial` of the class with options."""

_SCORE, _NORMALIZER = "qkv_score", "qkv_normalizer"
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "heads", "encoder_attention_heads")
_HEAD_WIDTHS = ("qk_head_dim", "head_dim", "attention_head_size", "d_kv")
_WIDTHS = ("hidden_size", "embed_dim", "d_model", "n_embd")
AnyModule = TypeVar("AnyModule", bound=torch.nn.Module)


def _layers(
    model: torch.nn.Module, options: Callable[[torch.nn.Module], object]
) -> Iterator[tuple[torch.nn.Module, object]]:
    """Yield the attention layers of a model with the option that is registered for each."""
    for layer in [x for x in model.modules() if is_attention(x) and uses_interface(x)]:
        yield layer, options(layer)


def _attach(layer: torch.nn.Module, name: str, module: torch.nn.Module) -> None:
    """Add a module with learned parameters to an attention layer, with its device, dtype and mode."""
    like = next((x for x in layer.parameters(recurse=True) if x.is_floating_point()), None)
    if like is not None:
        module = module.to(like.device, like.dtype)
    module.train(layer.training)
    # Transformers initializes the parameters of modules that it knows, and would overwrite some of these.
    for part in module.modules():
        part._is_hf_initialized = like is None or like.device.type != "meta"  # type: ignore[assignment]
    layer.add_module(name, module)


def _attached(layer: torch.nn.Module, name: str, kind: type[AnyModule]) -> AnyModule:
    """Return the module that `_attach` added."""
    module = getattr(layer, name, None)
    if not isinstance(module, kind):
        noun = "learned score" if name == _SCORE else "normalizer"
        raise OptionError(
            f"the attention layer must have the parameters of its {noun}, got a {type(layer).__name__} without them. "
            f"Register the {noun.split()[-1]} before the model is built, or call "
            "qkv.interop.huggingface.attach(model, name)."
        )
    return module


def layer_score(layer: torch.nn.Module, option: object, width: int, groups: Groups) -> Score | None:
    """Return the learned score of an attention layer, with arrays that broadcast over `(batch, heads)`.

    Raises:
        OptionError: if the layer has no learned score.
        ShapeError: if the learned score was built for another width.
    """
    if not is_learned(option):
        return None
    module = _attached(layer, _SCORE, LearnedScore)
    if module.query_width != width:
        raise ShapeError(
            f"the learned score of {type(layer).__name__} must be built for the width of its heads, {width}, got "
            f"{module.query_width}. Register a function of the layer that returns a score of qkv.scores instead."
        )
    score: Score = module()
    return align_batch(score, 1, groups, True)


def add_learned_scores(model: torch.nn.Module, options: Callable[[torch.nn.Module], object]) -> None:
    """Add a learned score to each attention layer whose registered score is a learned one and that has none yet.

    Raises:
        OptionError: if a layer does not state its number of heads or their width, or the score was built for others.
    """
    for layer, option in _layers(model, options):
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
        old = getattr(layer, _SCORE, None)
        if isinstance(old, LearnedScore) and _same(old, kind, keywords, width):
            continue
        _attach(layer, _SCORE, cast("Callable[..., LearnedScore]", kind)(width, **keywords))


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


class LayerNormalizer(PartModule[Normalizer]):
    """Module with the parameters of the normalizer of one attention layer."""

    def __init__(self, registered: Normalizer) -> None:
        super().__init__(registered.map_arrays(_copy))
        self.registered = registered

    def reset_parameters(self) -> None:
        """Set the parameters to those of the registered normalizer, except those that were loaded."""
        with torch.no_grad():
            for n, initial in enumerate(self.registered.arrays()):
                x = getattr(self, f"array_{n}")
                if not getattr(x, "_is_hf_initialized", False):
                    x.copy_(cast("torch.Tensor", initial))


def _copy(x: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
    copied = torch.as_tensor(x).detach().clone()
    return torch.nn.Parameter(copied) if isinstance(x, torch.nn.Parameter) else copied


def _has_parameters(option: object) -> bool:
    return isinstance(option, Normalizer) and any(isinstance(x, torch.nn.Parameter) for x in option.arrays())


def _equal_normalizers(a: Normalizer, b: Normalizer) -> bool:
    """Return whether two normalizers are equal, also if one is a copy, such as that of a copied model."""
    if a is b:
        return True
    pairs = zip(a.arrays(), b.arrays(), strict=False)
    return a.signature() == b.signature() and all(
        torch.equal(cast("torch.Tensor", x), cast("torch.Tensor", y)) for x, y in pairs
    )


def layer_normalizer(layer: torch.nn.Module, option: object, groups: Groups) -> Normalizer | None:
    """Return the normalizer of an attention layer that has parameters, which broadcast over `(batch, heads)`.

    Raises:
        OptionError: if the layer has no such normalizer.
    """
    if not _has_parameters(option):
        return None
    normalizer: Normalizer = _attached(layer, _NORMALIZER, LayerNormalizer)()
    return align_batch(normalizer, 1, groups, True)


def add_learned_normalizers(model: torch.nn.Module, options: Callable[[torch.nn.Module], object]) -> None:
    """Add the normalizer to each layer whose registered one has parameters, unless the layer has it already."""
    for layer, option in _layers(model, options):
        old = getattr(layer, _NORMALIZER, None)
        if not _has_parameters(option):
            continue
        if isinstance(old, LayerNormalizer) and _equal_normalizers(old.registered, cast("Normalizer", option)):
            continue
        _attach(layer, _NORMALIZER, LayerNormalizer(cast("Normalizer", option)))
