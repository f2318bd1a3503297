"""Estimate of the seconds that a tile takes in PyTorch, from its matrix products and its elementwise passes."""

from __future__ import annotations

from qkv.plan.problem import Problem
from qkv.scores.base import Score
from qkv.scores.forms import Gated, Product, Tanh, Wrapped

__all__ = ["LARGE_BYTES", "PRODUCT_RATE", "amounts_of_work", "tile_seconds", "visible_pairs"]

PRODUCT_RATE = 125e9
"""Throughput of matrix products in flop per second, measured on two cores of a desktop processor."""
_PASS = 0.25e-9
"""Seconds to read, change and write one element in the cache, measured on the same processor."""


def tile_seconds(problem: Problem, softmax: bool) -> float:
    """Estimate the seconds of arithmetic for each pair of query and key, on one core.

    They include the backward pass if a gradient is required.

    Args:
        problem: the problem.
        softmax: whether the specialized softmax loop computes the tiles; otherwise the normalizer's methods do.
    """
    axes = problem.axes
    width, values = axes.query_width, axes.value_width
    passes = _score_passes(problem.score, width, axes.key_width, problem.elements_per_logit, softmax)
    normalizer_passes = 2.5 if softmax else 15.0
    products = 2 * (width + values)
    if problem.gradient:
        # The logits again, and the gradients of weights, values, queries and keys.
        products += 6 * width + 4 * values
        normalizer_passes, passes = 2 * normalizer_passes + 1, 3 * passes
    return products / PRODUCT_RATE + (normalizer_passes + passes) * _PASS


def _score_passes(score: Score, query_width: int, key_width: int, elements: int, softmax: bool) -> float:
    """Return the number of elementwise passes over a tile that the score needs besides its matrix products."""
    match score.form:
        case Product():
            return 0.0
        case Gated() if softmax:
            return 4.0
        case Tanh() if softmax:
            return 1.15 * elements
        case Wrapped(inner=inner):
            return 3.0 + _score_passes(inner, query_width, key_width, elements, softmax)
    return 4.0 * elements + 4


def visible_pairs(problem: Problem, rows: int, keys: int = 1) -> float:
    """Estimate the number of pairs in the tiles that the mask does not exclude, from a sample of the queries.

    The sample is up to 16 blocks of `rows` queries, for each of which the key range of the mask is computed, and
    extended to whole blocks of `keys` keys.
    """
    axes, mask = problem.axes, problem.spec.mask
    if mask is None or 0 in (axes.q, axes.k):
        return axes.pairs
    starts = range(0, axes.q, max(rows, -(-axes.q // 16)))
    visible = 0
    for start in starts:
        first, last = mask.key_range(problem.tile.restrict((start, min(axes.q, start + rows)), (0, axes.k)))
        if last > first:
            visible += min(axes.k, -(-last // keys) * keys) - first // keys * keys
    return axes.pairs * visible / (len(starts) * axes.k)


LARGE_BYTES = 2**25
"""Size in bytes from which arrays are slower per element: memory is requested from the operating system every time."""


def amounts_of_work(
    problem: Problem, pairs: float, tiles: float = 0, array_elements: float | None = None, elements: int = 1
) -> dict[str, float]:
    """Return the amounts of work of a call by name, as `qkv.plan.time_model` lists them.

    Args:
        problem: the problem.
        pairs: number of pairs that the kernel computes.
        tiles: number of tiles of all batch elements.
        array_elements: pairs in an array of the kernel; None: `pairs`.
        elements: array elements per logit in such an array.
    """
    axes = problem.axes
    array = (pairs if array_elements is None else array_elements) * problem.itemsize
    total = pairs * problem.elements_per_logit
    width = axes.query_width + axes.value_width
    return {
        "call": 1,
        "batch": axes.batch_size,
        "tiles": tiles,
        "rows": axes.batch_size * (axes.q * width + axes.k * (axes.key_width + axes.value_width)),
        "queries": axes.batch_size * axes.q,
        "pairs": pairs,
        "products": pairs * width,
        "elements": total,
        "large_pairs": pairs if array >= LARGE_BYTES else 0,
        "large_elements": total if array * elements >= LARGE_BYTES else 0,
    }
