"""Base class of the writers that print the answers of `qkv ask` as tables, JSON or CSV."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qkv.core.printable import printable
from qkv.database.answer import call_notes

if TYPE_CHECKING:
    from qkv.database.answer import Answer
    from qkv.database.protocol import Queryable

__all__ = ["AnswerWriter"]


@dataclass
class AnswerWriter(ABC):
    """Base class of writers that print answers to stdout as they are computed.

    Attributes:
        database: the database that gives the answers.
        rows: rows of evidence to show per query.
        explain: print the execution plan at the end.
        quote_formulas: write an apostrophe before texts that a spreadsheet would execute; only for CSV.
        gradient: print the gradient of each answer.
        plan: the execution plan of the first answers.
        notes: the notes of the last answers, and the calls that ran for all answers so far.
        column_notes: those of the notes that say how columns are read, and which cells are left out.
        invalid: the number of queries so far that could not be read.
        calls: the number of answers so far by the calls that ran for them.
    """

    database: Queryable
    rows: int
    explain: bool
    quote_formulas: bool = False
    gradient: bool = False
    plan: object = None
    notes: tuple[str, ...] = ()
    column_notes: tuple[str, ...] = ()
    invalid: int = 0
    calls: Counter[str] = field(default_factory=Counter)

    def write(self, answers: Answer) -> None:
        """Print the answers to several queries, and store their plan and notes for `finish`."""
        self.plan, self.column_notes = self.plan or answers.plan, answers.column_notes
        self.calls += answers.call_counts
        self.notes = *answers.common_notes, *call_notes(self.calls)
        self.invalid += sum(entry.invalid for entry in answers.entries)
        for answer in answers:
            self.write_one(answer)

    @abstractmethod
    def write_one(self, one: Answer) -> None:
        """Print the answer to one query."""

    def finish(self) -> None:
        """Print the execution plan to stderr if `explain` is True. Stdout contains only answers."""
        if self.explain:
            print(printable(str(self.plan), lines=True), file=sys.stderr)
