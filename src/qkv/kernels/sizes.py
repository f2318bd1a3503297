"""How large a tile or a strip is: as many numbers as fit the cache, never more than the memory allowed."""

from __future__ import annotations

from qkv.plan.cost import counted, tile_sides
from qkv.plan.problem import Problem

__all__ = ["STRIP_BUDGET", "TILE_BUDGET", "partial_alive", "said", "strip_alive", "strip_rows_of", "tile_of"]

TILE_BUDGET = 2**20
"""Numbers in the widest array of a tile."""
STRIP_BUDGET = 2**23
"""Numbers in all arrays of a strip together."""


def tile_of(problem: Problem, budget: int, alive: int) -> tuple[int, int]:
    """Rows and columns of a tile.

    Args:
        problem: what is to be run.
        budget: numbers in the widest array of a tile.
        alive: numbers in memory at once for each pair; half of the memory allowed holds them.
    """
    axes = problem.axes
    batch = max(1, axes.batch_size)
    # Below 256 pairs the work of a tile is nothing beside the Python around it.
    pairs = max(min(256, budget), budget // (batch * problem.elements_per_logit))
    allowed = problem.memory // 2 // (batch * problem.itemsize * alive)
    rows = max(1, problem.memory // 4 // (batch * problem.itemsize * partial_alive(problem)))
    return tile_sides(min(axes.q, rows), axes.k, max(1, min(pairs, allowed)))


def strip_rows_of(problem: Problem, budget: int, alive: int) -> int:
    """Queries in a strip of whole rows, at least 1.

    Args:
        problem: what is to be run.
        budget: numbers in all arrays of a strip together.
        alive: numbers in memory at once for each pair; half of the memory allowed holds them.
    """
    axes = problem.axes
    row = max(1, axes.batch_size * axes.k * alive)
    allowed = problem.memory // 2 // problem.itemsize
    return max(1, min(axes.q, min(budget, allowed) // row))


def said(rows: int, cols: int) -> str:
    """The size of a tile or strip in words."""
    return f"{counted(rows, 'query', 'queries')} × {counted(cols, 'key', 'keys')}"


def partial_alive(problem: Problem) -> int:
    """Numbers in memory at once for each query of a tile: two partials, joined, and sorted."""
    return 4 * problem.normalizer.numbers_per_query(problem.axes.value_width)


def strip_alive(problem: Problem) -> int:
    """Numbers in memory at once for each pair of a strip; with a gradient, all that backward keeps."""
    return (12 if problem.gradient else 5) + 3 * problem.elements_per_logit
