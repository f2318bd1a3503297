"""Estimate of the arrays that kernels hold besides inputs and results, in units of the size of logits or sides.

The numbers were measured by `tests/plan/test_scratch_memory.py`: the growth of a process during a call
minus the results.
"""

from __future__ import annotations

import math

from qkv.plan.problem import Problem
from qkv.scores.forms import Capped, Distance, Gated, Offset, Product, ScaledProduct

_NEAR_WIDTHS = range(12, 28)
"""Widths of vectors at which some of normally distributed vectors are so near that `core/distances.py` computes their
distances a second time, which depends on the data. For fewer it computes no products, for more none are that near."""


def pair_arrays(problem: Problem, computed: bool = False) -> float:
    """Return how many arrays of all logits are in memory at once where the score and the normalizer are run as written.

    With a gradient this includes what autograd saves for the backward pass. Normalizers that sort rows hold the order,
    cumulative sums and the support. If `computed`, the logits were computed in another way, and the score holds none.
    """
    forward, saved, elements = (0.0, 0.0, 0) if computed else score_arrays(problem)
    sorts = not problem.normalizer.online
    if problem.library == "numpy":
        return max(7.0 if sorts else 3.25 if problem.normalizer.log_sum_exp else 5.6, forward, 2 * elements)
    if problem.gradient:
        resident = 9.3 if sorts else 7.25 if problem.normalizer.log_sum_exp or problem.normalizer.selects_keys else 3.5
        return max(resident + saved, 3 * elements + 0.5)
    resident = 7.6 if sorts else 4.25 if problem.normalizer.selects_keys else 3.25
    return max(resident, forward, 2 * elements)


def score_arrays(problem: Problem) -> tuple[float, float, int]:
    """Return the memory of a score for each logit, in a kernel that computes all pairs at once.

    Returns:
        The arrays of the size of the logits at the peak of the forward pass; those that autograd saves, besides the
        logits; and the elements per logit of arrays of features, 0 if there are none.
    """
    form, elements = problem.score.form, problem.elements_per_logit
    if isinstance(form, Product):
        return 2.0, 0.0, 0
    saved, inner = form.saved.logits, form.inner
    while inner is not None:
        saved, inner = saved + inner.form.saved.logits, inner.form.inner
    gated = isinstance(form, Gated)
    capped = isinstance(form, Capped) and isinstance(form.cap, (int, float))
    forward = 1.0 + saved + (gated or capped)
    forward += 2 if isinstance(form, Offset) and problem.score.positional else 0  # the positions of all pairs
    if near_pairs(problem):
        forward = max(forward, 4.5)
    return max(2.0, forward), saved, elements if elements > 2 and not gated else 0


def near_pairs(problem: Problem) -> bool:
    """Return whether the distances of some pairs are likely to be computed a second time."""
    return (
        isinstance(problem.score.form, Distance)
        and problem.library == "torch"
        and problem.axes.query_width in _NEAR_WIDTHS
    )


def lifted_elements(problem: Problem, scales_query: bool = True) -> tuple[int, int]:
    """Return the numbers of elements of the copies that the score's lift makes of the queries and of the keys.

    Args:
        scales_query: whether a scaled dot product copies the queries to multiply them by the scale.
    """
    score, axes = problem.score, problem.axes
    query, key = sides_of(problem)
    form = score.form
    if isinstance(form, ScaledProduct):
        return (query * axes.query_width if scales_query else 0), 0
    while form.lift is None and form.inner is not None:
        score = form.inner
        form = score.form
    if isinstance(form, ScaledProduct):
        return query * axes.query_width, 0
    if form.lift is None:
        return (query * (axes.query_width + 1), key * (axes.key_width + 1)) if isinstance(form, Gated) else (0, 0)
    width = score.lifted_width(axes.query_width, axes.key_width)
    return query * width, key * width if form.copies_keys else 0


def backward_copies(problem: Problem) -> int:
    """Return the number of elements that autograd saves of the lift of queries and keys, besides the lifted vectors.

    While the lift of one side is differentiated, it holds more arrays, most of which take the place of gradients of
    the other side that are not there yet.
    """
    sides, copies = lifted_elements(problem, scales_query=False), problem.score.form.saved.copies
    return int((copies - 1) * sum(sides) + max(0.0, 3 * (copies - 2)) * abs(sides[0] - sides[1]))


def saved_by_lift(problem: Problem, casts: bool) -> float:
    """Return the number of elements that autograd saves of the lift of queries and keys, besides the lifted vectors.

    Args:
        casts: whether queries and keys are converted from half precision. Scores with arrays save the results.
    """
    query, key = lifted_elements(problem, scales_query=False)
    form = problem.score.form
    saved = query * form.saved.sides[0] + key * form.saved.sides[1]
    if casts and problem.score.arrays():
        sides = sides_of(problem)
        saved += sides[0] * problem.axes.query_width
        saved += sides[1] * problem.axes.key_width if form.copies_keys else 0
    return saved


def sides_of(problem: Problem) -> tuple[int, int]:
    """Return the numbers of queries and of keys in all batch elements, of broadcast ones once."""
    return math.prod(problem.axes.query[:-1]), math.prod(problem.axes.key[:-1])
