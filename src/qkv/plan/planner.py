"""The planner, which chooses a kernel for a problem from facts and estimated costs, without data.

A kernel is chosen in these steps:

1. The rewrites in `REWRITES` are applied in order, each at most once.
2. A kernel that is named in the call runs, or an error is raised; there is no fallback.
3. Kernels that cannot run the problem are excluded, each with a reason.
4. Kernels whose peak memory exceeds the memory limit are excluded.
5. Among the remaining kernels, the one with the lowest estimated time is chosen; on a tie, the first of `kernels`.
   Times are estimated from coefficients fitted to measured calls (`time_model.py`) if they are known for all of these
   kernels, otherwise from the costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qkv.core.checks import check_choice
from qkv.errors import RefusedError
from qkv.plan.cost import Cost, memory_text
from qkv.plan.kernel_protocol import Kernel
from qkv.plan.plan import Plan
from qkv.plan.problem import Problem
from qkv.plan.rewrites import REWRITES
from qkv.plan.time_model import estimated_seconds

__all__ = ["plan_problem", "rewrite"]


def rewrite(problem: Problem) -> tuple[Problem, tuple[str, ...]]:
    """Apply all rewrites to a problem, and return the new problem and one sentence for each rewrite that applied."""
    sentences: list[str] = []
    for rule in REWRITES:
        changed = rule(problem)
        if changed is not None:
            problem = replace(problem, spec=changed[0])
            sentences.append(changed[1])
    return problem, tuple(sentences)


def plan_problem(requested: Problem, kernels: Sequence[Kernel], kernel: str | Kernel | None = None) -> Plan:
    """Choose a kernel for a problem and return the plan.

    Args:
        requested: the problem.
        kernels: the kernels to choose from.
        kernel: the kernel that must run the problem, by name or as an object; None to choose the fastest.

    Raises:
        OptionError: no kernel has the given name.
        RefusedError: the named kernel, or every kernel, cannot run the problem; the message lists the reasons.
    """
    if isinstance(kernel, Kernel):
        kernels, kernel = (kernel,), kernel.name
    check_choice("kernel", kernel, (None, *(each.name for each in kernels)))
    problem, rewrites = rewrite(requested)
    refused: dict[str, str] = {}
    able: list[tuple[Kernel, Cost]] = []
    unsuited: list[tuple[Kernel, Cost]] = []
    for each in kernels:
        sentence = each.refuse(problem)
        if sentence is None and problem.traced and problem.library == "torch" and not each.traceable:
            sentence = _NOT_TRACEABLE[problem.traced]
        if sentence is None:
            cost = each.cost(problem)
            if cost.peak <= requested.memory:
                sentence = each.unsuited(problem) if kernel is None else None
                (able if sentence is None else unsuited).append((each, cost))
            else:
                amounts = memory_text(cost.peak), memory_text(requested.memory)
                sentence = "it would allocate {}, more than the {} allowed".format(*amounts)
        if sentence is not None:
            refused[each.name] = sentence
    if kernel is not None:
        for each, cost in able:
            if each.name == kernel:
                return Plan(requested, problem, each, "named in the call", cost, rewrites, tuple(refused.items()))
        raise RefusedError(
            f"the kernel {kernel} cannot run this call: {refused[kernel]}. Pass kernel=None to let the planner choose."
        )
    if not able:
        able = unsuited
        for each, _ in able:
            del refused[each.name]
    if not able:
        sentences = "; ".join(f"{name}: {sentence}" for name, sentence in refused.items())
        raise RefusedError(
            f"no kernel can run this call within {memory_text(requested.memory)} of memory. {sentences}. Increase "
            "the argument memory, or change the arguments that a kernel does not support."
        )
    fitted = [estimated_seconds(each, problem) for each, _ in able]
    if all(seconds is not None for seconds in fitted):
        able = [(each, replace(cost, fitted=seconds)) for (each, cost), seconds in zip(able, fitted, strict=True)]
    order = sorted(able, key=lambda pair: pair[1].seconds)
    chosen, cost = order[0]
    reason = "the only kernel that can run this call"
    if len(able) > 1:
        reason = f"the lowest estimated time of the {len(able)} kernels that can run this call"
    slower = tuple((other.name, price) for other, price in order[1:])
    return Plan(requested, problem, chosen, reason, cost, rewrites, tuple(refused.items()), slower)


_NOT_TRACEABLE = {
    "export": "torch.export and ONNX cannot trace it",
    "vmap": "transforms of torch.func cannot trace it",
    "jvp": "it does not support forward-mode derivatives",
    "twice": "transforms of torch.func cannot trace it",
}
