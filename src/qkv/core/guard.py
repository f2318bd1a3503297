"""Functions that compute logits and outputs so that NaN and infinity in masked keys and values have no effect.

A weight of zero is not enough, because 0 · NaN is NaN in the forward and in the backward pass. Non-finite elements
are therefore replaced by zeros before the product, and NaN or infinity is then written to the results of pairs that
are not masked.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from qkv.core.arrays import (
    cast,
    choose,
    ignore_numpy_warnings,
    is_floating,
    is_text,
    library,
    namespace,
    statically_known_true,
    stop_gradient,
    where,
)
from qkv.core.typing import Array, Bool, Float, Num, Shaped

T = TypeVar("T")


def all_finite(x: Shaped[Array, "*_"]) -> bool:
    """Return whether all elements of `x` are known to be finite.

    The result is True for text and integers, and False for floating-point tracers, whose elements are unknown.
    """
    if is_text(x) or not is_floating(x):
        return True
    xp = namespace(x)
    # A finite sum has finite terms and needs no array of booleans. The sum can overflow, so check again.
    with ignore_numpy_warnings():
        if isinstance(x, np.ndarray):  # the general way takes twice as long for short arrays
            return math.isfinite(np.add.reduce(x, axis=None)) or bool(np.isfinite(x).all())
        return statically_known_true(xp.isfinite(xp.sum(x))) or statically_known_true(xp.all(xp.isfinite(x)))


def is_traced(*arrays: Shaped[Array, "*_"]) -> bool:
    """Return whether JAX or TensorFlow trace an array, so that its elements are known only when a function runs."""
    match library(*arrays):
        case "jax":
            return any(isinstance(x, sys.modules["jax"].core.Tracer) for x in arrays)
        case "tensorflow":
            return any(sys.modules["tensorflow"].is_symbolic_tensor(x) for x in arrays)
    return False


def by_finiteness(arrays: Sequence[Shaped[Array, "*_"]], run: Callable[[bool], T]) -> T:
    """Return `run(True)` if all elements are finite and otherwise `run(False)`, decided when a compiled function runs.

    Nothing of `run(False)` is saved for its gradient, which computes it again, so that the usual case takes no longer.

    Args:
        arrays: arrays of JAX or TensorFlow.
        run: function that returns arrays, given whether all elements are finite.
    """
    return _choose_by_sums(arrays, lambda: run(True), lambda: run(False))


def _choose_by_sums(arrays: Sequence[Shaped[Array, "*_"]], usual: Callable[[], T], careful: Callable[[], T]) -> T:
    """Return `usual()` if the sums of all arrays are finite, and with them all terms, and otherwise `careful()`.

    Sums of huge terms may overflow. JAX saves nothing of `careful()` for the gradient.
    """
    xp = namespace(arrays[0])
    if library(*arrays) == "jax":
        careful = sys.modules["jax"].checkpoint(careful)
    finite = xp.all(xp.isfinite(xp.stack([cast(xp.sum(x), xp.float32) for x in arrays if is_floating(x)])))
    return choose(finite, usual, careful)


def zero_nonfinite(x: Num[Array, "*axes"]) -> Num[Array, "*axes"]:
    """Return `x` with zeros in place of NaN and infinity."""
    return where(namespace(x).isfinite(x), x, 0.0)


def guarded_logits(
    score: Callable[[Shaped[Array, "*_"], Shaped[Array, "*_"]], Shaped[Array, "*batch q k"]],
    query: Num[Array, "*#batch q query_width"],
    key: Num[Array, "*#batch k key_width"],
) -> Num[Array, "*batch q k"]:
    """Compute logits such that a non-finite query or key causes no NaN in the gradients of other rows.

    A pair with a non-finite query or key gets the logit of the original inputs, without a gradient. All other pairs
    get the logit of inputs in which NaN and infinity are replaced by zeros.
    """
    xp = namespace(query)
    clean = score(zero_nonfinite(query), zero_nonfinite(key))

    def finite() -> tuple[Array, Array, Array]:
        return stop_gradient(clean), xp.zeros(query.shape[:-1], dtype=bool), xp.zeros(key.shape[:-1], dtype=bool)

    def with_nonfinite() -> tuple[Array, Array, Array]:
        bad_query, bad_key = (~xp.all(xp.isfinite(x), axis=-1) for x in (query, key))
        return stop_gradient(score(stop_gradient(query), stop_gradient(key))), bad_query, bad_key

    original, bad_query, bad_key = _unless_finite((query, key), finite, with_nonfinite)
    return xp.where(bad_query[..., :, None] | bad_key[..., None, :], original, clean)


def _unless_finite(inputs: tuple[Array, ...], finite: Callable[[], T], repaired: Callable[[], T]) -> T:
    """Return `repaired()`, or `finite()` where a compiled function of JAX or TensorFlow finds all inputs finite.

    Neither result has a gradient, for which JAX would store what both branches read.
    """
    if library(*inputs) not in ("jax", "tensorflow"):
        return repaired()
    return _choose_by_sums(inputs, finite, repaired)


def apply_weights(
    weights: Float[Array, "*#batch q k"],
    value: Float[Array, "*#batch k value_width"],
    support: Callable[[], Bool[Array, "*#batch #q #k"]],
    clean: bool,
) -> Float[Array, "*batch q value_width"]:
    """Return `weights @ value`, in which NaN and infinity of values outside the support have no effect.

    Args:
        weights: `(*batch, q, k)`.
        value: `(*batch, k, value_width)`.
        support: function that returns booleans that broadcast to the weights, True for keys whose values are included.
        clean: whether the values are known to be finite, so that a plain matrix product suffices.
    """
    xp = namespace(weights)
    if clean:
        return xp.matmul(weights, value)
    clean_product = xp.matmul(weights, zero_nonfinite(value))
    nonfinite = _unless_finite(
        (value,),
        lambda: xp.zeros_like(clean_product),
        lambda: _nonfinite_sums(weights, value, support(), clean_product),
    )
    return where(nonfinite == 0, clean_product, nonfinite)


def _nonfinite_sums(
    weights: Float[Array, "*#batch q k"],
    value: Float[Array, "*#batch k value_width"],
    support: Bool[Array, "*#batch #q #k"],
    clean_product: Float[Array, "*batch q value_width"],
) -> Float[Array, "*batch q value_width"]:
    """Return NaN or infinity where the product has them, and 0 elsewhere, from the product in which they are 0."""
    xp = namespace(weights)
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
    return where(nan, math.nan, where(up, math.inf, where(down, -math.inf, xp.zeros_like(clean_product))))
