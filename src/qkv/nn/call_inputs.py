"""Inputs of a call of an attention module: what it passes to the engine after its projections and rotations."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple

from torch import Tensor

from qkv.cache.kernel import ChunkedTensor
from qkv.core.typing import Float
from qkv.plan.spec import CallOptions

__all__ = ["COLLECT", "CallInputs"]


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
