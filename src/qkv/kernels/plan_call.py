"""Function that checks and plans a call of arrays, with all kernels to choose from."""

from __future__ import annotations

from dataclasses import replace

from qkv.core.typing import Array, Num, Shaped
from qkv.kernels import KERNELS
from qkv.kernels.compiled.export import export_plan
from qkv.plan import Kernel, Plan, Spec, plan_problem
from qkv.plan.array_checks import check_arrays
from qkv.plan.budget_warning import warn_of_slowdown
from qkv.plan.cache import SpecFields
from qkv.plan.checks import check_problem, read_problem
from qkv.readouts import Readout

__all__ = ["plan_call"]


def plan_call(
    query: Shaped[Array, "*_"],
    key: Shaped[Array, "*_"],
    value: Num[Array, "*#batch k value_width"],
    fields: SpecFields,
    readouts: tuple[Readout, ...],
    kernel: str | Kernel | None,
    memory: int | str | None,
    traced: str,
    recomputes: bool = False,
) -> Plan:
    """Check and plan a call, and warn if the memory budget makes it much slower.

    Args:
        query: queries.
        key: keys.
        value: values.
        fields: score, normalizer, mask, positions and dropout.
        readouts: the readouts.
        kernel: as in `qkv.attend`.
        memory: as in `qkv.attend`.
        traced: kind of tracing that hides the data, as in `Problem.traced`, or "export".
        recomputes: as in `Problem.recomputes`.

    Raises:
        QkvError: the call is invalid; see `qkv.attend`.
    """
    check_arrays(query, key, value, () if traced else (*fields, *readouts))
    problem = read_problem(query, key, value, Spec(*fields), readouts, memory, traced)
    problem = replace(problem, recomputes=recomputes)
    check_problem(problem)
    plan = (export_plan if traced == "export" else plan_problem)(problem, KERNELS, kernel)
    warn_of_slowdown(plan)
    return plan
