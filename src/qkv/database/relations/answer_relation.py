"""Answers to a relation of queries as a stream of Arrow batches: each row is a query with the columns of its answer.

    read      a part of the relation
    ask       the distinct queries of at most 8,192 rows
    append    the columns of the answers to these rows

Only one part is in memory, so that millions of queries do not fill it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import types

from qkv.core.progress import report
from qkv.core.typing import Int
from qkv.database.answer import Answer, Entry, call_notes, call_text, entry_cells
from qkv.database.execute.ask_options import AskOptions
from qkv.database.io.python_to_arrow import exact_array
from qkv.database.io.sources import suggest_name
from qkv.database.keys.part_registry import parse_normalizer
from qkv.database.relations.query_relation import QueryRelation
from qkv.encoders.arrow_columns import to_python, with_microseconds
from qkv.encoders.columns import Column
from qkv.errors import DataError, QueryError

if TYPE_CHECKING:
    from qkv.database.execute.row_reader import StoredRows
    from qkv.database.protocol import Queryable


def evidence_arrays(
    entries: Sequence[Entry], measure: str
) -> tuple[pa.Array, Int[np.ndarray, " rows"], dict[str, pa.Array]]:
    """Return the rows of evidence of answers, one after the other.

    Args:
        entries: the answers.
        measure: "similarity" or "distance", which the evidence states; "" for neither.

    Returns:
        The offsets of the answers, as `pyarrow.ListArray` takes them; the indices of the rows; and their weights and
        similarities or distances, by name.
    """
    counts = [len(entry.rows) for entry in entries]
    numbers = {"weight": [entry.weights for entry in entries]}
    if measure:
        unknown = [np.full(count, np.nan) for count in counts]
        numbers[measure] = [u if e.nearness is None else e.nearness for e, u in zip(entries, unknown, strict=True)]
    joined = {name: np.concatenate([np.zeros(0), *each]).astype(np.float64) for name, each in numbers.items()}
    return (
        pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)),
        np.concatenate([np.zeros(0, np.int64), *(entry.rows for entry in entries)]),
        {name: pa.array(array, from_pandas=True) for name, array in joined.items()},
    )


@dataclass(frozen=True, eq=False)
class AnswerColumns:
    """The columns of a relation of answers over one database.

    Attributes:
        value: the value column of the database.
        votes: whether answers are votes.
        table: the rows of the database.
        id: the column by which evidence rows are named; None: the index of the row, from 0.
        measure: "similarity" or "distance", which the evidence states; "" for neither.
    """

    value: Column
    votes: bool
    table: pa.Table | StoredRows
    id: str | None = None
    measure: str = ""

    def __post_init__(self) -> None:
        if self.id is not None and self.id not in self.table.column_names:
            raise DataError(
                f"id must be one of {', '.join(self.table.column_names)}, got {self.id!r}."
                f"{suggest_name(self.id, self.table.column_names)}"
            )

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the columns.

        It is that of `Answer.to_arrow` without the queries, and with `evidence`: a list of structs with the id, the
        weight, and the similarity or distance of each row.
        """
        number, type_, ends = pa.float64(), pa.float64(), pa.float64()
        length = number
        if self.value.kind == "boolean":
            type_ = pa.bool_()
        elif self.votes and self.value.traits.text:
            type_ = pa.string()
        elif self.votes:
            type_ = self.value.type
        elif self.value.kind == "vector":
            type_ = pa.list_(number)
        elif self.value.kind == "timestamp":
            type_ = ends = with_microseconds(pa.table({"": pa.array([], self.value.type)})).schema.field(0).type
            length = pa.duration("us")
        fields = [("value", type_)] + [("probability", number)] * self.votes
        fields += [("standard_error", length), ("lower", ends), ("upper", ends), ("spread", length)]
        fields += [("effective_rows", number), ("found", pa.bool_()), ("reason", pa.string())]
        return pa.schema([*fields, ("evidence", pa.list_(self._evidence_type()))])

    def arrays(self, answer: Answer) -> list[pa.Array]:
        """Return the columns of some answers, in the order of `schema`."""
        columns = entry_cells(answer.entries, self.votes)
        types = {name: self.schema.field(name).type for name in columns}
        # Of timestamps, times and durations, `pa.array` leaves out nanoseconds.
        exact = {name: getattr(type_, "unit", "") == "ns" for name, type_ in types.items()}
        simple = [
            exact_array(cells).cast(types[name]) if exact[name] else pa.array(cells, types[name])
            for name, cells in columns.items()
        ]
        return [*simple, self._evidence(answer.entries)]

    def _evidence_type(self) -> pa.DataType:
        id_type = pa.int64() if self.id is None else self._rows(np.zeros(0, np.int64)).type
        fields = [("id", id_type), ("weight", pa.float64())]
        return pa.struct(fields + [(self.measure, pa.float64())] * bool(self.measure))

    def _evidence(self, entries: Sequence[Entry]) -> pa.Array:
        offsets, rows, numbers = evidence_arrays(entries, self.measure)
        parts = [pa.array(rows) if self.id is None else self._rows(rows), *numbers.values()]
        type_ = self._evidence_type()
        structs = pa.StructArray.from_arrays(parts, fields=list(type_))
        return pa.ListArray.from_arrays(offsets, structs, type=pa.list_(type_))

    def _rows(self, rows: np.ndarray) -> pa.Array:
        """Return the cells of the column `id` in some rows."""
        assert self.id is not None
        distinct, places = np.unique(rows, return_inverse=True)
        if isinstance(self.table, pa.Table):
            cells = self.table.select([self.id]).take(pa.array(distinct)).column(0)
        else:
            cells = self.table.take(distinct, [self.id]).column(0)
        ids = _combined(cells).take(pa.array(places))
        return ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids


