"""Rewrite that replaces a score by one that is cheaper or more precise for the lengths of the call."""

from __future__ import annotations

from qkv.plan.problem import Problem
from qkv.plan.spec import Spec

__all__ = ["simpler_score"]


def simpler_score(problem: Problem) -> tuple[Spec, str] | None:
    """Replace the score by `score.simplify`; return the new spec and an explanation, or None if it stays as it is.

    A bias of shape (…, 1, k), for whose gradient PyTorch allocates an array of all pairs, becomes a bias per key, which
    is only one more column of the keys. A quadratic penalty that as an inner product would lose digits becomes an
    offset of each logit.

    Example:
        >>> import numpy as np
        >>> from qkv.core.axes import Axes
        >>> from qkv.scores import Biased, Dot
        >>> before = Problem(Spec(Biased(Dot(), np.zeros((1, 3)))), Axes.of((2, 1), (3, 1), (3, 1)))
        >>> print(before.score, "->", simpler_score(before)[0].score)
        Biased(Dot(), bias=float64[1, 3]) -> Biased(Dot(), per_key=float64[3])
    """
    simpler = problem.score.simplify(problem.axes.q, problem.axes.k)
    if simpler is problem.score:
        return None
    return problem.spec.with_(score=simpler), f"{problem.score} for these lengths: {simpler}"
