"""The cost of a call on a kernel, how much the memory budget slows it down, and the sides of a tile."""

from __future__ import annotations

import math
from dataclasses import dataclass

from qkv.core.formatting import rounded_up


@dataclass(frozen=True)
class Cost:
    """Memory, operations and estimated time of a call on one kernel.

    Attributes:
        flop: floating-point operations.
        scratch: bytes in memory at the peak besides inputs, output and gradients.
        seconds: estimated time, by which the planner compares kernels.
        results: bytes of the output and the gradients, which every kernel returns.
        measured: whether the time is that of measured calls like this one; otherwise it only orders the kernels.
    """

    flop: float
    scratch: float
    seconds: float = 0.0
    results: float = 0.0
    measured: bool = False

    @property
    def peak(self) -> float:
        """Peak memory in bytes, including output and gradients but not inputs."""
        return self.scratch + self.results


@dataclass(frozen=True)
class Slowdown:
    """Estimate of how much the memory budget slows a call down.

    Attributes:
        factor: estimated time with the budget, divided by the time without it.
        kernel: name of the kernel that would run without it.
        budget: budget in bytes with which the call takes at most 1.5 × the time without one.
    """

    factor: float
    kernel: str
    budget: int

    def __str__(self) -> str:
        return (
            f"this call takes an estimated {self.factor:.3g} × the time of {self.kernel} without a memory budget. Pass "
            f"memory={rounded_up(self.budget)!r} or more."
        )


def tile_sides(q: int, k: int, pairs: int) -> tuple[int, int]:
    """Return the numbers of queries and keys of a tile with at most `pairs` pairs, as nearly equal as possible.

    Example:
        >>> tile_sides(10_000, 10_000, 2**18)
        (512, 512)
        >>> tile_sides(1, 10_000_000, 2**18)
        (1, 262144)
    """
    side = max(1, math.isqrt(pairs))
    rows = max(1, min(q, side))
    cols = max(1, min(k, pairs // rows))
    return max(1, min(q, pairs // cols)), cols
