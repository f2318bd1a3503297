"""Rewrites, which replace a problem by a cheaper problem with the same result."""

from __future__ import annotations

from collections.abc import Callable

from qkv.plan.problem import Problem
from qkv.plan.rewrites.constant_score import constant_score
from qkv.plan.rewrites.double_negation import double_negation
from qkv.plan.rewrites.flat_sum import flat_sum
from qkv.plan.rewrites.mask_allows_all import mask_allows_all
from qkv.plan.rewrites.simpler_score import simpler_score
from qkv.plan.rewrites.top_of_few import top_of_few
from qkv.plan.spec import Spec

__all__ = ["REWRITES", "Rewrite"]

Rewrite = Callable[[Problem], tuple[Spec, str] | None]
"""Function of a problem that returns a cheaper equivalent spec and an explanation, or None if it does not apply."""

REWRITES: tuple[Rewrite, ...] = (
    double_negation,
    mask_allows_all,
    top_of_few,
    flat_sum,
    simpler_score,
    constant_score,
)
