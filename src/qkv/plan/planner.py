"""The planner: from a problem to a plan, by rules over facts and costs. It never sees data.

How the choice falls:

1. The rewrites of `RULES` are applied, in order, until none applies.
2. Where a kernel is named, it runs or this raises; it never falls back.
3. Kernels that cannot run the problem say so in a sentence.
4. Kernels whose peak memory is more than what is allowed are refused for that.
5. Of the rest, the lowest estimate of time wins; on a tie the first of the kernels' order.
"""

from __future__ import annotations

from collections.abc import Sequence

from qkv.errors import OptionError, RefusedError
from qkv.plan.cost import Cost, memory_text
from qkv.plan.kernel_protocol import Kernel
from qkv.plan.plan import Plan
from qkv.plan.problem import Problem
from qkv.plan.rewrites import RULES

__all__ = ["make_plan", "rewrite"]


def rewrite(problem: Problem) -> tuple[Problem, tuple[str, ...]]:
    """The problem after all rewrites, and a sentence for each."""
    said: list[str] = []
    for rule in RULES:
        changed = rule(problem)
        if changed is not None:
            problem = problem.with_spec(changed[0])
            said.append(changed[1])
    return problem, tuple(said)


def make_plan(requested: Problem, kernels: Sequence[Kernel], pinned: str | None = None) -> Plan:
    """Choose a kernel.

    Raises:
        OptionError: the named kernel does not exist.
        RefusedError: the named kernel, or every kernel, refuses; the message holds the sentences.
    """
    names = [kernel.name for kernel in kernels]
    if pinned is not None and pinned not in names:
        raise OptionError(f"there is no kernel {pinned!r}. The kernels are {', '.join(names)}.")
    problem, rewrites = rewrite(requested)
    refused: list[tuple[str, str]] = []
    able: list[tuple[Kernel, Cost]] = []
    for kernel in kernels:
        sentence = kernel.refuse(problem)
        if sentence is None and problem.traced and problem.library == "torch" and not kernel.traceable:
            sentence = _TRACED[problem.traced]
        if sentence is None:
            cost = kernel.cost(problem)
            if cost.peak <= requested.memory:
                able.append((kernel, cost))
                continue
            amounts = memory_text(cost.peak), memory_text(requested.memory)
            sentence = "it would allocate {}, more than the {} allowed".format(*amounts)
        refused.append((kernel.name, sentence))
    if pinned is not None:
        for kernel, cost in able:
            if kernel.name == pinned:
                return Plan(requested, problem, kernel, "named in the call", cost, rewrites, tuple(refused))
        raise RefusedError(f"the kernel {pinned} cannot run this: {dict(refused)[pinned]}.")
    if not able:
        sentences = "; ".join(f"{name}: {sentence}" for name, sentence in refused)
        raise RefusedError(
            f"no kernel can run this within {memory_text(requested.memory)}. {sentences}. Allow more with "
            f"memory=…, or change what a kernel names."
        )
    order = sorted(able, key=lambda pair: pair[1].seconds)
    kernel, cost = order[0]
    reason = "the only one that can" if len(able) == 1 else f"the lowest estimate of {len(able)} that can"
    slower = tuple((other.name, price) for other, price in order[1:])
    return Plan(requested, problem, kernel, reason, cost, rewrites, tuple(refused), slower)


_TRACED = {
    "export": "torch.export and ONNX cannot look into it",
    "vmap": "transforms of torch.func cannot look into it",
    "jvp": "it has no forward derivative",
    "twice": "transforms of torch.func cannot look into it",
}
