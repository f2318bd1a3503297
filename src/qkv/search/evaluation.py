"""Evaluate rankings by nDCG, MAP and recall, and measure how much learned projections improve them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.core.extras import require_packages
from qkv.core.progress import Progress, track
from qkv.core.typing import Float
from qkv.errors import DataError, OptionError
from qkv.search.collections import Collection
from qkv.search.index import Index
from qkv.search.judgements import Judgements
from qkv.search.text_sources import Document

_MEASURES = ("nDCG@10", "MAP", "R@100")
"""Default measures of rankings."""

Run = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class RankingMeasures:
    """Values of evaluation measures such as nDCG@10, for each query and on average over queries.

    Attributes:
        means: mean of each measure over all judged queries.
        queries: values of all measures for each query, by query name.
    """

    means: dict[str, float]
    queries: dict[str, list[float]]


def measure(run: Run, relevant: Judgements, measures: Sequence[str] = _MEASURES) -> RankingMeasures:
    """Evaluate rankings against relevance judgements. A judged query without a ranking gets 0 for every measure.

    Args:
        run: scores of the found documents, by query and document.
        relevant: grades of documents, by query and document; a grade above 0 is relevant.
        measures: names of measures in `ir-measures`: nDCG@10, MAP, R@100, P@5, RR, ….

    Raises:
        OptionError: a measure is unknown.
        DataError: no query is judged, or a score is NaN.
        MissingPackageError: ir-measures is not installed.

    Example:
        >>> measure({"q": {"a": 2.0, "b": 1.0}}, {"q": {"b": 1}}, ["MAP"]).means
        {'MAP': 0.5}
    """
    require_packages("search needs", "search", "ir_measures")
    import ir_measures

    parsed = {}
    for name in measures:
        try:
            parsed[name] = ir_measures.parse_measure(name)
        except (NameError, ValueError, SyntaxError):
            raise OptionError(
                f"measures must be names that the package ir-measures knows, got {name!r}. Examples are nDCG@10, MAP "
                "and R@100."
            ) from None
    if not relevant:
        raise DataError("relevant must have at least one judged query, got none. Pass judgements.")
    values: dict[str, dict[str, float]] = {query: {} for query in relevant}
    given = {query: _ranks(run[query]) for query in relevant if run.get(query)}
    judged = {query: dict(grades) for query, grades in relevant.items()}
    for one in ir_measures.iter_calc(list(parsed.values()), judged, given) if given else ():
        values[one.query_id][str(one.measure)] = float(one.value)
    # Two names, such as MAP and AP, may be one measure.
    found = {query: [each.get(str(one), 0.0) for one in parsed.values()] for query, each in values.items()}
    table = np.array(list(found.values())).reshape(len(found), len(parsed))
    return RankingMeasures({name: float(table[:, at].mean()) for at, name in enumerate(parsed)}, found)


def _ranks(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the ranks of scores, the same for equal ones, as `ir_measures` rounds scores to float32."""
    numbers = np.array(list(scores.values()), np.float64)
    if np.isnan(numbers).any():
        raise DataError("scores of a ranking must be numbers, got NaN. Leave these documents out.")
    return dict(zip(scores, np.unique(numbers, return_inverse=True)[1].astype(float).tolist(), strict=True))


def rankings(
    index: Index,
    queries: Sequence[Document],
    *,
    mix: float | None = None,
    top: int = 1000,
    progress: Progress | None = None,
) -> dict[str, dict[str, float]]:
    """Return the weights of the documents that `Index.rank` finds, by query name and document name."""
    ranked = index.rank([_query_text(query) for query in queries], top, mix=mix, progress=progress)
    return {query.name: found for query, found in zip(queries, ranked, strict=True)}


def _query_text(query: Document) -> str:
    """Return the text of a query, or its title if it has no text."""
    return query.text if query.text.strip() else query.title


