"""`qkv join`: which rows of two tables are the same thing, with a weight for each pair."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli.shared_options import Candidates, JoinedOn, Left, Right
from qkv.errors import DataError, OptionError

__all__ = ["join"]

_HELP = """Join two tables softly: each row of LEFT asks RIGHT which row is the same thing.

LEFT and RIGHT are tables as for qkv ask; without RIGHT, LEFT is searched for its own duplicates. A weight is
the share of a left row's attention that a right row gets, the rest being "no match". Without --model, what
the columns are worth is estimated from the two tables alone; qkv fit join learns it from labelled pairs.

\b
Examples:
  qkv join people.csv guests.csv --on name=guest,city=town
  qkv join people.csv guests.csv --on name=guest,city=town --one-to-one --top 5
  qkv join people.csv guests.csv --on name=guest,city=town --out pairs.csv
  qkv join people.csv guests.csv --on name=guest,city=town --evaluate same.csv

--evaluate reads labelled pairs: a table with the columns left, right and match (rows counted from 0, or the
cells of the column that --id names), and prints precision, recall and F1 among them. Without the column match
it lists all matches there are, and every pair that was found counts.
"""

_SUFFIXES = (".csv", ".parquet", ".arrow", ".jsonl")


def join(
    left: Left,
    right: Right = None,
    on: JoinedOn = None,
    id_: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="The column that tells rows in labels.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="FILE.json", help="What qkv fit join wrote; it names the columns.")
    ] = None,
    one_to_one: Annotated[bool, typer.Option("--one-to-one", help="No row is in two pairs.")] = False,
    many: Annotated[bool, typer.Option("--many", help="A left row may match several right rows.")] = False,
    threshold: Annotated[
        float | None, typer.Option(metavar="NUMBER", help="Least weight of a match; 0.5, or the model's own.")
    ] = None,
    candidates: Candidates = None,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write all pairs: .csv, .parquet, .arrow or .jsonl.")
    ] = None,
    evaluate: Annotated[
        str | None, typer.Option(metavar="FILE", help="Labelled pairs to compare with; see above.")
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", min=0, help="Pairs shown, the strongest first.")] = 10,
) -> None:
    if model is not None and on is not None:
        raise OptionError("--model names the columns that are compared. Leave --on out.")
    if out is not None:
        _check_out(Path(out))

    from qkv.core.progress import ProgressBar
    from qkv.join import SoftJoin

    soft = SoftJoin(on, id=id_) if model is None else SoftJoin.load(model, id=id_)
    with ProgressBar() as progress:
        joined = soft.join(
            left,
            right,
            threshold=threshold,
            one_to_one=one_to_one,
            many=many,
            candidates=candidates,
            progress=progress,
        )
    judged = None if evaluate is None else joined.evaluate(evaluate)
    if out is not None:
        # Before anything is printed: a reader that goes away must not cost the file.
        _write(joined.table, Path(out))
    _print(joined, top)
    if judged is not None:
        print(judged)


join.__doc__ = _HELP


def _check_out(path: Path) -> None:
    from qkv.core.files import check_writable

    if path.suffix.lower() not in _SUFFIXES:
        raise OptionError(f"{path.name!r} ends in none of {', '.join(_SUFFIXES)}. Choose one for --out.")
    check_writable(path, "the pairs")


def _write(table: Any, path: Path) -> None:
    """Write a table whole, in the format that its suffix says."""
    import json

    import pyarrow as pa

    from qkv.core.files import write_atomic

    def fill(stream: Any) -> None:
        kind = path.suffix.lower()
        try:
            if kind == ".csv":
                from pyarrow import csv

                csv.write_csv(table, stream)
            elif kind == ".parquet":
                from pyarrow import parquet

                parquet.write_table(table, stream)
            elif kind == ".arrow":
                with pa.ipc.new_file(stream, table.schema) as writer:
                    writer.write_table(table)
            else:
                for batch in table.to_batches():
                    for row in batch.to_pylist():
                        stream.write(json.dumps(row, ensure_ascii=False, default=str).encode() + b"\n")
        except pa.ArrowException as error:
            raise DataError(f"the pairs cannot be written as {kind[1:]}: {error}. Choose .arrow.") from None

    write_atomic(path, fill, "the pairs")


def _print(joined: Any, top: int) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    console = Console(highlight=False, file=sys.stdout)
    if not console.is_terminal and "COLUMNS" not in console._environ:
        console.width = 140
    order = sorted(range(len(joined)), key=lambda place: -joined.weights[place])[:top]
    pairs = len(joined)
    said = f"{pairs:,} pair{'s' * (pairs != 1)} of {joined.left.num_rows:,} and {joined.right.num_rows:,} rows"
    console.print(said + (f", the strongest {len(order)}:" if 0 < len(order) < pairs else ""), style="bold")
    if order:
        grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
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
        # A long row is cut here: the grid would cut the weight and the numbers of the rows with it.
        room = console.width - len("weight  left row    right row    ")
        left, right = (max(line[side].cell_len for line in lines) for side in (0, 1))
        halves = max(room - right, room // 2), max(room - left, room // 2)
        for row, key, weight, line in zip(
            joined.rows[order], joined.keys[order], joined.weights[order], lines, strict=True
        ):
            for text, most in zip(line, halves, strict=True):
                text.truncate(max(most, 1), overflow="ellipsis")
            grid.add_row(f"{weight:.3f}", str(row), line[0], str(key), line[1])
        console.print(grid, markup=False)
    notes = list(joined.notes)
    if not pairs:
        notes.append("no pair is likelier than not: name more columns (--on), or teach what is alike (qkv fit join)")
    for note in notes:
        console.print(f"· {note}", style="dim", markup=False, soft_wrap=True)


def _line(table: Any, row: int, names: list[str]) -> Any:
    """The compared cells of one row; a Text, for brackets in a cell are no markup."""
    from rich.text import Text

    return Text(", ".join(str(table.column(name)[row].as_py() or "—") for name in names))
