"""Class `Observation`, the result of a call with the plan that ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qkv.core.typing import Array, Num
from qkv.plan.plan import Plan

__all__ = ["Observation"]


@dataclass(frozen=True)
class Observation:
    """Output and readouts of a call, and the plan that ran, as returned by `observe` and by prepared calls.

    Attributes:
        output: output `(*batch, q, value_width)`.
        readouts: one result for each readout, in the given order.
        plan: the plan that ran, with the outcome of its run-time checks.
    """

    output: Num[Array, "*batch q value_width"]
    readouts: tuple[Any, ...]
    plan: Plan
