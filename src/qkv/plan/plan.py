"""Class `Plan`, the execution plan of a call. `print(plan)` shows how the call will run and why."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace

from qkv.core.formatting import counted, flop_text, memory_text
from qkv.core.printable import html_table
from qkv.plan.cost import Cost, Slowdown
from qkv.plan.kernel_protocol import Elsewhere, Kernel
from qkv.plan.problem import Problem


@dataclass(frozen=True, eq=False)
class Plan:
    """Execution plan of a call: the chosen kernel and the reasons for the choice.

    Attributes:
        requested: the problem of the call.
        problem: the problem after the rewrites, which the kernel runs.
        kernel: the chosen kernel.
        reason: why this kernel was chosen.
        cost: estimated cost of the chosen kernel.
        rewrites: one sentence for each rewrite that was applied.
        refused: names of the kernels that cannot run the problem, each with the reason. The text of a plan only counts
            those for other libraries or processors.
        slower: names of the other kernels that can run the problem, each with its estimated cost.
        slowdown: estimate of how much the memory budget slows the call down; None if by at most 1.5 ×.
        guards_taken: outcome of the kernel's guards on the data; empty before the plan has run.
        calls: an object whose text lists the calls that ran for the queries of a table, of which this plan is one.
    """

    requested: Problem
    problem: Problem
    kernel: Kernel
    reason: str
    cost: Cost
    rewrites: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    slower: tuple[tuple[str, Cost], ...] = ()
    slowdown: Slowdown | None = None
    guards_taken: tuple[str, ...] = ()
    calls: object = ""

    def _refusals(self, verbose: bool) -> Iterator[str]:
        """Yield each kernel that cannot run the problem with the reason; if not `verbose`, others are only counted."""
        elsewhere = 0
        for name, sentence in self.refused:
            if isinstance(sentence, Elsewhere) and not verbose:
                elsewhere += 1
            else:
                yield f"{name}: {sentence}"
        if elsewhere:
            yield f"{counted(elsewhere, 'kernel', 'kernels')} for other libraries or processors"

    def with_guards_taken(self, guards_taken: tuple[str, ...]) -> Plan:
        """Return a copy of the plan that states the outcome of the kernel's guards on the data."""
        return replace(self, guards_taken=guards_taken) if guards_taken else self

    def text(self, verbose: bool = False) -> str:
        """Return the plan as text; `verbose` also names the kernels for other libraries or processors."""
        return "\n".join(_row(name, text) for name, text in self.rows(verbose))

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the plan as a table, which notebooks show."""
        return html_table("plan", self.rows())

    def rows(self, verbose: bool = False) -> list[tuple[str, str]]:
        """Return the name and the text of each row of the plan; the name is empty if it is that of the row before."""
        requested, spec, axes = self.requested, self.requested.spec, self.requested.axes
        batch = f"{'×'.join(map(str, axes.batch))} × " if axes.batch else ""
        widths = (
            "text"
            if axes.text
            else f"width {axes.query_width}"
            if axes.query_width == axes.key_width
            else f"widths {axes.query_width} and {axes.key_width}"
        )
        passes = "one pass over the keys" if requested.normalizer.online else "needs whole rows"
        rows = [
            (
                "call",
                f"{batch}{counted(axes.q, 'query', 'queries')} × {counted(axes.k, 'key', 'keys')}, {widths}, "
                f"values {axes.value_width} wide",
            ),
            ("", f"{requested.dtype} in {requested.library}{', with gradient' if requested.gradient else ''}"),
            ("device", str(requested.device) if requested.device.is_gpu else ""),
            ("score", f"{requested.score}   {_score_fact(requested)}"),
            ("normalizer", f"{requested.normalizer}   {passes}"),
            ("mask", "none" if spec.mask is None else str(spec.mask)),
            *(
                ("not judged", f"what it depends on besides its own pair: {x.doubt}")
                for x in requested.trials
                if x and x.doubt
            ),
            ("positions", "" if spec.positions is None else str(spec.positions)),
            ("dropout", f"{spec.dropout:g} of the weights, from the seed" if spec.dropout else ""),
            ("readouts", ", ".join(map(str, requested.readouts))),
            *(("rewrites" if n == 0 else "", text) for n, text in enumerate(self.rewrites or ("none",))),
            ("kernel", f"{self.kernel.name}   {self.reason}"),
            ("", self.kernel.describe(self.problem)),
            *(("guard", text) for text in self.kernel.guards_of(self.problem)),
            ("guard", _DISTANCES if self.problem.score.cancels else ""),
            *(("guard taken", text) for text in self.guards_taken),
            ("cost", _cost(self.cost) + f"; {memory_text(requested.memory)} allowed"),
            ("slowdown", "" if self.slowdown is None else str(self.slowdown)),
            *(("slower", f"{name}: {_cost(cost)}") for name, cost in self.slower),
            *(("refused", text) for text in self._refusals(verbose)),
            *(("" if n else "calls", text) for n, text in enumerate(str(self.calls).splitlines())),
        ]
        return [(name, text) for name, text in rows if text]


_DISTANCES = (
    "if all keys are within 16 bandwidths of their mean (float64: 4,096): products as above; else: in float64, and "
    "where that does not suffice from differences"
)
"""Guard of scores whose logits cancel, the square roots of `LIFT_RANGES`; `precise_call.py` checks it."""


def _row(name: str, text: str) -> str:
    return textwrap.fill(
        text, width=110, initial_indent=f"{name:<12}", subsequent_indent=" " * 12, break_on_hyphens=False
    )


def _cost(cost: Cost) -> str:
    return f"{flop_text(cost.flop)}, {memory_text(cost.scratch)} of scratch memory"


def _score_fact(problem: Problem) -> str:
    if (lift := problem.score.form.lift) is not None:
        exact = lift == "exact"
        return "an inner product" if exact else "an inner product, up to a term of the query"
    elements = problem.elements_per_logit
    return f"compares pair by pair, {elements} number{'s' if elements > 1 else ''} for each logit"
