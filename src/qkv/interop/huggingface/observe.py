"""Computation of the readouts of one attention call, and of its output in the same pass if possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch

from qkv.core.parts import Part
from qkv.core.typing import Array, Float, Tensor
from qkv.engine import observe
from qkv.errors import OptionError
from qkv.interop.huggingface.attention_call import AttentionCall
from qkv.interop.huggingface.attention_record import ReadoutResult
from qkv.plan.plan import Plan
from qkv.readouts import Heads, Readout
from qkv.readouts.base import flatten, unflatten

__all__ = ["ObservedCall", "observe_call", "requires_gradient"]


class ObservedCall(NamedTuple):
    """Plan, readouts and output of an attention call, as returned by `observe_call`.

    Attributes:
        plan: the plan of the call; None if no head was observed.
        readouts: one result for each readout, with axes (batch, heads, …).
        output: `(*batch, q, value_width)` with the batch axes of the call; None if it was not computed.
    """

    plan: Plan | None
    readouts: tuple[ReadoutResult, ...]
    output: Float[Tensor, "*batch q value_width"] | None


def requires_gradient(call: AttentionCall) -> bool:
    """Return whether the output of a call requires a gradient."""
    arrays = [x for part in call.options.values() if isinstance(part, Part) for x in part.arrays()]
    tensors = (call.query, call.key, call.value, *arrays)
    return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in tensors)


def observe_call(
    call: AttentionCall, readouts: Sequence[Readout], heads: Sequence[int] | None, dropout: float
) -> ObservedCall:
    """Return the plan and the readouts of a call, and its output if the same pass can compute it.

    Args:
        call: the call of one layer.
        readouts: readouts to compute; no gradient flows through them.
        heads: indices of the heads to observe; None for all.
        dropout: dropout probability of the output.

    Returns:
        The plan, the readouts and the output. The output is None if it requires a gradient, or if only
        some heads were observed.

    Raises:
        OptionError: a head index is out of range.
    """
    gradient = requires_gradient(call)
    detached = call.detached()
    with torch.no_grad():
        if heads is not None:
            return _observe_heads(detached, readouts, heads)
        # `Heads` selects along the last batch axis, which must then hold all heads.
        if detached.grouped and any(isinstance(x, Heads) for x in readouts):
            detached = detached.ungrouped()
        observation = observe(
            detached.query,
            detached.key,
            detached.value,
            readouts=readouts,
            dropout=0.0 if gradient else dropout,
            **detached.options,
        )
    merge = cast("Callable[[Array], Array]", detached.merge_heads)
    results = tuple(unflatten(tuple(map(merge, flatten(x))), x) for x in observation.readouts)
    output = None if gradient else cast(torch.Tensor, observation.output).reshape(*call.query.shape[:-1], -1)
    return ObservedCall(observation.plan, results, output)


def _observe_heads(call: AttentionCall, readouts: Sequence[Readout], heads: Sequence[int]) -> ObservedCall:
    plan, per_head = None, []
    for head in heads:
        if not -call.heads <= head < call.heads:
            raise OptionError(
                f"each index in heads must be between {-call.heads} and {call.heads - 1}, got {head}. The layer has "
                f"{call.heads} heads."
            )
        head_call = call.select_head(head % call.heads)
        observation = observe(head_call.query, head_call.key, head_call.value, readouts=readouts, **head_call.options)
        plan = observation.plan
        per_head.append(observation.readouts)
    results = tuple(
        unflatten(tuple(torch.stack(arrays, 1) for arrays in zip(*map(flatten, pieces), strict=True)), pieces[0])
        for pieces in zip(*per_head, strict=True)
    )
    return ObservedCall(plan, results, None)
