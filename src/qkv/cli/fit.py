"""`qkv fit`: learn from examples what is alike. One subcommand for each thing that learns."""

from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli.fit_join import fit_join
from qkv.cli.shared_options import Collection, Judgements, Passage, Queries, Rank, Stem, TextColumn, TextEncoder
from qkv.errors import DataError, OptionError

__all__ = ["fit", "fit_search"]

_HELP = """Learn W_Q and W_K from queries and their relevant documents, and keep them in an index.

COLLECTION is what `qkv evaluate` takes: a BEIR folder, a folder of SMART files, or documents or an index
with --queries and --relevant. Attention over the whole collection is made to fall on what is relevant; the
start is latent semantics as it is. `qkv search` then searches the index with what was learned, and
`qkv evaluate COLLECTION --learned` says what it is worth on queries that were not learned from.

\b
Examples:
  qkv fit search cranfield --save cranfield.index
  qkv fit search scifact --split train --save scifact.index
  qkv fit search notes.index --queries queries.tsv --relevant judged.txt
"""

_FEW = 30

fit = typer.Typer(invoke_without_command=True, rich_markup_mode=None, add_completion=False)


@fit.callback()
def _fit(context: typer.Context) -> None:
    """Learn from examples what is alike; one subcommand for each thing that learns."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def fit_search(
    collection: Collection = None,
    queries: Queries = None,
    relevant: Judgements = None,
    split: Annotated[str, typer.Option(metavar="NAME", help="Of BEIR: the judgements in qrels/.")] = "train",
    save: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Where the index goes; an index stays where it is.")
    ] = None,
    text: TextColumn = None,
    encoder: TextEncoder = None,
    rank: Rank = None,
    passage: Passage = None,
    stem: Stem = False,
    penalty: Annotated[
        float | None, typer.Option(metavar="NUMBER", help="What leaving the start costs; else 500.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(metavar="T", help="Of the softmax that learns; else 0.05.")
    ] = None,
    loss: Annotated[
        str | None, typer.Option(metavar="each|mass", help="On each relevant document, or on all together.")
    ] = None,
    steps: Annotated[int | None, typer.Option(metavar="N", help="Of L-BFGS, at most; else 20.")] = None,
) -> None:
    if collection is None:
        raise DataError("there is no COLLECTION. Name one.")

    from qkv.cli.evaluate import judged
    from qkv.cli.search import open_index
    from qkv.core.progress import ProgressBar
    from qkv.search.evaluation import learn
    from qkv.search.index_files import may_be_saved

    index = open_index(collection, encoder=encoder, rank=rank, stem=stem, text=text, passage=passage)
    target = collection if save is None else save
    if index is None and save is None:
        raise OptionError("there is no --save: name the folder where the index goes, with what was learned.")
    may_be_saved(Path(target))
    given = {"penalty": penalty, "temperature": temperature, "loss": loss, "steps": steps}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    with ProgressBar() as progress:
        index, read = judged(
            collection, index, progress, queries=queries, relevant=relevant, text=text, split=split,
            encoder=encoder, rank=rank, stem=stem, passage=passage,
        )  # fmt: skip
        learned, losses = learn(index, read.queries, read.relevant, progress=progress, **options)
        learned.save(target)
    for note in read.notes:
        print(f"· {note}")
    pairs = sum(grade > 0 for grades in read.relevant.values() for grade in grades.values())
    went = f": the loss went from {losses[0]:.3f} to {min(losses):.3f}" if losses else ""
    print(f"{target}: learned from {len(read.queries):,} queries and {pairs:,} relevant documents{went}")
    if len(read.queries) < _FEW:
        print(f"· fewer than {_FEW} queries teach little: see what it is worth with qkv evaluate … --learned")


fit_search.__doc__ = _HELP

# Unknown options are refused here, as everywhere; a query never stands on this command line.
fit.command("search", short_help="Learn what is relevant, from judged queries.")(fit_search)
fit.command("join", short_help="Learn a join of two tables from labelled pairs.")(fit_join)
