"""Programs for GPUs that compute attention with inner products, optionally gated, under several normalizers.

A logit is l = scale · <q, k> · σ(g_q + g_k), or without the gate. A program computes the tiles of a block of queries,
or of a block of keys, one after the other, and passes over the keys as often as the normalizer needs:

    softmax (POWER 0, TOP 0)       once, with a running maximum
    sparsemax, 1.5-entmax          for the maximum, for each Newton step of the threshold τ, and for the output;
    (POWER 1, 2)                   weights are max(0, l − m − τ)^POWER for the maximum m of the row
    top-k (TOP k)                  for the k largest logits, which are kept in registers, and for the output;
                                   ties go to the lowest index

The Newton steps start at τ = −1 and never overshoot, because the sum of the weights is convex in τ. A row that may
attend to a logit of NaN or infinity gets NaN. Values that are not finite are read only if their weight is not 0.

The functions share the tuple `call`: the vectors, gates and biases of a block of queries, their indices, the pointers
to the keys and to their gates and biases, and the numbers of the call.

Source: Gonçalves, Treviso, Martins (2025), AdaSplash: adaptive sparse flash attention,
https://arxiv.org/abs/2502.12082, for thresholds that are found by recomputed tiles.
"""

# mypy: ignore-errors
# Triton compiles these functions: their arguments are pointers and its decorator has no types.

from __future__ import annotations

import triton
import triton.language as tl

from qkv.kernels.triton.program_parts import (
    add_nonfinite_values,
    allowed_pairs,
    first_query,
    last_key,
    load_block,
    store_block,
)

__all__ = ["attend_products", "differentiate_product_keys", "differentiate_product_queries"]


@triton.jit
def _gate(own, other):
    """Return σ(own + other) for each pair; beyond ±80 the exponential would overflow."""
    return 1.0 / (1.0 + tl.exp(tl.minimum(tl.maximum(-(own[:, None] + other[None, :]), -80.0), 80.0)))


