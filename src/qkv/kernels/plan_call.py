"""Function that checks and plans a call of arrays, with all kernels to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qkv.core.arrays import result_dtype
from qkv.core.axes import Axes
from qkv.core.typing import Array, Num, Shaped, Tensor
from qkv.errors import RefusedError
from qkv.kernels import KERNELS, DenseKernel, LinearKernel
from qkv.kernels.compiled.export import export_plan
from qkv.plan import Kernel, Plan, Spec, plan_problem
from qkv.plan.array_checks import check_arrays
from qkv.plan.budget import budget_bytes
from qkv.plan.budget_warning import warn_of_slowdown
from qkv.plan.cache import SpecFields
from qkv.plan.checks import check_problem, read_problem
from qkv.plan.cost import memory_text
from qkv.plan.devices import device_of
from qkv.plan.problem import Problem
from qkv.readouts import Readout

__all__ = ["check_forward_mode", "plan_call"]


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


def check_forward_mode(
    query: Num[Tensor, "*#batch q query_width"],
    key: Num[Tensor, "*#batch k key_width"],
    value: Num[Tensor, "*#batch k value_width"],
    fields: SpecFields,
    memory: int | str | None,
    mapped: Sequence[int],
) -> None:
    """Refuse forward-mode differentiation, which keeps the graph of a gradient of all pairs, beyond the memory budget.

    Measured peaks are 14 to 28 arrays of pairs, and for scores of pairs of features up to 2 more for each feature.

    Args:
        query: queries.
        key: keys.
        value: values.
        fields: score, normalizer, mask, positions and dropout.
        memory: as in `qkv.attend`.
        mapped: lengths of the axes that `vmap` maps.

    Raises:
        RefusedError: the memory budget is too small.
    """
    batch = Axes.of(query.shape, key.shape, value.shape).batch
    lead = (*mapped, *batch)
    axes = Axes.of((*lead, *query.shape[-2:]), tuple(key.shape), tuple(value.shape))
    device, dtype = device_of(value), str(result_dtype(query, key, value)).removeprefix("torch.")
    problem = Problem(Spec(*fields), axes, "torch", dtype, True, (), budget_bytes(memory, device), device=device)
    check_problem(problem)
    if LinearKernel().refuse(problem) is None:
        return
    arrays = 4 + (2 * problem.elements_per_logit if problem.elements_per_logit > 1 else 0)
    needed = 3.5 * DenseKernel().cost(problem).scratch + arrays * axes.pairs * problem.itemsize
    if needed > problem.memory:
        raise RefusedError(
            f"memory must be at least {memory_text(needed)} for torch.func.jvp and jacfwd of {axes.q} queries and "
            f"{axes.k} keys, because forward-mode differentiation keeps all pairs, got {memory_text(problem.memory)}. "
            "Increase memory, or use torch.func.vjp or jacrev, whose memory is linear."
        )
