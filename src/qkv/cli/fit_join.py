"""`qkv fit join`: learn from labelled pairs what makes two rows the same thing."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.shared_options import Candidates, JoinedOn, Left, Right
from qkv.errors import DataError

__all__ = ["fit_join"]

_HELP = """Learn a join of two tables from labelled pairs, and write it as a model for qkv join.

The pairs are a table with the columns left, right and match: rows counted from 0, or the cells of the column
that --id names, and 0 or 1. By --valid the strength of the prior and the threshold are chosen too; no pair of
it is fitted. Without --pairs the worth of the columns is estimated from the tables, and written.

\b
Examples:
  qkv fit join people.csv guests.csv --on name=guest,city=town --pairs same.csv --out same.json
  qkv fit join people.csv guests.csv --on name=guest,city=town --out guessed.json
"""


def fit_join(
    left: Left,
    right: Right = None,
    out: Annotated[str, typer.Option(metavar="FILE.json", help="The model.", show_default=False)] = "",
    pairs: Annotated[str | None, typer.Option(metavar="FILE", help="Labelled pairs.")] = None,
    valid: Annotated[
        str | None, typer.Option(metavar="FILE", help="More labelled pairs, to choose by and not to fit.")
    ] = None,
    on: JoinedOn = None,
    id_: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="The column that tells rows in the pairs.")
    ] = None,
    candidates: Candidates = None,
) -> None:
    if not out:
        raise DataError("there is no --out. Name a file for the model, as in --out model.json.")

    from qkv.core.files import check_writable
    from qkv.core.progress import ProgressBar
    from qkv.join import SoftJoin

    check_writable(Path(out), "the model")
    with ProgressBar() as progress:
        join = SoftJoin(on, id=id_).fit(left, right, pairs, valid=valid, candidates=candidates, progress=progress)
    join.save(out)
    assert join.model is not None
    for note in join.model.notes:
        print(f"· {note}")
    print(f"· written to {out}")


fit_join.__doc__ = _HELP
