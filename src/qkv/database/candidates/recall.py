"""Recall of candidates, measured by comparing answers with those from all rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from numbers import Real

import numpy as np

from qkv.core.formatting import counted
from qkv.database.answer import Entry
from qkv.plan.plan import Plan


@dataclass
class Recall:
    """The recall of candidates for the queries for which the answer was also computed from all rows.

    Attributes:
        shares: for each query with a match, the share of the rows of largest weight that are also those of the answer
            from candidates.
        queries: number of queries that were compared, with and without a match.
        difference: the largest difference of a value that is a number.
        others: number of answers whose value (a text or category) or whose match differs.
    """

    shares: list[float] = field(default_factory=list)
    queries: int = 0
    difference: float | None = None
    others: int = 0

    def add(self, entries: Sequence[Entry], exact: Sequence[Entry]) -> None:
        """Compare answers from candidates with those from all rows."""
        for own, full in zip(entries, exact, strict=True):
            self.queries += 1
            if len(full.rows):
                self.shares.append(len(np.intersect1d(own.rows, full.rows)) / len(full.rows))
            if own.found and full.found and isinstance(own.value, Real) and isinstance(full.value, Real):
                self.difference = max(self.difference or 0.0, abs(float(own.value) - float(full.value)))
            else:
                self.others += own.found != full.found or (isinstance(own.value, str) and own.value != full.value)

    @property
    def value(self) -> float | None:
        """The mean share; None if no query had a match."""
        return float(np.mean(self.shares)) if self.shares else None

    def text(self, rows: int) -> str:
        """Return the measured recall in words, for the `rows` of largest weight."""
        if self.value is None:
            return f"recall not known: none of {counted(self.queries, 'query', 'queries')} measured has a match"
        error = float(np.std(self.shares)) / math.sqrt(len(self.shares))
        text = (
            f"recall {self.value:.4g} ± {error:.2g} of the {counted(rows, 'row', 'rows')} of largest weight, measured "
            f"on {counted(len(self.shares), 'query', 'queries')}"
        )
        if self.difference is not None:
            text += f"; values differ by at most {self.difference:.3g} from those of all rows"
        if self.others:
            text += f"; {counted(self.others, 'answer', 'answers')} of {self.queries:,} differ"
        return text


@dataclass(frozen=True, eq=False)
class CandidatePlan(Plan):
    """The plan of queries that are compared with candidates of an approximate index alone.

    Attributes:
        recall: the measured recall; None if it was not measured.
        candidates: the index, the number of candidates and the measured recall in words.
    """

    recall: float | None = None
    candidates: str = ""

    @classmethod
    def of(cls, plan: Plan, recall: float | None, text: str) -> CandidatePlan:
        """Return a plan that states the candidates."""
        own = {each.name: getattr(plan, each.name) for each in fields(Plan)}
        own["rewrites"] = (f"candidates: {text}", *plan.rewrites)
        return cls(**own, recall=recall, candidates=text)

    __repr__ = __str__ = Plan.__str__
