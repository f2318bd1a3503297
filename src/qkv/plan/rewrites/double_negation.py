"""Rewrite that removes a double negation of a mask."""

from __future__ import annotations

from qkv.masks.base import Not
from qkv.plan.problem import Problem
from qkv.plan.spec import Spec

__all__ = ["double_negation"]


def double_negation(problem: Problem) -> tuple[Spec, str] | None:
    """Replace a mask `~~mask` by `mask`.

    Return the new spec and an explanation, or None if the mask is no double negation.

    Example:
        >>> from qkv.core.axes import Axes
        >>> from qkv.masks import Causal
        >>> before = Problem(Spec(mask=~~Causal()), Axes.of((2, 1), (2, 1), (2, 1)))
        >>> print(before.spec.mask, "->", double_negation(before)[0].mask)
        ~~Causal() -> Causal()
    """
    mask = problem.spec.mask
    if not isinstance(mask, Not) or not isinstance(mask.mask, Not):
        return None
    return problem.spec.with_(mask=mask.mask.mask), f"{mask} is {mask.mask.mask}"