def learn(
    index: Index, queries: Sequence[Document], relevant: Judgements, *, progress: Progress | None = None, **options: Any
) -> tuple[Index, list[float]]:
    """Learn the projections W_Q and W_K from judged queries, and return an index that uses them.

    Returns:
        The index with learned projections, and the loss at each step.

    Raises:
        OptionError: the encoder's vectors are sparse.
        DataError: no relevant document is in the index.
        MissingPackageError: PyTorch is not installed.
    """
    from qkv.estimators import AttentionRanker

    if not index.keys.dense:
        raise OptionError(
            f"encoder must produce dense vectors for learned projections, got {index.encoder.name!r}. Build the index "
            "with encoder='latent' or encoder='sentences'."
        )
    numbers = dict(zip(index.table.column("name").to_pylist(), index.owners.tolist(), strict=True))
    positives = [
        [numbers[name] for name, grade in relevant.get(query.name, {}).items() if grade > 0 and name in numbers]
        for query in queries
    ]
    if not any(positives):
        raise DataError(
            "relevant must include at least one document of the index, got none. Pass judgements of indexed documents."
        )
    vectors = index.encoder.encode([_query_text(query) for query in queries])
    ranker = AttentionRanker(**options).fit(
        vectors, np.asarray(index.keys.rows), positives, document_ids=index.owners, progress=progress
    )
    return index.with_metric(ranker.metric_), ranker.losses_


@dataclass(frozen=True)
class Gain:
    """Improvement of evaluation measures by learned projections, measured on several random halves of the queries.

    Attributes:
        start, learned: means over the held-out halves without and with learned projections, by measure.
        gains: differences learned − start of all halves, by measure.
    """

    start: dict[str, float]
    learned: dict[str, float]
    gains: dict[str, list[float]]

    def gain(self, name: str) -> tuple[float, float]:
        """Return the mean and the standard deviation over the halves of the gain in the measure called `name`."""
        values = np.array(self.gains[name])
        return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0


def gains(
    index: Index,
    collection: Collection,
    *,
    mixes: Sequence[float] = (1.0, 0.5),
    repeats: int = 5,
    measures: Sequence[str] = _MEASURES,
    top: int = 1000,
    progress: Progress | None = None,
    **options: Any,
) -> dict[float, Gain]:
    """Measure how much learned projections improve rankings, and return the `Gain` for each element of `mixes`.

    The queries are split at random into one half for learning and one for testing, `repeats` times.

    Args:
        index: an index without learned projections.
        collection: collection whose queries are split at random; repeat i uses the seed i.
        mixes: shares of the vectors in the score; each is measured with and without learned projections.
        repeats: number of random halves.
        measures: names of measures, see `measure`.
        top: number of passages, see `Index.rank`.
        progress: called after each repeat.
        options: options of `AttentionRanker`.

    Raises:
        DataError: the collection has fewer than four queries.
    """
    if len(collection.queries) < 4:
        raise DataError(
            f"collection must have at least 4 judged queries, got {len(collection.queries)}. Use 40 or more "
            "for reliable results."
        )
    before = {
        mix: measure(rankings(index, collection.queries, mix=mix, top=top), collection.relevant, measures).queries
        for mix in mixes
    }
    rows: dict[float, list[tuple[Float[np.ndarray, " measures"], Float[np.ndarray, " measures"]]]] = {
        mix: [] for mix in mixes
    }
    half = len(collection.queries) // 2
    for repeat in track(range(repeats), "learning", progress):
        order = np.random.default_rng(repeat).permutation(len(collection.queries))
        train, test = ([collection.queries[at] for at in part] for part in np.split(order, [half]))
        learned, _ = learn(index, train, collection.relevant, **options)
        relevant = {query.name: collection.relevant[query.name] for query in test}
        for mix in mixes:
            after = measure(rankings(learned, test, mix=mix, top=top), relevant, measures).queries
            start = np.mean([before[mix][name] for name in relevant], axis=0)
            rows[mix].append((start, np.mean([after[name] for name in relevant], axis=0)))
    return {mix: _gain(np.array(pairs), measures) for mix, pairs in rows.items()}


def _gain(pairs: Float[np.ndarray, "repeats 2 measures"], measures: Sequence[str]) -> Gain:
    """Return the `Gain` computed from `pairs`, the measures before and after learning, `(repeats, 2, measures)`."""
    start, learned = pairs.mean(axis=0).tolist()
    added = (pairs[:, 1] - pairs[:, 0]).T.tolist()
    return Gain(*(dict(zip(measures, part, strict=True)) for part in (start, learned, added)))
