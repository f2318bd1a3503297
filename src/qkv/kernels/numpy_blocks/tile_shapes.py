"""Choice of the sizes of tiles for softmax in the NumPy kernel, and an estimate of the cost of the call."""

from __future__ import annotations

from dataclasses import dataclass

from qkv.plan.cost import Cost, tile_sides
from qkv.plan.problem import Problem
from qkv.scores.forms import Product

__all__ = ["SoftmaxTileSizes", "softmax_tile_sizes"]

_MAX_KEYS = 2**16
"""Largest number of keys in a tile, at which Python overhead is negligible even for few queries."""


@dataclass(frozen=True)
class SoftmaxTileSizes:
    """Sizes of the tiles in which the NumPy kernel computes a softmax.

    Attributes:
        rows: number of queries in a tile.
        cols: number of keys in a tile.
        group: number of queries whose sums are in memory at once. The keys are read once per group.
        batch: number of batch elements in a tile.
    """

    rows: int
    cols: int
    group: int
    batch: int

    def cost(self, problem: Problem) -> Cost:
        """Estimate the cost of a call, if tiles fit the processor's cache and keys are read once per group."""
        axes, item = problem.axes, problem.itemsize
        tile = self.batch * self.rows * self.cols * item * _elements_per_pair(problem)
        keys = self.batch * self.cols * _elements_per_key(problem) * item
        queries = self.batch * self.group * _bytes_per_query(problem)
        # A block is finalized in float64.
        block = 3 * self.batch * self.rows * (axes.value_width + 2) * 8
        groups = axes.batch_size // self.batch * -(-axes.q // self.group)
        tiles = groups * -(-self.group // self.rows) * -(-axes.k // self.cols)
        reread = (-(-axes.q // self.group) - 1) * axes.k * (axes.key_width + axes.value_width) * item
        traffic = problem.input_bytes + axes.batch_size * reread
        peak = tile + keys + queries + block
        return Cost(axes.pairs * problem.flop_per_pair, traffic, peak, 2.5e-4 + groups * 5e-5 + tiles * 3e-5)


def softmax_tile_sizes(problem: Problem, budget: int) -> SoftmaxTileSizes:
    """Return tile sizes with at most `budget` elements in each array, within the memory limit of the call."""
    axes, item = problem.axes, problem.itemsize
    elements = problem.elements_per_logit
    element_size = max(1, axes.q * axes.k * elements)
    batch = max(1, min(axes.batch_size, budget // element_size))
    # Below 256 pairs, Python overhead dominates the time of a tile.
    pairs = max(min(256, budget), budget // (batch * elements))
    allowed = problem.memory // 4 // (batch * item * _elements_per_pair(problem))
    # Projected keys should stay in the cache. Keys that are used unchanged may exceed it.
    cached = (budget if problem.score.form.lift != "exact" else 8 * budget) // max(1, axes.key_width)
    fitting = problem.memory // 8 // (batch * _elements_per_key(problem) * item)
    max_keys = max(1, min(axes.k, _MAX_KEYS, cached, fitting))
    rows, cols = tile_sides(axes.q, max_keys, max(1, min(256, pairs), min(pairs, allowed)))
    max_queries = max(1, problem.memory // 4 // (batch * _bytes_per_query(problem)))
    rows = max(1, min(rows, max_queries))
    group = max(rows, min(axes.q, max_queries // rows * rows))
    return SoftmaxTileSizes(rows, cols, group, batch)


def _elements_per_pair(problem: Problem) -> int:
    return 1 if isinstance(problem.score.form, Product) else 4 + 2 * problem.elements_per_logit


def _elements_per_key(problem: Problem) -> int:
    """Return the peak number of elements in memory for each key of a tile."""
    width = problem.axes.key_width + 2
    # Casting the keys and values of a tile copies them.
    copied = problem.axes.key_width + problem.axes.value_width
    return copied if problem.score.form.lift == "exact" else copied + 4 * width


def _bytes_per_query(problem: Problem) -> int:
    """Return the number of bytes of the projection of a query and of its sums in float64."""
    axes = problem.axes
    return (axes.query_width + 3) * problem.itemsize + (axes.value_width + 3) * 8
