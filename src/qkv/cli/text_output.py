"""Writer that prints answers as tables, with their evidence rows and with notes on the computation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TextIO

from qkv.cli.answer_writer import AnswerWriter

if TYPE_CHECKING:
    from qkv.database.answer import Answer


__all__ = ["ColumnWidth", "fit_widths", "TableWriter"]


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
    """Return the width of each column, so that their sum is at most `total`, if the rigid columns leave room.

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
    """Writer that prints each answer on one line, followed by a table of its evidence rows.

    Attributes:
        file: the stream to which it prints; None: stdout.
    """

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
