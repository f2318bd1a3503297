"""Entries of answers, from the rows with the largest weights and the aggregated values of a group of queries."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from qkv.core.ordering import top_k_indices
from qkv.core.printable import quoted_key
from qkv.core.progress import checkpoint
from qkv.core.typing import Bool, Float, Int, Shaped
from qkv.database.answer import Call, Entry
from qkv.database.execute.aggregates import Aggregate
from qkv.database.execute.uncertainty import Calibration, mean_precision, prediction_interval, standard_error
from qkv.database.keys.comparisons import Comparison, MixedComparison, find_coordinates
from qkv.database.keys.queries import Queries
from qkv.encoders.columns import Column
from qkv.normalizers.base import Normalizer

NO_MATCHING_ROW = "no row satisfies the predicate"
# Number of candidates in the reason of an ambiguous query.
_SHOWN = 5


def with_missing_entries(queries: Queries, entries: list[Entry]) -> list[Entry]:
    """Return the entries of all queries, from those of the queries that are not missing."""
    found = iter(entries)
    out = []
    for query, missing, error in zip(
        queries.originals, queries.missing, queries.errors or ("",) * len(queries), strict=True
    ):
        checkpoint()
        reason = error or "the query is missing"
        out.append(Entry(query, False, reason=reason, invalid=bool(error)) if missing else next(found))
    return out


def with_first_rows(
    weights: Float[np.ndarray, "q rows"], first: Int[np.ndarray, " rows"], allowed: Bool[np.ndarray, " rows"]
) -> Float[np.ndarray, "q rows"]:
    """Return weights with those of rows of equal keys in descending order, so that ties go to the first of them.

    Args:
        weights: the weights.
        first: the index of the first row with the key of each row.
        allowed: the rows that take part.

    Example:
        >>> with_first_rows(np.array([[0.0, 0.3, 0.7]]), np.array([0, 1, 0]), np.ones(3, bool)).tolist()
        [[0.7, 0.3, 0.0]]
    """
    rows = np.flatnonzero(allowed)
    rows = rows[np.argsort(first[rows], kind="stable")]
    out = np.array(weights)
    for place, row in enumerate(weights):
        out[place, rows] = row[rows[np.lexsort((-row[rows], first[rows]))]]
    return out


def largest_weights(
    weights: Float[np.ndarray, "q rows"], top: int
) -> tuple[Int[np.ndarray, "q n"], Float[np.ndarray, "q n"]]:
    """Return for each query the column indices of its largest weights, −1 for a weight of 0, and these weights."""
    weights = weights if weights.shape[1] else np.zeros((len(weights), 1))
    rank = np.where(weights == 0, -np.inf, weights)
    order = np.asarray(top_k_indices(rank, min(top, weights.shape[1])))
    heavy = np.take_along_axis(weights, order, axis=1)
    return np.where(heavy == 0, -1, order), heavy


@dataclass(frozen=True, eq=False)
class QueryResults:
    """The rows with the largest weights, their weights, and the aggregated value of each query of a group.

    Attributes:
        rows: `(q, n)` indices of the rows with the largest weights, in descending order; −1 in unused places.
        weights: `(q, n)` weights of these rows.
        nearest: `(q,)`, the nearest row; −1 where there is none.
        perplexity: `(q,)`, exp(entropy) of the weights; None if they do not sum to 1.
        effective_rows: `(q,)`, 1 / Σ w² of the weights, or NaN if one is negative; None if they do not sum to 1.
        aggregates: the aggregated value of each query.
    """

    rows: Int[np.ndarray, "q n"]
    weights: Float[np.ndarray, "q n"]
    nearest: Int[np.ndarray, " q"]
    perplexity: Float[np.ndarray, " q"] | None
    effective_rows: Float[np.ndarray, " q"] | None
    aggregates: list[Aggregate]


def build_entries(
    queries: Queries,
    query: Shaped[np.ndarray, "q ..."],
    comparison: Comparison,
    results: QueryResults,
    normalizer: Normalizer,
    value: Column,
    calibration: Callable[[], Calibration],
    no_row_reason: str = "",
    table_rows: Int[np.ndarray, " n"] | None = None,
    top: int | None = None,
    rows_text: str = "all rows",
) -> list[Entry]:
    """Return an `Entry` for each query, with its value and evidence or with the reason for "no match".

    Args:
        queries: the parsed queries.
        query: the engine's query array.
        comparison: the comparison over the rows to which `results` refers.
        results: the results.
        normalizer: the normalizer.
        value: the value column, or some rows of it.
        calibration: returns the factors of prediction intervals.
        no_row_reason: the reason why all rows are excluded; "" if some are included.
        table_rows: the indices of these rows in the table; None if they are the whole table.
        top: number of rows in each entry; None for all.
        rows_text: the rows over which the call ran, in words.
    """
    reasons = _no_match_reasons(queries, query, comparison, results.nearest, results.weights, normalizer, no_row_reason)
    safe = np.maximum(results.rows, 0)
    nearness = comparison.nearness(query, safe) if len(comparison.key) else None

    @cache
    def factors() -> Float[np.ndarray, "q 2"]:
        """Return the factors of the prediction interval of each query, which are estimated if one has an interval."""
        found, coordinates = calibration(), find_coordinates(comparison)
        scale = found.scale_at(None if coordinates is None else coordinates.of(query), len(query))
        return np.asarray(scale[:, None] * [found.lower, found.upper])

    def factors_of(index: int) -> tuple[float, float]:
        lower, upper = factors()[index].tolist()
        return lower, upper

    nearest = np.where(results.weights[:, 0] == 0, -1, results.nearest).tolist()
    call = Call(comparison.score, normalizer, rows_text, comparison.bandwidths(-1))
    entries = []
    for i, original in enumerate(queries.originals):
        checkpoint()
        own, remarks = _call_of_row(call, comparison, nearest[i])
        near = nearest[i] if table_rows is None or nearest[i] < 0 else int(table_rows[nearest[i]])
        if reasons[i]:
            invalid = bool(queries.errors and queries.errors[i])
            calls = () if queries.missing[i] or no_row_reason else (own,)
            entries.append(Entry(original, False, reason=reasons[i], invalid=invalid, calls=calls, nearest=near))
            continue
        weighted = np.flatnonzero((results.rows[i] >= 0) & (results.weights[i] != 0))
        candidates: tuple[str, ...] = ()
        weighted_rows = safe[i][weighted]
        if not normalizer.constant:
            default = normalizer is comparison.normalizer
            candidates = comparison.candidates(query[i], weighted_rows, default)
        weighted = weighted[:top]
        rows, aggregate = safe[i][weighted], results.aggregates[i]
        table_index = rows if table_rows is None else table_rows[rows]
        evidence = table_index, results.weights[i][weighted], None if nearness is None else nearness[i][weighted]
        if candidates:
            # The rows are shown, but their average is no answer.
            more = len(weighted_rows) >= comparison.candidate_rows > 0 and len(candidates) == len(
                set(comparison.key[weighted_rows].tolist())
            )
            reason = ambiguous_reason(candidates, more)
            ambiguous = Entry(original, False, None, None, 0.0, reason, {}, *evidence, candidates=candidates)
            entries.append(replace(ambiguous, calls=(own,), nearest=near))
            continue
        effective = np.nan if results.effective_rows is None else _near_whole(float(results.effective_rows[i]))
        fit = aggregate.fit
        precision = mean_precision(aggregate.deviation, effective) if fit is None else fit.precision
        entry = Entry(
            original,
            True,
            aggregate.value,
            aggregate.spread,
            None if results.perplexity is None else float(results.perplexity[i]),
            "",
            aggregate.probabilities,
            *evidence,
            standard_error=standard_error(aggregate.center, precision, value),
            prediction_interval=prediction_interval(aggregate.center, precision, value, partial(factors_of, i)),
            effective_rows=None if np.isnan(effective) else effective,
            gradient={} if fit is None else fit.gradient,
            gradient_error={} if fit is None else fit.gradient_error,
            fit_note="" if fit is None else fit.note,
            remarks=remarks,
            calls=(own,),
            nearest=near,
        )
        entries.append(entry)
    return entries


def _near_whole(number: float) -> float:
    """Return the whole number from which a number differs by rounding errors, otherwise the number."""
    return float(round(number)) if math.isfinite(number) and abs(number - round(number)) < 1e-12 * number else number


def _call_of_row(call: Call, comparison: Comparison, row: int) -> tuple[Call, tuple[str, ...]]:
    """Return a call with the bandwidth of the group of a row, and a sentence that states a bandwidth of its own."""
    score = comparison.score_of(row)
    if score is comparison.score:
        return call, ()
    widths = comparison.bandwidths(row)
    parts = [part for _, part in comparison.parts] if isinstance(comparison, MixedComparison) else [comparison]
    days = {column.name for part in parts for column in part.key_columns if column.kind == "timestamp"}
    text = ", ".join(f"{width:.3g} {'days of ' * (name in days)}{name}" for name, width in widths.items())
    return replace(call, score=score, bandwidth=widths), (f"bandwidth of the group of this answer: {text}",)


def ambiguous_reason(candidates: tuple[str, ...], more: bool = False) -> str:
    """Return the reason why a query that several keys, or more than these, match about equally well has no answer."""
    shown = ", ".join(map(quoted_key, candidates[:_SHOWN])) + ", …" * (len(candidates) > _SHOWN)
    return f"{len(candidates)}{' or more' * more} keys match about equally: {shown}; ask for one of them"


def _no_match_reasons(
    queries: Queries,
    query: Shaped[np.ndarray, "q ..."],
    comparison: Comparison,
    nearest: Int[np.ndarray, " q"],
    weights: Float[np.ndarray, "q n"],
    normalizer: Normalizer,
    no_row_reason: str,
) -> list[str]:
    """Return for each query the reason why it has no match, or an empty string if it has a match."""
    without_weight = (nearest < 0) | (weights[:, 0] == 0)
    # Equal weights do not depend on the query, so every query has a match.
    mismatches: list[str | None] = [None] * len(nearest)
    if not normalizer.constant and len(comparison.key):
        mismatches = comparison.mismatches(query, np.maximum(nearest, 0))
    errors = queries.errors or [""] * len(queries)
    return [
        error or "the query is missing"
        if missing
        else no_row_reason or (comparison.no_weight_reason if no_weight else mismatch or "")
        for missing, error, no_weight, mismatch in zip(queries.missing, errors, without_weight, mismatches, strict=True)
    ]
