"""The functions `compute`, `merge` and `finalize`, with which other engines run queries over the fragments of a table.

    compute     the partial result of queries over the rows of one fragment
    merge       one partial result from several, in any order and grouping
    finalize    the answers

Partial results are Arrow record batches, so that Ray Data, Dask, DuckDB or any other engine can move them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.checks import check_integers
from qkv.core.tile import Tile
from qkv.core.typing import Float
from qkv.database.answer import Entry, entry_cells
from qkv.database.execute.aggregates import Aggregate, Values, check_average, value_sums
from qkv.database.execute.block_scan import BlockScan, is_bounded
from qkv.database.execute.partial_sums import accumulates, tile_weights
from qkv.database.execute.row_lists import FRAGMENT_ROWS, RowLists
from qkv.database.execute.row_reader import TILE, RowTile
from qkv.database.execute.uncertainty import effective_rows, mean_precision, standard_error
from qkv.database.io.python_to_arrow import exact_array
from qkv.database.io.sources import read, requested_columns, require_columns
from qkv.database.keys.comparisons import ScoreComparison
from qkv.database.keys.part_registry import parse_normalizer, parse_score
from qkv.database.keys.queries import Queries
from qkv.database.partials.arrow_format import from_batch, lists_by_query, normalizer_record, to_batch
from qkv.database.partials.query_partial import (
    QueryPartial,
    Subject,
    describe_score,
    fragment_partial,
    merge_partials,
    query_digest,
)
from qkv.encoders.columns import Column, key_names
from qkv.errors import KindError, OptionError, RefusedError, ShapeError
from qkv.normalizers import NORMALIZERS
from qkv.normalizers.base import Normalizer
from qkv.scores import ByColumn
from qkv.scores.base import Score


@dataclass(frozen=True, eq=False)
class _Results:
    """The results of all queries.

    Attributes:
        aggregates: the aggregate of each query; None without a row of non-zero weight.
        effective: `(q,)`, the effective number of rows; NaN if unknown.
        weights: `(n,)`, the weight of each of `rows`.
        rows: the rows with the largest weights of each query.
        value: the value column, which gives the unit.
    """

    aggregates: list[Aggregate | None]
    effective: Float[np.ndarray, " q"]
    weights: Float[np.ndarray, " n"]
    rows: RowLists
    value: Column


def answer_table(partial: QueryPartial) -> pa.Table:
    """Return a table with the answer to each query; see `finalize`."""
    results = _from_candidates(partial) if partial.sums is None else _from_sums(partial)
    each = zip(results.aggregates, results.effective.tolist(), strict=True)
    entries = [_entry(aggregate, rows, results.value) for aggregate, rows in each]
    columns = entry_cells(entries, any(entry.probabilities for entry in entries))
    arrays: dict[str, pa.Array] = {
        name: exact_array(cells) for name, cells in columns.items() if name not in ("lower", "upper", "reason")
    }
    for name in ("standard_error", "spread", "effective_rows"):
        if pa.types.is_null(arrays[name].type):
            arrays[name] = arrays[name].cast(pa.float64())
    arrays["evidence"] = _evidence(partial, results)
    return pa.table(arrays)


def _entry(aggregate: Aggregate | None, rows: float, value: Column) -> Entry:
    """Return the answer to a query from its aggregate and the effective number of rows, which is NaN if unknown."""
    if aggregate is None:
        return Entry(None, False, effective_rows=None)
    error = standard_error(aggregate.center, mean_precision(aggregate.deviation, rows), value)
    effective, probabilities = None if np.isnan(rows) else rows, aggregate.probabilities
    numbers = aggregate.value, aggregate.spread
    return Entry(None, True, *numbers, probabilities=probabilities, standard_error=error, effective_rows=effective)


def _evidence(partial: QueryPartial, results: _Results) -> pa.Array:
    rows = results.rows
    fragment, row = np.divmod(rows.position, FRAGMENT_ROWS)
    names = partial.fragments
    type_ = pa.string() if names and isinstance(names[0], str) else pa.int64()
    arrays = {
        "fragment": pa.array([names[index] for index in fragment.tolist()], type_),
        "row": pa.array(row),
        "weight": pa.array(results.weights),
    }
    if rows.record is not None:
        for index in range(rows.record.type.num_fields):
            name = rows.record.type.field(index).name
            arrays.setdefault(name, rows.record.field(index))
    structs = pa.StructArray.from_arrays(list(arrays.values()), names=list(arrays))
    return lists_by_query(rows.query, partial.subject.count, structs)


# -- sums -----------------------------------------------------------------------------------------------


def _from_sums(partial: QueryPartial) -> _Results:
    assert partial.sums is not None
    count, normalizer, value = partial.subject.count, partial.normalizer, _empty_column(partial)
    summary, aggregates, _, effective = partial.sums.finalize(normalizer, value)
    rows = partial.rows.largest(normalizer, partial.subject.top)
    weights = np.zeros(0)
    if len(rows.query):
        logits = rows.padded(rows.logit, count)
        weights = tile_weights(normalizer, logits, summary)[rows.query, rows.places()]
        weighted = np.flatnonzero(weights != 0)
        rows, weights = rows.take(weighted), weights[weighted]
    found = np.bincount(rows.query, minlength=count) > 0
    own = [aggregate if one else None for aggregate, one in zip(aggregates, found, strict=True)]
    effective = np.full(count, np.nan) if effective is None else effective
    return _Results(own, effective, weights, rows, value)


def _empty_column(partial: QueryPartial) -> Column:
    return Column.from_table(
        pa.schema({partial.subject.value: partial.value_type}).empty_table(), partial.subject.value
    )


# -- candidates -----------------------------------------------------------------------------------------


def _from_candidates(partial: QueryPartial) -> _Results:
    rows, count, normalizer = partial.rows, partial.subject.count, partial.normalizer
    rows = rows.take(np.lexsort((rows.position, rows.query)))
    value = _empty_column(partial)
    aggregates: list[Aggregate | None] = [None] * count
    effective, weights, evidence = np.full(count, np.nan), [np.zeros(0)], [np.zeros(0, np.int64)]
    cells = None
    if len(rows.query):
        assert rows.record is not None
        name = partial.subject.value
        cells = Column.from_table(pa.table({name: rows.record.field(name)}), name)
        value = cells
    starts = np.searchsorted(rows.query, np.arange(count + 1))
    for query in range(count):
        own = np.arange(starts[query], starts[query + 1])
        if not len(own) or cells is None:
            continue
        each = np.asarray(normalizer.weights(rows.logit[own][None], Tile.whole(1, len(own))))
        if not (each != 0).any():
            continue
        (aggregates[query],) = Values.of(cells.take(own)).aggregate(each)
        if normalizer.sums_to_one:
            effective[query] = effective_rows(each)[0]
        order = np.argsort(-each[0], kind="stable")[: partial.subject.top]
        order = order[each[0][order] != 0]
        weights.append(each[0][order])
        evidence.append(own[order])
    return _Results(aggregates, effective, np.concatenate(weights), rows.take(np.concatenate(evidence)), value)


def compute(
    queries: object,
    rows: object,
    key: str | Sequence[str],
    value: str,
    *,
    score: Score | str,
    fragment: int | str,
    normalizer: Normalizer | str | None = None,
    version: int | str = 0,
    top: int = 10,
    columns: Sequence[str] | None = None,
    fold: bool = True,
) -> pa.RecordBatch:
    """Return the partial result of queries over one fragment of a table, as an Arrow record batch.

    With logits l and values v of the rows of the fragment, and m = max l, the partial result of Softmax is

        m       Σ e^(l − m)       Σ e^(l − m) v       and what spread, standard error and evidence need

    that of Sum and Mean has sums of unnormalized weights, and that of TopK, Hard, Sparsemax and 1.5-entmax the rows
    that can have weight: the threshold of a fragment is a lower bound of that of the table. Its size does not depend on
    the number of rows, except where more rows have weight.

    Nothing is chosen from the rows of a fragment: keys are compared as they are (timestamps in days since 1970), and
    each row without a key or a value, or with a number that is not finite, is left out. Logits are computed in float64.

    Args:
        queries: one query or several, as in `Database.ask`.
        rows: the rows of the fragment: a pyarrow table, a data frame, a dict of columns, a file.
        key: one column name, a list of names, or names separated by commas.
        value: the name of the value column.
        score: a score, or its name with its numbers (`"gaussian:0.5"`).
        fragment: the name of the fragment, an integer or a text. Names must sort in the order of the rows of the
            table where ties are decided by the first row.
        normalizer: a normalizer or its name; None: that of the score, Softmax for most.
        version: the version of the table. Partial results of different versions do not merge.
        top: number of rows of evidence.
        columns: columns of the rows of evidence; None: the key columns and the value column.
        fold: whether texts are compared without regard to case, as in `Database.open`.

    Returns:
        A record batch with one row per query. The metadata of its schema holds the score, the normalizer, the version,
        the fragments and the format.

    Raises:
        DataError: A column is missing, or has a type that cannot be compared.
        OptionError: The score or normalizer is unknown, or needs what is not known in a fragment, such as a bandwidth.
        QueryError: A query does not fit the key.
        RefusedError: The normalizer samples, or needs all logits of a query at once.

    Example:
        >>> from qkv.database import partials
        >>> fragments = [{"years": [1.0], "pay": [10.0]}, {"years": [3.0, 5.0], "pay": [30.0, 50.0]}]
        >>> parts = [
        ...     partials.compute([2.0], rows, "years", "pay", score="gaussian:1", fragment=number)
        ...     for number, rows in enumerate(fragments)
        ... ]
        >>> round(partials.finalize(partials.merge(parts))["value"][0].as_py(), 3)
        20.272
    """
    check_integers(top=top)
    if isinstance(fragment, bool) or not isinstance(fragment, (int, str)):
        raise OptionError(f"fragment must be an integer or a text, got {fragment!r}. Pass the name of the fragment.")
    score = _score(score)
    normalizer = parse_normalizer(normalizer) if isinstance(normalizer, str) else normalizer
    normalizer = normalizer or NORMALIZERS[score.default_normalizer]()
    record = normalizer_record(normalizer)
    check_mergeable(normalizer)
    table = read(rows, requested_columns(key, value))
    keys = key_names(key, table.column_names)
    shown = tuple(dict.fromkeys((*keys, value) if columns is None else (*columns, value)))
    require_columns(table, (*keys, value, *shown), "the fragment")
    own = [_column(table, name, fold) for name in (*keys, value)]
    check_average(own[-1], normalizer)
    parsed = Queries.parse(queries, own[:-1], fold)
    comparison = _comparison(score, own[:-1])
    query = comparison.query_array(parsed.columns)
    subject = Subject(
        queries=query_digest(query, parsed.missing),
        count=len(parsed),
        key=keys,
        value=value,
        score=f"{describe_score(score)}{'' if fold else ', not folded'}",
        normalizer=json.dumps(record),
        version=str(version),
        top=top,
    )
    scan = BlockScan(comparison, own, query, fold, without=parsed.missing)
    values = value_sums(own[-1], len(parsed))
    try:
        with ignore_numpy_warnings():  # of logits that are NaN or infinite
            found = fragment_partial(scan, partial(_tiles, table), table.take, subject, normalizer, values, fragment)
    except (KindError, ShapeError) as error:
        raise comparison.unsupported(error) from None
    return to_batch(replace(found, rows=_with_records(found.rows, table, shown)))


def _tiles(table: pa.Table) -> Iterator[RowTile]:
    for start in range(0, table.num_rows, TILE):
        yield RowTile.of_table(table.slice(start, TILE), start)


def merge(partials: Iterable[object]) -> pa.RecordBatch:
    """Return one partial result from several, which may come in any order and may be merged results themselves.

    One whose fragments are repeated replaces the earlier one and is not added, so that work can be repeated after a
    failure. The result does not depend on the order of the partial results.

    Args:
        partials: results of `compute` and `merge`, as record batches, tables or the bytes of Arrow IPC streams.

    Raises:
        OptionError: There is none; their queries, scores, normalizers, columns or versions differ; or two share some
            of their fragments only.
        DamagedError: One of them is damaged, or of another format.

    Example:
        >>> from qkv.database import partials
        >>> first = partials.compute(["Li"], {"name": ["Li"], "pay": [1]}, "name", "pay", score="exact", fragment=0)
        >>> second = partials.compute(["Li"], {"name": ["Li"], "pay": [3]}, "name", "pay", score="exact", fragment=1)
        >>> partials.finalize(partials.merge([second, first, second]))["value"].to_pylist()
        [2.0]
    """
    with ignore_numpy_warnings():
        return to_batch(merge_partials(map(from_batch, partials)))


def finalize(partial: object) -> pa.Table:
    """Return the answers of a partial result over all fragments of a table, one row per query.

    The columns are value, probability (for votes of texts, categories and booleans), standard_error, spread,
    effective_rows, found, and evidence: a list of structs with the fragment, the row, the weight and the cells of each
    of the rows with the largest weights. They are those of `Database.ask`; there is no largest distance of a match.

    Args:
        partial: the result of `merge` or `compute`.

    Raises:
        DamagedError: It is damaged, or of another format.

    Example:
        >>> from qkv.database import partials
        >>> rows = {"years": [1.0, 3.0], "pay": [10.0, 30.0]}
        >>> part = partials.compute([2.0, 3.0], rows, "years", "pay", score="boxcar:1", fragment="a")
        >>> answers = partials.finalize(part)
        >>> answers["value"].to_pylist(), answers["standard_error"].to_pylist()
        ([20.0, 30.0], [10.0, None])
        >>> [(row["row"], row["weight"], row["pay"]) for row in answers["evidence"][0].as_py()]
        [(0, 0.5, 10.0), (1, 0.5, 30.0)]
    """
    with ignore_numpy_warnings():
        return answer_table(from_batch(partial))


def _score(score: Score | str) -> Score:
    if isinstance(score, Score):
        return score
    if not isinstance(score, str):
        raise OptionError(f"score must be a score or its name, got {score!r}. Pass one, such as 'gaussian:0.5'.")
    parsed = parse_score(score)
    if parsed.needs_bandwidth:
        raise OptionError(
            f"score must have a bandwidth for a fragment, which does not determine one, got {score!r}. "
            f"Append it, as in {score}:0.5."
        )
    return parsed.build()


def _column(table: pa.Table, name: str, fold: bool) -> Column:
    column = Column.from_table(table, name, fold)
    if column.kind != "timestamp":
        return column
    # All fragments count timestamps from 1970.
    return Column.from_table(table, name, fold, replace(column, origin=0))


def check_mergeable(normalizer: Normalizer) -> None:
    """Raise a `RefusedError` if the results of a normalizer over parts of the rows cannot be merged."""
    if normalizer.stochastic or not (accumulates(normalizer) or is_bounded(normalizer)):
        raise RefusedError(
            f"normalizer must have partial results that merge, got {normalizer}, which samples or needs all logits of "
            "a query at once. Choose Softmax, Sum, Mean, TopK, Hard, Sparsemax or Entmax15."
        )


def _comparison(score: Score, columns: Sequence[Column]) -> ScoreComparison:
    numeric = all(column.traits.compared == "distance" for column in columns)
    several = len(columns) > 1 and not numeric
    if several and not score.accepts_records:
        raise OptionError(
            f"score must compare each column on its own if the key has columns of several kinds, got {score}. "
            "Pass scores.ByColumn."
        )
    own = tuple(columns)
    structured = several or isinstance(score, ByColumn)
    return ScoreComparison(tuple(range(len(own))), own, score, None, np.zeros(0), (), structured=structured)


def _with_records(rows: RowLists, table: pa.Table, names: Sequence[str]) -> RowLists:
    """Return lists of rows with the cells of some columns of their table, dictionary-encoded columns decoded."""
    arrays = []
    for column in table.select(list(names)).take(pa.array(rows.position)).columns:
        plain = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        combined = plain.combine_chunks()
        arrays.append(combined if isinstance(combined, pa.Array) else pa.array([], plain.type))
    return replace(rows, record=pa.StructArray.from_arrays(arrays, names=list(names)))
