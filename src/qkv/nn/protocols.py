"""Protocols of key-value caches and rotary position encodings, and the result types of attention modules.

A custom cache or rotation only needs the methods of its protocol; no base class is required.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from qkv.cache.kernel import ChunkedTensor
from qkv.core.positions import Positions
from qkv.core.typing import Float, Int, ReadoutResult
from qkv.masks import Mask
from qkv.plan import Plan
from qkv.plan.spec import CallOptions


class CallInputs(NamedTuple):
    """Arrays and options that an attention module passes to the engine.

    Attributes:
        query: `(*batch, heads, q, width)`, or with two head axes (key_heads, group) in grouped-query attention; without
            head axes for modules without heads.
        key: `(*batch, heads, k, width)`, in the layout of `query`.
        value: `(*batch, heads, k, value_width)`, in the layout of `query`.
        options: score, normalizer, mask, positions and the other options of `qkv.attend`.
    """

    query: Float[Tensor, "*batch q width"]
    key: Float[Tensor, "*batch k width"] | ChunkedTensor
    value: Float[Tensor, "*batch k value_width"] | ChunkedTensor
    options: CallOptions


COLLECT: ContextVar[Callable[[CallInputs], None] | None] = ContextVar("COLLECT", default=None)
"""Function that is called with the inputs of each call with readouts; None: none. It is set while a model is recorded,
so that calls of models in other threads are left alone."""


class AttentionOutput(NamedTuple):
    """Output, readouts and plan that an attention module returns if readouts are requested.

    Attributes:
        output: the output that the module returns without readouts.
        readouts: one result per readout, in the order of the argument `readouts`; heads are the last batch axis.
        plan: the plan that was run.

    Example:
        >>> import torch
        >>> from qkv import nn, readouts
        >>> result = nn.SelfAttention(8)(torch.randn(1, 5, 8), readouts=[readouts.Dense()])
        >>> result.output.shape, result.readouts[0].shape, result.plan.kernel.name
        (torch.Size([1, 5, 8]), torch.Size([1, 1, 5, 5]), 'batched')
    """

    output: Float[Tensor, "*batch q width"]
    readouts: tuple[ReadoutResult, ...]
    plan: Plan


class KeyValue(NamedTuple):
    """Projected keys and values, split into heads, as returned by `MultiHeadAttention.key_value`.

    Attributes:
        key: keys `(*batch, key_heads, k, head_width)`.
        value: values `(*batch, key_heads, k, head_value_width)`.

    Example:
        >>> import torch
        >>> from qkv import nn
        >>> attention, memory = nn.MultiHeadAttention(16, 4), torch.randn(2, 9, 16)
        >>> both = attention.key_value(memory)
        >>> both.key.shape
        torch.Size([2, 4, 9, 4])
    """

    key: Float[Tensor, "*batch key_heads k head_width"]
    value: Float[Tensor, "*batch key_heads k head_value_width"]


@runtime_checkable
class Cache(Protocol):
    """Protocol of a cache that stores the keys and values of earlier calls.

    An attention module reads `start`, calls `append`, then reads `positions` and `mask`. The caller creates the
    cache and passes it to every call.

    Example:
        >>> import torch
        >>> from qkv import masks, nn
        >>> attention, cache = nn.MultiHeadAttention(8, 2, mask=masks.Causal()), nn.KeyValueCache()
        >>> with torch.no_grad():
        ...     _ = attention(torch.randn(1, 5, 8), cache=cache)
        >>> isinstance(cache, nn.Cache), cache.start
        (True, 5)
    """

    @property
    def start(self) -> int | Int[Tensor, "*batch"]:
        """Position of the next key, which is the number of keys so far, `(*batch,)` if the lengths differ."""

    def append(
        self, key: Float[Tensor, "*batch new head_width"], value: Float[Tensor, "*batch new head_value_width"]
    ) -> tuple[
        Float[Tensor, "*batch k head_width"] | ChunkedTensor, Float[Tensor, "*batch k head_value_width"] | ChunkedTensor
    ]:
        """Append keys and values to the cache, and return all keys and values to attend to."""

    @property
    def positions(self) -> Positions:
        """Position of query 0 of the last call relative to the first key that `append` returned."""

    @property
    def mask(self) -> Mask | None:
        """Mask of the keys that `append` returned, with batch axes `(*batch,)`, or None if all keys are allowed."""


@runtime_checkable
class Rotation(Protocol):
    """Protocol of modules that rotate projected queries and keys by position, such as `nn.positions.Rotary`.

    Example:
        >>> import torch
        >>> from qkv import nn
        >>> rotary = nn.positions.Rotary(4)
        >>> attention = nn.MultiHeadAttention(16, 4, positions=rotary)
        >>> isinstance(rotary, nn.Rotation), attention(torch.randn(1, 3, 16)).shape
        (True, torch.Size([1, 3, 16]))
    """

    def rotate(
        self,
        query: Float[Tensor, "*#batch heads q head_width"],
        key: Float[Tensor, "*#batch key_heads k head_width"],
        query_positions: Int[Tensor, " q"] | Int[Tensor, "*#batch 1 q"],
        key_positions: Int[Tensor, " k"] | Int[Tensor, "*#batch 1 k"],
    ) -> tuple[Float[Tensor, "*#batch heads q head_width"], Float[Tensor, "*#batch key_heads k head_width"]]:
        """Return the projected queries and keys, each rotated by its position.

        Args:
            query: projected queries.
            key: projected keys of this call, without the keys of a cache.
            query_positions: positions of the queries, `(q,)`, or `(*batch, 1, q)` if they differ within the batch.
            key_positions: positions of the keys, `(k,)` or `(*batch, 1, k)`.
        """
