"""Answers on the terminal: a headline for each query, the rows it rests on with bars, and how it was done."""

from typing import Any

from qkv.database.answer import Answer
from qkv.database.database import Database
from qkv.database.io.formatting import format_spread, format_value

__all__ = ["Table"]

_BAR = 12
_EIGHTHS = " ▏▎▍▌▋▊▉█"


class Table:
    """Writes answers for people. Rich leaves colours out where NO_COLOR is set or no terminal reads."""

    def __init__(self, database: Database, rows_shown: int, explain: bool) -> None:
        from rich.console import Console

        self._rows_shown = rows_shown
        self._explain = explain
        self._console = Console(highlight=False, soft_wrap=False)
        if not self._console.is_terminal and "COLUMNS" not in self._console._environ:
            self._console.width = 140
        self._notes: tuple[str, ...] = ()
        self._plan: Any = None

    def write(self, answer: Answer) -> None:
        """Print the answers of a chunk."""
        self._notes, self._plan = answer.notes, self._plan or answer.plan
        for one in answer:
            self._headline(one)
            if self._rows_shown and one.found:
                self._evidence(one)

    def finish(self) -> None:
        """Print how it was done."""
        if self._notes:
            self._console.print()
        for note in self._notes:
            self._console.print(f"· {note}", style="dim", markup=False, soft_wrap=True)
        if self._explain and self._plan is not None:
            self._console.print()
            self._console.print(str(self._plan), markup=False)

    def _headline(self, one: Answer) -> None:
        from rich.text import Text

        asked = ", ".join(map(format_value, one.query)) if isinstance(one.query, tuple) else format_value(one.query)
        line = Text(asked, style="bold")
        line.append(" → ", style="dim")
        if one.found:
            share = one.probabilities.get(one.value)
            line.append(format_value(one.value, one.spread), style="bold green")
            line.append(f" ({share:.0%})" if share is not None else format_spread(one.spread), style="green")
            if one.support is not None:
                line.append(f"   effective rows: {one.support:,.1f}", style="dim")
        else:
            line.append("no match", style="bold yellow")
            line.append(f": {one.reason}", style="yellow")
        self._console.print(line, soft_wrap=True)

    def _evidence(self, one: Answer) -> None:
        from rich.table import Table as Grid

        measure = [] if not one.measure else [one.measure]
        names = self._fitting(one, 24 + sum(len(title) + 2 for title in measure))
        grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
        grid.add_column("  weight", no_wrap=True)
        for title in measure:
            grid.add_column(title, justify="right", no_wrap=True)
        for name in names:
            style = "cyan" if name in one.keys else "green" if name == one.value_name else ""
            number = isinstance(one.rows[0].record[name], int | float)
            justify: Any = "right" if number else "left"
            grid.add_column(name, style=style, justify=justify, no_wrap=True, overflow="ellipsis")
        heaviest = max((evidence.weight for evidence in one.rows), default=1.0)
        for evidence in one.rows:
            near = evidence.similarity if evidence.similarity is not None else evidence.distance
            measured = [f"{near:.2f}" if one.measure == "similarity" else format_value(near)] if measure else []
            cells = [format_value(evidence.record[name]) for name in names]
            grid.add_row(f"  {_bar(evidence.weight / heaviest)} {evidence.weight:.3f}", *measured, *cells)
        self._console.print(grid, markup=False)
        held = sum(evidence.weight for evidence in one.rows)
        hidden = len(one.table.column_names) - len(names)
        below = [f"these rows hold {held:.0%} of the weight"] if 0 < held < 0.995 else []
        below += [f"{hidden} more column{'s' * (hidden > 1)}"] if hidden > 0 else []
        if below:
            self._console.print(f"  {'; '.join(below)}", style="dim")

    def _fitting(self, one: Answer, taken: int) -> list[str]:
        """Key and value first, then as many other columns as the width holds whole."""
        first = [*one.keys, one.value_name]
        fitting = []
        for name in dict.fromkeys([*first, *one.table.column_names]):
            taken += 2 + max(len(name), *(len(format_value(row.record[name])) for row in one.rows))
            if name not in first and taken > self._console.width:
                break
            fitting.append(name)
        return fitting


def _bar(share: float) -> str:
    """A bar of twelve characters, filled in eighths."""
    eighths = round(max(0.0, min(1.0, share)) * _BAR * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(_BAR)
