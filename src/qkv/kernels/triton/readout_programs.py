"""Programs for GPUs that compute readouts from tiles of weights, which never leave the registers.

`attend_rows` computes the output of a block of queries in one pass over the keys and, on the way, the log-sum-exp, the
entropy, the mean distance and the largest logits of each query. With z = l − m for the running maximum m of a row,

    entropy = log Σ e^z − Σ e^z z / Σ e^z          mean distance = Σ e^z |p_i − p_j| / Σ e^z

and a maximum that rises by d changes Σ e^z z to e^(−d) (Σ e^z z − d Σ e^z). Largest logits are kept in registers as
integers of 64 bits, which compare like the pair of a logit and a negative index, so that ties go to the lowest index.

For one pooled map it also writes the sum, or the maximum, of each cell of each tile to a table with one row for each
query, relative to the running maximum of its time.

`pool_cells` adds the weights of each cell of a map, or keeps their maximum: from that table, or by computing the
weights again from the log-sum-exp. Sums over all queries are a map with one row. A program computes whole cells: each
takes a power of two of rows and columns of a tile, some of which are empty where cells are smaller, or several tiles.
No program writes where another writes, so that results are equal to the last bit.

Logits are products of vectors, or additive as in `additive_programs.py`, whose arrays `left`, `right`, `vector` and
`flags` are.
"""

# mypy: ignore-errors
# Triton compiles these functions: their arguments are pointers and its decorator has no types.

from __future__ import annotations

import triton
import triton.language as tl

from qkv.kernels.triton.additive_programs import additive_tile
from qkv.kernels.triton.device_functions import allowed_pairs, last_key


@triton.jit
def _vectors(pointer, index, n, W: tl.constexpr, WP: tl.constexpr):
    """Return the vectors of a block as (index, unit), with 0 beyond the last vector and unit."""
    units = tl.arange(0, WP)
    inside = (index < n)[:, None] & (units < W)[None, :]
    return tl.load(pointer + index.to(tl.int64)[:, None] * W + units[None, :], mask=inside, other=0.0)


