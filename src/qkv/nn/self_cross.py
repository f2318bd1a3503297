"""Self-attention and cross-attention: multi-head attention that says which of the two it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from qkv.core.positions import Positions
from qkv.errors import KindError
from qkv.masks import Mask
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.protocols import Attended, Cache, KeyValue
from qkv.readouts import Readout

__all__ = ["CrossAttention", "SelfAttention"]

Tensor = torch.Tensor


class SelfAttention(MultiHeadAttention):
    """A sequence attends to itself: `module(x)`.

    Args:
        width, heads, options: as in `MultiHeadAttention`; one head unless said.

    Raises:
        KindError: at the call, a key or value is given.

    Example:
        >>> SelfAttention(8)(torch.randn(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, width: int, heads: int = 1, **options: Any) -> None:
        super().__init__(width, heads, **options)

    def forward(
        self,
        query: Tensor,
        key: Tensor | KeyValue | None = None,
        value: Tensor | None = None,
        *,
        mask: Mask | None = None,
        bias: Tensor | None = None,
        cache: Cache | None = None,
        readouts: Sequence[Readout] = (),
        positions: Positions | None = None,
    ) -> Tensor | Attended:
        """As `MultiHeadAttention`, of one sequence."""
        if key is not None or value is not None:
            raise KindError("SelfAttention takes one sequence. For two, use CrossAttention.")
        return super().forward(query, mask=mask, bias=bias, cache=cache, readouts=readouts, positions=positions)


class CrossAttention(MultiHeadAttention):
    """One sequence attends to another: `module(query, source)`.

    Args:
        width: of the query and the output.
        key_width: of the other sequence; `width` where None.
        heads, options: as in `MultiHeadAttention`; one head unless said.

    Raises:
        KindError: at the call, no key is given.

    Example:
        >>> CrossAttention(8, 6)(torch.randn(2, 3, 8), torch.randn(2, 5, 6)).shape
        torch.Size([2, 3, 8])
    """

    def __init__(self, width: int, key_width: int | None = None, heads: int = 1, **options: Any) -> None:
        super().__init__(width, heads, key_width=key_width, **options)

    def forward(
        self,
        query: Tensor,
        key: Tensor | KeyValue | None = None,
        value: Tensor | None = None,
        *,
        mask: Mask | None = None,
        bias: Tensor | None = None,
        cache: Cache | None = None,
        readouts: Sequence[Readout] = (),
        positions: Positions | None = None,
    ) -> Tensor | Attended:
        """As `MultiHeadAttention`, of two sequences."""
        if key is None:
            raise KindError("CrossAttention takes two sequences. For one, use SelfAttention.")
        return super().forward(
            query, key, value, mask=mask, bias=bias, cache=cache, readouts=readouts, positions=positions
        )
