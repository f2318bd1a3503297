"""The planner, which chooses a kernel for a problem from facts and estimated costs, without data.

A kernel is chosen in these steps:

1. The rewrites in `REWRITES` are applied in order, each at most once.
2. A kernel that is named in the call runs, or an error is raised; there is no fallback.
3. Kernels that cannot run the problem are excluded, each with a reason.
4. Kernels whose scratch memory exceeds the memory budget even with the smallest tiles are excluded.
5. Among the remaining kernels, the one with the lowest estimated time is chosen (`time_model.py`); on a tie, the
   first of `kernels`. The coefficients are those of measured calls of the same kind if they are known for all of these
   kernels, otherwise those that order the kernels for calls of any kind.
6. If a kernel would be much faster with a larger budget, the plan says so (`Plan.slowdown`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from qkv.core.checks import check_choice
from qkv.core.formatting import memory_text, rounded_up
from qkv.errors import RefusedError
from qkv.plan.budget import fit_to_budget, smallest_budget
from qkv.plan.cost import Cost, Slowdown
from qkv.plan.kernel_protocol import Elsewhere, Kernel, LazyKernel
from qkv.plan.plan import Plan
from qkv.plan.problem import Problem
from qkv.plan.rewrites import REWRITES
from qkv.plan.time_model import estimated_seconds, known_coefficients
from qkv.plan.trial import check_functions

Kernels: TypeAlias = Sequence[Kernel | LazyKernel]


def rewrite(problem: Problem) -> tuple[Problem, tuple[str, ...]]:
    """Apply all rewrites to a problem, and return the new problem and one sentence for each rewrite that applied."""
    sentences: list[str] = []
    for rule in REWRITES:
        changed = rule(problem)
        if changed is not None:
            problem = replace(problem, spec=changed[0])
            sentences.append(changed[1])
    return problem, tuple(sentences)


def plan_problem(requested: Problem, kernels: Kernels, kernel: str | Kernel | None = None) -> Plan:
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
    if kernel != "dense":
        requested = replace(requested, trials=check_functions(requested))
        if requested.gradient and any(verdict is not None and verdict.random for verdict in requested.trials):
            # Other kernels call a function again in backward, which would then return other numbers.
            if kernel is not None:
                raise RefusedError(
                    f"kernel must be 'dense' for gradients of a random function, got {kernel!r}. Pass that kernel, "
                    "which calls the function once, or draw the numbers before the call."
                )
            kernels = [each for each in kernels if each.name == "dense"] or kernels
    problem, rewrites = rewrite(requested)
    choice = _choose(problem, kernels, kernel)
    named = kernel
    if not choice.able and problem.score is not requested.score and _choose(requested, kernels, kernel).able:
        # The kernel computes inner products alone, and the simplified score is none, because it would lose digits.
        kernel, choice = None, _choose(problem, kernels, None)
    if not choice.able:
        raise RefusedError(_refusal(problem, choice, kernel))
    chosen, fitted, cost = choice.able[0]
    reason = "named in the call"
    if kernel is not named:
        reason = f"in place of {named}, which would lose digits"
    elif kernel is None:
        reason = "the only kernel that can run this call"
        if len(choice.able) > 1:
            reason = f"the lowest estimated time of the {len(choice.able)} kernels that can run this call"
    slower = tuple((other.name, price) for other, _, price in choice.able[1:])
    slowdown = _slowdown(problem, kernels, kernel, choice)
    return Plan(requested, fitted, chosen, reason, cost, rewrites, tuple(choice.refused.items()), slower, slowdown)


_Candidate = tuple[Kernel, Problem, Cost]
"""A kernel, the problem for which it chooses tiles that fit the budget, and its cost."""


@dataclass(frozen=True)
class _Choice:
    """The kernels that can run a problem, the fastest first, and the others by name.

    Attributes:
        able: kernels that can run the problem; if one is named in the call, only this one.
        refused: reason for each kernel that cannot run the problem.
        budgets: smallest sufficient budget in bytes of each kernel that is refused only for its memory.
    """

    able: list[_Candidate]
    refused: dict[str, str]
    budgets: dict[str, int]


def _choose(problem: Problem, kernels: Kernels, kernel: str | None) -> _Choice:
    refused: dict[str, str] = {}
    budgets: dict[str, int] = {}
    able: list[tuple[Kernel, Problem, float]] = []
    unsuited: list[tuple[Kernel, Problem, float]] = []
    for entry in kernels:
        sentence = entry.refuse(problem)
        if isinstance(sentence, Elsewhere):
            refused[entry.name] = sentence
            continue
        each = entry.kernel if isinstance(entry, LazyKernel) else entry
        if sentence is None and problem.traced and problem.library == "torch" and not each.traceable:
            sentence = _NOT_TRACEABLE[problem.traced]
        if sentence is None:
            fitted = fit_to_budget(each, problem)
            if fitted is None:
                budgets[each.name] = smallest_budget(each, problem)
                amounts = rounded_up(budgets[each.name]), memory_text(problem.memory)
                sentence = "it would allocate {}, more than the {} allowed".format(*amounts)
            else:
                sentence = each.unsuited(problem) if kernel is None else None
                (able if sentence is None else unsuited).append((each, *fitted))
        if sentence is not None:
            refused[each.name] = sentence
    if kernel is not None:
        able = [candidate for candidate in able if candidate[0].name == kernel]
    elif not able:
        able = unsuited
        for each, _, _ in able:
            del refused[each.name]
    costs = [_cost(*candidate, True) for candidate in able] if kernel is None else [None]
    if None in costs:
        costs = [_cost(*candidate, False) for candidate in able]
    candidates = [(each, fitted, cost) for (each, fitted, _), cost in zip(able, costs, strict=True) if cost is not None]
    return _Choice(sorted(candidates, key=lambda candidate: candidate[2].seconds), refused, budgets)


def _cost(kernel: Kernel, problem: Problem, scratch: float, measured: bool) -> Cost | None:
    """Return the cost of a kernel, or None if `measured` is true and such calls were not measured."""
    coefficients = known_coefficients(kernel.name, problem, measured)
    if coefficients is None and measured:
        return None
    work, seconds = kernel.work(problem), 0.0
    if coefficients is not None:
        seconds = estimated_seconds(coefficients, work)
        saves = kernel.saves_statistics and problem.dtype in ("float32", "float64")
        if problem.recomputes and problem.gradient and not saves:
            again = _cost(kernel, replace(problem, gradient=False), scratch, measured)
            if again is None:
                return None
            seconds += again.seconds
    return Cost(work["flop"], scratch, seconds, problem.result_bytes, measured)


def _refusal(problem: Problem, choice: _Choice, kernel: str | None) -> str:
    """Return the message of a call that cannot run, with the smallest sufficient budget."""
    if kernel is not None:
        said = f"the kernel {kernel} cannot run this call: {choice.refused[kernel]}."
        if kernel in choice.budgets:
            said += f" Pass memory={rounded_up(choice.budgets[kernel])!r} or more, or"
            return f"{said} kernel=None to let the planner choose."
        return f"{said} Pass kernel=None to let the planner choose."
    sentences = "; ".join(f"{name}: {sentence}" for name, sentence in choice.refused.items())
    said = f"no kernel can run this call within {memory_text(problem.memory)} of scratch memory. {sentences}."
    if not choice.budgets:
        return f"{said} Change the arguments that a kernel does not support."
    name = min(choice.budgets, key=lambda name: choice.budgets[name])
    return (
        f"{said} Pass memory={rounded_up(choice.budgets[name])!r} or more, with which {name} can run, or change the "
        "arguments that a kernel does not support."
    )


def _slowdown(problem: Problem, kernels: Kernels, kernel: str | None, choice: _Choice) -> Slowdown | None:
    """Return by how much the memory budget slows a call down, or None if by less than `_NOTED_SLOWDOWN`."""
    limited = choice.able[0]
    if not choice.budgets and limited[2].scratch <= problem.memory / 8:  # no tile is smaller for lack of memory
        return None
    unlimited = _choose(replace(problem, memory=_UNLIMITED), kernels, kernel).able[0]
    factor = _time_ratio(limited, unlimited)
    if factor <= _NOTED_SLOWDOWN:
        return None
    budget = max(problem.memory, int(unlimited[2].scratch) + 1)
    while budget < _UNLIMITED:
        if _time_ratio(_choose(replace(problem, memory=budget), kernels, kernel).able[0], unlimited) <= _NOTED_SLOWDOWN:
            break
        budget *= 2
    return Slowdown(factor, unlimited[0].name, budget)


def _time_ratio(candidate: _Candidate, other: _Candidate) -> float:
    """Return the ratio of the estimated times, both from coefficients of measured calls or neither."""
    if candidate[2].measured != other[2].measured:
        costs = [_cost(kernel, problem, 0.0, False) for kernel, problem, _ in (candidate, other)]
    else:
        costs = [candidate[2], other[2]]
    limited, unlimited = (0.0 if cost is None else cost.seconds for cost in costs)
    return limited / unlimited if unlimited else 1.0


_NOTED_SLOWDOWN = 1.5
"""Slowdown by the memory budget from which the plan states it."""
_UNLIMITED = 2**62
"""Budget in bytes that no call needs."""

_NOT_TRACEABLE = {
    "export": "torch.export and ONNX cannot trace it",
    "vmap": "transforms of torch.func cannot trace it",
    "jvp": "it does not support forward-mode derivatives",
    "twice": "transforms of torch.func cannot trace it",
}
