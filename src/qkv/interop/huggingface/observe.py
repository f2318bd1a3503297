"""Read a layer's call: readouts with the axes (batch, heads, …), and the output that the same pass makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from qkv.engine import observe
from qkv.errors import OptionError
from qkv.interop.huggingface.attention_call import AttentionCall
from qkv.readouts import Heads, Readout
from qkv.readouts.base import flatten, unflatten

__all__ = ["observe_call", "needs_gradient"]


def needs_gradient(call: AttentionCall) -> bool:
    """Whether a gradient will come back to the call."""
    arrays = [x for part in call.options.values() if hasattr(part, "arrays") for x in part.arrays()]
    tensors = (call.query, call.key, call.value, *arrays)
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def observe_call(
    call: AttentionCall, readouts: Sequence[Readout], heads: Sequence[int] | None, dropout: float
) -> tuple[Any, tuple[Any, ...], torch.Tensor | None]:
    """The plan, the results, and the output as the engine gives it.

    Args:
        call: of the layer.
        readouts: what is read.
        heads: of which; None: all.
        dropout: of the output.

    Returns:
        No output where a gradient is wanted of it, or some heads alone are read.

    Raises:
        OptionError: there is no such head.
    """
    gradient = needs_gradient(call)
    looked = call.detached()
    with torch.no_grad():
        if heads is not None:
            return *_of_heads(looked, readouts, heads), None
        # `Heads` counts along the last batch axis.
        if looked.grouped and any(isinstance(x, Heads) for x in readouts):
            looked = looked.ungrouped()
        seen = observe(
            looked.query,
            looked.key,
            looked.value,
            readouts=readouts,
            dropout=0.0 if gradient else dropout,
            **looked.options,
        )
    found = tuple(unflatten(tuple(map(looked.per_head, flatten(x))), x) for x in seen.readouts)
    if gradient:
        return seen.plan, found, None
    return seen.plan, found, seen.output.reshape(*call.query.shape[:-1], -1)


def _of_heads(call: AttentionCall, readouts: Sequence[Readout], heads: Sequence[int]) -> tuple[Any, tuple[Any, ...]]:
    """One head after another."""
    plan, each = None, []
    for head in heads:
        if not -call.heads <= head < call.heads:
            raise OptionError(f"head {head} was asked for, the layer has {call.heads}.")
        one = call.select_head(head % call.heads)
        seen = observe(one.query, one.key, one.value, readouts=readouts, **one.options)
        plan = seen.plan
        each.append(seen.readouts)
    return plan, tuple(
        unflatten(tuple(torch.stack(same, 1) for same in zip(*map(flatten, pieces), strict=True)), pieces[0])
        for pieces in zip(*each, strict=True)
    )
