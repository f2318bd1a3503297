"""What may be asked of multi-head attention, and what is filled in where nothing is said."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import torch

from qkv.errors import OptionError
from qkv.normalizers import Normalizer, Softmax

__all__ = ["Maps", "Widths", "check_widths", "norm", "softmax_of"]

Maps = Literal["both", "shared", "query", "key", "none"]
MAPS = ("both", "shared", "query", "key", "none")


class Widths(NamedTuple):
    """Widths with nothing left open."""

    key_width: int
    value_width: int
    head_width: int
    head_value_width: int
    key_heads: int


def check_widths(
    width: int,
    heads: int,
    key_width: int | None,
    value_width: int | None,
    head_width: int | None,
    head_value_width: int | None,
    key_heads: int | None,
    maps: str,
    value_map: bool,
    output_map: bool,
) -> Widths:
    """The widths, filled in.

    Raises:
        OptionError: they do not fit each other, or the maps that there are.
    """
    if maps not in MAPS:
        raise OptionError(f"maps is {maps!r}. Give one of {', '.join(map(repr, MAPS))}.")
    key_heads = heads if key_heads is None else key_heads
    key_width = width if key_width is None else key_width
    value_width = key_width if value_width is None else value_width
    given = {
        "width": width,
        "heads": heads,
        "key_heads": key_heads,
        "key_width": key_width,
        "value_width": value_width,
        "head_width": head_width,
        "head_value_width": head_value_width,
    }
    for name, number in given.items():
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise OptionError(f"{name} is {number!r}. It must be a whole number, 1 or more.")
    if heads % key_heads:
        raise OptionError(
            f"{heads} heads cannot share {key_heads} key heads evenly. Choose key_heads that divide heads."
        )
    if head_width is None:
        if width % heads:
            raise OptionError(
                f"width {width} is not divided by {heads} heads. Choose heads that divide it, or head_width."
            )
        head_width = width // heads
    head_value_width = head_width if head_value_width is None else head_value_width
    wanted = [
        (maps in ("key", "none"), "query", "width", width, heads, "head_width", head_width),
        (maps in ("query", "none"), "key", "key_width", key_width, key_heads, "head_width", head_width),
        (not value_map, "value", "value_width", value_width, key_heads, "head_value_width", head_value_width),
        (not output_map, "output", "width", width, heads, "head_value_width", head_value_width),
    ]
    for unmapped, side, name, whole, count, of_head, part in wanted:
        if unmapped and whole != count * part:
            raise OptionError(
                f"without a map the {side} is {count} heads of {of_head} {part} as it is, and {name} is "
                f"{whole}. Choose {name}={count * part}, or keep the map."
            )
    if maps == "shared" and (key_width != width or key_heads != heads):
        raise OptionError(
            f"a shared map takes query and key alike: width is {width}, key_width {key_width}, heads "
            f'{heads}, key_heads {key_heads}. Make them equal, or choose maps="both".'
        )
    return Widths(key_width, value_width, head_width, head_value_width, key_heads)


def norm(kind: str | None, width: int, made_as: dict[str, Any]) -> torch.nn.Module | None:
    """The norm of query or key.

    Raises:
        OptionError: no such norm.
    """
    if kind is None:
        return None
    if kind == "rms":
        return torch.nn.RMSNorm(width, **made_as)
    if kind == "layer":
        return torch.nn.LayerNorm(width, **made_as)
    raise OptionError(f'query_key_norm is {kind!r}. Give "rms", "layer" or None.')


def softmax_of(normalizer: Normalizer | None, log_temperature: Any, sink: Any) -> Normalizer | None:
    """The softmax with a learned temperature and sink, where there are any.

    Args:
        normalizer: the one that was given.
        log_temperature, sink: parameters `(heads,)`, or None; while options are checked, whether there are.

    Raises:
        OptionError: it is no softmax.
    """
    if log_temperature is None and sink is None:
        return normalizer
    if isinstance(log_temperature, bool):
        if (log_temperature or sink) and not isinstance(normalizer, (Softmax, type(None))):
            raise OptionError(
                f"temperature and sink are learned for Softmax alone, not for {normalizer}. Leave them out."
            )
        return normalizer
    softmax: Any = Softmax() if normalizer is None else normalizer
    if log_temperature is not None:
        softmax = dataclasses.replace(softmax, temperature=softmax.temperature * log_temperature.exp())
    if sink is not None:
        softmax = dataclasses.replace(softmax, sink=sink)
    out: Normalizer = softmax
    return out