_ROWS = 8192
"""Number of queries that are answered together. Their entries take some 10 MB."""


@dataclass
class AnswerRelation:
    """The answers of a database to the rows of a relation, computed as they are read.

    Args:
        database: the database.
        queries: the relation.
        options: the options of `ask`, which hold for all queries.
        id: the column by which evidence rows are named; None: the index of the row.

    Attributes:
        schema: the columns of the queries, then those of `AnswerColumns`. A column of the queries with the name of a
            column of answers gets the prefix `query_`.
        answer_schema: the columns of answers alone.
        notes, plan: the notes on the answers so far, and the execution plan of the first ones.
        answered, found, invalid: how many queries were answered, had a match, and could not be read.

    Raises:
        QueryError: A column does not fit its key column, or the predicate fails.
        OptionError: An option of `ask` is not allowed.
        DataError: `id` is no column.
    """

    database: Queryable
    queries: QueryRelation
    options: AskOptions
    id: str | None = None
    answered: int = field(default=0, init=False)
    found: int = field(default=0, init=False)
    invalid: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        schema = self.queries.schema
        # Without queries, the options are checked and the comparison is chosen.
        empty = self._ask([], self.options)
        pairs = zip(self.database.key, self.queries.columns, strict=True)
        for key, column in pairs if len(self.queries.columns) == len(self.database.key) else ():
            _check_type(schema.field(column).type, self.database.column(key).kind, key, column)
        value = self.database.column(self.database.value)
        self._answers = AnswerColumns(value, empty.votes, empty.table, self.id, empty.measure)
        answers = self.answer_schema = self._answers.schema
        carried = [each for each in schema if each.name != self.queries.reasons]
        names = [f"query_{each.name}" if each.name in answers.names else each.name for each in carried]
        if len({*names, *answers.names}) < len(names) + len(answers.names):
            raise QueryError(
                f"the columns of the queries must have different names, got {', '.join(names)} in {self.queries.name}. "
                "Rename a column."
            )
        fields = [each.with_name(name) for each, name in zip(carried, names, strict=True)]
        self.schema = pa.schema([*fields, *answers])
        self._empty, self.plan, self._calls = empty, empty.plan, Counter[str]()
        self._draws = samples(self.database, self.options.normalizer)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes on the answers so far."""
        return *self._empty.common_notes, *call_notes(self._calls)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the queries with their answers, as batches of at most 8,192 rows. The relation can be read once."""
        for table, answers in self._parts():
            carried = [name for name in table.column_names if name != self.queries.reasons]
            arrays = [_combined(table.column(name)) for name in carried]
            yield pa.RecordBatch.from_arrays([*arrays, *answers], schema=self.schema)

    def answer(self, table: pa.Table, number: int = 0) -> list[pa.Array]:
        """Return the columns of the answers to the rows of a table, in the order of `answer_schema`.

        Args:
            table: a part of the relation, of which `columns` are used.
            number: the index of the part, by which normalizers that sample draw other numbers for each part.
        """
        columns = [to_python(table.column(name)) for name in self.queries.columns]
        queries = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        options = self.options
        if self._draws:
            # Each part draws other numbers, and the first part the numbers of `ask`.
            seed = options.seed
            if seed is not None and number:
                seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
            distinct, places = queries, np.arange(len(queries))
            options = replace(options, seed=seed)
        else:
            distinct, places = _distinct(queries)
        answer = self._ask(distinct, options)
        self.plan = answer.plan if self.plan is self._empty.plan else self.plan
        self._calls.update(text for place in places.tolist() if (text := call_text(answer.entries[place])))
        found = np.array([entry.found for entry in answer.entries], bool)[places]
        invalid = np.array([entry.invalid for entry in answer.entries], bool)[places]
        self.found, self.invalid = self.found + int(found.sum()), self.invalid + int(invalid.sum())
        arrays = self._answers.arrays(answer)
        if len(distinct) < len(queries):
            arrays = [array.take(pa.array(places)) for array in arrays]
        if self.queries.reasons:
            place = self.answer_schema.names.index("reason")
            given = table.column(self.queries.reasons).to_pylist()
            arrays[place] = pa.array([a or b for a, b in zip(given, arrays[place].to_pylist(), strict=True)])
            self.invalid += sum(reason is not None for reason in given)
        return arrays

    def reader(self) -> pa.RecordBatchReader:
        """Return the batches as a pyarrow reader, which DuckDB, polars and the writers of pyarrow accept."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def _parts(self) -> Iterator[tuple[pa.Table, list[pa.Array]]]:
        """Yield at most 8,192 queries at a time with the columns of their answers."""
        number = 0
        for table in self.queries.tables:
            for start in range(0, table.num_rows, _ROWS):
                part = table.slice(start, _ROWS)
                answers = self.answer(part, number)
                number += 1
                self.answered += part.num_rows
                report(self.options.progress, "answering", self.answered, 0)
                yield part, answers

    def _ask(self, queries: Sequence[object], options: AskOptions) -> Answer:
        # Without queries, the bandwidth is chosen, which takes long. The progress of answers is reported by parts.
        progress = None if queries else options.progress
        options = replace(options, on_bad_query="report", progress=progress)
        return self.database.ask(list(queries), **options.arguments())


def _check_type(type_: pa.DataType, kind: str, key: str, column: str) -> None:
    """Raise a `QueryError` if no cell of a column of queries can fit a key column of texts."""
    inner = type_.value_type if types.is_dictionary(type_) else type_
    text = types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner) or types.is_null(inner)
    if kind in ("text", "category") and not text:
        raise QueryError(
            f"the column {column!r} of the queries must hold texts, like the key {key!r}, got {type_}. "
            "Convert the column to texts."
        )


def _combined(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else combined.chunk(0)


def samples(database: Queryable, normalizer: object) -> bool:
    """Return whether the normalizer of a call of `ask` samples rows at random."""
    given = getattr(database, "normalizer", None) if normalizer is None else normalizer
    parsed = parse_normalizer(given) if isinstance(given, str) else given
    return bool(getattr(parsed, "stochastic", False))


def _distinct(queries: Sequence[object]) -> tuple[list[object], Int[np.ndarray, " q"]]:
    """Return the distinct queries in the order of their first occurrence, and the place of each query among them.

    Example:
        >>> distinct, places = _distinct(["Li", "Hu", "Li"])
        >>> distinct, places.tolist()
        (['Li', 'Hu'], [0, 1, 0])
    """
    try:
        numbers: dict[tuple[object, object], int] = {}
        # Two timestamps of one zone are equal in Python if their clock times are, even when the clocks are set back.
        places = [numbers.setdefault((query, _fold(query)), len(numbers)) for query in queries]
    except TypeError:  # vectors are lists
        return list(queries), np.arange(len(queries))
    return [query for query, _ in numbers], np.array(places, np.int64)


def _fold(query: object) -> object:
    """Return the folds of the timestamps of a query."""
    return tuple(map(_fold, query)) if isinstance(query, tuple) else getattr(query, "fold", 0)
