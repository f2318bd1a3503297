"""Ask in the terminal whether pairs of rows match, for `qkv join --label`, and save every answer in a CSV file."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.cli.key_press import read_key
from qkv.core.files import write_atomic
from qkv.database.io.sources import read
from qkv.errors import DataError, OptionError
from qkv.join.labels import read_labels, row_numbers

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console
    from rich.table import Table

    from qkv.join import SoftJoin

__all__ = ["LabelFile", "ask_for_labels", "check_terminal", "default_label_file"]

_COLUMNS = ("left", "right", "match")
_KEYS = "y match · n no match · s skip · u undo · q quit and join"
_MOST_COLUMNS = 16


class LabelFile:
    """CSV file of labelled pairs, which is rewritten atomically after each answer.

    Args:
        path: the file, which need not exist.
        left: left table.
        right: right table; the same object for duplicates within one table.
        id: column that identifies rows in the file; None for row numbers from 0.

    Attributes:
        answers: `(left row, right row, match)` of each line.

    Raises:
        DataError: the file exists, and is not a table of labelled pairs of these tables.
    """

    def __init__(self, path: Path, left: pa.Table, right: pa.Table, id: str | None) -> None:
        self.path = path
        self._names = [None if id is None else table.column(id).to_pylist() for table in (left, right)]
        self.answers: list[tuple[int, int, int]] = []
        if path.exists():
            ids = row_numbers(left, id, "the left table"), row_numbers(right, id, "the right table")
            if path.stat().st_size:
                sizes = left.num_rows, right.num_rows
                labels = read_labels(str(path), sizes, ids, matches_only=False)
                self.answers = list(zip(labels.rows.tolist(), labels.keys.tolist(), labels.match.tolist(), strict=True))

    def check_columns(self) -> None:
        """Check that saving the answers would not remove columns that the file has.

        Raises:
            DataError: the file has other columns than left, right and match.
        """
        names = [] if not self.path.exists() or not self.path.stat().st_size else read(str(self.path)).column_names
        if names and sorted(names) != sorted(_COLUMNS):
            raise DataError(
                f"{self.path} must have the columns left, right and match only, because it is rewritten after each "
                f"answer, got {', '.join(names)}. Remove or rename columns, or name another file: --labels FILE.csv."
            )

    def add(self, left: int, right: int, match: bool) -> None:
        """Append an answer and save all of them."""
        self.answers.append((left, right, int(match)))
        self.save()

    def remove_last(self) -> tuple[int, int]:
        """Remove the last answer, save the others, and return its pair."""
        left, right, _ = self.answers.pop()
        self.save()
        return left, right

    def save(self) -> None:
        """Write all answers.

        Raises:
            DataError: the file cannot be written.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for left, right, match in self.answers:
            writer.writerow([self._name(0, left), self._name(1, right), match])
        write_atomic(self.path, text.getvalue().encode(), "the labels")

    def records(self) -> list[dict[str, object]]:
        """Return the answers as records for `SoftJoin.fit(…, labels=…)`."""
        return [
            {"left": self._name(0, left), "right": self._name(1, right), "match": match}
            for left, right, match in self.answers
        ]

    def _name(self, side: int, row: int) -> object:
        names = self._names[side]
        return row if names is None else names[row]


def default_label_file(left: str, right: str | None) -> Path:
    """Return the file of labels for two tables: in the working directory, with the names of both.

    Example:
        >>> print(default_label_file("data/people.csv", "guests.csv"))
        people-guests-labels.csv
    """
    names = [Path(table).name.split(".")[0] or "table" for table in (left, right) if table is not None]
    return Path("-".join([*names, "labels.csv"]))


def check_terminal(path: Path, id: str | None) -> None:
    """Check that questions can be asked.

    Raises:
        OptionError: the standard input or the standard error is not a terminal.
    """
    if sys.stdin.isatty() and sys.stderr.isatty():
        return
    rows = "row numbers from 0" if id is None else f"cells of the column {id}"
    raise OptionError(
        "--label must be used in a terminal, where keys can be pressed, got input or messages that are redirected. Run "
        f"it in a terminal, or write the labels to a CSV file with the columns left, right and match ({rows}, "
        f"and 1 for a match or 0), and pass it with --labels {path}."
    )


def ask_for_labels(soft: SoftJoin, file: LabelFile, left: pa.Table, right: pa.Table, count: int) -> None:
    """Ask about the most informative pairs, one at a time, until the file has `count` answers or the user quits.

    Args:
        soft: the join, fitted to both tables and the labels of the file; it is fitted again after each answer.
        file: file of the answers.
        left: left table.
        right: right table.
        count: number of answers, with those that the file has already.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; the answers so far are in the file.
    """
    from qkv.cli.console import new_console

    console = new_console(file=sys.stderr)
    assert soft.model is not None
    columns = _shown_columns(soft.model.on, left, right)
    skipped: list[tuple[int, int]] = []
    again: tuple[int, int] | None = None
    given = 0
    while len(file.answers) < count:
        found = soft.informative_pairs(1, skip=skipped) if again is None else []
        if again is None and not found:
            console.print("no further pair to ask about", style="dim")
            return
        pair = again or (found[0].left, found[0].right)
        weight = f" · weight {found[0].weight:.2f}" if found else ""
        console.rule(f"pair {len(file.answers) + 1} of {count}{weight}", style="dim")
        console.print(_side_by_side(columns, left, right, pair), markup=False)
        answer = _answer(console)
        again = None
        if answer == "q":
            return
        if answer == "s":
            skipped.append(pair)
        elif answer == "u" and not given:
            console.print("nothing to undo: no pair was answered since the start", style="dim")
            again = pair
        elif answer == "u":
            again, given = file.remove_last(), given - 1
            soft.refit(file.records())
        else:
            file.add(pair[0], pair[1], answer == "y")
            given += 1
            soft.refit(file.records())


def _answer(console: Console) -> str:
    """Return the next key that is an answer: y, n, s, u or q. The end of the input is q."""
    console.print(_KEYS, style="dim", end=" ", markup=False)
    while True:
        key = read_key().lower()
        if key in ("", "\x04"):
            key = "q"
        if key and key in "ynsuq":
            console.print(key, style="bold")
            return key


def _shown_columns(on: tuple[tuple[str, str], ...], left: pa.Table, right: pa.Table) -> list[tuple[str, str]]:
    """Return the compared columns, then others of both tables: `(left name or "", right name or "")`."""
    rest = [name for name in left.column_names if name not in {name for name, _ in on}]
    compared = {name for _, name in on}
    shown = [*on, *((name, name if name in right.column_names and name not in compared else "") for name in rest)]
    used = {name for _, name in shown}
    return [*shown, *(("", name) for name in right.column_names if name not in used)][:_MOST_COLUMNS]


def _side_by_side(columns: list[tuple[str, str]], left: pa.Table, right: pa.Table, pair: tuple[int, int]) -> Table:
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    grid.add_column("", no_wrap=True)
    grid.add_column(f"left row {pair[0]}", ratio=1)
    grid.add_column(f"right row {pair[1]}", ratio=1)
    for names in columns:
        cells = [
            "" if not name or table[name][row].as_py() is None else str(table[name][row].as_py())
            for name, table, row in zip(names, (left, right), pair, strict=True)
        ]
        title = " = ".join(dict.fromkeys(filter(None, names)))
        style = "" if cells[0] == cells[1] else "bold"
        grid.add_row(Text(title, style="dim"), *(Text(cell or "—", style=style) for cell in cells))
    return grid
