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

Source: Gonçalves, Treviso, Martins (2025), AdaSplash: adaptive sparse flash attention,
https://arxiv.org/abs/2502.12082, for thresholds that are found by recomputed tiles.
"""

# mypy: ignore-errors
# Triton compiles these functions: their arguments are pointers and its decorator has no types.

from __future__ import annotations

import triton
import triton.language as tl

from qkv.kernels.triton.program_parts import allowed_pairs
from qkv.kernels.triton.program_parts import load_block as _vectors

__all__ = ["attend_products", "differentiate_product_keys", "differentiate_product_queries"]


@triton.jit
def _gate(own, other):
    """Return σ(own + other) for each pair; beyond ±80 the exponential would overflow."""
    return 1.0 / (1.0 + tl.exp(tl.minimum(tl.maximum(-(own[:, None] + other[None, :]), -80.0), 80.0)))


@triton.jit
def _tile(
    x, key, own_gate, key_gate, own, key_bias, rows, cols, q, k, offset, scale,
    D: tl.constexpr, DP: tl.constexpr, GATED: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the logits of a tile, −inf for excluded pairs, and which pairs are allowed."""
    bias = tl.load(key_bias + cols, mask=cols < k, other=-float("inf"))
    allowed = allowed_pairs(rows, cols, bias, q, k, offset, CAUSAL)
    logits = tl.dot(x, tl.trans(_vectors(key, cols, k, D, DP)), input_precision=PRECISION) * scale
    if GATED:
        logits = logits * _gate(own_gate, tl.load(key_gate + cols, mask=cols < k, other=0.0))
    return tl.where(allowed, logits + own[:, None] + bias[None, :], -float("inf")), allowed


