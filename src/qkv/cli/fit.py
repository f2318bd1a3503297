"""The command `qkv fit`, which trains a search index or a join model from examples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.fit_join import fit_join
from qkv.cli.shared_options import Collection, Judgements, Passage, Queries, Rank, Stem, TextColumn, TextEncoder
from qkv.errors import DataError, OptionError

__all__ = ["fit", "fit_search"]

_FEW_QUERIES = 30

fit = typer.Typer(invoke_without_command=True, rich_markup_mode=None, add_completion=False)


@fit.callback()
def _fit(context: typer.Context) -> None:
    """Train a search index or a join model from examples.

    \b
    Examples:
      qkv fit search cranfield --save cranfield.index
      qkv fit join people.csv guests.csv --pairs same.csv --out same.json
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


def fit_search(
    collection: Collection = None,
    queries: Queries = None,
    relevant: Judgements = None,
    split: Annotated[
        str, typer.Option(metavar="NAME", help="Split of a BEIR collection: the file in qrels/.")
    ] = "train",
    save: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Folder for the index; default: the given index.")
    ] = None,
    text: TextColumn = None,
    encoder: TextEncoder = None,
    rank: Rank = None,
    passage: Passage = None,
    stem: Stem = False,
    penalty: Annotated[
        float | None, typer.Option(metavar="NUMBER", help="Penalty on changes of W_Q and W_K; default: 500.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(metavar="T", help="Temperature of the softmax in training; default: 0.05.")
    ] = None,
    loss: Annotated[
        str | None, typer.Option(metavar="each|mass", help="Loss of each relevant document, or of their total weight.")
    ] = None,
    steps: Annotated[int | None, typer.Option(metavar="N", help="Maximum steps of L-BFGS; default: 20.")] = None,
) -> None:
    """Learn the projections W_Q and W_K from queries with relevant documents, and save them in a search index.

    COLLECTION is a BEIR folder, a folder of SMART files, documents or an index; documents and indexes also need
    --queries and --relevant. Training starts from latent semantics and maximizes the weight of relevant documents.
    `qkv search` then uses the trained index; `qkv evaluate COLLECTION --learned` measures the gain on held-out
    queries.

    \b
    Examples:
      qkv fit search cranfield --save cranfield.index
      qkv fit search scifact --split train --save scifact.index
      qkv fit search notes.index --queries queries.tsv --relevant judged.txt
    """
    if collection is None:
        raise DataError("COLLECTION must be given. Name a collection, a folder of documents, or an index.")

    from qkv.cli.evaluate import BuildOptions, open_judged
    from qkv.cli.search import open_index
    from qkv.core.progress import ProgressBar
    from qkv.search.evaluation import learn
    from qkv.search.index_files import check_index_path

    build: BuildOptions = {"encoder": encoder, "rank": rank, "stem": stem, "passage": passage}
    index = open_index(collection, text=text, **build)
    target = collection if save is None else save
    if index is None and save is None:
        raise OptionError("--save must be given unless COLLECTION is an index. Name a folder for the trained index.")
    check_index_path(Path(target))
    given = {"penalty": penalty, "temperature": temperature, "loss": loss, "steps": steps}
    options: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    with ProgressBar() as progress:
        index, read = open_judged(
            collection, index, progress, build, queries=queries, relevant=relevant, text=text, split=split
        )
        learned, losses = learn(index, read.queries, read.relevant, progress=progress, **options)
        learned.save(target)
    for note in read.notes:
        print(f"· {note}")
    pairs = sum(grade > 0 for grades in read.relevant.values() for grade in grades.values())
    change = f": loss {losses[0]:.3f} → {min(losses):.3f}" if losses else ""
    print(f"{target}: learned from {len(read.queries):,} queries and {pairs:,} relevant documents{change}")
    if len(read.queries) < _FEW_QUERIES:
        advice = "measure the gain with qkv evaluate … --learned"
        print(f"· training on fewer than {_FEW_QUERIES} queries may not help: {advice}")


fit.command("search", short_help="Train a search index from relevance judgements.")(fit_search)
fit.command("join", short_help="Train a join model from labelled pairs.")(fit_join)
