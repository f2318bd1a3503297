"""Functions that several programs for GPUs call."""

# mypy: ignore-errors
# Triton compiles these functions: their arguments are pointers and its decorator has no types.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def allowed_pairs(rows, cols, bias, q, k, offset, CAUSAL: tl.constexpr):
    """Return which pairs of a tile exist and are not masked."""
    allowed = (rows < q)[:, None] & ((cols < k) & (bias != -float("inf")))[None, :]
    if CAUSAL:
        allowed = allowed & (cols[None, :] <= rows[:, None] + offset)
    return allowed


@triton.jit
def last_key(k, offset, CAUSAL: tl.constexpr, BQ: tl.constexpr):
    """Return the end of the keys to which the block of queries of the program may attend."""
    stop = k
    if CAUSAL:
        stop = tl.minimum(k, tl.maximum(0, (tl.program_id(0) + 1) * BQ + offset))
    return stop


@triton.jit
def first_query(offset, CAUSAL: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr):
    """Return the start of the blocks of queries that may attend to the block of keys of the program."""
    start = 0
    if CAUSAL:
        start = tl.maximum(0, tl.program_id(0) * BK - offset) // BQ * BQ
    return start


@triton.jit
def load_block(pointer, index, n, W: tl.constexpr, WP: tl.constexpr):
    """Return the vectors of a block as (index, unit), with 0 beyond the last vector and unit."""
    units = tl.arange(0, WP)
    inside = (index < n)[:, None] & (units < W)[None, :]
    return tl.load(pointer + index[:, None] * W + units[None, :], mask=inside, other=0.0)


@triton.jit
def store_block(pointer, index, n, x, W: tl.constexpr, WP: tl.constexpr):
    """Store the vectors of a block, (index, unit)."""
    units = tl.arange(0, WP)
    inside = (index < n)[:, None] & (units < W)[None, :]
    tl.store(pointer + index[:, None] * W + units[None, :], x, mask=inside)


@triton.jit
def update_rows(logits, largest, total, result, values, PRECISION: tl.constexpr):
    """Return the running maximum, the sum of weights and the weighted values of rows after another tile."""
    now = tl.maximum(largest, tl.max(logits, 1))
    shift = tl.where(now == -float("inf"), 0.0, now)
    weights = tl.exp(logits - shift[:, None])
    scale = tl.exp(largest - shift)
    total = total * scale + tl.sum(weights, 1)
    result = result * scale[:, None] + tl.dot(weights, values, input_precision=PRECISION)
    return now, total, result


@triton.jit
def finish_rows(largest, total, result):
    """Return the output and the log-sum-exp of rows, both 0 for rows without keys."""
    nonempty = total != 0.0
    result = tl.where(nonempty[:, None], result / tl.where(nonempty, total, 1.0)[:, None], 0.0)
    shift = tl.where(largest == -float("inf"), 0.0, largest)
    known = tl.where(nonempty, shift + tl.log(tl.where(nonempty, total, 1.0)), 0.0)
    return result, known


@triton.jit
def softmax_gradients(logits, known, dot, given, values, allowed, PRECISION: tl.constexpr):
    """Return the weights of a tile and the gradient of its logits.

    `known` holds the log-sum-exps of rows, `given` the gradients of the outputs and `dot` their products with these.
    """
    weights = tl.where(allowed, tl.exp(logits - known[:, None]), 0.0)
    products = tl.dot(given, tl.trans(values), input_precision=PRECISION)
    return weights, tl.where(allowed, weights * (products - dot[:, None]), 0.0)


@triton.jit
def add_nonfinite_values(
    result, read, value, bad_value, first, k, DV: tl.constexpr, DVP: tl.constexpr, BK: tl.constexpr
):
    """Add the values of a tile that are not finite to the rows that read them, within a program in Triton."""
    cols, columns = first + tl.arange(0, BK), tl.arange(0, DVP)
    bad = tl.load(bad_value + cols, mask=cols < k, other=0)
    if tl.max(bad) > 0:
        for one in range(BK):
            reads = tl.max((read & (cols == first + one)[None, :]).to(tl.int32), 1)
            exists = (columns < DV) & (first + one < k)
            raw = tl.load(value + (first + one) * DV + columns, mask=exists, other=0.0)
            raw = tl.where(tl.abs(raw) < float("inf"), 0.0, raw)
            result += tl.where((reads > 0)[:, None], raw[None, :], 0.0)
    return result
