"""Rewrite that replaces a bias that is the same for every query by a bias per key.

The score then remains an inner product.
"""

from __future__ import annotations

from qkv.plan.problem import Problem
from qkv.plan.spec import Spec

__all__ = ["bias_per_key"]


def bias_per_key(problem: Problem) -> tuple[Spec, str] | None:
    """Replace a bias of shape (…, 1, k) of a `Biased` score by a bias `per_key` of shape (…, k).

    Return the new spec and an explanation, or None if the score has no such bias.

    For the gradient of a bias of pairs PyTorch allocates an array of all pairs. A bias per key is only one more column
    of the keys.

    Example:
        >>> import numpy as np
        >>> from qkv.core.axes import Axes
        >>> from qkv.scores import Biased, Dot
        >>> before = Problem(Spec(Biased(Dot(), np.zeros((1, 3)))), Axes.of((2, 1), (3, 1), (3, 1)))
        >>> print(before.score, "->", bias_per_key(before)[0].score)
        Biased(Dot(), bias=float64[1, 3]) -> Biased(Dot(), per_key=float64[3])
    """
    simpler = problem.score.simplify(problem.axes.q, problem.axes.k)
    if simpler is problem.score:
        return None
    return problem.spec.with_(score=simpler), f"{problem.score} is the same for every query: {simpler}"