@triton.jit
def _selected(logits, cols, threshold, last):
    """Return which logits are above the threshold of their row, or equal to it with an index up to `last`."""
    ties = (logits == threshold[:, None]) & (cols[None, :] <= last[:, None])
    return ((logits > threshold[:, None]) | ties) & (logits != -float("inf"))


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
    rows, columns = tl.program_id(0) * BQ + tl.arange(0, BQ), tl.arange(0, DVP)
    key, key_gate, key_bias = key + element * k * D, key_gate + element * k, key_bias + element * k
    value, raw_value, bad_value = value + element * k * DV, raw_value + element * k * DV, bad_value + element * k
    x = _vectors(query + element * q * D, rows, q, D, DP)
    own_gate = tl.load(query_gate + element * q + rows, mask=rows < q, other=0.0)
    own = tl.load(row_bias + element * q + rows, mask=rows < q, other=0.0)
    stop = k
    if CAUSAL:
        stop = tl.minimum(k, tl.maximum(0, (tl.program_id(0) + 1) * BQ + offset))
    invalid = tl.zeros((BQ,), tl.int32)
    largest = tl.full((BQ,), -float("inf"), tl.float32)
    threshold = tl.full((BQ,), -float("inf"), tl.float32)
    missing = tl.full((BQ,), 2147483647, tl.int32)
    if TOP > 0:
        best = tl.full((BQ, TOPP), -float("inf"), tl.float32)
        ranks = tl.arange(0, TOPP)[None, :]
        for first in range(0, stop, BK):
            cols = first + tl.arange(0, BK)
            logits, allowed = _tile(x, key, own_gate, key_gate, own, key_bias, rows, cols, q, k, offset, scale, D, DP,
                                    GATED, CAUSAL, PRECISION)  # fmt: skip
            odd = allowed & ~(logits < float("inf"))
            invalid = tl.maximum(invalid, tl.max(odd.to(tl.int32), 1))
            logits = tl.where(odd, -float("inf"), logits)
            above = logits > tl.min(best, 1)[:, None]
            if tl.max(above.to(tl.int32)) > 0:
                both = tl.reshape(tl.join(best, tl.topk(logits, TOPP)), (BQ, 2 * TOPP))
                best = tl.topk(both, TOPP)
        largest = tl.max(best, 1)
        threshold = tl.min(tl.where(ranks < TOP, best, float("inf")), 1)
        more = tl.sum(((best > threshold[:, None]) & (ranks < TOP)).to(tl.int32), 1)
        missing = TOP - more
    if POWER > 0:
        for first in range(0, stop, BK):
            cols = first + tl.arange(0, BK)
            logits, allowed = _tile(x, key, own_gate, key_gate, own, key_bias, rows, cols, q, k, offset, scale, D, DP,
                                    GATED, CAUSAL, PRECISION)  # fmt: skip
            odd = allowed & ~(logits < float("inf"))
            invalid = tl.maximum(invalid, tl.max(odd.to(tl.int32), 1))
            largest = tl.maximum(largest, tl.max(tl.where(odd, -float("inf"), logits), 1))
    shift = tl.where(largest == -float("inf"), 0.0, largest)
    tau = tl.full((BQ,), -1.0, tl.float32)
    if POWER > 0:
        moved, step = 1.0, 0
        while (moved > 1e-6) & (step < STEPS):
            count, sums, squares = tl.zeros((BQ,), tl.float32), tl.zeros((BQ,), tl.float32), tl.zeros((BQ,), tl.float32)
            for first in range(0, stop, BK):
                cols = first + tl.arange(0, BK)
                logits, allowed = _tile(x, key, own_gate, key_gate, own, key_bias, rows, cols, q, k, offset, scale, D,
                                        DP, GATED, CAUSAL, PRECISION)  # fmt: skip
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
            change = tl.where(count > 0.0, change, 0.0)
            tau += change
            moved = tl.max(tl.abs(change))
            step += 1
    total, slopes = tl.zeros((BQ,), tl.float32), tl.zeros((BQ,), tl.float32)
    result, poison = tl.zeros((BQ, DVP), tl.float32), tl.zeros((BQ, DVP), tl.float32)
    mean = tl.zeros((BQ, DVP), tl.float32)
    ties_before = tl.zeros((BQ,), tl.int32)
    last = tl.full((BQ,), -1, tl.int32)
    for first in range(0, stop, BK):
        cols = first + tl.arange(0, BK)
        logits, allowed = _tile(x, key, own_gate, key_gate, own, key_bias, rows, cols, q, k, offset, scale, D, DP,
                                GATED, CAUSAL, PRECISION)  # fmt: skip
        v = _vectors(value, cols, k, DV, DVP)
        if POWER > 0:
            above = logits - shift[:, None] - tau[:, None]
            read = (above > 0.0) & (above < float("inf"))
            above = tl.where(read, above, 0.0)
            weights = above
            if POWER == 2:
                weights = above * above
                mean += tl.dot(above, v, input_precision=PRECISION)
                slopes += tl.sum(above, 1)
            else:
                mean += tl.dot(read.to(tl.float32), v, input_precision=PRECISION)
                slopes += tl.sum(read.to(tl.float32), 1)
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
        bad = tl.load(bad_value + cols, mask=cols < k, other=0)
        if tl.max(bad) > 0:
            for one in range(BK):
                reads = tl.max((read & (cols == first + one)[None, :]).to(tl.int32), 1)
                exists = (columns < DV) & (first + one < k)
                raw = tl.load(raw_value + (first + one) * DV + columns, mask=exists, other=0.0)
                raw = tl.where(tl.abs(raw) < float("inf"), 0.0, raw)
                poison += tl.where((reads > 0)[:, None], raw[None, :], 0.0)
    nonempty = total != 0.0
    result = tl.where(nonempty[:, None], result / tl.where(nonempty, total, 1.0)[:, None], 0.0) + poison
    result = tl.where((invalid > 0)[:, None], float("nan"), result)
    known = tl.log(tl.where(nonempty, total, 1.0))
    if POWER > 0:
        known = tau
        mean = mean / tl.where(slopes > 0.0, slopes, 1.0)[:, None]
        tl.store(slope_mean + element * q * DV + rows[:, None] * DV + columns[None, :], mean,
                 mask=(rows < q)[:, None] & (columns < DV)[None, :])  # fmt: skip
    tl.store(output + element * q * DV + rows[:, None] * DV + columns[None, :], result,
             mask=(rows < q)[:, None] & (columns < DV)[None, :])  # fmt: skip
    tl.store(largest_of + element * q + rows, shift, mask=rows < q)
    tl.store(known_of + element * q + rows, known, mask=rows < q)
    tl.store(threshold_of + element * q + rows, threshold, mask=rows < q)
    tl.store(last_of + element * q + rows, last, mask=rows < q)


