"""What is masked is never read: products that cannot carry NaN or Inf out of a masked key or value.

A weight of zero does not protect: 0 · NaN is NaN, forward and backward. So wherever something that is not
finite stands in the inputs, it is taken out before the product and put back, by selection, only where it is
read.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from qkv.core.arrays import (
    cast,
    ignore_numpy_warnings,
    is_floating,
    is_text,
    namespace,
    statically_known_true,
    stop_gradient,
)
from qkv.core.typing import Array, Bool, Float

__all__ = ["all_finite", "zero_nonfinite", "guarded_logits", "apply_weights"]


def all_finite(x: Array) -> bool:
    """Whether every element is known now to be finite. Text and integers are; a tracer is not known."""
    if is_text(x) or not is_floating(x):
        return True
    xp = namespace(x)
    # A finite sum has finite terms, and needs no array of booleans as large as the data; the sum may
    # overflow, though.
    with ignore_numpy_warnings():
        return statically_known_true(xp.isfinite(xp.sum(x))) or statically_known_true(xp.all(xp.isfinite(x)))


def zero_nonfinite(x: Array) -> Array:
    """`x` with zeros where it is not finite."""
    xp = namespace(x)
    return xp.where(xp.isfinite(x), x, xp.zeros_like(x))


def guarded_logits(score: Callable[[Array, Array], Array], query: Array, key: Array) -> Array:
    """Logits whose gradient, where it is zero, stays zero although query or key are not finite elsewhere.

    Pairs with a non-finite query or key get their logit from the inputs as they are, without gradient; all
    others from inputs with zeros in those places.
    """
    xp = namespace(query)
    bad_query = ~xp.all(xp.isfinite(query), axis=-1)[..., :, None]
    bad_key = ~xp.all(xp.isfinite(key), axis=-1)[..., None, :]
    raw = stop_gradient(score(stop_gradient(query), stop_gradient(key)))
    return xp.where(bad_query | bad_key, raw, score(zero_nonfinite(query), zero_nonfinite(key)))


def apply_weights(
    weights: Float[Array, "*#batch q k"],
    value: Float[Array, "*#batch k value_width"],
    support: Bool[Array, "*#batch #q #k"] | None,
    clean: bool,
) -> Float[Array, "*batch q value_width"]:
    """`weights @ value`, reading a value only where its key takes part.

    Args:
        weights: `(*batch, q, k)`.
        value: `(*batch, k, value_width)`.
        support: boolean, broadcasting to the weights: which keys are read. None: all.
        clean: the values are known to be finite, so the plain product does.
    """
    xp = namespace(weights)
    if clean or support is None:
        return xp.matmul(weights, value)
    clean_product = xp.matmul(weights, zero_nonfinite(value))
    constant = stop_gradient(value)
    plus, minus = constant == math.inf, constant == -math.inf
    negative = support & (stop_gradient(weights) < 0)
    positive = support & ~negative

    def read(by: Array, of: Array) -> Array:
        return xp.matmul(cast(by, weights.dtype), cast(of, weights.dtype)) > 0

    # An infinite value is read as itself, turned by a negative weight; both signs together are NaN, as in any
    # sum.
    up = read(positive, plus) | read(negative, minus)
    down = read(positive, minus) | read(negative, plus)
    nan = read(support, xp.isnan(constant)) | (up & down) | xp.isnan(stop_gradient(clean_product))
    full = xp.zeros_like(stop_gradient(clean_product))
    out = xp.where(up, full + math.inf, xp.where(down, full - math.inf, clean_product))
    return xp.where(nan, full + math.nan, out)
