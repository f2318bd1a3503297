"""Rewrite that replaces a symmetric normalizer of a constant score by `Mean`, which needs no exponentials."""

from __future__ import annotations

from qkv.normalizers import Mean
from qkv.plan.problem import Problem
from qkv.plan.spec import Spec
from qkv.scores.forms import Pairwise

__all__ = ["constant_score"]


def constant_score(problem: Problem) -> tuple[Spec, str] | None:
    """Replace `Softmax`, `Sparsemax` or `Entmax15` by `Mean` if the score is constant.

    Return the new spec and an explanation, or None if the rewrite does not apply.

    Example:
        >>> from qkv.core.axes import Axes
        >>> from qkv.scores import Constant
        >>> before = Problem(Spec(Constant()), Axes.of((2, 1), (3, 1), (3, 1)))
        >>> print(before.spec, "->", constant_score(before)[0])
        Spec(Constant(), normalizer=Softmax()) -> Spec(Constant(), normalizer=Mean())
    """
    normalizer = problem.normalizer
    even = normalizer.symmetric and normalizer.sums_to_one
    # `Mean` itself is not differentiable with respect to logits, so it is not rewritten again.
    form = problem.score.form
    constant = isinstance(form, Pairwise) and form.constant
    if not (constant and even and normalizer.differentiable):
        return None
    mean = Mean()
    if any(readout.refuse(mean) for readout in problem.readouts):
        return None
    return problem.spec.with_(normalizer=mean), f"{problem.score} under {normalizer} is a mean: {mean}"
