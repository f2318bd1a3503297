"""Check the options of `MultiHeadAttention` and fill in their defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Literal, TypedDict, TypeVar, get_args

import torch
from torch import Tensor

from qkv.core.checks import check_choice
from qkv.core.head_widths import HeadWidths
from qkv.core.typing import Float
from qkv.errors import OptionError
from qkv.normalizers import Normalizer, Softmax

Bias = bool | Literal["inputs", "output"]
Extension = Literal["temperature", "sink", "talking_heads", "output_gate", "learned_key", "zero_key"]
Map = Literal["query", "key", "value", "output", "shared"]
NormOption = Literal["rms", "layer", "l2"] | Callable[[int], torch.nn.Module] | None
"""Normalization of each head's query and key: a name, or a function that builds a module from the width of a head."""
_NORMS: dict[str, Callable[..., torch.nn.Module]] = {"rms": torch.nn.RMSNorm, "layer": torch.nn.LayerNorm}

N = TypeVar("N", bound=str)


class FactoryKwargs(TypedDict):
    """Device and dtype of new parameters, the keyword arguments that PyTorch's modules take."""

    device: torch.device | str | None
    dtype: torch.dtype | None


def check_names(name: str, given: Collection[N], choices: object) -> tuple[N, ...]:
    """Check that the option `name` is a collection of names of a `Literal` type, and return them.

    Raises:
        OptionError: if it is not, or a name is unknown.
    """
    allowed = get_args(choices)
    if isinstance(given, str) or not isinstance(given, Collection):
        raise OptionError(f"{name} must be a list of names, got {given!r}. Choose some of {', '.join(allowed)}.")
    for each in given:
        check_choice(f"each of {name}", each, allowed)
    return tuple(given)


def check_maps(widths: HeadWidths, maps: Collection[Map]) -> None:
    """Check that the projections of `MultiHeadAttention` that are switched off are not needed for its widths.

    Raises:
        OptionError: if the widths require a projection that is switched off, or projections contradict each other.
    """
    shared = "shared" in maps
    if shared and ("query" in maps or "key" in maps):
        raise OptionError(
            f'maps must not name "query" or "key" beside "shared", got {list(maps)}. Omit "shared" for two projections.'
        )
    width, heads, key_width, value_width, head_width, head_value_width, key_heads = dataclasses.astuple(widths)
    # (no projection, input or output, its width: name and value, heads, width per head: name and value)
    unprojected = [
        (not shared and "query" not in maps, "query", "width", width, heads, "head_width", head_width),
        (not shared and "key" not in maps, "key", "key_width", key_width, key_heads, "head_width", head_width),
        ("value" not in maps, "value", "value_width", value_width, key_heads, "head_value_width", head_value_width),
        ("output" not in maps, "output", "width", width, heads, "head_value_width", head_value_width),
    ]
    for applies, side, name, whole, count, per_head, part in unprojected:
        if applies and whole != count * part:
            raise OptionError(
                f"{name} must be {count * part} ({count} heads of {per_head}={part}), because the {side} has no "
                f"projection, got {whole}. Choose {name}={count * part}, or add {side!r} to maps."
            )
    if shared and (key_width != width or key_heads != heads):
        raise OptionError(
            "query and key must have the same width and number of heads with a shared projection, got "
            f"width={width}, key_width={key_width}, heads={heads}, key_heads={key_heads}. "
            'Make them equal, or name "query" and "key" in maps.'
        )


class UnitNorm(torch.nn.Module):
    """Module that divides vectors by their length, computed in float32 at least; zero vectors stay zero.

    Example:
        >>> UnitNorm()(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Return the vectors divided by their lengths."""
        wide = x if x.dtype == torch.float64 else x.float()
        return torch.nn.functional.normalize(wide, dim=-1).to(x.dtype)


def build_norm(kind: NormOption, width: int, factory_kwargs: FactoryKwargs) -> torch.nn.Module | None:
    """Return a normalization layer for the queries or keys of a head, or None if `kind` is None.

    Raises:
        OptionError: if `kind` is unknown, or a callable that does not return a module.
    """
    if kind is not None and not isinstance(kind, str) and callable(kind):
        module = kind(width)
        if not isinstance(module, torch.nn.Module):
            raise OptionError(
                f"query_key_norm must return a module for the width of a head, got {type(module).__name__}. Pass "
                "a function such as lambda width: torch.nn.RMSNorm(width, eps=1e-6)."
            )
        return module.to(device=factory_kwargs["device"], dtype=factory_kwargs["dtype"])
    check_choice("query_key_norm", kind, (None, *_NORMS, "l2"))
    if kind == "l2":
        return UnitNorm()
    return None if kind is None else _NORMS[str(kind)](width, **factory_kwargs)


def check_softmax(normalizer: Normalizer | None, learned: bool) -> None:
    """Check that the normalizer is a `Softmax` or None if a temperature or a sink is learned.

    Raises:
        OptionError: if a temperature or sink is learned and the normalizer is not a softmax.
    """
    if learned and not isinstance(normalizer, (Softmax, type(None))):
        raise OptionError(
            f"normalizer must be Softmax with a learned temperature or sink, got {normalizer}. Pass "
            "normalizer=Softmax(), or leave out these extensions."
        )


def add_softmax_parameters(
    normalizer: Normalizer | None, log_temperature: Float[Tensor, " heads"] | None, sink: Float[Tensor, " heads"] | None
) -> Softmax:
    """Return the softmax with its temperature multiplied by the learned one and with the learned sink, if any."""
    softmax = Softmax() if normalizer is None else normalizer
    assert isinstance(softmax, Softmax)
    if log_temperature is not None:
        softmax = dataclasses.replace(softmax, temperature=softmax.temperature * log_temperature.exp())
    if sink is not None:
        softmax = dataclasses.replace(softmax, sink=sink)
    return softmax
