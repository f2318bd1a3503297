"""Warning of calls that the memory budget slows down, once in a process for each signature of a call."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Hashable

from qkv.errors import MemoryBudgetWarning
from qkv.plan.plan import Plan

__all__ = ["warn_of_slowdown"]

_MAX_WARNED = 10_000
"""Number of signatures after which nothing is warned of."""
_INSIDE = ("qkv", "torch", "jaxtyping")
"""Packages whose frames are not those of the caller; PyTorch's call the modules of qkv."""
_WARNED: set[Hashable] = set()


def warn_of_slowdown(plan: Plan) -> None:
    """Warn if the memory budget slows a call down by more than 1.5 ×, unless such a call was warned of before.

    Calls count as the same whose batch axes and lengths have the same number of binary digits, because a sequence that
    grows by one key at a time would otherwise warn at every step.
    """
    if plan.slowdown is None:
        return
    requested = plan.requested
    axes = requested.axes
    sizes = tuple(tuple(int(n).bit_length() for n in shape) for shape in (axes.query, axes.key, axes.value))
    parts = (
        plan.kernel.name,
        *(type(x).__name__ for x in (requested.score, requested.normalizer, requested.spec.mask)),
    )
    signature = (sizes, parts, requested.library, requested.dtype, requested.gradient, requested.memory)
    if signature in _WARNED or len(_WARNED) >= _MAX_WARNED:
        return
    _WARNED.add(signature)
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        depth, frame = depth + 1, frame.f_back
    warnings.warn(
        f"The memory budget must be larger for the fastest plan: {plan.slowdown}",
        MemoryBudgetWarning,
        stacklevel=depth + 1,
    )
