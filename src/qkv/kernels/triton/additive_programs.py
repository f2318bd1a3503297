"""Programs for GPUs that compute attention with an additive score: forward, and backward for queries and for keys.

A program computes the tiles of a block of queries, or of a block of keys, one after the other. With
e^(2s) = e^(2a) e^(2b) for s = a + b, two hidden units share one division:

    v₁ tanh s₁ + v₂ tanh s₂ = v₁ + v₂ − 2 (v₁ (1 + P₂) + v₂ (1 + P₁)) / ((1 + P₁) (1 + P₂))        P = e^(2a) e^(2b)

Logits are computed without the sum of v, which cancels in softmax. Where the flag of a batch element is 1, `left` and
`right` hold e^(2a) and e^(2b); where it is 0, because these could overflow, they hold a and b, and each pair takes one
exponential and one division. All sums are in single precision, in a fixed order.

The programs that `traced` generates for the same score have one division and one exponential for each pair and unit.
Compiled for sm_80 and sm_90 with the same blocks, they take 1.7 to 2.1 times the instructions for a pair and unit and
four times the special functions.

Axes: `left` and `right` are (element, unit, row), all other arrays (element, row, …), all contiguous.
"""

# mypy: ignore-errors
# Triton compiles these functions: their arguments are pointers and its decorator has no types.

from __future__ import annotations

import triton
import triton.language as tl

from qkv.kernels.triton.device_functions import (
    allowed_pairs,
    finish_rows,
    first_query,
    last_key,
    load_block,
    softmax_gradients,
    store_block,
    update_rows,
)


@triton.jit
def _two_units(left, right, unit, rows, cols, q, k):
    """Return the numbers of two hidden units for the queries and keys of a tile."""
    a1 = tl.load(left + unit * q + rows, mask=rows < q, other=0.0)
    a2 = tl.load(left + (unit + 1) * q + rows, mask=rows < q, other=0.0)
    b1 = tl.load(right + unit * k + cols, mask=cols < k, other=0.0)
    b2 = tl.load(right + (unit + 1) * k + cols, mask=cols < k, other=0.0)
    return a1, a2, b1, b2


@triton.jit
def additive_tile(left, right, vector, moderate, rows, cols, q, k, H: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr):
    """Return the logits of a tile without the sum of `vector`."""
    total = tl.zeros((BQ, BK), tl.float32)
    for unit in range(0, H, 2):
        a1, a2, b1, b2 = _two_units(left, right, unit, rows, cols, q, k)
        v1 = tl.load(vector + unit)
        v2 = tl.load(vector + unit + 1)
        if moderate:
            p1, p2 = _products(a1, b1), _products(a2, b2)
            total += (v1 * p2 + v2 * p1) / (p1 * p2)
        else:
            total += v1 * _far(a1, b1) + v2 * _far(a2, b2)
    return -2.0 * total


@triton.jit
def _products(a, b):
    """Return 1 + a b for exponentials a and b, at most 2^30, from which 2 / (1 + a b) is less than 1e-8."""
    return 1.0 + tl.minimum(a[:, None] * b[None, :], 1073741824.0)


@triton.jit
def _far(a, b):
    """Return 1 / (1 + e^(2s)) for s = a + b of any range."""
    s = tl.minimum(tl.maximum(a[:, None] + b[None, :], -40.0), 40.0)
    return 1.0 / (1.0 + tl.exp(2.0 * s))


@triton.jit
def _reciprocals(left, right, moderate, unit, rows, cols, q, k):
    """Return 1 / (1 + e^(2s)) of two hidden units."""
    a1, a2, b1, b2 = _two_units(left, right, unit, rows, cols, q, k)
    if moderate:
        p1, p2 = _products(a1, b1), _products(a2, b2)
        shared = 1.0 / (p1 * p2)
        r1, r2 = shared * p2, shared * p1
    else:
        r1, r2 = _far(a1, b1), _far(a2, b2)
    return r1, r2


