"""The product form of a call whose logits are inner products of features and whose normalizer is linear in the logits.

    without a causal mask    totals = φ(Q) (φ(K)ᵀ V)
    with a causal mask       totals of query i = φ(q_i) Σ_{j ≤ i} φ(k_j) v_jᵀ

    with decays              totals of query i = φ(q_i) Σ_{j ≤ i} e^(G_i − G_j) φ(k_j) v_jᵀ

A normalizer that divides by the sum of the logits gets this sum as φ(Q) Σ φ(K), or, with a causal mask, from another
column of the values, which is 1. Excluded keys have features 0.
"""

from __future__ import annotations

from collections.abc import Callable

from qkv.core.arrays import library, namespace, where, zeros
from qkv.core.equation import BoundCall
from qkv.core.parts import expand_to_pairs
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, OutputArray, ValueArray
from qkv.kernels.linear.decay import recur_with_decay
from qkv.kernels.runtime.split_mask import split_mask
from qkv.masks.base import Mask
from qkv.scores.base import Score
from qkv.scores.forms import Decayed

Recurrence = Callable[[Array, Array, Array, Array], tuple[Array, Array]]
"""Function of queries, keys, values and a state that returns the outputs and the next state, as `recur` does."""


def linear_attention(
    call: BoundCall,
    left: Float[Array, "*#batch q features"],
    right: Float[Array, "*#batch k features"],
    recurrence: Recurrence,
) -> tuple[OutputArray, Float[Array, "*_"]]:
    """Return the output of a call, and an array that is finite if and only if everything that entered it is.

    Args:
        call: the call, whose normalizer is linear and whose mask is causal, of keys, both, or None.
        left: features of the queries.
        right: features of the keys, which are the second factors of the logits.
        recurrence: function that computes the recurrence for a causal mask.
    """
    xp, value = namespace(left), call.value
    keys, offset, _ = split_causal(call.score, call.mask, call.tile)
    if keys is not None:
        right = where(_allowed(keys, call, right), right, 0.0)
    divides = call.normalizer.sums_to_one
    if offset is None:
        state = _state(right, value)
        output = checked = xp.matmul(left, state)
        if divides:
            total = xp.matmul(left, xp.sum(right, axis=-2)[..., None])
            checked = xp.sum(state) + total  # fewer elements than the output
            output = _divide(output, total)
    else:
        values = with_ones(value) if divides else value
        if isinstance(call.score.form, Decayed):
            checked = _causal_with_decay(call.score.form, left, right, values, offset)
        else:
            checked = _causal(left, right, values, offset, recurrence)
        output = divide_by_totals(checked) if divides else checked
    shape = (*call.batch, left.shape[-2], value.shape[-1])
    return (output if tuple(output.shape) == shape else xp.broadcast_to(output, shape)), checked


def divide_by_totals(sums: Float[Array, "*batch q columns"]) -> OutputArray:
    """Return the sums of `with_ones(value)`, divided by their last column; rows whose last column is 0 become 0."""
    return _divide(sums[..., :-1], sums[..., -1:])


def _divide(output: OutputArray, total: Float[Array, "*#batch q 1"]) -> OutputArray:
    empty = total == 0
    # Not multiplied by 1 / total, whose derivative 1 / total² overflows for a small total.
    return where(empty, 0.0, output / where(empty, 1.0, total))


def _state(right: Float[Array, "*#batch k features"], value: ValueArray) -> Float[Array, "*batch features value_width"]:
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


def split_causal(score: Score, mask: Mask | None, tile: Tile) -> tuple[Mask | None, int | None, bool]:
    """Return a mask as a mask of keys and the offset of a causal mask, and whether both are equivalent to the mask.

    If the score decays, a causal mask is equivalent only if its offset is the position of query 0, from which decays
    count. If no key is later than any query, the offset is this position also without a causal mask, which a rewrite
    has removed then.
    """
    keys, offset, exact = split_mask(mask, tile)
    if exact and isinstance(score.form, Decayed):
        first = tile.offset()
        if offset is None:
            offset = first if isinstance(first, int) and first >= tile.k_total - 1 else None
        else:
            exact = isinstance(first, int) and first == offset
    return keys, offset, exact


def step_decays(form: Decayed, reference: Array, steps: int) -> Float[Array, "*batch steps #features"]:
    """Return the logarithms of the decays at positions 0 to `steps` − 1. Beyond the last key decays per key are 1."""
    if form.log_decay_per_key is not None:
        return _fit(form.log_decay_per_key, steps)
    return zeros(reference, (steps, 1)) + expand_to_pairs(form.decay)


def _fit(x: Float[Array, "*batch n width"], steps: int) -> Float[Array, "*batch steps width"]:
    """Return the first rows of `x`, with rows of zeros after the last one."""
    rest = steps - x.shape[-2]
    if rest <= 0:
        return x[..., :steps, :]
    return namespace(x).concat([x, zeros(x, (*x.shape[:-2], rest, x.shape[-1]))], axis=-2)


def _causal_with_decay(
    form: Decayed,
    left: Float[Array, "*#batch q features"],
    right: Float[Array, "*#batch k features"],
    value: Float[Array, "*#batch k columns"],
    offset: int,
) -> Float[Array, "*batch q columns"]:
    """Return the decayed sums over the keys j ≤ i + offset for each query i.

    Queries before the first key have the sum 0.
    """
    xp, q = namespace(left), left.shape[-2]
    early = min(q, max(0, -offset))
    steps = max(0, q + offset)
    decays = step_decays(form, right, steps)
    late = left[..., early:, :]
    waiting = steps - late.shape[-2]  # keys before the first query
    if waiting:
        late = xp.concat([zeros(late, (*late.shape[:-2], waiting, late.shape[-1])), late], axis=-2)
    state = zeros(right, (right.shape[-1], value.shape[-1]))
    output = recur_with_decay(late, _fit(right, steps), _fit(value, steps), decays, state)[0][..., waiting:, :]
    if early:
        output = xp.concat([zeros(output, (*output.shape[:-2], early, output.shape[-1])), output], axis=-2)
    return output


def with_ones(value: Float[Array, "*batch k value_width"]) -> Float[Array, "*batch k columns"]:
    """Return the values with another column, which is 1."""
    xp = namespace(value)
    return xp.concat([value, zeros(value, (*value.shape[:-1], 1)) + 1.0], axis=-1)


def _allowed(keys: Mask, call: BoundCall, reference: Array) -> Array:
    """Return booleans `(*batch, k, 1)`, True for the keys that a mask of keys allows."""
    tile = call.tile.restrict((0, 1), (0, call.tile.k_total))
    allowed = keys.slice(slice(0, 1), slice(None)).allowed(tile, reference)
    assert library(allowed) == library(reference)
    return namespace(reference).matrix_transpose(allowed)
