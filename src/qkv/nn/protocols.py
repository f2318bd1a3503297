"""What modules hand each other: a cache of keys and values, a rotation of both sides, what a call gives.

A cache or a rotation of your own needs nothing from here but these methods.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from qkv.core.positions import Positions
from qkv.masks import Mask
from qkv.plan import Plan

__all__ = ["Attended", "Cache", "KeyValue", "Rotary"]

Tensor = torch.Tensor


class Attended(NamedTuple):
    """What a module gives where readouts were asked for.

    Attributes:
        output: what it gives without readouts.
        readouts: one result for each, in the order asked; heads are their last batch axis.
        plan: how it ran.
    """

    output: Tensor
    readouts: tuple[Any, ...]
    plan: Plan


class KeyValue(NamedTuple):
    """Keys and values that are mapped and cut into heads: `MultiHeadAttention.key_value` gives them.

    Attributes:
        key: `(*batch, key_heads, k, head_width)`
        value: `(*batch, key_heads, k, head_value_width)`
    """

    key: Tensor
    value: Tensor


@runtime_checkable
class Cache(Protocol):
    """Keys and values of earlier calls. A module reads `start`, appends, and reads the rest, in this order.

    The cache belongs to the caller; a module keeps nothing of it.
    """

    @property
    def start(self) -> int | Tensor:
        """Where the next key stands: how many came before, or integers `(*batch,)` of uneven lengths."""

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys `(*batch, key_heads, new, head_width)` and their values; give all that are to be read."""

    @property
    def positions(self) -> Positions:
        """Where query 0 of this call stands, counted from the first key that `append` gave."""

    @property
    def mask(self) -> Mask | None:
        """Which of the keys that `append` gave are there (batch axes `(*batch,)`); None: all."""


@runtime_checkable
class Rotary(Protocol):
    """Turns queries and keys by where they stand, after they are mapped and cut into heads."""

    def rotate(
        self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The turned query and key.

        Args:
            query: `(*batch, heads, q, head_width)`
            key: `(*batch, key_heads, k, head_width)`: those of this call, before a cache adds earlier ones.
            query_positions: integers `(q,)`, or `(*batch, 1, q)` where batch elements stand differently.
            key_positions: integers `(k,)` or `(*batch, 1, k)`.
        """
