"""Options that several subcommands have."""

from typing import Annotated

import typer

__all__ = [
    "Candidates",
    "Collection",
    "JoinedOn",
    "Judgements",
    "Left",
    "Passage",
    "Queries",
    "Rank",
    "Right",
    "Stem",
    "TextColumn",
    "TextEncoder",
]

# -- search, evaluate, fit search -----------------------------------------------------------------------

Collection = Annotated[str | None, typer.Argument(metavar="COLLECTION", help="What is searched.", show_default=False)]
Queries = Annotated[str | None, typer.Option(metavar="FILE", help="Queries: number, tab, text; .jsonl; or SMART.")]
Judgements = Annotated[str | None, typer.Option(metavar="FILE", help="Judgements: TREC, BEIR or SMART.")]
TextColumn = Annotated[str | None, typer.Option(metavar="COLUMN", help="Of a table: the texts.")]
TextEncoder = Annotated[str | None, typer.Option(metavar="NAME|FOLDER", help="As in qkv search; else latent.")]
Rank = Annotated[int | None, typer.Option(metavar="N", help="Dimensions of latent semantics; else half, 30 to 300.")]
Passage = Annotated[
    int | None,
    typer.Option(metavar="WORDS", min=0, help="At most, in a passage; else 200. 0: documents stay whole."),
]
Stem = Annotated[bool, typer.Option("--stem", help="Compare English words by their stems.")]

# -- join, fit join -------------------------------------------------------------------------------------

Left = Annotated[str, typer.Argument(metavar="LEFT", help="The table that asks.", show_default=False)]
Right = Annotated[str | None, typer.Argument(metavar="RIGHT", help="The table that is asked.", show_default=False)]
JoinedOn = Annotated[
    str | None,
    typer.Option(metavar="A[,B=C]", help="Columns to compare; all that both have, where left out."),
]
Candidates = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Right rows looked at for each left one; all, or 50 if large."),
]
