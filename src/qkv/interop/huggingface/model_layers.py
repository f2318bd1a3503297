"""The layers of a model: their names, which of them attend, and which the attention interface reaches."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any, Literal

import torch

__all__ = [
    "AttentionKind",
    "attention_configs",
    "nested",
    "is_attention",
    "attention_kind",
    "module_names",
    "uses_interface",
]

AttentionKind = Literal["self", "cross"]

_CROSS = re.compile(r"cross|enc_?dec|encoder_attn|encoder_decoder", re.IGNORECASE)
_ATTENTION = re.compile(r"attention|attn", re.IGNORECASE)
_NO_ATTENTION = re.compile(r"output|dropout|norm|pool|bias", re.IGNORECASE)


def module_names(model: torch.nn.Module) -> dict[torch.nn.Module, str]:
    """The name of every module of a model, as `named_modules` gives it."""
    return {module: name for name, module in model.named_modules()}


def is_attention(module: torch.nn.Module) -> bool:
    """Whether a module's class is named after attention, and not after what stands beside it.

    Example:
        >>> is_attention(torch.nn.MultiheadAttention(4, 1)), is_attention(torch.nn.Linear(1, 1))
        (True, False)
    """
    name = type(module).__name__
    return bool(_ATTENTION.search(name)) and not _NO_ATTENTION.search(name)


def attention_kind(name: str, module: torch.nn.Module) -> AttentionKind:
    """Whether a layer looks at another sequence: by what models call such layers.

    Example:
        >>> kind_of("decoder.layers.0.encoder_attn", torch.nn.Identity())
        'cross'
    """
    said = getattr(module, "is_cross_attention", None)
    if isinstance(said, bool):
        return "cross" if said else "self"
    return "cross" if _CROSS.search(f"{name} {type(module).__name__}") else "self"


def uses_interface(module: torch.nn.Module) -> bool:
    """Whether the source of a module's class names the attention interface: a guess before it runs."""
    for cls in type(module).__mro__:
        if cls is torch.nn.Module:
            return False
        try:
            source = inspect.getsource(cls)
        except (OSError, TypeError):
            continue
        if "ALL_ATTENTION_FUNCTIONS" in source or "attention_interface" in source:
            return True
    return False


def nested(name: str, names: Iterable[str]) -> bool:
    """Whether a module is one of these, holds one of them or is held by one.

    Example:
        >>> inside("a.b", ["a.b.c"]), inside("a.b", ["a.bc"])
        (True, False)
    """
    return any(f"{a}.".startswith(f"{b}.") for other in names for a, b in ((name, other), (other, name)))


def attention_configs(model: Any) -> list[Any]:
    """Every config that says which attention a part of the model takes."""
    found: dict[int, Any] = {}
    queue = [module.config for module in model.modules() if hasattr(module, "config")]
    while queue:
        config = queue.pop()
        if id(config) in found or not hasattr(config, "_attn_implementation"):
            continue
        found[id(config)] = config
        queue += [getattr(config, name, None) for name in getattr(config, "sub_configs", {})]
    return list(found.values())
