"""How good rankings are: nDCG, average precision and recall, by `ir-measures`; and what learning adds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.core.progress import Progress
from qkv.errors import DataError, OptionError
from qkv.search.bm25 import missing
from qkv.search.collections import Collection
from qkv.search.index import Index
from qkv.search.judgements import Judgements
from qkv.search.text_sources import Document

__all__ = ["Gain", "MEASURES", "Measured", "gains", "learn", "measure", "rankings"]

MEASURES = ("nDCG@10", "MAP", "R@100")
"""What is measured if nothing else is asked for."""

Run = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Measured:
    """What a ranking is worth.

    Fields:
        means: over all judged queries, for each measure.
        queries: the same for each query by name, in the order of the measures.
    """

    means: dict[str, float]
    queries: dict[str, list[float]]


def measure(run: Run, relevant: Judgements, measures: Sequence[str] = MEASURES) -> Measured:
    """Compare rankings with judgements. A judged query without a ranking counts 0.

    Args:
        run: for each query, a score for each document that was found.
        relevant: for each query, the grades of documents; above 0 is relevant.
        measures: names as `ir-measures` has them: nDCG@10, MAP, R@100, P@5, RR, ….

    Raises:
        OptionError: there is no such measure.
        MissingPackageError: ir-measures is not installed.

    Example:
        >>> measure({"q": {"a": 2.0, "b": 1.0}}, {"q": {"b": 1}}, ["MAP"]).means
        {'MAP': 0.5}
    """
    try:
        import ir_measures
    except ImportError:
        raise missing("ir-measures") from None
    parsed = {}
    for name in measures:
        try:
            parsed[name] = ir_measures.parse_measure(name)
        except (NameError, ValueError, SyntaxError):
            raise OptionError(
                f"there is no measure {name!r}. Name one of ir-measures, as nDCG@10, MAP, R@100."
            ) from None
    found = {query: [0.0] * len(parsed) for query in relevant}
    places = {str(each): at for at, each in enumerate(parsed.values())}
    given = {query: dict(run[query]) for query in relevant if run.get(query)}
    judged = {query: dict(grades) for query, grades in relevant.items()}
    for one in ir_measures.iter_calc(list(parsed.values()), judged, given) if given else ():
        found[one.query_id][places[str(one.measure)]] = float(one.value)
    table = np.array(list(found.values())).reshape(len(found), len(parsed))
    return Measured({name: float(table[:, at].mean()) for at, name in enumerate(parsed)}, found)


def rankings(
    index: Index,
    queries: Sequence[Document],
    *,
    mix: float | None = None,
    top: int = 1000,
    progress: Progress | None = None,
) -> dict[str, dict[str, float]]:
    """What an index finds for queries, by their names: see `Index.rank`."""
    ranked = index.rank([asked(query) for query in queries], top, mix=mix, progress=progress)
    return {query.name: found for query, found in zip(queries, ranked, strict=True)}


def asked(query: Document) -> str:
    """What is searched for: the text of a query, or its title where it has none."""
    return query.text if query.text.strip() else query.title


def learn(
    index: Index,
    queries: Sequence[Document],
    relevant: Judgements,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> tuple[Index, list[float]]:
    """The index with W_Q and W_K learned from judged queries, and the losses on the way.

    Args:
        index: with an encoder whose vectors are dense; its own maps, if it has any, are not used.
        queries: judged ones.
        relevant: see `Collection`; grades above 0 count alike.
        progress: called with what is done.
        options: of `AttentionRanker`.

    Raises:
        OptionError: the encoder compares words without vectors.
        DataError: nothing that is relevant is in the index.
        MissingPackageError: PyTorch is not installed.
    """
    from qkv.estimators import AttentionRanker

    if not index.keys.dense:
        raise OptionError(
            f"the encoder {index.encoder.name!r} has no dense vectors to learn maps of. Use latent or sentences."
        )
    numbers = dict(zip(index.table.column("name").to_pylist(), index.owners.tolist(), strict=True))
    wanted = [
        [numbers[name] for name, grade in relevant.get(query.name, {}).items() if grade > 0 and name in numbers]
        for query in queries
    ]
    if not any(wanted):
        raise DataError("no document that the judgements name is in the index. Do they belong together?")
    vectors = index.encoder.encode([asked(query) for query in queries])
    ranker = AttentionRanker(**options).fit(
        vectors, np.asarray(index.keys.rows), wanted, document_ids=index.owners, progress=progress
    )
    return index.with_metric(ranker.metric_), ranker.losses_


@dataclass(frozen=True)
class Gain:
    """What learning adds on queries that were not learned from, over several halves.

    Fields:
        start, learned: means over the tested halves, for each measure.
        gains: learned less start, one for each half.
    """

    start: dict[str, float]
    learned: dict[str, float]
    gains: dict[str, list[float]]

    def gain(self, name: str) -> tuple[float, float]:
        """The mean gain, and its standard deviation over the halves."""
        held = np.array(self.gains[name])
        return float(held.mean()), float(held.std(ddof=1)) if len(held) > 1 else 0.0


def gains(
    index: Index,
    collection: Collection,
    *,
    mixes: Sequence[float] = (1.0, 0.5),
    repeats: int = 5,
    measures: Sequence[str] = MEASURES,
    top: int = 1000,
    progress: Progress | None = None,
    **options: Any,
) -> dict[float, Gain]:
    """Learn from a random half of the queries and test on the other half, several times.

    Args:
        index: untrained.
        collection: whose queries are divided; the seed of repeat i is i.
        mixes: of vectors with words; each is measured with and without what was learned.
        repeats: how many halves.
        measures: see `measure`.
        top: see `Index.rank`.
        progress: called with the repeats that are done.
        options: of `AttentionRanker`.

    Raises:
        DataError: fewer than four queries.
    """
    if len(collection.queries) < 4:
        raise DataError(f"{len(collection.queries)} judged queries cannot be divided. Four are wanted, better forty.")
    before = {
        mix: measure(rankings(index, collection.queries, mix=mix, top=top), collection.relevant, measures).queries
        for mix in mixes
    }
    rows: dict[float, list[tuple[np.ndarray, np.ndarray]]] = {mix: [] for mix in mixes}
    for repeat, (train, test) in enumerate(_halves(collection.queries, repeats)):
        learned, _ = learn(index, train, collection.relevant, **options)
        relevant = {query.name: collection.relevant[query.name] for query in test}
        for mix in mixes:
            after = measure(rankings(learned, test, mix=mix, top=top), relevant, measures).queries
            start = np.mean([before[mix][name] for name in relevant], axis=0)
            rows[mix].append((start, np.mean([after[name] for name in relevant], axis=0)))
        if progress is not None:
            progress("learning", repeat + 1, repeats)
    return {mix: _gain(np.array(pairs), measures) for mix, pairs in rows.items()}


def _gain(pairs: np.ndarray, measures: Sequence[str]) -> Gain:
    """Of `(repeats, 2, measures)`: before and after."""
    start, learned = pairs.mean(axis=0).tolist()
    added = (pairs[:, 1] - pairs[:, 0]).T.tolist()
    return Gain(*(dict(zip(measures, part, strict=True)) for part in (start, learned, added)))


def _halves(queries: Sequence[Document], repeats: int) -> Iterator[tuple[list[Document], list[Document]]]:
    half = len(queries) // 2
    for seed in range(repeats):
        order = np.random.default_rng(seed).permutation(len(queries))
        yield [queries[at] for at in order[:half]], [queries[at] for at in order[half:]]
