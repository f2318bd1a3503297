"""Rewrites, which replace a problem by a cheaper problem with the same result.

Each returns the new spec and an explanation, or None if it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable

from qkv.masks.base import Not
from qkv.normalizers import Mean
from qkv.plan.problem import Problem
from qkv.plan.spec import Spec
from qkv.scores.forms import Pairwise

Rewrite = Callable[[Problem], tuple[Spec, str] | None]
"""Function of a problem that returns a cheaper equivalent spec and an explanation, or None if it does not apply."""


def double_negation(problem: Problem) -> tuple[Spec, str] | None:
    """Replace a mask `~~mask` by `mask`.

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


def mask_allows_all(problem: Problem) -> tuple[Spec, str] | None:
    """Remove a mask that allows every pair of the call, such as a window wider than the sequence.

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


def top_of_few(problem: Problem) -> tuple[Spec, str] | None:
    """Replace `TopK(k, normalizer)` by `normalizer` if the call has at most k keys.

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


def flat_sum(problem: Problem) -> tuple[Spec, str] | None:
    """Replace `SumOf((a, SumOf((b, c))))` by `SumOf((a, b, c))`, and `SumOf((a,))` by `a`.

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


def simpler_score(problem: Problem) -> tuple[Spec, str] | None:
    """Replace the score by `score.simplify`, if that is another score.

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


def constant_score(problem: Problem) -> tuple[Spec, str] | None:
    """Replace `Softmax`, `Sparsemax` or `Entmax15` by `Mean` if the score is constant.

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


REWRITES: tuple[Rewrite, ...] = (double_negation, mask_allows_all, top_of_few, flat_sum, simpler_score, constant_score)
"""All rewrites, in the order in which they are tried."""
