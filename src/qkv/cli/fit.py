"""The command `qkv fit`, which trains a search index or a join model from examples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.shared_options import (
    Candidates,
    IndexOptions,
    JoinedOn,
    JudgedCollection,
    LearningOptions,
    LeftTable,
    RightTable,
    expand_options,
    flag,
    option,
)
from qkv.core.progress import Progress, ProgressBar
from qkv.errors import DataError, OptionError

if TYPE_CHECKING:
    from qkv.search import collections
    from qkv.search.evaluation import Gain, RankingMeasures
    from qkv.search.index import Index


def evaluate(
    judged: JudgedCollection,
    *,
    run: Annotated[list[str] | None, option("FILE", "TREC run to evaluate; may be repeated.")] = None,
    measures: Annotated[str, option("NAMES", "Measures of ir-measures, separated by spaces.")] = "nDCG@10 MAP R@100",
    texts: IndexOptions,
    mix: Annotated[
        float | None, option("SHARE", "Share of vectors in the mixture with BM25, from 0 to 1; default: chosen.")
    ] = None,
    learned: Annotated[
        bool, flag("--learned", "Also learn W_Q and W_K on half of the queries and test on the other half.")
    ] = False,
    repeats: Annotated[int, option("N", "Number of random splits for --learned.", min=1)] = 5,
    learning: LearningOptions,
    json_: Annotated[bool, flag("--json", "Print one JSON object with every query.")] = False,
) -> None:
    """Evaluate rankings against relevance judgements by nDCG@10, MAP and recall@100, or by other measures.

    COLLECTION is a BEIR folder (corpus.jsonl, queries.jsonl, qrels/test.tsv), a folder of a Glasgow collection (such as
    Cranfield, CACM or TIME) or of TREC, documents in a format of `qkv search`, or an index; documents and indexes also
    need --queries and --relevant. The command compares raw word counts, BM25, latent semantics (or --encoder), and
    a mixture of BM25 and the latter. Measures are those of ir-measures.

    \b
    Examples:
      qkv evaluate cranfield
      qkv evaluate cranfield --learned
      qkv evaluate scifact --encoder sentences --split test
      qkv evaluate notes --queries queries.tsv --relevant judged.txt
      qkv evaluate --run bm25.run --run mine.run --relevant judged.txt --measures "nDCG@10 RR"

    Judgements are in TREC (query 0 document grade), BEIR or SMART format, runs in TREC format. Queries without a
    relevant document are left out. Documents are ranked whole, or by their best passage with --passage.
    """
    names = measures.replace(",", " ").split()
    if not names:
        raise OptionError('--measures must not be empty. Name measures, for example --measures "nDCG@10 MAP".')
    rows: dict[str, RankingMeasures] = {}
    notes: list[str] = []
    gained: dict[str, Gain] = {}
    if judged.collection is None and not run:
        raise DataError(
            "COLLECTION must be given unless --run is given. Name a collection, or pass --run FILE --relevant FILE."
        )

    with ProgressBar() as progress:
        if run:
            if judged.relevant is None:
                raise DataError("--relevant must be given with --run. Name a file of relevance judgements.")
            _evaluate_runs(run, judged.relevant, names, rows, notes)
        if judged.collection is not None:
            from qkv.cli.search import open_index

            opened = open_index(judged.collection, texts)
            index, read = open_judged(judged, opened, progress, replace(texts, passage=texts.passage or 0), "test")
            notes += [_counts(read), *read.notes, f"vectors: {index.encoder}"]
            mix = index.mix if mix is None else mix
            _evaluate_systems(index, read, mix, names, rows, progress)
            if learned:
                gained = _evaluate_learned(index, read, mix, repeats, names, progress, learning.given())
    if json_:
        print(json.dumps(_to_json(rows, gained, notes), ensure_ascii=False))
        return
    _print(rows, names)
    if gained:
        _print_gained(gained, names, repeats)
    for note in notes:
        print(f"· {note}")


def _evaluate_runs(
    paths: list[str], relevant: str, names: list[str], rows: dict[str, RankingMeasures], notes: list[str]
) -> None:
    from qkv.search.evaluation import measure
    from qkv.search.judgements import read_judgements, read_run, without_zeros

    judgements = read_judgements(Path(relevant))
    for path in paths:
        ranked = read_run(Path(path))
        known = without_zeros(judgements, ranked, {name for scores in ranked.values() for name in scores}).items()
        judged = {query: grades for query, grades in known if any(grade > 0 for grade in grades.values())}
        if not set(ranked) & set(judged):
            raise DataError(
                f"--run must rank at least one query that has a relevant document in --relevant, got {path!r} and "
                f"{relevant!r}. "
                "Check that both files belong to the same collection."
            )
        if unjudged := len(set(ranked) - set(judged)):
            notes.append(f"{path}: {unjudged:,} queries have no judgements and are left out")
        if without := len(set(judged) - set(ranked)):
            notes.append(f"{path}: {without:,} judged queries have no ranking and count as 0")
        rows[path] = measure(ranked, judged, names)


def open_judged(
    judged: JudgedCollection, index: Index | None, progress: Progress, texts: IndexOptions, split: str
) -> tuple[Index, collections.Collection]:
    """Return a search index, which is built unless it is given, and a collection with judgements for its documents."""
    from qkv.cli.search import build_index
    from qkv.search.collections import judged_collection, read_collection
    from qkv.search.text_sources import Document

    assert judged.collection is not None
    files = {"queries": judged.queries, "relevant": judged.relevant}
    if index is None:
        read = read_collection(judged.collection, **files, column=texts.text, split=judged.split or split)
        return build_index(read.documents, texts, progress), read
    # Judgements need the names of documents, but not their texts.
    titles = dict(zip(*(index.table.column(name).to_pylist() for name in ("name", "title")), strict=True))
    documents = [Document(name, name, title) for name, title in titles.items()]
    return index, judged_collection(judged.collection, documents, **files)


def _evaluate_systems(
    index: Index,
    read: collections.Collection,
    mix: float,
    names: list[str],
    rows: dict[str, RankingMeasures],
    progress: Progress,
) -> None:
    from qkv.encoders.text_encoders import TermEncoder
    from qkv.search.evaluation import measure, rankings

    labels = {"latent": "latent semantics", "terms": "weighted words", "sentences": "sentence model"}
    vectors = labels.get(index.encoder.name, index.encoder.name)
    if index.metric is not None:
        vectors += ", learned"
    raw = index.with_encoder(TermEncoder(None, index.splitter.stem))
    systems = {
        "raw word counts": (raw, 1.0),
        "BM25": (index, 0.0),
        vectors: (index, 1.0),
        f"mixture, {mix:g} {vectors}": (index, mix),
    }
    for name, (which, share) in systems.items():
        ranked = rankings(which, read.queries, mix=share, top=_depth(which), progress=progress)
        rows[name] = measure(ranked, read.relevant, names)


def _depth(index: Index) -> int:
    """Return the number of passages to rank per query: all for an index of at most 5,000 passages, otherwise 1,000."""
    return len(index) if len(index) <= 5000 else 1000


def _evaluate_learned(
    index: Index,
    read: collections.Collection,
    mix: float,
    repeats: int,
    names: list[str],
    progress: Progress,
    options: Mapping[str, object],
) -> dict[str, Gain]:
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


def _counts(read: collections.Collection) -> str:
    documents, queries = len(read.documents), len(read.queries)
    return f"{read.name}: {documents:,} documents, {queries:,} judged queries, {_pairs(read):,} relevant pairs"


def _pairs(read: collections.Collection) -> int:
    return sum(grade > 0 for grades in read.relevant.values() for grade in grades.values())


def _print(rows: dict[str, RankingMeasures], names: list[str]) -> None:
    width = max(len(name) for name in rows)
    print(" " * width + "".join(f"{name:>10}" for name in names))
    for name, measured in rows.items():
        print(f"{name:<{width}}" + "".join(f"{measured.means[each]:>10.4f}" for each in names))


def _print_gained(gained: dict[str, Gain], names: list[str], repeats: int) -> None:
    halves = "one half" if repeats == 1 else f"each of {repeats} random halves"
    print(f"\nW_Q and W_K learned from the other queries, tested on {halves}: mean gain ± standard deviation")
    width = max(len(name) for name in gained)
    for name, gain in gained.items():
        for each in names:
            mean, spread = gain.gain(each)
            print(
                f"{name:<{width}}  {each:<8} {gain.start[each]:.4f} → {gain.learned[each]:.4f}   "
                f"{mean:+.4f} ± {spread:.4f}"
            )
    print()


def _to_json(rows: dict[str, RankingMeasures], gained: dict[str, Gain], notes: list[str]) -> dict[str, object]:
    return {
        "means": {name: measured.means for name, measured in rows.items()},
        "queries": {name: measured.queries for name, measured in rows.items()},
        "learned": {
            name: {"start": gain.start, "learned": gain.learned, "gains": gain.gains} for name, gain in gained.items()
        },
        "notes": notes,
    }


def fit_join(
    left: LeftTable,
    right: RightTable = None,
    out: Annotated[str, option("FILE.json", "File for the model.", show_default=False)] = "",
    pairs: Annotated[str | None, option("FILE", "File of labelled pairs.")] = None,
    valid: Annotated[str | None, option("FILE", "File of labelled pairs for validation.")] = None,
    on: JoinedOn = None,
    id_: Annotated[str | None, option("COLUMN", "Column that identifies rows in the labelled pairs.", "--id")] = None,
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
    from qkv.join import SoftJoin

    check_writable(Path(out), "the model")
    with ProgressBar() as progress:
        join = SoftJoin(on, id=id_).fit(left, right, pairs, valid=valid, candidates=candidates, progress=progress)
    join.save(out)
    assert join.model is not None
    for note in join.model.notes:
        print(f"· {note}")
    print(f"· model written to {out}")


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
    judged: JudgedCollection,
    *,
    save: Annotated[str | None, option("FOLDER", "Folder for the index; default: the given index.")] = None,
    texts: IndexOptions,
    learning: LearningOptions,
    temperature: Annotated[float | None, option("T", "Temperature of the softmax in training; default: 0.05.")] = None,
    steps: Annotated[int | None, option("N", "Maximum steps of L-BFGS; default: 20.")] = None,
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
    if judged.collection is None:
        raise DataError("COLLECTION must be given. Name a collection, a folder of documents, or an index.")

    from qkv.cli.search import open_index
    from qkv.search.evaluation import learn
    from qkv.search.index_files import check_index_path

    index = open_index(judged.collection, texts)
    target = judged.collection if save is None else save
    if index is None and save is None:
        raise OptionError("--save must be given unless COLLECTION is an index. Name a folder for the trained index.")
    check_index_path(Path(target))
    given = {"temperature": temperature, "steps": steps}
    training = learning.given() | {name: value for name, value in given.items() if value is not None}
    with ProgressBar() as progress:
        index, read = open_judged(judged, index, progress, texts, "train")
        learned, losses = learn(index, read.queries, read.relevant, progress=progress, **training)
        learned.save(target)
    for note in read.notes:
        print(f"· {note}")
    change = f": loss {losses[0]:.3f} → {min(losses):.3f}" if losses else ""
    print(f"{target}: learned from {len(read.queries):,} queries and {_pairs(read):,} relevant documents{change}")
    if len(read.queries) < _FEW_QUERIES:
        advice = "measure the gain with qkv evaluate … --learned"
        print(f"· training on fewer than {_FEW_QUERIES} queries may not help: {advice}")


fit.command("search", short_help="Train a search index from relevance judgements.")(expand_options(fit_search))
fit.command("join", short_help="Train a join model from labelled pairs.")(fit_join)
