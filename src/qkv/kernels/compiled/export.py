"""Plans of calls that `torch.export` traces, whose lengths may be symbols.

With numbers as lengths the planner chooses between the kernels that can be traced: the fused one, as PyTorch's public
function, and the dense one. Symbols cannot be compared without fixing them, so with symbols the dense kernel runs.
`EXPORT_KERNEL` puts a kernel of the caller's own first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar

from qkv.errors import RefusedError
from qkv.kernels.dense.kernel import DenseKernel
from qkv.plan.cost import Cost
from qkv.plan.kernel_protocol import Kernel
from qkv.plan.plan import Plan
from qkv.plan.planner import plan_problem, rewrite
from qkv.plan.problem import Problem

__all__ = ["EXPORT_KERNEL", "export_plan"]

EXPORT_KERNEL: ContextVar[Kernel | None] = ContextVar("export_kernel", default=None)
"""Runs every problem that it does not refuse, in calls that name no kernel."""

_NO_COST = Cost(0.0, 0.0, 0.0)


def export_plan(problem: Problem, kernels: Sequence[Kernel], kernel: str | Kernel | None) -> Plan:
    """Return the plan of a call that is being exported.

    Raises:
        RefusedError: the call names a kernel that needs lengths, and these are symbols.
    """
    axes, first = problem.axes, EXPORT_KERNEL.get()
    known = all(isinstance(n, int) for shape in (axes.query, axes.key, axes.value) for n in shape)
    if kernel is None and first is not None:
        rewritten, sentences = rewrite(problem) if known else (problem, ())
        if first.refuse(rewritten) is None:
            return Plan(problem, rewritten, first, "the first that can, while exporting", _NO_COST, sentences)
    if known:
        return plan_problem(problem, kernels, kernel)
    if kernel not in (None, DenseKernel.name):
        raise RefusedError(
            f"kernel must be None or {DenseKernel.name!r} while exporting with dynamic shapes, got {kernel!r}, which "
            f"needs lengths to plan. Leave kernel=… out, or export with fixed shapes."
        )
    return Plan(problem, problem, DenseKernel(), "lengths are not known while exporting", _NO_COST)
