"""Writers that print the answers of `qkv ask` as tables, JSON lines or CSV, each answer as soon as it is computed.

In JSON and CSV, dates and times are written in ISO 8601, and their standard error and spread in days. NaN and infinity,
which JSON does not support, are written as null. Decimals are numbers if a float64 represents all their digits,
otherwise texts.
"""

from __future__ import annotations

import csv
import json
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TextIO

from qkv.core.printable import escaped_json, printable, quoted_formula
from qkv.core.untrusted_json import to_json
from qkv.database.answer import call_notes, entry_cells

if TYPE_CHECKING:
    from qkv.database.answer import Answer
    from qkv.database.protocol import Queryable


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


class JsonWriter(AnswerWriter):
    """Writer that prints one JSON object per query.

    The object contains the query, the value, its standard error, the 90 % prediction interval, the spread of the
    values, the effective number of rows, whether a match was found, the keys that match equally well if there are
    several, notes on how the cells of columns were read, and the evidence rows with their weights.
    """

    def write_one(self, one: Answer) -> None:
        """Print the answer to one query as a JSON object on one line."""
        line: dict[str, object] = {"query": one.query, "value": one.value, "standard_error": one.standard_error}
        line |= {"prediction_interval": one.prediction_interval, "spread": one.spread}
        line |= {"effective_rows": one.effective_rows, "found": one.found}
        if one.fit_note:
            line["fit_note"] = one.fit_note
        if self.gradient:
            line |= {"gradient": one.gradient, "gradient_standard_error": one.gradient_error}
        if one.probabilities:
            line["probabilities"] = one.probabilities
        if not one.found:
            line["reason"] = one.reason
        if one.candidates:
            line["candidates"] = one.candidates
        if one.missing_rows:
            line["missing_rows"] = one.missing_rows
        if one.remarks:
            line["remarks"] = one.remarks
        line["calls"] = [call.record() for call in one.calls]
        if one.column_notes:
            line["notes"] = one.column_notes
        if self.rows:
            line["rows"] = [
                {"weight": row.weight}
                | ({one.measure: getattr(row, one.measure)} if one.measure else {})
                | {"record": row.record}
                for row in one.rows
            ]
        print(escaped_json(json.dumps(to_json(line), ensure_ascii=False, allow_nan=False)))


@dataclass
class CsvWriter(AnswerWriter):
    """Writer that prints a CSV header, then one row per query."""

    def __post_init__(self) -> None:
        self._writer = csv.writer(sys.stdout, lineterminator="\n")
        self._began = False

    def write_one(self, one: Answer) -> None:
        """Print the answer to one query as one row of CSV, after the header if it is the first."""
        self._begin(one.votes)
        cells = one.query, *(cell for (cell,) in entry_cells(one.entries, one.votes).values())
        plain = [to_csv(cell) for cell in cells]
        self._writer.writerow([quoted_formula(cell) for cell in plain] if self.quote_formulas else plain)

    def finish(self) -> None:
        """Print the header if there was no answer, and to stderr how columns are read, and the plan if requested."""
        self._begin(self.database.votes)
        for note in self.column_notes:
            print(f"qkv: {printable(note)}", file=sys.stderr)
        super().finish()

    def _begin(self, votes: bool) -> None:
        if not self._began:
            self._writer.writerow(["query", *entry_cells((), votes)])
        self._began = True


def to_csv(cell: object) -> object:
    """Convert a value to a cell of `csv.writer`; lists and dicts are written as JSON."""
    value = to_json(cell)
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


_LEAST = 4
"""Minimum number of characters of a shortened text: three characters and an ellipsis."""


@dataclass(frozen=True)
class ColumnWidth:
    """The widths that a column needs, in characters.

    Attributes:
        title: the width of the title.
        cells: the width of the widest cell.
        rigid: whether the cells must not be shortened, as those of numbers.
    """

    title: int
    cells: int
    rigid: bool = False

    @property
    def full(self) -> int:
        """The width with which neither title nor cells are shortened."""
        return max(self.title, self.cells)


