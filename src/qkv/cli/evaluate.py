"""`qkv evaluate`: how well rankings find what was judged relevant."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli.shared_options import Collection, Judgements, Queries, Rank, Stem, TextColumn, TextEncoder
from qkv.errors import DataError, OptionError

__all__ = ["evaluate", "judged"]

_HELP = """Measure rankings against judgements: nDCG@10, MAP and recall@100, by ir-measures.

COLLECTION is a BEIR folder (corpus.jsonl, queries.jsonl, qrels/test.tsv), a folder of SMART files (such as
Cranfield: documents, .qry, rel), or documents as `qkv search` takes them, or an index, with --queries and
--relevant. One row each is printed for raw counts of words, BM25, latent semantics (or --encoder), and both
mixed. With --learned, W_Q and W_K are learned from half of the queries and tested on the other half.

\b
Examples:
  qkv evaluate cranfield
  qkv evaluate cranfield --learned
  qkv evaluate scifact --encoder sentences --split test
  qkv evaluate notes --queries queries.tsv --relevant judged.txt
  qkv evaluate --run bm25.run --run mine.run --relevant judged.txt --measures "nDCG@10 RR"

Judgements are read as TREC (query 0 document grade), BEIR or SMART write them, runs as TREC does. Queries
without a relevant document are left out. Documents stay whole; --passage N ranks them by their best passage.
"""


def evaluate(
    collection: Collection = None,
    queries: Queries = None,
    relevant: Judgements = None,
    split: Annotated[str, typer.Option(metavar="NAME", help="Of BEIR: the judgements in qrels/.")] = "test",
    run: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="A TREC run to measure; may be given several times."),
    ] = None,
    measures: Annotated[
        str, typer.Option(metavar="NAMES", help="Measures of ir-measures, with spaces between.")
    ] = "nDCG@10 MAP R@100",
    text: TextColumn = None,
    encoder: TextEncoder = None,
    rank: Rank = None,
    mix: Annotated[float | None, typer.Option(metavar="SHARE", help="Of vectors in the mixture; else 0.5.")] = None,
    passage: Annotated[int | None, typer.Option(metavar="WORDS", help="Rank by the best passage of so many.")] = None,
    stem: Stem = False,
    learned: Annotated[
        bool, typer.Option("--learned", help="Learn W_Q and W_K on half of the queries, test on the rest.")
    ] = False,
    repeats: Annotated[int, typer.Option(metavar="N", min=1, help="With --learned: how many halves.")] = 5,
    penalty: Annotated[
        float | None, typer.Option(metavar="NUMBER", help="With --learned: what leaving the start costs.")
    ] = None,
    loss: Annotated[str | None, typer.Option(metavar="each|mass", help="With --learned: see AttentionRanker.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="One object, with every query.")] = False,
) -> None:
    names = measures.replace(",", " ").split()
    if not names:
        raise OptionError('--measures is empty. Name some, as in --measures "nDCG@10 MAP".')
    rows: dict[str, Any] = {}
    notes: list[str] = []
    gained: dict[str, Any] = {}
    if collection is None and not run:
        raise DataError("there is no COLLECTION. Name one, or give --run and --relevant.")

    from qkv.core.progress import ProgressBar

    with ProgressBar() as progress:
        if run:
            if relevant is None:
                raise DataError("--run needs judgements to compare with. Give --relevant FILE.")
            _runs(run, relevant, names, rows, notes)
        if collection is not None:
            from qkv.cli.search import open_index

            index = open_index(collection, encoder=encoder, rank=rank, stem=stem, text=text, passage=passage)
            index, read = judged(
                collection, index, progress, queries=queries, relevant=relevant, text=text, split=split,
                encoder=encoder, rank=rank, stem=stem, passage=passage or 0,
            )  # fmt: skip
            notes += [_counts(read), *read.notes]
            mix = index.mix if mix is None else mix
            _systems(index, read, mix, names, rows, progress)
            if learned:
                chosen = {"penalty": penalty, "loss": loss}
                gained = _learned(
                    index, read, mix, repeats, names, progress,
                    {name: value for name, value in chosen.items() if value is not None},
                )  # fmt: skip
    if json_:
        print(json.dumps(_plain(rows, gained, notes), ensure_ascii=False))
        return
    _print(rows, names)
    if gained:
        _print_gained(gained, names, repeats)
    for note in notes:
        print(f"· {note}")


evaluate.__doc__ = _HELP


def _runs(paths: list[str], relevant: str, names: list[str], rows: dict[str, Any], notes: list[str]) -> None:
    from qkv.search.evaluation import measure
    from qkv.search.judgements import read_judgements, read_run

    judged = read_judgements(Path(relevant))
    for query in [query for query, grades in judged.items() if not any(grade > 0 for grade in grades.values())]:
        del judged[query]
    for path in paths:
        ranked = read_run(Path(path))
        if not set(ranked) & set(judged):
            raise DataError(f"no query of the run {path!r} is judged in {relevant!r}. Do they belong together?")
        if unjudged := len(set(ranked) - set(judged)):
            notes.append(f"{path}: {unjudged:,} queries are not judged, and are left out")
        if without := len(set(judged) - set(ranked)):
            notes.append(f"{path}: {without:,} judged queries have no ranking, and count 0")
        rows[path] = measure(ranked, judged, names)


def judged(
    collection: str,
    index: Any,
    progress: Any,
    *,
    queries: str | None,
    relevant: str | None,
    text: str | None,
    split: str,
    **making: Any,
) -> tuple[Any, Any]:
    """An index, and queries with judgements for what it holds.

    Args:
        collection: its name, or what is to be indexed.
        index: None: it is made of the collection's documents.
        progress: called with what is done.
        queries, relevant, text, split: options of the command line.
        making: those that say how an index is made.
    """
    from qkv.cli.search import build_index
    from qkv.search.collections import read_collection

    if index is not None:
        return index, _judged_index(index, collection, queries, relevant)
    read = read_collection(collection, queries=queries, relevant=relevant, column=text, split=split)
    return build_index(read.documents, progress, **making), read


def _judged_index(index: Any, name: str, queries: str | None, relevant: str | None) -> Any:
    """The queries and judgements for what an index holds."""
    from qkv.search.collections import judged_collection
    from qkv.search.text_sources import Document

    # Its texts are not read for this: names are enough.
    names, titles = index.table.column("name").to_pylist(), index.table.column("title").to_pylist()
    documents = {name: Document(name, name, title) for name, title in zip(names, titles, strict=True)}
    return judged_collection(name, list(documents.values()), queries, relevant)


def _systems(index: Any, read: Any, mix: float, names: list[str], rows: dict[str, Any], progress: Any) -> None:
    """Measure every way to rank."""
    from qkv.search.encoder_registry import Terms
    from qkv.search.evaluation import measure, rankings

    called = {"latent": "latent semantics", "terms": "weighted words", "sentences": "sentence model"}
    vectors = called.get(index.encoder.name, index.encoder.name)
    if index.metric is not None:
        vectors += ", learned"
    raw = index.with_encoder(Terms(None, index.splitter.stem))
    ways = {
        "raw counts of words": (raw, 1.0),
        "BM25": (index, 0.0),
        vectors: (index, 1.0),
        f"mixture, {mix:g} {vectors}": (index, mix),
    }
    for name, (which, share) in ways.items():
        ranked = rankings(which, read.queries, mix=share, top=_depth(which), progress=progress)
        rows[name] = measure(ranked, read.relevant, names)


def _depth(index: Any) -> int:
    """How deep rankings go: to the end where that is cheap."""
    return len(index) if len(index) <= 5000 else 1000


def _learned(
    index: Any, read: Any, mix: float, repeats: int, names: list[str], progress: Any, options: Any
) -> dict[str, Any]:
    from qkv.search.evaluation import gains

    found = gains(
        index.with_metric(None),
        read,
        mixes=list(dict.fromkeys((1.0, mix))),
        repeats=repeats,
        measures=names,
        top=_depth(index),
        progress=progress,
        **options,
    )
    return {("vectors" if mix == 1.0 else f"mixture, {mix:g} vectors"): gain for mix, gain in found.items()}


def _counts(read: Any) -> str:
    pairs = sum(grade > 0 for grades in read.relevant.values() for grade in grades.values())
    return (
        f"{read.name}: {len(read.documents):,} documents, {len(read.queries):,} judged queries, "
        f"{pairs:,} relevant pairs"
    )


def _print(rows: dict[str, Any], names: list[str]) -> None:
    width = max(len(name) for name in rows)
    print(" " * width + "".join(f"{name:>10}" for name in names))
    for name, measured in rows.items():
        print(f"{name:<{width}}" + "".join(f"{measured.means[each]:>10.4f}" for each in names))


def _print_gained(gained: dict[str, Any], names: list[str], repeats: int) -> None:
    halves = "one half" if repeats == 1 else f"each of {repeats} random halves"
    print(f"\nW_Q and W_K learned from the other queries, tested on {halves}: mean gain ± its deviation")
    width = max(len(name) for name in gained)
    for name, gain in gained.items():
        for each in names:
            mean, spread = gain.gain(each)
            print(
                f"{name:<{width}}  {each:<8} {gain.start[each]:.4f} → {gain.learned[each]:.4f}   "
                f"{mean:+.4f} ± {spread:.4f}"
            )
    print()


def _plain(rows: dict[str, Any], gained: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    return {
        "means": {name: measured.means for name, measured in rows.items()},
        "queries": {name: measured.queries for name, measured in rows.items()},
        "learned": {
            name: {"start": gain.start, "learned": gain.learned, "gains": gain.gains} for name, gain in gained.items()
        },
        "notes": notes,
    }
