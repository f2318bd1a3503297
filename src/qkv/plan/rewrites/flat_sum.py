"""Rewrite that replaces nested sums of scores by one sum."""

from __future__ import annotations

from qkv.plan.problem import Problem
from qkv.plan.spec import Spec

__all__ = ["flat_sum"]


def flat_sum(problem: Problem) -> tuple[Spec, str] | None:
    """Replace `SumOf((a, SumOf((b, c))))` by `SumOf((a, b, c))`, and `SumOf((a,))` by `a`.

    Return the new spec and an explanation, or None if the score is no such sum.

    Example:
        >>> from qkv.core.axes import Axes
        >>> from qkv.scores import Dot, Gaussian, SumOf
        >>> score = SumOf((Dot(), SumOf((Dot(), Gaussian(2.0)))))
        >>> before = Problem(Spec(score), Axes.of((2, 1), (3, 1), (3, 1)))
        >>> print(flat_sum(before)[0].score)
        SumOf((Dot(), Dot(), Gaussian(2.0)))
    """
    simpler = problem.score.flatten()
    if simpler is problem.score:
        return None
    return problem.spec.with_(score=simpler), f"{problem.score} is {simpler}"
