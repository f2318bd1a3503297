"""Products in which NaN and infinity of masked keys and values have no effect.

A weight of zero is not enough: 0 · NaN is NaN, forward and backward. So non-finite elements are replaced by zeros
before the product, and their effect is selected into the results that read them.
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
    where,
)
from qkv.core.typing import Array, Bool, Float, Num

__all__ = ["all_finite", "apply_weights", "guarded_logits", "zero_nonfinite"]


def all_finite(x: Array) -> bool:
    """Return whether every element is known to be finite: True for text and integers, False for tracers."""
    if is_text(x) or not is_floating(x):
        return True
    xp = namespace(x)
    # A finite sum has finite terms and needs no array of booleans. The sum can overflow, so check again.
    with ignore_numpy_warnings():
        return statically_known_true(xp.isfinite(xp.sum(x))) or statically_known_true(xp.all(xp.isfinite(x)))


def zero_nonfinite(x: Num[Array, "*axes"]) -> Num[Array, "*axes"]:
    """Return `x` with zeros in place of NaN and infinity."""
    return where(namespace(x).isfinite(x), x, 0.0)


def guarded_logits(
    score: Callable[[Array, Array], Array],
    query: Num[Array, "*#batch q query_width"],
    key: Num[Array, "*#batch k key_width"],
) -> Num[Array, "*#batch #q #k"]:
    """Return logits whose gradients do not become NaN for pairs of a finite query and a finite key.

    Pairs with a non-finite query or key get the logit of the inputs, without gradient. All others get the logit
    of inputs with zeros in place of NaN and infinity.
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
    """Return `weights @ value` without reading values outside the support.

    Args:
        weights: `(*batch, q, k)`.
        value: `(*batch, k, value_width)`.
        support: which keys each query reads, broadcasting to the weights; None: all.
        clean: whether the values are known to be finite, so that the plain product suffices.
    """
    xp = namespace(weights)
    if clean or support is None:
        return xp.matmul(weights, value)
    clean_product = xp.matmul(weights, zero_nonfinite(value))
    constant = stop_gradient(value)
    plus, minus = constant == math.inf, constant == -math.inf
    negative = support & (stop_gradient(weights) < 0)
    positive = support & ~negative

    def reads_any(keys: Array, elements: Array) -> Array:
        return xp.matmul(cast(keys, weights.dtype), cast(elements, weights.dtype)) > 0

    # An infinite value stays infinite, with the other sign under a negative weight. Infinities of both signs give NaN,
    # as in any sum.
    up = reads_any(positive, plus) | reads_any(negative, minus)
    down = reads_any(positive, minus) | reads_any(negative, plus)
    nan = reads_any(support, xp.isnan(constant)) | (up & down) | xp.isnan(stop_gradient(clean_product))
    out = where(up, math.inf, where(down, -math.inf, clean_product))
    return where(nan, math.nan, out)
