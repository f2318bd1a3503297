"""Rewrite that replaces `TopK` by its inner normalizer in a call with at most k keys."""

from __future__ import annotations

from qkv.plan.problem import Problem
from qkv.plan.spec import Spec

__all__ = ["top_of_few"]


def top_of_few(problem: Problem) -> tuple[Spec, str] | None:
    """Replace `TopK(k, normalizer)` by `normalizer` if the call has at most k keys.

    Return the new spec and an explanation, or None if the rewrite does not apply.

    Example:
        >>> from qkv.core.axes import Axes
        >>> from qkv.normalizers import TopK
        >>> before = Problem(Spec(normalizer=TopK(10)), Axes.of((2, 1), (3, 1), (3, 1)))
        >>> print(before.spec, "->", top_of_few(before)[0])
        Spec(ScaledDot(), normalizer=TopK(10)) -> Spec(ScaledDot(), normalizer=Softmax())
    """
    simpler = problem.normalizer.simplify(problem.axes.k)
    if simpler is problem.normalizer:
        return None
    return (
        problem.spec.with_(normalizer=simpler),
        f"{problem.normalizer} of {problem.axes.k} keys leaves none out: {simpler}",
    )
