"""Rewrite that removes a mask if it allows every pair of the call."""

from __future__ import annotations

from qkv.plan.problem import Problem
from qkv.plan.spec import Spec

__all__ = ["mask_allows_all"]


def mask_allows_all(problem: Problem) -> tuple[Spec, str] | None:
    """Remove a mask that allows every pair of the call, such as a window wider than the sequence.

    Return the new spec and an explanation, or None if the mask excludes a pair or holds arrays.

    Example:
        >>> from qkv.core.axes import Axes
        >>> from qkv.masks import Causal
        >>> before = Problem(Spec(mask=Causal(align="end")), Axes.of((1, 1), (3, 1), (3, 1)))
        >>> print(before.spec, "->", mask_allows_all(before)[0])
        Spec(ScaledDot(), normalizer=Softmax(), mask=Causal('end')) -> Spec(ScaledDot(), normalizer=Softmax())
    """
    mask = problem.spec.mask
    # Consider only masks without arrays, because a plan must not depend on data.
    if mask is None or mask.arrays() or (problem.spec.positions is not None and problem.spec.positions.arrays()):
        return None
    if problem.axes.q == 0 or problem.axes.k == 0 or mask.coverage(problem.tile) != "all":
        return None
    return problem.spec.with_(mask=None), f"{mask} allows every pair here: no mask"