@triton.jit
def _tile(
    x, left, right, vector, moderate, rows, cols, own, key_bias, q, k, offset, scale,
    ADDITIVE: tl.constexpr, W: tl.constexpr, WP: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Return the logits of a tile, −inf for excluded pairs, and which pairs are allowed."""
    bias = tl.load(key_bias + cols, mask=cols < k, other=-float("inf"))
    allowed = allowed_pairs(rows, cols, bias, q, k, offset, CAUSAL)
    if ADDITIVE:
        logits = additive_tile(left, right, vector, moderate, rows, cols, q, k, W, BQ, BK)
    else:
        logits = tl.dot(x, tl.trans(_vectors(right, cols, k, W, WP)), input_precision=PRECISION) * scale
    return tl.where(allowed, logits + own[:, None] + bias[None, :], -float("inf")), allowed


@triton.jit
def _ranks(logits, cols):
    """Return integers in the order of the logits, and among equal logits from the highest to the lowest index."""
    bits = (logits + 0.0).to(tl.int32, bitcast=True)  # −0 becomes 0
    order = bits ^ ((bits >> 31) & 2147483647)
    return (order.to(tl.int64) << 32) | (4294967295 - cols.to(tl.int64))[None, :]


@triton.jit(do_not_specialize=["across", "key_parts"])
def attend_rows(
    left, right, vector, flags, value, row_bias, key_bias, output, log_sum_exp, entropy, distance, best_logits, table,
    maxima, key_starts, q, k, offset, position, scale, across, key_parts,
    ADDITIVE: tl.constexpr, W: tl.constexpr, WP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
    ENTROPY: tl.constexpr, DISTANCE: tl.constexpr, TOPP: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    MAPPED: tl.constexpr, MAXIMUM: tl.constexpr, C: tl.constexpr, CS: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute the output of a block of queries, their log-sum-exps, the readouts of rows, and a table of cells."""
    element = tl.program_id(1).to(tl.int64)
    rows, columns = tl.program_id(0) * BQ + tl.arange(0, BQ), tl.arange(0, DVP)
    left, right, vector = left + element * W * q, right + element * W * k, vector + element * W
    value, key_bias = value + element * k * DV, key_bias + element * k
    moderate = tl.load(flags + element) != 0
    x = 0
    if not ADDITIVE:
        x = _vectors(left, rows, q, W, WP)
    own = tl.load(row_bias + element * q + rows, mask=rows < q, other=0.0)
    largest = tl.full((BQ,), -float("inf"), tl.float32)
    total, products, between = (tl.zeros((BQ,), tl.float32), tl.zeros((BQ,), tl.float32), tl.zeros((BQ,), tl.float32))
    result = tl.zeros((BQ, DVP), tl.float32)
    if TOPP > 0:
        best = tl.full((BQ, TOPP), -9223372036854775807, tl.int64)
    stop = last_key(k, offset, CAUSAL, BQ)
    steps = tl.cdiv(stop, BK)
    width = tl.cdiv(across, C) * key_parts
    if MAPPED:
        steps = width
        if CAUSAL:  # up to the tile of the last cell that the queries of the block may attend to
            cell = tl.maximum(stop - 1, 0).to(tl.int64) * across // k
            steps = tl.where(stop > 0, (cell // C + 1) * key_parts, 0).to(tl.int32)
    for step in range(steps):
        if MAPPED:
            cols = _lanes(key_starts, step // key_parts, step % key_parts, across, k, C, CS)
        else:
            cols = step * BK + tl.arange(0, BK)
        logits, _ = _tile(x, left, right, vector, moderate, rows, cols, own, key_bias, q, k, offset, scale, ADDITIVE,
                          W, WP, CAUSAL, PRECISION, BQ, BK)  # fmt: skip
        now = tl.maximum(largest, tl.max(tl.where(logits == logits, logits, -float("inf")), 1))
        shift = tl.where(now == -float("inf"), 0.0, now)
        z = logits - shift[:, None]
        weights = tl.exp(z)
        factor = tl.exp(largest - shift)
        if ENTROPY:
            drop = tl.where(largest == -float("inf"), 0.0, largest - shift)
            products = factor * (products + drop * total) + tl.sum(weights * tl.where(weights > 0.0, z, 0.0), 1)
        if DISTANCE:
            apart = tl.abs(rows[:, None] + position - cols[None, :]).to(tl.float32)
            between = factor * between + tl.sum(weights * apart, 1)
        if MAPPED:
            entries = _across(weights, MAXIMUM, BQ, C, CS)
            at = (element * q + rows) * width + step
            tl.store(maxima + at, shift, mask=rows < q)
            tl.store(table + at[:, None] * C + tl.arange(0, C)[None, :], entries, mask=(rows < q)[:, None])
        total = total * factor + tl.sum(weights, 1)
        v = _vectors(value, cols, k, DV, DVP)
        result = result * factor[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        if TOPP > 0:
            ranks = _ranks(logits, cols)
            above = ranks > tl.min(best, 1)[:, None]
            if tl.max(above.to(tl.int32)) > 0:
                best = tl.topk(tl.reshape(tl.join(best, tl.topk(ranks, TOPP)), (BQ, 2 * TOPP)), TOPP)
        largest = now
    nonempty = total != 0.0
    safe = tl.where(nonempty, total, 1.0)
    at, inside = element * q + rows, rows < q
    result = tl.where(nonempty[:, None], result / safe[:, None], 0.0)
    target = output + element * q * DV + rows.to(tl.int64)[:, None] * DV + columns[None, :]
    tl.store(target, result, mask=inside[:, None] & (columns < DV)[None, :])
    shift = tl.where(largest == -float("inf"), 0.0, largest)
    tl.store(log_sum_exp + at, tl.where(nonempty, shift + tl.log(safe), -float("inf")), mask=inside)
    if ENTROPY:
        tl.store(entropy + at, tl.where(nonempty, tl.log(safe) - products / safe, 0.0), mask=inside)
    if DISTANCE:
        tl.store(distance + at, between / safe, mask=inside)
    if TOPP > 0:
        ranks = tl.arange(0, TOPP)
        tl.store(best_logits + at[:, None] * TOPP + ranks[None, :], best, mask=inside[:, None])


@triton.jit
def _across(weights, MAXIMUM: tl.constexpr, ROWS: tl.constexpr, C: tl.constexpr, CS: tl.constexpr):
    """Return the sum or maximum of each of C cells of CS keys, for each query of a tile. No maximum is NaN."""
    if MAXIMUM:
        weights = tl.where(weights == weights, weights, 0.0)
        return tl.max(tl.reshape(weights, (ROWS, C, CS)), 2)
    return tl.sum(tl.reshape(weights, (ROWS, C, CS)), 2)


@triton.jit
def _lanes(starts, group, part, cells, length, CELLS: tl.constexpr, SPAN: tl.constexpr):
    """Return the entries of the lanes of a tile, which hold SPAN entries of CELLS cells; `length` for empty lanes.

    A cell of more than SPAN entries takes several parts. `starts` holds the first entry of each cell, and the length.
    """
    lane = tl.arange(0, CELLS * SPAN)
    cell = group * CELLS + lane // SPAN
    entry = tl.load(starts + cell, mask=cell < cells, other=0) + part * SPAN + lane % SPAN
    return tl.where(entry < tl.load(starts + cell + 1, mask=cell < cells, other=0), entry, length)


@triton.jit
def _cell_lengths(starts, index, cells):
    """Return the numbers of entries of some cells, and 1 beyond the last."""
    exists = index < cells
    after = tl.load(starts + index + 1, mask=exists, other=1)
    return (after - tl.load(starts + index, mask=exists, other=0)).to(tl.float32)


@triton.jit(do_not_specialize=["down", "across", "groups", "row_parts", "key_parts"])
def pool_cells(
    left, right, vector, flags, row_bias, key_bias, log_sum_exp, table, maxima, pooled, row_starts,
    key_starts, q, k, offset, scale, down, across, groups, row_parts, key_parts,
    ADDITIVE: tl.constexpr, W: tl.constexpr, WP: tl.constexpr, TABLE: tl.constexpr, MEAN: tl.constexpr,
    MAXIMUM: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    R: tl.constexpr, RS: tl.constexpr, C: tl.constexpr, CS: tl.constexpr,
):  # fmt: skip
    """Compute R rows of a pooled map, in `groups` groups of C columns.

    The map has `down` × `across` cells, and a cell takes up to `row_parts` × `key_parts` tiles.
    """
    element = tl.program_id(2).to(tl.int64)
    left, right, vector = left + element * W * q, right + element * W * k, vector + element * W
    key_bias, row_bias, log_sum_exp = key_bias + element * k, row_bias + element * q, log_sum_exp + element * q
    moderate = tl.load(flags + element) != 0
    steps = tl.cdiv(across, C) * key_parts
    table, maxima = table + element * q * steps * C, maxima + element * q * steps
    map_rows = tl.program_id(0) * R + tl.arange(0, R)
    height = _cell_lengths(row_starts, map_rows, down)
    for group in range(tl.program_id(1) * groups, tl.minimum(tl.cdiv(across, C), (tl.program_id(1) + 1) * groups)):
        sums = tl.zeros((R, C), tl.float32)
        invalid = tl.zeros((R,), tl.int32)
        for row_part in range(row_parts):
            rows = _lanes(row_starts, tl.program_id(0), row_part, down, q, R, RS)
            exists = rows < q
            own = tl.load(row_bias + rows, mask=exists, other=0.0)
            known = tl.load(log_sum_exp + rows, mask=exists, other=0.0)
            known = tl.where(known == -float("inf"), 0.0, known)
            invalid = tl.maximum(invalid, tl.max(tl.reshape((known != known).to(tl.int32), (R, RS)), 1))
            last = k
            if CAUSAL:
                last = tl.max(tl.where(exists, rows, -1)) + offset
            x = 0
            if not (ADDITIVE or TABLE):
                x = _vectors(left, rows, q, W, WP)
            for key_part in range(key_parts):
                cols = _lanes(key_starts, group, key_part, across, k, C, CS)
                if tl.min(cols) <= last:
                    if TABLE:
                        at = rows.to(tl.int64) * steps + group * key_parts + key_part
                        largest = tl.load(maxima + at, mask=exists, other=-float("inf"))
                        computed = largest != -float("inf")
                        factor = tl.exp(tl.where(computed, largest - known, 0.0))
                        entries = table + at[:, None] * C + tl.arange(0, C)[None, :]
                        entries = tl.load(entries, mask=computed[:, None], other=0.0) * factor[:, None]
                    else:
                        logits, allowed = _tile(
                            x, left, right, vector, moderate, rows, cols, own, key_bias, q, k, offset, scale, ADDITIVE,
                            W, WP, CAUSAL, PRECISION, R * RS, C * CS,
                        )  # fmt: skip
                        weights = tl.where(allowed, tl.exp(logits - known[:, None]), 0.0)
                        entries = _across(weights, MAXIMUM, R * RS, C, CS)
                    if MAXIMUM:
                        entries = tl.where(entries == entries, entries, 0.0)
                        sums = tl.maximum(sums, tl.max(tl.reshape(entries, (R, RS, C)), 1))
                    else:
                        sums += tl.sum(tl.reshape(entries, (R, RS, C)), 1)
        map_columns = group * C + tl.arange(0, C)
        if MEAN:
            width = _cell_lengths(key_starts, map_columns, across)
            sums = sums / (height[:, None] * width[None, :])
        sums = tl.where((invalid > 0)[:, None], float("nan"), sums)  # every weight of a row with a logit of NaN is NaN
        target = pooled + element * down * across + map_rows.to(tl.int64)[:, None] * across + map_columns[None, :]
        tl.store(target, sums, mask=(map_rows < down)[:, None] & (map_columns < across)[None, :])
