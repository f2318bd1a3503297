"""The product form of a call whose logits are inner products of features and whose normalizer is linear in the logits.

    without a causal mask    totals = φ(Q) (φ(K)ᵀ V)
    with a causal mask       totals of query i = φ(q_i) Σ_{j ≤ i} φ(k_j) v_jᵀ

A normalizer that divides by the sum of the logits gets this sum as φ(Q) Σ φ(K), or, with a causal mask, from another
column of the values, which is 1. Excluded keys have features 0.
"""

from __future__ import annotations

from collections.abc import Callable

from qkv.core.arrays import library, namespace, where, zeros
from qkv.core.equation import BoundCall
from qkv.core.typing import Array, Float
from qkv.kernels.runtime.split_mask import split_mask
from qkv.masks.base import Mask

__all__ = ["Recurrence", "linear_attention"]

Recurrence = Callable[[Array, Array, Array, Array], tuple[Array, Array]]
"""Function of queries, keys, values and a state that returns the outputs and the next state, as `recur` does."""


def linear_attention(
    call: BoundCall,
    left: Float[Array, "*#batch q features"],
    right: Float[Array, "*#batch k features"],
    recurrence: Recurrence,
) -> tuple[Float[Array, "*batch q value_width"], Float[Array, "*_"]]:
    """Return the output of a call, and an array that is finite if and only if everything that entered it is.

    Args:
        call: the call, whose normalizer is linear and whose mask is causal, of keys, both, or None.
        left: features of the queries.
        right: features of the keys, which are the second factors of the logits.
        recurrence: function that computes the recurrence for a causal mask.
    """
    xp, value = namespace(left), call.value
    keys, offset, _ = split_mask(call.mask, call.tile)
    if keys is not None:
        right = where(_allowed(keys, call, right), right, 0.0)
    divides = call.normalizer.sums_to_one
    total = None
    if offset is None:
        state = _state(right, value)
        output = checked = xp.matmul(left, state)
        if divides:
            total = xp.matmul(left, xp.sum(right, axis=-2)[..., None])
            checked = xp.sum(state) + total  # fewer elements than the output
    else:
        checked = _causal(left, right, _with_ones(value) if divides else value, offset, recurrence)
        output, total = (checked[..., :-1], checked[..., -1:]) if divides else (checked, None)
    if total is not None:
        empty = total == 0
        output = output * where(empty, 0.0, 1.0 / where(empty, 1.0, total))
    shape = (*call.batch, left.shape[-2], value.shape[-1])
    return (output if tuple(output.shape) == shape else xp.broadcast_to(output, shape)), checked


def _state(
    right: Float[Array, "*#batch k features"], value: Float[Array, "*#batch k value_width"]
) -> Float[Array, "*batch features value_width"]:
    """Return φ(K)ᵀ V."""
    xp = namespace(right)
    return xp.matmul(xp.matrix_transpose(right), value)


def _causal(
    left: Float[Array, "*#batch q features"],
    right: Float[Array, "*#batch k features"],
    value: Float[Array, "*#batch k columns"],
    offset: int,
    recurrence: Recurrence,
) -> Float[Array, "*batch q columns"]:
    """Return the sums over the keys j ≤ i + offset for each query i.

    Queries before the first key have the sum 0, keys before the first query enter the first state, and queries beyond
    the last key read the last state.
    """
    xp, q, k = namespace(left), left.shape[-2], right.shape[-2]
    early = min(q, max(0, -offset))
    first = min(k, max(0, offset))
    steps = max(0, min(q - early, k - first))
    state = _state(right[..., :first, :], value[..., :first, :])
    outputs = []
    if steps:
        rows, cols = slice(early, early + steps), slice(first, first + steps)
        output, state = recurrence(left[..., rows, :], right[..., cols, :], value[..., cols, :], state)
        outputs.append(output)
    late = xp.matmul(left[..., early + steps :, :], state)
    if late.shape[-2] or not outputs:
        outputs.append(late)
    if early:
        outputs.insert(0, zeros(late, (*late.shape[:-2], early, late.shape[-1])))
    return outputs[0] if len(outputs) == 1 else xp.concat(outputs, axis=-2)


def _with_ones(value: Float[Array, "*batch k value_width"]) -> Float[Array, "*batch k columns"]:
    xp = namespace(value)
    return xp.concat([value, zeros(value, (*value.shape[:-1], 1)) + 1.0], axis=-1)


def _allowed(keys: Mask, call: BoundCall, reference: Array) -> Array:
    """Return booleans `(*batch, k, 1)`, True for the keys that a mask of keys allows."""
    tile = call.tile.restrict((0, 1), (0, call.tile.k_total))
    allowed = keys.slice(slice(0, 1), slice(None)).allowed(tile, reference)
    assert library(allowed) == library(reference)
    return namespace(reference).matrix_transpose(allowed)
