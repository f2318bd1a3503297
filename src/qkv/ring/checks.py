"""Checks of sharded calls that do not depend on the array library."""

from __future__ import annotations

from qkv.errors import RefusedError
from qkv.plan.problem import Problem

__all__ = ["check_mergeable"]


def check_mergeable(problem: Problem) -> None:
    """Raise an error if the partial results of a problem cannot be merged around a ring.

    Raises:
        ShapeError: the score does not support the widths of query and key.
        RefusedError: the normalizer selects or samples keys, or needs whole rows, or a decay per key is given.
    """
    problem.score.check_widths(problem.axes.query_width, problem.axes.key_width)
    normalizer = problem.normalizer
    mergeable = normalizer.online and not (normalizer.selects_keys or normalizer.stochastic or normalizer.top_k)
    if not (mergeable or (normalizer.power in (1, 2) and normalizer.scale is not None)):
        raise RefusedError(
            "normalizer must be Softmax, Sum, Mean, Identity, Sigmoid, Sparsemax or Entmax15 in sharded attention, got "
            f"{normalizer}. Choose one of these, or gather all keys and call qkv.attend."
        )
    for part in problem.score.parts():
        if "positions" in {name for _, names in part.array_fields() for name in names or ()}:
            raise RefusedError(
                f"log_decay_per_key must be None in sharded attention, got {problem.score}. Pass log_decay, one number "
                "per head."
            )