@triton.jit
def _tile(
    call, cols, D: tl.constexpr, DP: tl.constexpr, GATED: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the logits of a tile, −inf for excluded pairs, which pairs are allowed, and the gates."""
    x, own_gate, own, rows, key, key_gate, key_bias, q, k, offset, scale = call
    bias = tl.load(key_bias + cols, mask=cols < k, other=-float("inf"))
    allowed = allowed_pairs(rows, cols, bias, q, k, offset, CAUSAL)
    logits = tl.dot(x, tl.trans(load_block(key, cols, k, D, DP)), input_precision=PRECISION) * scale
    gate = 1.0
    if GATED:
        gate = _gate(own_gate, tl.load(key_gate + cols, mask=cols < k, other=0.0))
        logits = logits * gate
    return tl.where(allowed, logits + own[:, None] + bias[None, :], -float("inf")), allowed, gate


@triton.jit
def _finite_tile(
    call, cols, invalid,
    D: tl.constexpr, DP: tl.constexpr, GATED: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the logits of a tile, −inf also where they are NaN or infinite, and mark the rows of the latter."""
    logits, allowed, _ = _tile(call, cols, D, DP, GATED, CAUSAL, PRECISION)
    odd = allowed & ~(logits < float("inf"))
    return tl.where(odd, -float("inf"), logits), tl.maximum(invalid, tl.max(odd.to(tl.int32), 1))


@triton.jit
def _largest_logits(
    call, stop, TOP: tl.constexpr, TOPP: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, GATED: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Pass over the keys for the TOP largest logits of each row.

    Return the largest and the smallest of them, how many of them equal the smallest, and whether the row is invalid.
    """
    invalid = tl.zeros((BQ,), tl.int32)
    best = tl.full((BQ, TOPP), -float("inf"), tl.float32)
    ranks = tl.arange(0, TOPP)[None, :]
    for first in range(0, stop, BK):
        logits, invalid = _finite_tile(call, first + tl.arange(0, BK), invalid, D, DP, GATED, CAUSAL, PRECISION)
        above = logits > tl.min(best, 1)[:, None]
        if tl.max(above.to(tl.int32)) > 0:
            both = tl.reshape(tl.join(best, tl.topk(logits, TOPP)), (BQ, 2 * TOPP))
            best = tl.topk(both, TOPP)
    threshold = tl.min(tl.where(ranks < TOP, best, float("inf")), 1)
    more = tl.sum(((best > threshold[:, None]) & (ranks < TOP)).to(tl.int32), 1)
    return tl.max(best, 1), threshold, TOP - more, invalid


@triton.jit
def _newton_step(
    call, stop, shift, tau, POWER: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, GATED: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Pass over the keys for the change of the threshold τ of each row."""
    count, sums, squares = tl.zeros((BQ,), tl.float32), tl.zeros((BQ,), tl.float32), tl.zeros((BQ,), tl.float32)
    for first in range(0, stop, BK):
        logits, _, _ = _tile(call, first + tl.arange(0, BK), D, DP, GATED, CAUSAL, PRECISION)
        above = logits - shift[:, None] - tau[:, None]
        above = tl.where((above > 0.0) & (above < float("inf")), above, 0.0)
        count += tl.sum((above > 0.0).to(tl.float32), 1)
        sums += tl.sum(above, 1)
        squares += tl.sum(above * above, 1)
    if POWER == 1:
        change = (sums - 1.0) / tl.maximum(count, 1.0)
    else:
        norm = tl.sqrt(squares)
        change = (norm - 1.0) * norm / tl.where(sums > 0.0, sums, 1.0)
    return tl.where(count > 0.0, change, 0.0)


@triton.jit
def _threshold(
    call, stop, POWER: tl.constexpr, STEPS: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, GATED: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the maximum of each row, 0 without keys, the threshold τ below it, and whether the row is invalid."""
    invalid = tl.zeros((BQ,), tl.int32)
    largest = tl.full((BQ,), -float("inf"), tl.float32)
    for first in range(0, stop, BK):
        logits, invalid = _finite_tile(call, first + tl.arange(0, BK), invalid, D, DP, GATED, CAUSAL, PRECISION)
        largest = tl.maximum(largest, tl.max(logits, 1))
    shift = tl.where(largest == -float("inf"), 0.0, largest)
    tau = tl.full((BQ,), -1.0, tl.float32)
    moved, step = 1.0, 0
    while (moved > 1e-6) & (step < STEPS):
        change = _newton_step(call, stop, shift, tau, POWER, BQ, BK, D, DP, GATED, CAUSAL, PRECISION)
        tau += change
        moved = tl.max(tl.abs(change))
        step += 1
    return shift, tau, invalid


@triton.jit
def attend_products(
    query, key, query_gate, key_gate, value, raw_value, bad_value, row_bias, key_bias, output, slope_mean, largest_of,
    known_of, threshold_of, last_of, q, k, offset, scale,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, GATED: tl.constexpr, POWER: tl.constexpr,
    TOP: tl.constexpr, TOPP: tl.constexpr, STEPS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute the output of a block of queries, and the numbers from which the backward pass recomputes its weights."""
    element = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BQ + tl.arange(0, BQ)
    at, inside = element * q + rows, rows < q
    key, key_gate, key_bias = key + element * k * D, key_gate + element * k, key_bias + element * k
    value, raw_value, bad_value = value + element * k * DV, raw_value + element * k * DV, bad_value + element * k
    x = load_block(query + element * q * D, rows, q, D, DP)
    own_gate = tl.load(query_gate + at, mask=inside, other=0.0)
    own = tl.load(row_bias + at, mask=inside, other=0.0)
    call = x, own_gate, own, rows, key, key_gate, key_bias, q, k, offset, scale
    stop = last_key(k, offset, CAUSAL, BQ)
    invalid = tl.zeros((BQ,), tl.int32)
    largest = tl.full((BQ,), -float("inf"), tl.float32)
    threshold = tl.full((BQ,), -float("inf"), tl.float32)
    missing = tl.full((BQ,), 2147483647, tl.int32)
    tau = tl.full((BQ,), -1.0, tl.float32)
    if TOP > 0:
        largest, threshold, missing, invalid = _largest_logits(
            call, stop, TOP, TOPP, BQ, BK, D, DP, GATED, CAUSAL, PRECISION
        )
    shift = tl.where(largest == -float("inf"), 0.0, largest)
    if POWER > 0:
        shift, tau, invalid = _threshold(call, stop, POWER, STEPS, BQ, BK, D, DP, GATED, CAUSAL, PRECISION)
    total, slopes = tl.zeros((BQ,), tl.float32), tl.zeros((BQ,), tl.float32)
    result, poison = tl.zeros((BQ, DVP), tl.float32), tl.zeros((BQ, DVP), tl.float32)
    mean = tl.zeros((BQ, DVP), tl.float32)
    ties_before = tl.zeros((BQ,), tl.int32)
    last = tl.full((BQ,), -1, tl.int32)
    for first in range(0, stop, BK):
        cols = first + tl.arange(0, BK)
        logits, allowed, _ = _tile(call, cols, D, DP, GATED, CAUSAL, PRECISION)
        v = load_block(value, cols, k, DV, DVP)
        if POWER > 0:
            above = logits - shift[:, None] - tau[:, None]
            read = (above > 0.0) & (above < float("inf"))
            weights = tl.where(read, above, 0.0)
            derivative = read.to(tl.float32)
            if POWER == 2:
                derivative, weights = weights, weights * weights
            mean += tl.dot(derivative, v, input_precision=PRECISION)
            slopes += tl.sum(derivative, 1)
        else:
            if TOP > 0:
                tied = (logits == threshold[:, None]) & (logits != -float("inf"))
                number = tl.cumsum(tied.to(tl.int32), 1) + ties_before[:, None]
                ties_before += tl.sum(tied.to(tl.int32), 1)
                tied = tied & (number <= missing[:, None])
                last = tl.maximum(last, tl.max(tl.where(tied, cols[None, :], -1), 1))
                read = ((logits > threshold[:, None]) | tied) & (logits < float("inf"))
            else:
                read = allowed & (logits < float("inf"))
                odd = allowed & ~(logits < float("inf"))
                invalid = tl.maximum(invalid, tl.max(odd.to(tl.int32), 1))
                now = tl.maximum(largest, tl.max(tl.where(odd, -float("inf"), logits), 1))
                shift = tl.where(now == -float("inf"), 0.0, now)
                factor = tl.exp(largest - shift)
                total, result = total * factor, result * factor[:, None]
                largest = now
            weights = tl.where(read, tl.exp(logits - shift[:, None]), 0.0)
        total += tl.sum(weights, 1)
        result += tl.dot(weights, v, input_precision=PRECISION)
        poison = add_nonfinite_values(poison, read, raw_value, bad_value, first, k, DV, DVP, BK)
    nonempty = total != 0.0
    result = tl.where(nonempty[:, None], result / tl.where(nonempty, total, 1.0)[:, None], 0.0) + poison
    result = tl.where((invalid > 0)[:, None], float("nan"), result)
    known = tl.log(tl.where(nonempty, total, 1.0))
    if POWER > 0:
        known = tau
        mean = mean / tl.where(slopes > 0.0, slopes, 1.0)[:, None]
        store_block(slope_mean + element * q * DV, rows, q, mean, DV, DVP)
    store_block(output + element * q * DV, rows, q, result, DV, DVP)
    tl.store(largest_of + at, shift, mask=inside)
    tl.store(known_of + at, known, mask=inside)
    tl.store(threshold_of + at, threshold, mask=inside)
    tl.store(last_of + at, last, mask=inside)


@triton.jit
def _weights(logits, allowed, cols, largest, known, threshold, last, POWER: tl.constexpr, TOP: tl.constexpr):
    """Return the weights of a tile, and their derivatives by the logit before the normalization of the row."""
    z = logits - largest[:, None] - known[:, None]
    if POWER == 0:
        read = allowed
        if TOP > 0:  # ties go to the keys up to the last that was read
            ties = (logits == threshold[:, None]) & (cols[None, :] <= last[:, None])
            read = ((logits > threshold[:, None]) | ties) & (logits != -float("inf"))
        weights = tl.where(read, tl.exp(z), 0.0)
        slopes = weights
    else:
        read = allowed & (z > 0.0)
        weights = tl.where(read, z, 0.0)
        if POWER == 2:
            slopes = 2.0 * weights
            weights = weights * weights
        else:
            slopes = read.to(tl.float32)
    return weights, slopes


@triton.jit
def _gradients(
    call, row, cols, v, given, POWER: tl.constexpr, TOP: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, GATED: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the weights of a tile, and the gradients of its products and of what its gates are of.

    `row` holds the statistics of the queries, and `given` the gradient of their output.
    """
    largest, known, threshold, last, dot = row
    logits, allowed, gate = _tile(call, cols, D, DP, GATED, CAUSAL, PRECISION)
    weights, slopes = _weights(logits, allowed, cols, largest, known, threshold, last, POWER, TOP)
    products = tl.dot(given, tl.trans(v), input_precision=PRECISION)
    change = tl.where(slopes != 0.0, slopes * (products - dot[:, None]), 0.0)
    gates = change
    if GATED:
        gates = change * tl.where(change != 0.0, logits, 0.0) * (1.0 - gate)
        change = change * gate
    return weights, change, gates


@triton.jit
def _row_statistics(largest_of, known_of, threshold_of, last_of, dots, at, inside):
    largest = tl.load(largest_of + at, mask=inside, other=0.0)
    known = tl.load(known_of + at, mask=inside, other=0.0)
    threshold = tl.load(threshold_of + at, mask=inside, other=0.0)
    last = tl.load(last_of + at, mask=inside, other=-1)
    return largest, known, threshold, last, tl.load(dots + at, mask=inside, other=0.0)


@triton.jit
def differentiate_product_queries(
    query, key, query_gate, key_gate, value, row_bias, key_bias, gradient, dots, largest_of, known_of, threshold_of,
    last_of, query_gradient, gate_gradient, q, k, offset, scale,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, GATED: tl.constexpr, POWER: tl.constexpr,
    TOP: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the queries of a block and of their gates."""
    element = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BQ + tl.arange(0, BQ)
    at, inside = element * q + rows, rows < q
    key, key_gate, key_bias = key + element * k * D, key_gate + element * k, key_bias + element * k
    value = value + element * k * DV
    x = load_block(query + element * q * D, rows, q, D, DP)
    own_gate = tl.load(query_gate + at, mask=inside, other=0.0)
    own = tl.load(row_bias + at, mask=inside, other=0.0)
    call = x, own_gate, own, rows, key, key_gate, key_bias, q, k, offset, scale
    row = _row_statistics(largest_of, known_of, threshold_of, last_of, dots, at, inside)
    given = load_block(gradient + element * q * DV, rows, q, DV, DVP)
    sums, gate_sums = tl.zeros((BQ, DP), tl.float32), tl.zeros((BQ,), tl.float32)
    for first in range(0, last_key(k, offset, CAUSAL, BQ), BK):
        cols = first + tl.arange(0, BK)
        v = load_block(value, cols, k, DV, DVP)
        _, change, gates = _gradients(call, row, cols, v, given, POWER, TOP, D, DP, GATED, CAUSAL, PRECISION)
        if GATED:
            gate_sums += tl.sum(gates, 1)
        sums += tl.dot(change * scale, load_block(key, cols, k, D, DP), input_precision=PRECISION)
    store_block(query_gradient + element * q * D, rows, q, sums, D, DP)
    tl.store(gate_gradient + at, gate_sums, mask=inside)


@triton.jit
def differentiate_product_keys(
    query, key, query_gate, key_gate, value, row_bias, key_bias, gradient, dots, largest_of, known_of, threshold_of,
    last_of, key_gradient, value_gradient, gate_gradient, q, k, offset, scale,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, GATED: tl.constexpr, POWER: tl.constexpr,
    TOP: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the keys and values of a block of keys, and of the gates of these keys."""
    element = tl.program_id(1).to(tl.int64)
    cols = tl.program_id(0) * BK + tl.arange(0, BK)
    key, key_gate, key_bias = key + element * k * D, key_gate + element * k, key_bias + element * k
    v = load_block(value + element * k * DV, cols, k, DV, DVP)
    sums, value_sums = tl.zeros((BK, DP), tl.float32), tl.zeros((BK, DVP), tl.float32)
    gate_sums = tl.zeros((BK,), tl.float32)
    for first in range(first_query(offset, CAUSAL, BQ, BK), q, BQ):
        rows = first + tl.arange(0, BQ)
        at, inside = element * q + rows, rows < q
        x = load_block(query + element * q * D, rows, q, D, DP)
        own_gate = tl.load(query_gate + at, mask=inside, other=0.0)
        own = tl.load(row_bias + at, mask=inside, other=0.0)
        call = x, own_gate, own, rows, key, key_gate, key_bias, q, k, offset, scale
        row = _row_statistics(largest_of, known_of, threshold_of, last_of, dots, at, inside)
        given = load_block(gradient + element * q * DV, rows, q, DV, DVP)
        weights, change, gates = _gradients(call, row, cols, v, given, POWER, TOP, D, DP, GATED, CAUSAL, PRECISION)
        value_sums += tl.dot(tl.trans(weights), given, input_precision=PRECISION)
        if GATED:
            gate_sums += tl.sum(gates, 0)
        sums += tl.dot(tl.trans(change * scale), x, input_precision=PRECISION)
    store_block(key_gradient + element * k * D, cols, k, sums, D, DP)
    store_block(value_gradient + element * k * DV, cols, k, value_sums, DV, DVP)
    tl.store(gate_gradient + element * k + cols, gate_sums, mask=cols < k)
