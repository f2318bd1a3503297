"""The command `qkv join`, which matches the rows of two tables by similarity and weights each pair."""

from __future__ import annotations

import csv
import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from qkv.cli.shared_options import (
    Candidates,
    JoinedOn,
    LeftTable,
    QuoteFormulas,
    RightTable,
    Rule,
    check_rules,
    flag,
    option,
)
from qkv.core.files import write_atomic
from qkv.core.progress import ProgressBar
from qkv.database.io.sources import read
from qkv.errors import DataError, OptionError
from qkv.join.labels import read_labels, row_numbers

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from qkv.join import SoftJoin
    from qkv.join.result import JoinResult


def read_key() -> str:
    """Return the next key that is pressed in the terminal, as one character; an empty string at the end of input."""
    if sys.platform == "win32":
        import msvcrt

        key = msvcrt.getwch()
        if key == "\x03":
            raise KeyboardInterrupt
        return key
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        return os.read(descriptor, 1).decode("ascii", "replace")
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


_COLUMNS = ("left", "right", "match")
_KEYS = "y match · n no match · s skip · u undo · q quit and join"
_MOST_COLUMNS = 16


class LabelFile:
    """CSV file of labelled pairs, which is rewritten atomically after each answer.

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
        """Check that saving the answers would not remove columns that the file has."""
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
        """Write all answers."""
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
    """Return the file to which `qkv join --label` writes: in the working directory, with the names of both tables.

    Example:
        >>> print(default_label_file("data/people.csv", "guests.csv"))
        people-guests-labels.csv
    """
    names = [Path(table).name.split(".")[0] or "table" for table in (left, right) if table is not None]
    return Path("-".join([*names, "labels.csv"]))


def check_terminal(path: Path, id: str | None) -> None:
    """Check that questions can be asked."""
    if sys.stdin.isatty() and sys.stderr.isatty():
        return
    rows = "row numbers from 0" if id is None else f"cells of the column {id}"
    raise OptionError(
        "--label must be used in a terminal, where keys can be pressed, got input or messages that are redirected. Run "
        f"it in a terminal, or write the labels to a CSV file with the columns left, right and match ({rows}, "
        f"and 1 for a match or 0), and pass it with --labels {path}."
    )


def ask_for_labels(soft: SoftJoin, file: LabelFile, left: pa.Table, right: pa.Table, count: int) -> None:
    """Ask about the most informative pairs, one at a time, until the file has `count` answers or the user quits."""
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


@dataclass(frozen=True, kw_only=True)
class JoinCommand:
    """The arguments and options of `qkv join`."""

    left: LeftTable
    right: RightTable = None
    on: JoinedOn = None
    id_: Annotated[str | None, option("COLUMN", "Column that identifies rows in labelled pairs.", "--id")] = None
    model: Annotated[str | None, option("FILE.json", "Model of qkv fit join; it defines the columns.")] = None
    one_to_one: Annotated[bool, flag("--one-to-one", "Match each row at most once.")] = False
    many: Annotated[bool, flag("--many", "Allow several right rows per left row.")] = False
    threshold: Annotated[float | None, option("NUMBER", "Minimum weight of a match; default: that of the model.")] = (
        None
    )
    candidates: Candidates = None
    out: Annotated[str | None, option("FILE", "Write all pairs to a .csv, .parquet, .arrow or .jsonl file.")] = None
    quote_formulas: QuoteFormulas = False
    evaluate: Annotated[str | None, option("FILE", "Evaluate the result on labelled pairs.")] = None
    label: Annotated[
        int | None, option("N", "Ask about the N most informative pairs, and learn from the answers.", min=1)
    ] = None
    labels: Annotated[
        str | None, option("FILE.csv", "File of the answers; default with --label: LEFT-RIGHT-labels.csv.")
    ] = None
    top: Annotated[int, option("N", "Pairs to show, by decreasing weight.", min=0)] = 10


_RULES = (
    Rule(
        lambda join: join.model is not None and (join.label is not None or join.labels is not None),
        "--model must not be given with --label or --labels, which fit a model. Omit one of them.",
    ),
    Rule(
        lambda join: join.model is not None and join.on is not None,
        "--on must not be given with --model, which defines the columns to compare. Omit --on.",
    ),
    Rule(
        lambda join: join.quote_formulas and not (join.out or "").lower().endswith(".csv"),
        "--quote-formulas must be used with --out and a .csv file. Omit it, or add --out pairs.csv.",
    ),
)


def join(options: JoinCommand) -> None:
    """Match the rows of two tables. For each row of LEFT, find the rows of RIGHT that describe the same entity.

    LEFT and RIGHT are tables in a format of qkv ask; without RIGHT, the command finds duplicates within LEFT. The
    weight of a pair is the share of the left row's attention that the right row gets; the rest goes to "no match".
    The weights of the columns come from --model, or are estimated from the two tables.

    \b
    Examples:
      qkv join people.csv guests.csv --on name=guest,city=town
      qkv join people.csv guests.csv --on name=guest,city=town --one-to-one --top 5
      qkv join people.csv guests.csv --on name=guest,city=town --out pairs.csv
      qkv join people.csv guests.csv --on name=guest,city=town --evaluate same.csv

    --evaluate reads a table with the columns left, right and match (row numbers counted from 0, or cells of the
    column given by --id), and prints precision, recall and F1 on these pairs. Without the column match, the table
    must list all matches, and every pair that was found counts.

    --label 20 shows the 20 most informative pairs side by side, and asks for a key: y (match), n (no match), s (skip),
    u (undo) or q (quit and join). Every answer is saved at once in the file of --labels, a table with the columns
    left, right and match; the same command continues after an interruption. --labels without --label learns from the
    file and asks nothing.
    """
    check_rules(options, _RULES)
    if options.out is not None:
        from qkv.cli.output_file import SUFFIXES
        from qkv.core.files import check_writable

        check_writable(Path(options.out), "the pairs", SUFFIXES)

    from qkv.join import SoftJoin

    soft = (
        SoftJoin(options.on, id=options.id_) if options.model is None else SoftJoin.load(options.model, id=options.id_)
    )
    if options.label is not None or options.labels is not None:
        _learn(soft, options)
    with ProgressBar() as progress:
        joined = soft.join(
            options.left,
            options.right,
            threshold=options.threshold,
            one_to_one=options.one_to_one,
            many=options.many,
            candidates=options.candidates,
            progress=progress,
        )
    judged = None if options.evaluate is None else joined.evaluate(options.evaluate)
    if options.out is not None:
        # The file is written before anything is printed, so that a closed pipe cannot prevent it.
        from qkv.cli.output_file import write_rows

        rows = joined.table
        write_rows(rows.to_batches(), rows.schema, Path(options.out), options.quote_formulas, "--out", "the pairs")
    _print(joined, options.top)
    if judged is not None:
        print(judged)


def _learn(soft: SoftJoin, options: JoinCommand) -> None:
    """Fit a join to the labels of a file, after asking for further ones."""
    from qkv.core.files import check_writable
    from qkv.database.io.sources import describe, read, require_columns

    left, right, label = options.left, options.right, options.label
    path = default_label_file(left, right) if options.labels is None else Path(options.labels)
    if label is None and not path.exists():
        raise DataError(
            f"--labels must name an existing file, got {str(path)!r}. Check the path, or add --label 20 to be asked."
        )
    check_writable(path, "the labels", (".csv",))
    tables = read(left), read(left if right is None else right)
    for table, place in zip(tables, (left, left if right is None else right), strict=True):
        require_columns(table, [] if soft.id is None else [soft.id], describe(place))
    file = LabelFile(path, *tables, soft.id)
    asking = label is not None and len(file.answers) < label
    if asking:
        check_terminal(path, soft.id)
        file.check_columns()
    with ProgressBar() as progress:
        soft.fit(left, right, labels=file.records(), candidates=options.candidates, progress=progress)
    if asking and label is not None:
        try:
            ask_for_labels(soft, file, *tables, label)
        except KeyboardInterrupt:
            print(
                f"\nqkv: interrupted; {len(file.answers)} labels are in {path}. The same command continues.",
                file=sys.stderr,
            )
            raise


def _print(joined: JoinResult, top: int) -> None:
    from rich.table import Table

    from qkv.cli.console import new_console

    console = new_console()
    order = sorted(range(len(joined)), key=lambda place: -joined.weights[place])[:top]
    pairs = len(joined)
    headline = f"{pairs:,} pair{'s' * (pairs != 1)} of {joined.left.num_rows:,} and {joined.right.num_rows:,} rows"
    if 0 < len(order) < pairs:
        headline += f", the {len(order)} of largest weight:"
    console.print(headline, style="bold")
    if order:
        grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
        grid.add_column("weight", justify="right", no_wrap=True)
        for title in ("left row", "right row"):
            grid.add_column(title, justify="right", no_wrap=True)
            grid.add_column("", no_wrap=True)
        lines = [
            [
                _line(table, int(number), [pair[side] for pair in joined.on])
                for side, (table, number) in enumerate(((joined.left, row), (joined.right, key)))
            ]
            for row, key in zip(joined.rows[order], joined.keys[order], strict=True)
        ]
        # Long rows are truncated here, because the grid would also truncate the weights and row numbers.
        available = console.width - len("weight  left row    right row    ")
        left, right = (max(line[side].cell_len for line in lines) for side in (0, 1))
        widths = max(available - right, available // 2), max(available - left, available // 2)
        for row, key, weight, line in zip(
            joined.rows[order], joined.keys[order], joined.weights[order], lines, strict=True
        ):
            for text, width in zip(line, widths, strict=True):
                text.truncate(max(width, 1), overflow="ellipsis")
            grid.add_row(f"{weight:.3f}", str(row), line[0], str(key), line[1])
        console.print(grid, markup=False)
    notes = list(joined.notes)
    if not pairs:
        notes.append("no pair is a match: compare more columns (--on), or train a model (qkv fit join)")
    for note in notes:
        console.print(f"· {note}", style="dim", markup=False, soft_wrap=True)


def _line(table: pa.Table, row: int, names: list[str]) -> Text:
    """Return the cells of one row in the named columns as rich text, in which brackets are not parsed as markup."""
    from rich.text import Text

    return Text(", ".join(str(table.column(name)[row].as_py() or "—") for name in names))
