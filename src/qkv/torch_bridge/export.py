"""Planning of calls that `torch.export` traces, with static or dynamic shapes.

With static shapes the planner chooses between the two kernels that can be traced: fused, which calls PyTorch's public
function, and dense. With dynamic shapes the dense kernel runs, because comparing symbolic lengths would make them
static. A kernel in `EXPORT_KERNEL` takes precedence over both.
"""

from __future__ import annotations

from contextvars import ContextVar

from qkv.errors import RefusedError
from qkv.kernels.dense.kernel import DenseKernel
from qkv.plan.cost import Cost
from qkv.plan.kernel_protocol import Kernel
from qkv.plan.plan import Plan
from qkv.plan.planner import Kernels, plan_problem, rewrite
from qkv.plan.problem import Problem

EXPORT_KERNEL: ContextVar[Kernel | None] = ContextVar("export_kernel", default=None)
"""Kernel that is preferred while exporting, for calls without `kernel=` that it supports."""

_NO_COST = Cost(0.0, 0.0)


def export_plan(problem: Problem, kernels: Kernels, kernel: str | Kernel | None) -> Plan:
    """Return the plan of a call that `torch.export` is tracing.

    Raises:
        RefusedError: the call names a kernel other than dense, and lengths are symbolic.
    """
    axes, first = problem.axes, EXPORT_KERNEL.get()
    known = all(isinstance(n, int) for shape in (axes.query, axes.key, axes.value) for n in shape)
    if kernel is None and first is not None:
        rewritten, sentences = rewrite(problem) if known else (problem, ())
        if first.refuse(rewritten) is None:
            return Plan(problem, rewritten, first, "the kernel preferred while exporting", _NO_COST, sentences)
    if known:
        return plan_problem(problem, kernels, kernel)
    if kernel not in (None, DenseKernel.name):
        raise RefusedError(
            f"kernel must be None or {DenseKernel.name!r} while exporting with dynamic shapes, got {kernel!r}. "
            f"Omit kernel=…, or export with static shapes."
        )
    return Plan(problem, problem, DenseKernel(), "the shapes are dynamic while exporting", _NO_COST)
