"""Functions that the generated programs for traced scores call."""

# mypy: ignore-errors
# Triton compiles these functions: their arguments are pointers and its decorator has no types.

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "expm1",
    "finite",
    "finish_rows",
    "log1p",
    "maximum",
    "power",
    "row_products",
    "sigmoid",
    "sign",
    "softplus",
    "spoil_rows",
    "tanh",
    "update_rows",
]


@triton.jit
def maximum(x, y):
    """Return the larger of x and y, and NaN where one is NaN."""
    return tl.where((x > y) | (x != x), x, y)


@triton.jit
def sign(x):
    """Return the sign of x, and 0 for 0."""
    return tl.where(x > 0.0, 1.0, tl.where(x < 0.0, -1.0, 0.0))


@triton.jit
def log1p(x):
    """Return log(1 + x), with the rounding of 1 + x divided out."""
    u = 1.0 + x
    exact = (u == 1.0) | (u == float("inf"))
    return tl.where(exact, x, tl.log(u) * (x / tl.where(exact, 1.0, u - 1.0)))


@triton.jit
def expm1(x):
    """Return e^x − 1, with the rounding of e^x divided out."""
    e = tl.exp(x)
    near = (e != 1.0) & (tl.abs(x) < 1.0)
    return tl.where(e == 1.0, x, tl.where(near, (e - 1.0) * (x / tl.log(tl.where(near, e, 2.0))), e - 1.0))


@triton.jit
def tanh(x):
    """Return tanh x: a polynomial up to 0.625 (Cephes), and an exponential beyond."""
    z = x * x
    p = -5.70498872745e-3 * z + 2.06390887954e-2
    p = p * z - 5.37397155531e-2
    p = p * z + 1.33314422036e-1
    p = p * z - 3.33332819422e-1
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    return tl.where(tl.abs(x) < 0.625, x + x * z * p, tl.where(x < 0.0, -far, far))


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + e^−x) without overflow."""
    e = tl.exp(-tl.abs(x))
    r = 1.0 / (1.0 + e)
    return tl.where(x < 0.0, e * r, r)


@triton.jit
def softplus(x):
    """Return log(1 + e^x) without overflow."""
    return maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))


@triton.jit
def power(x, y):
    """Return x to the power y; for a negative x only if y is an integer, otherwise NaN."""
    size = tl.exp(y * tl.log(tl.abs(x)))
    odd = tl.floor(y * 0.5) * 2.0 != y
    negative = tl.where(tl.floor(y) == y, tl.where(odd, -size, size), float("nan"))
    return tl.where(y == 0.0, 1.0, tl.where(x < 0.0, negative, size))


@triton.jit
def finite(x):
    """Return x with 0 in place of NaN and infinity."""
    return tl.where(tl.abs(x) < float("inf"), x, 0.0)


@triton.jit
def update_rows(logits, largest, total, result, values, PRECISION: tl.constexpr):
    """Return the running maximum, the sum of weights and the weighted values of rows after another tile."""
    now = tl.maximum(largest, tl.max(logits, 1))
    shift = tl.where(now == -float("inf"), 0.0, now)
    weights = tl.exp(logits - shift[:, None])
    scale = tl.exp(largest - shift)
    total = total * scale + tl.sum(weights, 1)
    result = result * scale[:, None] + tl.dot(weights, finite(values), input_precision=PRECISION)
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
def row_products(x, y, BQ: tl.constexpr, PRECISION: tl.constexpr):
    """Return the inner product of each row of two blocks, rounded as products of rows with other rows are.

    Where one key has all of the weight, the derivative of its logit is then exactly 0.
    """
    index = tl.arange(0, BQ)
    products = tl.dot(x, tl.trans(y), input_precision=PRECISION)
    return tl.sum(tl.where(index[:, None] == index[None, :], products, 0.0), 1)


@triton.jit
def spoil_rows(
    result, read, value, bad_value, first, k, DV: tl.constexpr, DVP: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr
):
    """Add the values of a tile that are not finite to the rows that read them."""
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
