"""How the NumPy block kernel cuts a softmax into tiles, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass

from qkv.plan.cost import Cost, tile_sides
from qkv.plan.problem import Problem

__all__ = ["Sizes", "softmax_sizes"]

_MOST_KEYS = 2**16
"""In a tile, however few the queries: the work of a tile is then far above that of the Python around it."""


@dataclass(frozen=True)
class Sizes:
    """Queries and keys of a tile, queries whose sums are kept at once, batch elements at once."""

    rows: int
    cols: int
    group: int
    batch: int

    def cost(self, problem: Problem) -> Cost:
        """Keys are read once for each group of queries; tiles stay in the cache."""
        axes, item = problem.axes, problem.itemsize
        tile = self.batch * self.rows * self.cols * item * _alive(problem)
        keys = self.batch * self.cols * _key_numbers(problem) * item
        queries = self.batch * self.group * _query_bytes(problem)
        # A block is finished in float64.
        block = 3 * self.batch * self.rows * (axes.value_width + 2) * 8
        groups = axes.batch_size // self.batch * -(-axes.q // self.group)
        tiles = groups * -(-self.group // self.rows) * -(-axes.k // self.cols)
        again = (-(-axes.q // self.group) - 1) * axes.k * (axes.key_width + axes.value_width) * item
        traffic = problem.input_bytes + axes.batch_size * again
        peak = tile + keys + queries + block
        return Cost(axes.pairs * problem.flop_per_pair, traffic, peak, 2.5e-4 + groups * 5e-5 + tiles * 3e-5)


def softmax_sizes(problem: Problem, budget: int) -> Sizes:
    """Tiles of at most `budget` numbers in their widest array, within the memory allowed."""
    axes, item = problem.axes, problem.itemsize
    elements = problem.elements_per_logit
    whole = max(1, axes.q * axes.k * elements)
    batch = max(1, min(axes.batch_size, budget // whole))
    # Below 256 pairs the work of a tile is nothing beside the Python around it.
    pairs = max(min(256, budget), budget // (batch * elements))
    allowed = problem.memory // 4 // (batch * item * _alive(problem))
    # A side of the keys that is computed stays in the cache; one that is read as it is may be longer.
    wide = (budget if problem.score.lift_kind != "exact" else 8 * budget) // max(1, axes.key_width)
    fit = problem.memory // 8 // (batch * _key_numbers(problem) * item)
    most = max(1, min(axes.k, _MOST_KEYS, wide, fit))
    rows, cols = tile_sides(axes.q, most, max(1, min(pairs, allowed)))
    kept = max(1, problem.memory // 4 // (batch * _query_bytes(problem)))
    rows = max(1, min(rows, kept))
    group = max(rows, min(axes.q, kept // rows * rows))
    return Sizes(rows, cols, group, batch)


def _alive(problem: Problem) -> int:
    """Numbers in memory at once for each pair."""
    return 1 if problem.score.is_inner_product else 4 + 2 * problem.elements_per_logit


def _key_numbers(problem: Problem) -> int:
    """Numbers in memory at once for each key of a tile."""
    width = problem.axes.key_width + 2
    # A tile may have to be cast.
    copied = problem.axes.key_width + problem.axes.value_width
    return copied if problem.score.lift_kind == "exact" else copied + 4 * width


def _query_bytes(problem: Problem) -> int:
    """Bytes kept for each query: its side, and its sums in float64."""
    axes = problem.axes
    return (axes.query_width + 3) * problem.itemsize + (axes.value_width + 3) * 8
