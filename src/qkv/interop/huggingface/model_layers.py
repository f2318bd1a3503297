"""Functions that find the attention layers of a model and how these layers compute attention."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Literal, cast

import torch

if TYPE_CHECKING:
    from transformers import PretrainedConfig


AttentionKind = Literal["self", "cross"]

_CROSS = re.compile(r"cross|enc_?dec|encoder_attn|encoder_decoder", re.IGNORECASE)
_ATTENTION = re.compile(r"attention|attn", re.IGNORECASE)
_NO_ATTENTION = re.compile(r"output|dropout|norm|pool|bias", re.IGNORECASE)


def module_names(model: torch.nn.Module) -> dict[torch.nn.Module, str]:
    """Return a dict from each module of a model to its name in `named_modules`."""
    return {module: name for name, module in model.named_modules()}


def is_attention(module: torch.nn.Module) -> bool:
    """Return whether a module is an attention layer, judged by the name of its class.

    Example:
        >>> is_attention(torch.nn.MultiheadAttention(4, 1)), is_attention(torch.nn.Linear(1, 1))
        (True, False)
    """
    name = type(module).__name__
    return bool(_ATTENTION.search(name)) and not _NO_ATTENTION.search(name)


def attention_layers(names: Mapping[torch.nn.Module, str]) -> list[str]:
    """Return the names of the innermost attention layers among modules, in the order of the model.

    Example:
        >>> attention_layers(module_names(torch.nn.TransformerEncoderLayer(4, 1)))
        ['self_attn']
    """
    attention = [name for module, name in names.items() if is_attention(module)]
    return [x for x in attention if not any(y != x and y.startswith(f"{x}." if x else "") for y in attention)]


def attention_kind(name: str, module: torch.nn.Module) -> AttentionKind:
    """Return "cross" for a cross-attention layer and "self" for any other attention layer.

    The kind is judged by the attribute `is_cross_attention`, or by the name of the layer and of its class.

    Example:
        >>> attention_kind("decoder.layers.0.encoder_attn", torch.nn.Identity())
        'cross'
    """
    declared = getattr(module, "is_cross_attention", None)
    if isinstance(declared, bool):
        return "cross" if declared else "self"
    return "cross" if _CROSS.search(f"{name} {type(module).__name__}") else "self"


def uses_interface(module: torch.nn.Module) -> bool:
    """Return whether the source code of a module mentions the attention interface of transformers."""
    return _class_uses_interface(type(module))  # type: ignore[arg-type]


@cache
def _class_uses_interface(kind: type[torch.nn.Module]) -> bool:
    for cls in kind.__mro__:
        if cls is torch.nn.Module:
            return False
        with suppress(OSError, TypeError):
            source = inspect.getsource(cls)
            if "ALL_ATTENTION_FUNCTIONS" in source or "attention_interface" in source:
                return True
    return False


def nested(name: str, names: Iterable[str]) -> bool:
    """Return whether the module `name` is, contains, or is contained in one of the modules `names`.

    The name of the model itself, which contains all others, is "".

    Example:
        >>> nested("a.b", ["a.b.c"]), nested("a.b", ["a.bc"]), nested("", ["a"])
        (True, False, True)
    """
    return any(not b or f"{a}.".startswith(f"{b}.") for other in names for a, b in ((name, other), (other, name)))


def pretrained_models(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the model itself if it is a model of transformers, otherwise those among its submodules.

    Models inside another model of transformers are left out.
    """
    if hasattr(model, "_can_set_attn_implementation"):
        return [model]
    return [found for child in model.children() for found in pretrained_models(child)]


def attention_configs(model: torch.nn.Module) -> list[PretrainedConfig]:
    """Return all configs of a model that select an attention implementation, including nested configs."""
    found: dict[int, PretrainedConfig] = {}
    queue: list[object] = [module.config for module in model.modules() if hasattr(module, "config")]
    while queue:
        config = cast("PretrainedConfig", queue.pop())
        if id(config) in found or not hasattr(config, "_attn_implementation"):
            continue
        found[id(config)] = config
        queue += [getattr(config, name, None) for name in getattr(config, "sub_configs", {})]
    return list(found.values())
