"""What a tile costs in PyTorch: matrix products, and passes over its numbers, at the rates of one core."""

from __future__ import annotations

from qkv.plan.problem import Problem
from qkv.scores.base import Score

__all__ = ["PRODUCT_RATE", "visible_pairs", "tile_seconds"]

PRODUCT_RATE = 125e9
"""Operations of matrix products per second."""
PASS = 0.25e-9
"""Seconds to read, change and write a number in the cache."""


def tile_seconds(problem: Problem, exponential: bool) -> float:
    """Seconds of arithmetic for each pair, forward and, where a gradient is wanted, backward."""
    axes = problem.axes
    width, values = axes.query_width, axes.value_width
    passes = _passes(problem.score, width, axes.key_width, problem.elements_per_logit, exponential)
    own = 2.5 if exponential else 15.0
    products = 2 * (width + values)
    if problem.gradient:
        # Logits again, the gradients of weights, values, queries and keys.
        products += 6 * width + 4 * values
        own, passes = 2 * own + 1, 3 * passes
    return products / PRODUCT_RATE + (own + passes) * PASS


def _passes(score: Score, query_width: int, key_width: int, elements: int, exponential: bool) -> float:
    """Passes over the numbers of a tile, beside the products."""
    if score.is_inner_product:
        return 0.0
    if exponential and score.gated_product:
        return 4.0
    if exponential and score.tanh_vector is not None:
        return 1.15 * elements
    if score.inner is not None:
        return 3.0 + _passes(score.inner, query_width, key_width, elements, exponential)
    return 4.0 * elements + 4


def visible_pairs(problem: Problem, rows: int) -> float:
    """Pairs in the tiles that the mask lets queries reach, from some of the blocks of so many rows."""
    axes, mask = problem.axes, problem.spec.mask
    if mask is None or 0 in (axes.q, axes.k):
        return axes.pairs
    starts = range(0, axes.q, max(rows, -(-axes.q // 16)))
    reached = 0
    for start in starts:
        first, last = mask.key_range(problem.tile.restrict((start, min(axes.q, start + rows)), (0, axes.k)))
        reached += max(0, last - first)
    return axes.pairs * reached / (len(starts) * axes.k)
