"""Multi-head attention within one sequence (self-attention) and from one sequence to another (cross-attention)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from qkv.core.typing import Float
from qkv.errors import KindError
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.protocols import AttentionOutput, KeyValue
from qkv.nn.torch_arguments import explain_torch_arguments

__all__ = ["CrossAttention", "SelfAttention"]


@explain_torch_arguments
class SelfAttention(MultiHeadAttention):
    """Multi-head self-attention, called as `module(x)`.

    Args:
        width: width of a token.
        heads: number of heads.
        options: further options of `MultiHeadAttention`.

    Raises:
        KindError: in a call that passes a key or value.

    Example:
        >>> import torch
        >>> SelfAttention(8)(torch.randn(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def forward(
        self,
        query: Float[Tensor, "*batch q width"],
        key: Float[Tensor, "*#batch k key_width"] | KeyValue | None = None,
        value: Float[Tensor, "*#batch k value_width"] | None = None,
        **options: Any,
    ) -> Float[Tensor, "*batch q width"] | AttentionOutput:
        """Return the attention output for the sequence `query`, with the options of `MultiHeadAttention.forward`."""
        if key is not None or value is not None:
            raise KindError(
                "key and value must be None for SelfAttention, got a key or value. Use CrossAttention "
                "for two sequences."
            )
        return super().forward(query, **options)


@explain_torch_arguments
class CrossAttention(MultiHeadAttention):
    """Multi-head attention from one sequence to another, called as `module(query, source)`.

    Args:
        width: width of the query and the output.
        key_width: width of the other sequence; None means `width`.
        heads: number of heads.
        options: further options of `MultiHeadAttention`.

    Raises:
        KindError: in a call without a key.

    Example:
        >>> import torch
        >>> CrossAttention(8, 6)(torch.randn(2, 3, 8), torch.randn(2, 5, 6)).shape
        torch.Size([2, 3, 8])
    """

    def __init__(self, width: int, key_width: int | None = None, heads: int = 1, **options: Any) -> None:
        super().__init__(width, heads, key_width=key_width, **options)

    def forward(
        self,
        query: Float[Tensor, "*#batch q width"],
        key: Float[Tensor, "*#batch k key_width"] | KeyValue | None = None,
        value: Float[Tensor, "*#batch k value_width"] | None = None,
        **options: Any,
    ) -> Float[Tensor, "*batch q width"] | AttentionOutput:
        """Return the output of attention from `query` to `key`, with the options of `MultiHeadAttention.forward`."""
        if key is None:
            raise KindError("key must be given for CrossAttention, got None. Use SelfAttention for a single sequence.")
        return super().forward(query, key, value, **options)
