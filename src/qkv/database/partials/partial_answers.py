"""Conversion of a merged partial result to a table of answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.core.tile import Tile
from qkv.core.typing import Float, Int
from qkv.database.execute.accumulators import accumulator_for
from qkv.database.execute.aggregates import Aggregate, aggregator_for
from qkv.database.execute.running_aggregates import streamed_aggregator_for
from qkv.database.execute.uncertainty import effective_rows, mean_precision, standard_error
from qkv.database.io.python_cells import exact_array
from qkv.database.keys.columns import Column
from qkv.database.partials.query_partial import QueryPartial
from qkv.database.partials.row_lists import FRAGMENT_ROWS, RowLists

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["answer_table"]


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
    import pyarrow as pa

    results = _from_candidates(partial) if partial.sums is None else _from_sums(partial)
    found = [aggregate is not None for aggregate in results.aggregates]
    votes = any(aggregate is not None and aggregate.probabilities for aggregate in results.aggregates)
    columns: dict[str, Any] = {"value": [_cell(aggregate) for aggregate in results.aggregates]}
    if votes:
        columns["probability"] = [
            None if aggregate is None else aggregate.probabilities.get(aggregate.value)
            for aggregate in results.aggregates
        ]
    errors, spreads, effective = [], [], []
    for aggregate, rows in zip(results.aggregates, results.effective.tolist(), strict=True):
        precision = None if aggregate is None else mean_precision(aggregate.deviation, rows)
        errors.append(standard_error(precision, results.value))
        spreads.append(None if aggregate is None else aggregate.spread)
        effective.append(None if aggregate is None or np.isnan(rows) else rows)
    columns |= {"standard_error": errors, "spread": spreads, "effective_rows": effective, "found": found}
    arrays: dict[str, Any] = {name: exact_array(cells) for name, cells in columns.items()}
    for name in ("standard_error", "spread", "effective_rows"):
        if pa.types.is_null(arrays[name].type):
            arrays[name] = arrays[name].cast(pa.float64())
    arrays["evidence"] = _evidence(partial, results)
    return pa.table(arrays)


def _cell(aggregate: Aggregate | None) -> object:
    if aggregate is None:
        return None
    return aggregate.value.tolist() if isinstance(aggregate.value, np.ndarray) else aggregate.value


def _evidence(partial: QueryPartial, results: _Results) -> pa.Array:
    import pyarrow as pa

    rows = results.rows
    fragment, row = np.divmod(rows.position, FRAGMENT_ROWS)
    names = partial.fragments
    arrays = {
        "fragment": pa.array([names[index] for index in fragment.tolist()], _fragment_type(partial)),
        "row": pa.array(row),
        "weight": pa.array(results.weights),
    }
    if rows.record is not None:
        for index in range(rows.record.type.num_fields):
            name = rows.record.type.field(index).name
            arrays.setdefault(name, rows.record.field(index))
    structs = pa.StructArray.from_arrays(list(arrays.values()), names=list(arrays))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows.query, minlength=partial.subject.count))])
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), structs)


def _fragment_type(partial: QueryPartial) -> pa.DataType:
    import pyarrow as pa

    return pa.string() if partial.fragments and isinstance(partial.fragments[0], str) else pa.int64()


# -- sums -----------------------------------------------------------------------------------------------


def _from_sums(partial: QueryPartial) -> _Results:
    assert partial.sums is not None
    count, normalizer = partial.subject.count, partial.normalizer
    value = _empty_column(partial)
    values = streamed_aggregator_for(value, True, count)
    accumulator = accumulator_for(normalizer, count, values, 1)
    assert accumulator is not None
    accumulator.restore(partial.sums)
    summary, aggregates, _, effective = accumulator.finalize()
    rows = partial.rows.largest(normalizer, partial.subject.top)
    weights = np.zeros(0)
    if len(rows.query):
        query, place = rows.query, _places(rows.query)
        logits = np.full((count, int(place.max()) + 1), -np.inf)
        logits[query, place] = rows.logit
        weights = accumulator.weights(logits, summary)[query, place]
        weighted = np.flatnonzero(weights != 0)
        rows, weights = rows.take(weighted), weights[weighted]
    found = np.bincount(rows.query, minlength=count) > 0
    own = [aggregate if one else None for aggregate, one in zip(aggregates, found, strict=True)]
    effective = np.full(count, np.nan) if effective is None else effective
    return _Results(own, effective, weights, rows, value)


def _empty_column(partial: QueryPartial) -> Column:
    import pyarrow as pa

    return Column.from_table(
        pa.schema({partial.subject.value: partial.value_type}).empty_table(), partial.subject.value
    )


def _places(query: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Return the place of each element among those of its query, which are ascending."""
    _, start, length = np.unique(query, return_index=True, return_counts=True)
    return np.asarray(np.arange(len(query)) - np.repeat(start, length))


# -- candidates -----------------------------------------------------------------------------------------


def _from_candidates(partial: QueryPartial) -> _Results:
    import pyarrow as pa

    rows, count, normalizer = partial.rows, partial.subject.count, partial.normalizer
    rows = rows.take(np.lexsort((rows.position, rows.query)))
    value = _empty_column(partial)
    aggregates: list[Aggregate | None] = [None] * count
    effective, weights, kept = np.full(count, np.nan), [np.zeros(0)], [np.zeros(0, np.int64)]
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
        aggregator = aggregator_for(cells.take(own))
        (aggregates[query],) = aggregator.aggregate(each @ aggregator.matrix(), each)
        if normalizer.sums_to_one:
            effective[query] = effective_rows(each)[0]
        order = np.argsort(-each[0], kind="stable")[: partial.subject.top]
        order = order[each[0][order] != 0]
        weights.append(each[0][order])
        kept.append(own[order])
    return _Results(aggregates, effective, np.concatenate(weights), rows.take(np.concatenate(kept)), value)