def fit_widths(columns: Sequence[ColumnWidth], total: int, last: int) -> list[int]:
    """Return the width of each column, with a sum of at most `total` if the rigid columns are narrow enough.

    Titles are shortened first, then the widest texts; those of the column `last` are shortened after all others.

    Example:
        >>> fit_widths([ColumnWidth(4, 30), ColumnWidth(20, 6, rigid=True)], 26, last=1)
        [20, 6]
    """
    widths = [column.full for column in columns]
    title_floors = [column.cells for column in columns]
    text_floors = [column.cells if column.rigid else min(column.cells, _LEAST) for column in columns]
    others = [index for index in range(len(columns)) if index != last]
    for floors, indices in (
        (title_floors, others),
        (title_floors, [last]),
        (text_floors, others),
        (text_floors, [last]),
    ):
        while sum(widths) > total:
            shortened = [index for index in indices if widths[index] > max(floors[index], 1)]
            if not shortened:
                break
            widths[max(shortened, key=widths.__getitem__)] -= 1
    return widths


_BAR_WIDTH = 12
_WEIGHT_WIDTH = 9
"""Width of a weight with its margins, without a bar."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass
class TableWriter(AnswerWriter):
    """Writer that prints each answer on one line, followed by a table of its evidence rows."""

    file: TextIO | None = None

    def __post_init__(self) -> None:
        from qkv.cli.console import new_console

        self._console = new_console(file=self.file)

    def write_one(self, one: Answer) -> None:
        """Print the answer to one query, and its evidence rows if there are rows to show."""
        self._print_headline(one)
        if self.rows and one.found:
            self._print_evidence(one)

    def finish(self) -> None:
        """Print the notes of the last answers, and the execution plan if `explain` is True."""
        if self.notes:
            self._console.print()
        for note in self.notes:
            self._console.print(f"· {note}", style="dim", markup=False, soft_wrap=True)
        if self.explain and self.plan is not None:
            self._console.print()
            self._console.print(str(self.plan), markup=False)

    def _print_headline(self, one: Answer) -> None:
        from rich.text import Text

        from qkv.core.formatting import format_query
        from qkv.database.answer import format_estimate, format_failure, format_gradient, format_statistics

        line = Text(format_query(one.query, len(one.keys)), style="bold")
        line.append(" → ", style="dim")
        if one.found:
            line.append(format_estimate(one), style="bold green")
        else:
            line.append(format_failure(one), style="bold yellow")
            line.append(f": {one.reason}", style="yellow")
        self._console.print(line, soft_wrap=True)
        for text in self._fill(format_statistics(one)) if one.found else ():
            self._console.print(f"  {text}", style="dim", markup=False, soft_wrap=True)
        for text in self._fill(format_gradient(one)) if self.gradient and one.found else ():
            self._console.print(f"  {text}", markup=False, soft_wrap=True)
        for text in ([one.fit_note] if one.fit_note else []) + list(one.remarks):
            self._console.print(f"  {text}", style="yellow", markup=False, soft_wrap=True)

    def _fill(self, parts: list[str]) -> list[str]:
        """Return the parts as lines that fit the console, without breaking a part."""
        lines: list[str] = []
        for part in parts:
            if lines and len(lines[-1]) + len(part) + 5 <= self._console.width:
                lines[-1] += f"   {part}"
            else:
                lines.append(part)
        return lines

    def _print_evidence(self, one: Answer) -> None:
        from rich.table import Table

        from qkv.core.formatting import format_value

        measure = [one.measure] if one.measure else []
        names = self._select_columns(one, 24 + sum(len(title) + 2 for title in measure))
        columns = [_column_width(one, name) for name in names]
        free = self._console.width - sum(2 + column.full for column in columns)
        # A narrow terminal shows no bars, and a narrower one no similarities, before it shortens keys and values.
        measured_width = sum(len(title) + 2 for title in measure)
        bars = free >= _BAR_WIDTH + 1 + _WEIGHT_WIDTH + measured_width
        if free < _WEIGHT_WIDTH + measured_width:
            measure = []
        total = self._console.width - _WEIGHT_WIDTH - 2 * len(columns) - sum(len(title) + 2 for title in measure)
        widths = (
            [column.full for column in columns] if bars else fit_widths(columns, total, names.index(one.value_name))
        )
        grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
        grid.add_column("  weight", no_wrap=True)
        for title in measure:
            grid.add_column(title, justify="right", no_wrap=True)
        for name, width in zip(names, widths, strict=True):
            style = "cyan" if name in one.keys else "green" if name == one.value_name else ""
            numeric = isinstance(one.rows[0].record[name], int | float)
            justify: Literal["left", "right"] = "right" if numeric else "left"
            grid.add_column(name, style=style, justify=justify, no_wrap=True, overflow="ellipsis", max_width=width)
        maximum = max((abs(row.weight) for row in one.rows), default=1.0)
        signed = any(row.weight < 0 for row in one.rows)
        for row in one.rows:
            near = row.similarity if row.similarity is not None else row.distance
            measured = [f"{near:.2f}" if one.measure == "similarity" else format_value(near)] if measure else []
            cells = [_cell_text(one, name, row.record[name]) for name in names]
            bar = f"{_bar(abs(row.weight) / maximum)} " if bars else ""
            style = "red" if row.weight < 0 else ""
            grid.add_row(f"  {bar}{_weight_text(row.weight, signed)}", *measured, *cells, style=style)
        self._console.print(grid, markup=False)
        shown = 1.0 if signed else sum(row.weight for row in one.rows)
        hidden = len(one.table.column_names) - len(names)
        remarks = [f"these rows have {shown:.0%} of the weight"] if 0 < shown < 0.995 else []
        remarks += ["rows with a negative weight (red, −) lower the answer where their values are high"] * signed
        remarks += [f"{hidden} more column{'s' * (hidden > 1)}"] if hidden > 0 else []
        if remarks:
            self._console.print(f"  {'; '.join(remarks)}", style="dim")

    def _select_columns(self, one: Answer, used: int) -> list[str]:
        """Return the names of the key and value columns, and of as many other columns as fit on a line.

        `used` is the number of characters that the other parts of a line take.
        """
        first = [*one.keys, one.value_name]
        fitting = []
        for name in dict.fromkeys([*first, *one.table.column_names]):
            used += 2 + _column_width(one, name).full
            if name not in first and used > self._console.width:
                break
            fitting.append(name)
        return fitting


def _column_width(one: Answer, name: str) -> ColumnWidth:
    from rich.cells import cell_len

    cells = [row.record[name] for row in one.rows]
    rigid = any(isinstance(cell, int | float) for cell in cells)
    return ColumnWidth(cell_len(name), max(cell_len(_cell_text(one, name, cell)) for cell in cells), rigid)


def _cell_text(one: Answer, name: str, cell: object) -> str:
    """Return the cell of an evidence row as text; keys and votes are printed in full, so that they can be asked."""
    from qkv.core.formatting import format_key, format_value

    return format_key(cell) if one.in_full(name) else format_value(cell)


def _weight_text(weight: float, signed: bool) -> str:
    """Return a weight as text, with a place for the sign if a weight of the answer is negative."""
    return f"{weight: .3f}".replace("-", "−") if signed else f"{weight:.3f}"


def _bar(share: float) -> str:
    """Return a bar for a share from 0 to 1, which is up to 12 characters long in steps of an eighth of a character."""
    eighths = round(max(0.0, min(1.0, share)) * _BAR_WIDTH * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(_BAR_WIDTH)
