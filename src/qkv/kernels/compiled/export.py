"""Plans while a graph is exported: lengths may be symbols, and there is nothing to be fast at.

With numbers as lengths the planner chooses as always, between the kernels that can be traced: the fused one,
as PyTorch's public function, and the dense one. Symbols cannot be compared without fixing them, so with
symbols it is the dense one. Whoever writes the graph for a runtime can put a kernel of its own first.
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

__all__ = ["FIRST", "export_plan"]

FIRST: ContextVar[Kernel | None] = ContextVar("first", default=None)
"""Runs what it does not refuse, where no kernel is named in the call."""


def export_plan(problem: Problem, kernels: Sequence[Kernel], pinned: str | Kernel | None) -> Plan:
    """The plan of a call that is being exported.

    Raises:
        RefusedError: a kernel is named that needs lengths, and these are symbols.
    """
    axes, first = problem.axes, FIRST.get()
    known = all(isinstance(n, int) for shape in (axes.query, axes.key, axes.value) for n in shape)
    if pinned is None and first is not None:
        changed, said = rewrite(problem) if known else (problem, ())
        if first.refuse(changed) is None:
            return Plan(problem, changed, first, "the first that can, while exporting", _FREE, said)
    if known:
        return plan_problem(problem, kernels, pinned)
    if pinned not in (None, DenseKernel.name):
        raise RefusedError(
            f"the kernel {pinned} plans by lengths, and while exporting with dynamic shapes these are not "
            "known. Leave kernel=… out, or export with fixed shapes."
        )
    return Plan(problem, problem, DenseKernel(), "lengths are not known while exporting", _FREE)


_FREE = Cost(0.0, 0.0, 0.0)
