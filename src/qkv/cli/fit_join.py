"""The command `qkv fit join`, which trains a join model from labelled pairs or from the two tables alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.shared_options import Candidates, JoinedOn, LeftTable, RightTable
from qkv.errors import DataError

__all__ = ["fit_join"]


def fit_join(
    left: LeftTable,
    right: RightTable = None,
    out: Annotated[str, typer.Option(metavar="FILE.json", help="File for the model.", show_default=False)] = "",
    pairs: Annotated[str | None, typer.Option(metavar="FILE", help="File of labelled pairs.")] = None,
    valid: Annotated[str | None, typer.Option(metavar="FILE", help="File of labelled pairs for validation.")] = None,
    on: JoinedOn = None,
    id_: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="Column that identifies rows in the labelled pairs.")
    ] = None,
    candidates: Candidates = None,
) -> None:
    """Train a model for qkv join from labelled pairs or from the two tables alone, and write it to a file.

    The pairs are a table with the columns left, right and match: row numbers counted from 0, or cells of the column
    given by --id, and 0 or 1. The pairs of --valid choose the strength of the prior and the threshold. Without
    --pairs, the weights of the columns are estimated from the two tables alone.

    \b
    Examples:
      qkv fit join people.csv guests.csv --on name=guest,city=town --pairs same.csv --out same.json
      qkv fit join people.csv guests.csv --on name=guest,city=town --out guessed.json
    """
    if not out:
        raise DataError("--out must be given. Name a file for the model, for example --out model.json.")

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
    print(f"· model written to {out}")