@triton.jit
def _weights(logits, allowed, cols, largest, known, threshold, last, POWER: tl.constexpr, TOP: tl.constexpr):
    """Return the weights of a tile, and their derivatives by the logit before the normalization of the row."""
    z = logits - largest[:, None] - known[:, None]
    if POWER == 0:
        read = allowed
        if TOP > 0:
            read = _selected(logits, cols, threshold, last)
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
def differentiate_product_queries(
    query, key, query_gate, key_gate, value, row_bias, key_bias, gradient, dots, largest_of, known_of, threshold_of,
    last_of, query_gradient, gate_gradient, q, k, offset, scale,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, GATED: tl.constexpr, POWER: tl.constexpr,
    TOP: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the queries of a block and of their gates."""
    element = tl.program_id(1).to(tl.int64)
    rows, units = tl.program_id(0) * BQ + tl.arange(0, BQ), tl.arange(0, DP)
    key, key_gate, key_bias = key + element * k * D, key_gate + element * k, key_bias + element * k
    value, at = value + element * k * DV, element * q + rows
    x = _vectors(query + element * q * D, rows, q, D, DP)
    own_gate = tl.load(query_gate + at, mask=rows < q, other=0.0)
    own = tl.load(row_bias + at, mask=rows < q, other=0.0)
    dot = tl.load(dots + at, mask=rows < q, other=0.0)
    largest = tl.load(largest_of + at, mask=rows < q, other=0.0)
    known = tl.load(known_of + at, mask=rows < q, other=0.0)
    threshold = tl.load(threshold_of + at, mask=rows < q, other=0.0)
    last = tl.load(last_of + at, mask=rows < q, other=-1)
    given = _vectors(gradient + element * q * DV, rows, q, DV, DVP)
    sums, gates = tl.zeros((BQ, DP), tl.float32), tl.zeros((BQ,), tl.float32)
    stop = k
    if CAUSAL:
        stop = tl.minimum(k, tl.maximum(0, (tl.program_id(0) + 1) * BQ + offset))
    for first in range(0, stop, BK):
        cols = first + tl.arange(0, BK)
        logits, allowed = _tile(x, key, own_gate, key_gate, own, key_bias, rows, cols, q, k, offset, scale, D, DP,
                                GATED, CAUSAL, PRECISION)  # fmt: skip
        _, slopes = _weights(logits, allowed, cols, largest, known, threshold, last, POWER, TOP)
        products = tl.dot(given, tl.trans(_vectors(value, cols, k, DV, DVP)), input_precision=PRECISION)
        change = tl.where(slopes != 0.0, slopes * (products - dot[:, None]), 0.0)
        if GATED:
            gate = _gate(own_gate, tl.load(key_gate + cols, mask=cols < k, other=0.0))
            gates += tl.sum(change * tl.where(change != 0.0, logits, 0.0) * (1.0 - gate), 1)
            change = change * gate
        sums += tl.dot(change * scale, _vectors(key, cols, k, D, DP), input_precision=PRECISION)
    target = query_gradient + element * q * D + rows[:, None] * D + units[None, :]
    tl.store(target, sums, mask=(rows < q)[:, None] & (units < D)[None, :])
    tl.store(gate_gradient + at, gates, mask=rows < q)


@triton.jit
def differentiate_product_keys(
    query, key, query_gate, key_gate, value, row_bias, key_bias, gradient, dots, largest_of, known_of, threshold_of,
    last_of, key_gradient, value_gradient, gate_gradient, q, k, offset, scale,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, GATED: tl.constexpr, POWER: tl.constexpr,
    TOP: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the keys and values of a block of keys, and of the gates of these keys."""
    element = tl.program_id(1).to(tl.int64)
    cols, units, columns = tl.program_id(0) * BK + tl.arange(0, BK), tl.arange(0, DP), tl.arange(0, DVP)
    key, key_gate, key_bias = key + element * k * D, key_gate + element * k, key_bias + element * k
    v = _vectors(value + element * k * DV, cols, k, DV, DVP)
    sums, value_sums = tl.zeros((BK, DP), tl.float32), tl.zeros((BK, DVP), tl.float32)
    gates = tl.zeros((BK,), tl.float32)
    start = 0
    if CAUSAL:
        start = tl.maximum(0, tl.program_id(0) * BK - offset) // BQ * BQ
    for first in range(start, q, BQ):
        rows = first + tl.arange(0, BQ)
        at = element * q + rows
        x = _vectors(query + element * q * D, rows, q, D, DP)
        own_gate = tl.load(query_gate + at, mask=rows < q, other=0.0)
        own = tl.load(row_bias + at, mask=rows < q, other=0.0)
        dot = tl.load(dots + at, mask=rows < q, other=0.0)
        largest = tl.load(largest_of + at, mask=rows < q, other=0.0)
        known = tl.load(known_of + at, mask=rows < q, other=0.0)
        threshold = tl.load(threshold_of + at, mask=rows < q, other=0.0)
        last = tl.load(last_of + at, mask=rows < q, other=-1)
        given = _vectors(gradient + element * q * DV, rows, q, DV, DVP)
        logits, allowed = _tile(x, key, own_gate, key_gate, own, key_bias, rows, cols, q, k, offset, scale, D, DP,
                                GATED, CAUSAL, PRECISION)  # fmt: skip
        weights, slopes = _weights(logits, allowed, cols, largest, known, threshold, last, POWER, TOP)
        value_sums += tl.dot(tl.trans(weights), given, input_precision=PRECISION)
        products = tl.dot(given, tl.trans(v), input_precision=PRECISION)
        change = tl.where(slopes != 0.0, slopes * (products - dot[:, None]), 0.0)
        if GATED:
            gate = _gate(own_gate, tl.load(key_gate + cols, mask=cols < k, other=0.0))
            gates += tl.sum(change * tl.where(change != 0.0, logits, 0.0) * (1.0 - gate), 0)
            change = change * gate
        sums += tl.dot(tl.trans(change * scale), x, input_precision=PRECISION)
    inside = (cols < k)[:, None]
    tl.store(key_gradient + element * k * D + cols[:, None] * D + units[None, :], sums,
             mask=inside & (units < D)[None, :])  # fmt: skip
    tl.store(value_gradient + element * k * DV + cols[:, None] * DV + columns[None, :], value_sums,
             mask=inside & (columns < DV)[None, :])  # fmt: skip
    tl.store(gate_gradient + element * k + cols, gates, mask=cols < k)
