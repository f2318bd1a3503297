"""Arguments and options that several subcommands share."""

from __future__ import annotations

from typing import Annotated

import typer

from qkv.errors import OptionError

__all__ = [
    "ON_BAD_CELL",
    "Candidates",
    "Collection",
    "Cyclic",
    "DateFormat",
    "Decimal",
    "Delimiter",
    "Encoding",
    "HeaderRow",
    "JoinedOn",
    "Judgements",
    "KeyColumns",
    "LeftTable",
    "ModelFolder",
    "NormalizerName",
    "OnBadCell",
    "Passage",
    "Queries",
    "QuoteFormulas",
    "Rank",
    "RightTable",
    "ScoreName",
    "SkipFooter",
    "Stem",
    "TextColumn",
    "TextEncoder",
    "Threshold",
    "ValueColumn",
    "parse_periods",
]

# -- ask, join, store create ----------------------------------------------------------------------------

KeyColumns = Annotated[
    str, typer.Option(metavar="A[,B]", help="Key column; separate several by commas.", show_default=False)
]
ValueColumn = Annotated[str, typer.Option(metavar="C", help="Value column.", show_default=False)]
ScoreName = Annotated[str | None, typer.Option(metavar="NAME[:NUMBER]", help="Score that compares query and key.")]
NormalizerName = Annotated[
    str | None, typer.Option(metavar="NAME[:NUMBER]", help="Normalizer that turns scores into weights.")
]
Threshold = Annotated[
    float | None,
    typer.Option(metavar="NUMBER", help="Minimum similarity, or maximum distance, of a match."),
]
ON_BAD_CELL = ("exclude", "refuse", "text")
OnBadCell = Annotated[
    str,
    typer.Option(
        metavar="exclude|refuse|text",
        help="Cells that are no finite numbers, or no dates, in a column of them: leave out and count, refuse, or "
        "read the column as texts.",
    ),
]

Encoding = Annotated[
    str | None, typer.Option(metavar="NAME", help="Encoding of FILE: utf-16, latin-1, cp1252 …; default: utf-8.")
]
Delimiter = Annotated[str | None, typer.Option(metavar="CHARACTER", help="Delimiter of FILE; default: detected.")]
Decimal = Annotated[str | None, typer.Option(metavar=".|,", help="Decimal separator of FILE; default: detected.")]
DateFormat = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT", help="Format of dates in FILE, such as %m/%d/%Y or %d-%b-%y; default: detected, day first."
    ),
]

Cyclic = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN=PERIOD", help="Column whose numbers go round, such as hour=24 or direction=360."),
]
HeaderRow = Annotated[
    int | None, typer.Option(metavar="N", help="Line of FILE with the names of columns, from 1; default: detected.")
]
SkipFooter = Annotated[
    int | None, typer.Option(metavar="N", help="Lines at the end of FILE to leave out; default: detected.")
]

QuoteFormulas = Annotated[
    bool, typer.Option("--quote-formulas", help="In CSV, write an apostrophe before texts that spreadsheets execute.")
]

# -- search, evaluate, fit search -----------------------------------------------------------------------

Collection = Annotated[
    str | None, typer.Argument(metavar="COLLECTION", help="Collection, documents or index.", show_default=False)
]
Queries = Annotated[
    str | None, typer.Option(metavar="FILE", help="Queries in .tsv (name, text), .jsonl or SMART format.")
]
Judgements = Annotated[
    str | None, typer.Option(metavar="FILE", help="Relevance judgements in TREC, BEIR or SMART format.")
]
TextColumn = Annotated[str | None, typer.Option(metavar="COLUMN", help="Text column, if the texts are a table.")]
TextEncoder = Annotated[
    str | None, typer.Option(metavar="NAME|FOLDER", help="Text encoder, as in qkv search; default: latent.")
]
Rank = Annotated[
    int | None,
    typer.Option(metavar="N", help="Dimensions of latent semantics; default: chosen from the passages."),
]
Passage = Annotated[
    int | None,
    typer.Option(metavar="WORDS", min=0, help="Maximum words per passage; 0 keeps documents whole; default: 200."),
]
Stem = Annotated[bool, typer.Option("--stem", help="Compare English words by their stems.")]

# -- join, fit join -------------------------------------------------------------------------------------

LeftTable = Annotated[str, typer.Argument(metavar="LEFT", help="Table whose rows are the queries.", show_default=False)]
RightTable = Annotated[
    str | None, typer.Argument(metavar="RIGHT", help="Table whose rows are the keys.", show_default=False)
]
JoinedOn = Annotated[
    str | None,
    typer.Option(metavar="A[,B=C]", help="Columns to compare; default: all common columns."),
]
Candidates = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Candidate rows per left row; default: all, or 50 for large tables."),
]

# -- look, roles ----------------------------------------------------------------------------------------

ModelFolder = Annotated[
    str | None, typer.Option(metavar="FOLDER", help="Model saved by save_pretrained; default: all-MiniLM-L6-v2.")
]


def parse_periods(given: list[str] | None) -> dict[str, float] | None:
    """Return the periods of cyclic columns from texts such as "hour=24", or None without any.

    Raises:
        OptionError: A text is not a name and a number.
    """
    periods = {}
    for text in given or ():
        name, _, number = text.rpartition("=")
        try:
            periods[name] = float(number)
        except ValueError:
            name = ""
        if not name:
            raise OptionError(f"--cyclic must be COLUMN=PERIOD, got {text!r}. Write, for example, hour=24.")
    return periods or None