@triton.jit
def attend_queries(
    left, right, vector, flags, value, row_bias, key_bias, output, log_sum_exp, q, k, offset,
    H: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute the output and the log-sum-exp of a block of queries."""
    element = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BQ + tl.arange(0, BQ)
    left, right, vector = left + element * H * q, right + element * H * k, vector + element * H
    value, key_bias = value + element * k * DV, key_bias + element * k
    moderate = tl.load(flags + element) != 0
    own = tl.load(row_bias + element * q + rows, mask=rows < q, other=0.0)
    largest = tl.full((BQ,), -float("inf"), tl.float32)
    total = tl.zeros((BQ,), tl.float32)
    result = tl.zeros((BQ, DVP), tl.float32)
    for first in range(0, last_key(k, offset, CAUSAL, BQ), BK):
        cols = first + tl.arange(0, BK)
        bias = tl.load(key_bias + cols, mask=cols < k, other=-float("inf"))
        allowed = allowed_pairs(rows, cols, bias, q, k, offset, CAUSAL)
        logits = additive_tile(left, right, vector, moderate, rows, cols, q, k, H, BQ, BK)
        logits = tl.where(allowed, logits + own[:, None] + bias[None, :], -float("inf"))
        x = load_block(value, cols, k, DV, DVP)
        largest, total, result = update_rows(logits, largest, total, result, x, PRECISION)
    result, known = finish_rows(largest, total, result)
    store_block(output + element * q * DV, rows, q, result, DV, DVP)
    tl.store(log_sum_exp + element * q + rows, known, mask=rows < q)


@triton.jit
def differentiate_queries(
    left, right, vector, flags, value, row_bias, key_bias, gradient, log_sum_exp, dots, left_gradient, vector_gradient,
    q, k, offset,
    H: tl.constexpr, HP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the projected queries of a block, and its share of the gradient of the vector."""
    element = tl.program_id(1).to(tl.int64)
    rows, units = tl.program_id(0) * BQ + tl.arange(0, BQ), tl.arange(0, HP)
    left, right, vector = left + element * H * q, right + element * H * k, vector + element * H
    value, key_bias = value + element * k * DV, key_bias + element * k
    moderate = tl.load(flags + element) != 0
    own = tl.load(row_bias + element * q + rows, mask=rows < q, other=0.0)
    known = tl.load(log_sum_exp + element * q + rows, mask=rows < q, other=0.0)
    dot = tl.load(dots + element * q + rows, mask=rows < q, other=0.0)
    given = load_block(gradient + element * q * DV, rows, q, DV, DVP)
    left_sums = tl.zeros((BQ, HP), tl.float32)
    vector_sums = tl.zeros((HP,), tl.float32)
    for first in range(0, last_key(k, offset, CAUSAL, BQ), BK):
        cols = first + tl.arange(0, BK)
        bias = tl.load(key_bias + cols, mask=cols < k, other=-float("inf"))
        allowed = allowed_pairs(rows, cols, bias, q, k, offset, CAUSAL)
        logits = additive_tile(left, right, vector, moderate, rows, cols, q, k, H, BQ, BK)
        logits = logits + own[:, None] + bias[None, :]
        x = load_block(value, cols, k, DV, DVP)
        _, slopes = softmax_gradients(logits, known, dot, given, x, allowed, PRECISION)
        for unit in range(0, H, 2):
            r1, r2 = _reciprocals(left, right, moderate, unit, rows, cols, q, k)
            s1, s2 = slopes * r1, slopes * r2
            first_unit, second_unit = units == unit, units == unit + 1
            vector_sums += tl.where(first_unit, tl.sum(s1), 0.0) + tl.where(second_unit, tl.sum(s2), 0.0)
            s1, s2 = tl.sum(s1 - s1 * r1, 1), tl.sum(s2 - s2 * r2, 1)
            left_sums += tl.where(first_unit[None, :], s1[:, None], tl.where(second_unit[None, :], s2[:, None], 0.0))
    v = tl.load(vector + units, mask=units < H, other=0.0)
    target = left_gradient + element * H * q + units[None, :] * q + rows[:, None]
    tl.store(target, 4.0 * v[None, :] * left_sums, mask=(rows < q)[:, None] & (units < H)[None, :])
    part = element * tl.num_programs(0) + tl.program_id(0)
    tl.store(vector_gradient + part * H + units, -2.0 * vector_sums, mask=units < H)


@triton.jit
def differentiate_keys(
    left, right, vector, flags, value, row_bias, key_bias, gradient, log_sum_exp, dots, right_gradient, value_gradient,
    q, k, offset,
    H: tl.constexpr, HP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the projected keys and the values of a block of keys."""
    element = tl.program_id(1).to(tl.int64)
    cols, units = tl.program_id(0) * BK + tl.arange(0, BK), tl.arange(0, HP)
    left, right, vector = left + element * H * q, right + element * H * k, vector + element * H
    moderate = tl.load(flags + element) != 0
    bias = tl.load(key_bias + element * k + cols, mask=cols < k, other=-float("inf"))
    x = load_block(value + element * k * DV, cols, k, DV, DVP)
    right_sums = tl.zeros((BK, HP), tl.float32)
    value_sums = tl.zeros((BK, DVP), tl.float32)
    for first in range(first_query(offset, CAUSAL, BQ, BK), q, BQ):
        rows = first + tl.arange(0, BQ)
        own = tl.load(row_bias + element * q + rows, mask=rows < q, other=0.0)
        known = tl.load(log_sum_exp + element * q + rows, mask=rows < q, other=0.0)
        dot = tl.load(dots + element * q + rows, mask=rows < q, other=0.0)
        given = load_block(gradient + element * q * DV, rows, q, DV, DVP)
        allowed = allowed_pairs(rows, cols, bias, q, k, offset, CAUSAL)
        logits = additive_tile(left, right, vector, moderate, rows, cols, q, k, H, BQ, BK)
        logits = logits + own[:, None] + bias[None, :]
        weights, slopes = softmax_gradients(logits, known, dot, given, x, allowed, PRECISION)
        value_sums += tl.dot(tl.trans(weights), given, input_precision=PRECISION)
        for unit in range(0, H, 2):
            r1, r2 = _reciprocals(left, right, moderate, unit, rows, cols, q, k)
            s1, s2 = tl.sum(slopes * (r1 - r1 * r1), 0), tl.sum(slopes * (r2 - r2 * r2), 0)
            first_unit, second_unit = units == unit, units == unit + 1
            right_sums += tl.where(first_unit[None, :], s1[:, None], tl.where(second_unit[None, :], s2[:, None], 0.0))
    v = tl.load(vector + units, mask=units < H, other=0.0)
    target = right_gradient + element * H * k + units[None, :] * k + cols[:, None]
    tl.store(target, 4.0 * v[None, :] * right_sums, mask=(cols < k)[:, None] & (units < H)[None, :])
    store_block(value_gradient + element * k * DV, cols, k, value_sums, DV, DVP)
