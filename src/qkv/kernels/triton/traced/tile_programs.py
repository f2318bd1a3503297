"""Functions that the generated programs for traced scores call."""

# mypy: ignore-errors
# Triton compiles these functions: their arguments are pointers and its decorator has no types.

from __future__ import annotations

import triton
import triton.language as tl


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
    is_odd = tl.floor(y * 0.5) * 2.0 != y
    negative = tl.where(tl.floor(y) == y, tl.where(is_odd, -size, size), float("nan"))
    return tl.where(y == 0.0, 1.0, tl.where(x < 0.0, negative, size))


@triton.jit
def finite(x):
    """Return x with 0 in place of NaN and infinity."""
    return tl.where(tl.abs(x) < float("inf"), x, 0.0)


@triton.jit
def row_products(x, y, BQ: tl.constexpr, PRECISION: tl.constexpr):
    """Return the inner product of each row of two blocks, rounded as products of rows with other rows are.

    Where one key has all of the weight, the derivative of its logit is then exactly 0.
    """
    index = tl.arange(0, BQ)
    products = tl.dot(x, tl.trans(y), input_precision=PRECISION)
    return tl.sum(tl.where(index[:, None] == index[None, :], products, 0.0), 1)
