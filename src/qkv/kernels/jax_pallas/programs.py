"""Programs in Pallas that compute attention with an additive score: forward, and backward for queries and for keys.

The arithmetic is that of the programs for PyTorch (`kernels/triton/additive_programs.py`): with e^(2s) = e^(2a) e^(2b)
for s = a + b, two hidden units share one division. Where `near` is False, because exponentials of the projections could
overflow, `left` and `right` hold a and b, and each pair takes one exponential and one division. No program writes where
another writes.

Axes: (element, query, unit) of `left`, (element, unit, key) of `right`, (element, 1, unit) of `vector`,
(element, query, 1) of numbers of queries, (element, 1, key) of the biases of keys. Lengths are multiples of a block;
the number of units in the arrays, and the width of the values, are powers of two.

Source: https://docs.jax.dev/en/latest/pallas/index.html
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

__all__ = ["Sizes", "attend_queries", "differentiate_keys", "differentiate_queries"]


class Sizes(NamedTuple):
    """What the programs are compiled for.

    Attributes:
        units: number of hidden units, which is even.
        queries: number of queries, after which rows are padding.
        block: number of queries and keys of a tile, a power of two.
        offset: position of query 0 under a causal mask; None without one.
        near: whether `left` and `right` hold exponentials.
        precision: precision of matrix products, as in JAX.
    """

    units: int
    queries: int
    block: int
    offset: int | None
    near: bool
    precision: Any


def _reciprocals(sizes: Sizes, left: Any, right: Any, unit: int, rows: Any, cols: Any) -> tuple[Any, Any]:
    """Return 1 / (1 + e^(2s)) of two hidden units for a tile."""
    import jax.numpy as jnp

    (a1, a2), (b1, b2) = (
        (left[0, rows, n : n + 1] for n in (unit, unit + 1)),
        (right[0, n : n + 1, cols] for n in (unit, unit + 1)),
    )
    if sizes.near:
        p1, p2 = (1.0 + jnp.minimum(a * b, 2.0**30) for a, b in ((a1, b1), (a2, b2)))
        shared = 1.0 / (p1 * p2)
        return shared * p2, shared * p1
    far = [1.0 / (1.0 + jnp.exp(2.0 * jnp.clip(a + b, -40.0, 40.0))) for a, b in ((a1, b1), (a2, b2))]
    return far[0], far[1]


def _logits(
    sizes: Sizes, left: Any, right: Any, vector: Any, own: Any, bias: Any, starts: tuple[Any, Any], slices: Any
) -> Any:
    """Return the logits of a tile without the sum of `vector`, −inf for excluded pairs."""
    import jax
    import jax.numpy as jnp

    rows, cols = slices
    total: Any = 0.0
    for unit in range(0, sizes.units, 2):
        r1, r2 = _reciprocals(sizes, left, right, unit, rows, cols)
        total = total + vector[0, :, unit : unit + 1] * r1 + vector[0, :, unit + 1 : unit + 2] * r2
    logits = own + bias - 2.0 * total
    shape = (sizes.block, sizes.block)
    query, key = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) + starts[axis] for axis in (0, 1))
    allowed = query < sizes.queries  # a key of NaN would reach all gradients through the padding
    if sizes.offset is not None:
        allowed = allowed & (key <= query + sizes.offset)
    return jnp.where(allowed, logits, -math.inf)


def attend_queries(
    left: Any, right: Any, vector: Any, value: Any, row_bias: Any, key_bias: Any, output: Any, log_sum_exp: Any, *,
    sizes: Sizes,
) -> None:  # fmt: skip
    """Compute the output and the log-sum-exp of a block of queries."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    block, first_row = sizes.block, pl.program_id(1) * sizes.block
    own = row_bias[0]

    def tile(number: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        largest, total, result = state
        cols = pl.ds(number * block, block)
        starts = first_row, number * block
        logits = _logits(sizes, left, right, vector, own, key_bias[0, :, cols], starts, (slice(None), cols))
        now = jnp.maximum(largest, jnp.max(logits, axis=1, keepdims=True))
        shift = jnp.where(now == -math.inf, 0.0, now)
        weights, scale = jnp.exp(logits - shift), jnp.exp(largest - shift)
        products = jnp.dot(weights, value[0, cols, :], precision=sizes.precision)
        return now, total * scale + jnp.sum(weights, axis=1, keepdims=True), result * scale + products

    empty = jnp.full((block, 1), -math.inf, jnp.float32)
    start = empty, jnp.zeros((block, 1), jnp.float32), jnp.zeros((block, value.shape[-1]), jnp.float32)
    largest, total, result = jax.lax.fori_loop(0, _tiles(sizes, first_row, value.shape[1]), tile, start)
    nonempty = total != 0.0
    safe = jnp.where(nonempty, total, 1.0)
    output[0] = jnp.where(nonempty, result / safe, 0.0)
    log_sum_exp[0] = jnp.where(nonempty, jnp.where(largest == -math.inf, 0.0, largest) + jnp.log(safe), 0.0)


def _tiles(sizes: Sizes, first_row: Any, keys: int) -> Any:
    """Return the number of tiles that the queries of a block may attend to."""
    import jax.numpy as jnp

    count = keys // sizes.block
    if sizes.offset is None:
        return count
    last = first_row + sizes.block - 1 + sizes.offset
    return jnp.clip((last >> _power(sizes)) + 1, 0, count)


def _power(sizes: Sizes) -> int:
    """Return the power of two that is the block; shifts are lowered for every platform, divisions are not."""
    return sizes.block.bit_length() - 1


def _one_hot(sizes: Sizes, shape: tuple[int, int], axis: int, unit: int, x: Any) -> Any:
    """Return an array of a shape that is `x` where its index along an axis is a unit, and 0 elsewhere."""
    import jax
    import jax.numpy as jnp

    return jnp.where(jax.lax.broadcasted_iota(jnp.int32, shape, axis) == unit, x, 0.0)


def differentiate_queries(
    left: Any, right: Any, vector: Any, value: Any, row_bias: Any, key_bias: Any, gradient: Any, log_sum_exp: Any,
    dots: Any, left_gradient: Any, vector_gradient: Any, *, sizes: Sizes,
) -> None:  # fmt: skip
    """Compute the gradient of the projected queries of a block, and its share of the gradient of the vector."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    block, first_row, hidden = sizes.block, pl.program_id(1) * sizes.block, left.shape[-1]
    own, given, known, dot = row_bias[0], gradient[0], log_sum_exp[0], dots[0]

    def tile(number: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        sums, vectors = state
        cols = pl.ds(number * block, block)
        starts = first_row, number * block
        logits = _logits(sizes, left, right, vector, own, key_bias[0, :, cols], starts, (slice(None), cols))
        products = jnp.dot(given, value[0, cols, :].T, precision=sizes.precision)
        change = _change(logits, known, products, dot)
        for unit in range(0, sizes.units, 2):
            pair = _reciprocals(sizes, left, right, unit, slice(None), cols)
            for n, r in zip((unit, unit + 1), pair, strict=True):
                slope = change * (4.0 * vector[0, :, n : n + 1]) * (r - r * r)
                total = jnp.sum(slope, axis=1, keepdims=True)
                sums = sums + _one_hot(sizes, (block, hidden), 1, n, total)
                each = jnp.sum(-2.0 * change * r, axis=1, keepdims=True)
                vectors = vectors + _one_hot(sizes, (block, hidden), 1, n, each)
        return sums, vectors

    zeros = jnp.zeros((block, hidden), jnp.float32)
    stop = _tiles(sizes, first_row, value.shape[1])
    left_gradient[0], vector_gradient[0] = jax.lax.fori_loop(0, stop, tile, (zeros, zeros))


def _change(logits: Any, known: Any, products: Any, dot: Any) -> Any:
    """Return the gradient of the logits; masked pairs, whose values may be anything, have none."""
    import jax.numpy as jnp

    weights = jnp.exp(logits - known)
    return jnp.where(logits == -math.inf, 0.0, weights * (products - dot))


def differentiate_keys(
    left: Any, right: Any, vector: Any, value: Any, row_bias: Any, key_bias: Any, gradient: Any, log_sum_exp: Any,
    dots: Any, right_gradient: Any, value_gradient: Any, *, sizes: Sizes,
) -> None:  # fmt: skip
    """Compute the gradients of the projected keys and of the values of a block."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    block, first_col, hidden = sizes.block, pl.program_id(1) * sizes.block, right.shape[1]
    bias, values = key_bias[0], value[0]

    def tile(number: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        sums, value_sums = state
        rows = pl.ds(number * block, block)
        starts = number * block, first_col
        logits = _logits(sizes, left, right, vector, row_bias[0, rows, :], bias, starts, (rows, slice(None)))
        given, known = gradient[0, rows, :], log_sum_exp[0, rows, :]
        products = jnp.dot(given, values.T, precision=sizes.precision)
        change = _change(logits, known, products, dots[0, rows, :])
        weights = jnp.where(logits == -math.inf, 0.0, jnp.exp(logits - known))
        value_sums = value_sums + jnp.dot(weights.T, given, precision=sizes.precision)
        for unit in range(0, sizes.units, 2):
            pair = _reciprocals(sizes, left, right, unit, rows, slice(None))
            for n, r in zip((unit, unit + 1), pair, strict=True):
                slope = change * (4.0 * vector[0, :, n : n + 1]) * (r - r * r)
                total = jnp.sum(slope, axis=0, keepdims=True)
                sums = sums + _one_hot(sizes, (hidden, block), 0, n, total)
        return sums, value_sums

    start: Any = 0
    if sizes.offset is not None:
        start = jnp.maximum(0, first_col - sizes.offset) >> _power(sizes)
    zeros = jnp.zeros((hidden, block), jnp.float32), jnp.zeros((block, values.shape[-1]), jnp.float32)
    right_gradient[0], value_gradient[0] = jax.lax.fori_loop(start, left.shape[1] // block, tile, zeros)
