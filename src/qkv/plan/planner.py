"""The planner: from a problem to a plan, by rules over facts and costs. It never sees data.

How a kernel is chosen:

1. The rewrites of `REWRITES` are applied in order, each at most once.
2. A kernel that is named in the call runs, or an error is raised; there is no fallback.
3. Kernels that cannot run the problem refuse it with a sentence.
4. Kernels whose peak memory exceeds what is allowed are refused for that.
5. Of the others, the one with the lowest estimate of time wins; on a tie the first in the order of kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qkv.errors import OptionError, RefusedError
from qkv.plan.cost import Cost, memory_text
from qkv.plan.kernel_protocol import Kernel
from qkv.plan.plan import Plan
from qkv.plan.problem import Problem
from qkv.plan.rewrites import REWRITES

__all__ = ["plan_problem", "rewrite"]


def rewrite(problem: Problem) -> tuple[Problem, tuple[str, ...]]:
    """Return the problem after all rewrites, and a sentence for each that applied."""
    sentences: list[str] = []
    for rule in REWRITES:
        changed = rule(problem)
        if changed is not None:
            problem = replace(problem, spec=changed[0])
            sentences.append(changed[1])
    return problem, tuple(sentences)


def plan_problem(requested: Problem, kernels: Sequence[Kernel], kernel: str | Kernel | None = None) -> Plan:
    """Choose a kernel for a problem.

    Args:
        requested: the problem.
        kernels: the kernels to choose from.
        kernel: the kernel that must run it, by name or as an object; None: any.

    Raises:
        OptionError: there is no kernel of that name.
        RefusedError: the named kernel, or every kernel, refuses; the message holds their sentences.
    """
    if isinstance(kernel, Kernel):
        kernels, kernel = (kernel,), kernel.name
    names = [each.name for each in kernels]
    if kernel is not None and kernel not in names:
        raise OptionError(f"kernel must be one of {', '.join(names)}, got {kernel!r}. Choose one of these, or None.")
    problem, rewrites = rewrite(requested)
    refused: dict[str, str] = {}
    able: list[tuple[Kernel, Cost]] = []
    for each in kernels:
        sentence = each.refuse(problem)
        if sentence is None and problem.traced and problem.library == "torch" and not each.traceable:
            sentence = _NOT_TRACEABLE[problem.traced]
        if sentence is None:
            cost = each.cost(problem)
            if cost.peak <= requested.memory:
                able.append((each, cost))
                continue
            amounts = memory_text(cost.peak), memory_text(requested.memory)
            sentence = "it would allocate {}, more than the {} allowed".format(*amounts)
        refused[each.name] = sentence
    if kernel is not None:
        for each, cost in able:
            if each.name == kernel:
                return Plan(requested, problem, each, "named in the call", cost, rewrites, tuple(refused.items()))
        raise RefusedError(f"the kernel {kernel} cannot run this: {refused[kernel]}.")
    if not able:
        sentences = "; ".join(f"{name}: {sentence}" for name, sentence in refused.items())
        raise RefusedError(
            f"no kernel can run this within {memory_text(requested.memory)}. {sentences}. Allow more with "
            f"memory=…, or change what a kernel names."
        )
    order = sorted(able, key=lambda pair: pair[1].seconds)
    chosen, cost = order[0]
    reason = "the only one that can" if len(able) == 1 else f"the lowest estimate of {len(able)} that can"
    slower = tuple((other.name, price) for other, price in order[1:])
    return Plan(requested, problem, chosen, reason, cost, rewrites, tuple(refused.items()), slower)


_NOT_TRACEABLE = {
    "export": "torch.export and ONNX cannot trace it",
    "vmap": "transforms of torch.func cannot trace it",
    "jvp": "it has no forward derivative",
    "twice": "transforms of torch.func cannot trace it",
}
