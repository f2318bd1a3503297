"""The encoder of a store: it makes a column of vectors from the rows, and vectors from queries.

    create    the encoder is fitted to the first rows, and saved with the store
    append    key columns → vectors, in batches; a row without a key has none
    ask       queries → vectors, which are compared with the column

A key or query without any known feature is the zero vector. Its cosine with everything is 0, and a query of that
kind has no match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.core.progress import Progress, report
from qkv.core.typing import Bool, Float, Shaped
from qkv.database.answer import Answer, Entry
from qkv.database.execute.stream_plan import StreamedPlan
from qkv.database.keys.columns import Column
from qkv.database.keys.queries import Queries
from qkv.errors import DataError, OptionError
from qkv.store import Store, read_attached

if TYPE_CHECKING:
    import pyarrow as pa

    from qkv.encoders.encoder import Encoder

__all__ = ["FILE", "EncodedQueries", "Encoding"]

FILE = "encoder.npz"
_BATCH = 1024
_UNKNOWN = "the encoder knows no part of it"


@dataclass(frozen=True, eq=False)
class EncodedQueries:
    """Queries as vectors.

    Fields:
        queries: the queries, with their vectors as the single cell.
        unknown: `(q,)`, True where the encoder knows no part of the query.
    """

    queries: Queries
    unknown: Bool[np.ndarray, " q"]


@dataclass(frozen=True, eq=False)
class Encoding:
    """The encoder of a store's key columns, loaded on first use.

    Fields:
        columns: the key columns that are encoded.
        name, settings: of the encoder.
        width: of the vectors.
        description: the encoder in words.
        load_encoder: returns the encoder.
    """

    columns: tuple[str, ...]
    name: str
    settings: Mapping[str, object]
    width: int
    description: str
    load_encoder: Callable[[], Encoder]

    @classmethod
    def learn(
        cls, encoder: Encoder, columns: Sequence[str], table: pa.Table, progress: Progress | None = None
    ) -> Encoding:
        """Return the encoding by an encoder, fitted to the rows of a table unless it is fitted already.

        Raises:
            OptionError: The encoder does not fit these columns, or has no rows to learn from.
            DataError: It can learn nothing from these rows.
        """
        _check(encoder, columns, table)
        if not encoder.fitted:
            if not table.num_rows:
                raise OptionError(
                    f"source must have rows for the encoder {encoder.name!r} to learn from, got none. "
                    "Give the first rows, or a fitted encoder."
                )
            encoder.fit_encode(_inputs(encoder, columns, table, _has_key(encoder, columns, table)), progress)
        return cls(tuple(columns), encoder.name, encoder.settings(), encoder.width, str(encoder), lambda: encoder)

    @classmethod
    def load(cls, store: Store, record: Mapping[str, Any], use: bool = True) -> Encoding:
        """Return the encoding saved with a store.

        Args:
            store: the store.
            record: the result of `record`.
            use: whether it will be used, so that the model it needs must exist.

        Raises:
            DataError: A model that it needs does not exist.
        """
        from qkv.encoders.serialization import ENCODER_KINDS, unpack

        name, settings = record["name"], record["settings"]
        if name not in ENCODER_KINDS:
            raise DataError(f"{store.path.name!r} was written by a newer qkv. Update: pip install -U qkv.")
        missing = ENCODER_KINDS[name].missing_resources(settings)
        if use and missing:
            raise DataError(
                f"{store.path.name!r} was encoded by {missing}, which does not exist. Restore it, or open the store "
                "with damaged='skip' to read its rows."
            )

        return cls(
            tuple(record["columns"]),
            name,
            settings,
            record["width"],
            record["said"],
            lambda: unpack(name, settings, read_attached(store.path, store.metadata, FILE)),
        )

    def record(self) -> dict[str, object]:
        """Return the description of the encoding for the metadata of a store."""
        record = {"columns": list(self.columns), "name": self.name, "settings": self.settings}
        return {**record, "width": self.width, "said": self.description}

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder.

        Raises:
            DamagedStoreError: Its file is damaged.
            DataError: The model it needs does not exist or has changed.
        """
        return self.load_encoder()

    @property
    def vector(self) -> str:
        """The name of the column of vectors."""
        return f"vector of {', '.join(self.columns)}"

    def schema(self, rows: pa.Schema) -> pa.Schema:
        """Return a schema of rows with the column of vectors added.

        Raises:
            DataError: A column of that name exists.
        """
        import pyarrow as pa

        # SQL ignores the case of names, so a predicate could not distinguish them.
        if self.vector.casefold() in (name.casefold() for name in rows.names):
            raise DataError(f"the source has a column {self.vector!r}, which is reserved for vectors. Rename it.")
        return rows.append(pa.field(self.vector, pa.list_(pa.float32(), self.width)))

    def encode_tables(
        self, tables: Iterator[pa.Table], progress: Progress | None = None, done: int = 0
    ) -> Iterator[pa.Table]:
        """Yield tables with their column of vectors.

        Args:
            tables: tables with the key columns.
            progress: called as `progress("encoding rows", done, 0)`.
            done: number of rows that were encoded before.
        """
        import pyarrow as pa

        for table in tables:
            parts = []
            for start in range(0, table.num_rows, _BATCH):
                parts.append(self._vectors(table.slice(start, _BATCH)))
                done += len(parts[-1])
                report(progress, "encoding rows", done, 0)
            field = self.schema(table.schema).field(-1)
            yield table.append_column(field, pa.chunked_array(parts, field.type))

    def encode_queries(self, queries: object, columns: Sequence[Column]) -> EncodedQueries:
        """Return queries as vectors.

        Args:
            queries: as in `Database.ask`.
            columns: the key columns of some rows, not folded.

        Raises:
            QueryError: A query does not fit the key.
        """
        parsed = Queries.parse(queries, columns, folded=False)
        vectors = np.zeros((len(parsed), self.width))
        if self.encoder.input_kind == "texts":
            missing = np.array([not text.strip() for text in parsed.cells[0]], bool)
            vectors[~missing] = self._encode_texts(parsed.cells[0][~missing].tolist())
            unknown = ~missing & ~vectors.any(axis=1)
        else:
            missing = np.logical_and.reduce(parsed.missing_cells)
            unknown = np.zeros(len(parsed), bool)
            cells = zip(columns, parsed.cells, parsed.missing_cells, strict=True)
            if len(parsed):
                arrays = {column.name: _to_arrow(column, *cell) for column, *cell in cells}
                vectors[:] = self._checked(self.encoder.encode(arrays))
        not_finite = ~np.isfinite(vectors).all(axis=1)
        vectors[not_finite], unknown = 0.0, unknown | not_finite
        return EncodedQueries(Queries(parsed.originals, (vectors,), missing | unknown, parsed.single), unknown)

    def describe(self, answer: Answer, encoded: EncodedQueries, key: tuple[str, ...]) -> Answer:
        """Return an answer by vectors with the names of the encoded key, and the encoder in its notes and plan."""
        entries = [
            Entry(entry.query, False, reason=_UNKNOWN) if unknown else entry
            for entry, unknown in zip(answer.entries, encoded.unknown, strict=True)
        ]
        first, *rest = answer.notes
        plan = answer.plan
        if isinstance(plan, StreamedPlan):
            plan = replace(plan, encoder=self.description)
        else:
            plan = replace(plan, rewrites=(f"keys to vectors by {self.description}", *plan.rewrites))
        notes = (first, f"keys and queries encoded by {self.description}", *rest)
        return replace(answer, entries=tuple(entries), keys=key, plan=plan, notes=notes)

    def _vectors(self, table: pa.Table) -> pa.Array:
        """Return the vectors of some rows, null where there is no key."""
        import pyarrow as pa

        has_key = _has_key(self.encoder, self.columns, table)
        vectors = np.zeros((table.num_rows, self.width), np.float32)
        if has_key.any():
            inputs = _inputs(self.encoder, self.columns, table, has_key)
            texts = self.encoder.input_kind == "texts"
            vectors[has_key] = self._encode_texts(inputs) if texts else self._checked(self.encoder.encode(inputs))
        has_key &= np.isfinite(vectors).all(axis=1)
        bits = pa.py_buffer(np.packbits(has_key, bitorder="little").tobytes())
        type_ = pa.list_(pa.float32(), self.width)
        flat = pa.array(vectors.reshape(-1))
        return pa.Array.from_buffers(type_, len(has_key), [bits], int((~has_key).sum()), children=[flat])

    def _encode_texts(self, texts: list[str]) -> Float[np.ndarray, "texts width"]:
        """Return vectors of texts; each distinct text is encoded once."""
        places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        if not places:
            return np.zeros((0, self.width), np.float32)
        return self._checked(self.encoder.encode(list(places)))[[places[text] for text in texts]]

    def _checked(self, vectors: Float[np.ndarray, "n width"]) -> Float[np.ndarray, "n width"]:
        if vectors.shape[1] != self.width:
            raise DataError(
                f"the encoder must make vectors of {self.width} numbers, as in the store, got {vectors.shape[1]}: "
                "it has changed. Restore the first encoder, or create the store again."
            )
        return np.asarray(vectors, np.float32)


def _check(encoder: Encoder, columns: Sequence[str], table: pa.Table) -> None:
    """Refuse an encoder for columns that it cannot read."""
    kinds = {name: Column.from_table(table.slice(0, 0), name).kind for name in columns}
    if encoder.input_kind == "texts":
        if len(columns) > 1:
            raise OptionError(
                f"the encoder {encoder.name!r} reads one column of texts, and the key has {len(columns)}: "
                f"{', '.join(columns)}. Use encoder='table'."
            )
        if kinds[columns[0]] not in ("text", "category"):
            raise OptionError(
                f"the encoder {encoder.name!r} reads texts, and the key {columns[0]!r} holds "
                f"{kinds[columns[0]]}s. Use encoder='table', or none."
            )
    fitted = [column.name for column in getattr(encoder, "fitted_columns", ())]
    if fitted and set(fitted) != set(columns):
        raise OptionError(
            f"the table vectors were fitted to {', '.join(fitted)}, and the key is {', '.join(columns)}. "
            "Fit them to the key, or give them unfitted."
        )


def _has_key(encoder: Encoder, columns: Sequence[str], table: pa.Table) -> Bool[np.ndarray, " rows"]:
    """Return which rows have a key: a text that is not blank, or a cell in any of several columns."""
    if encoder.input_kind == "texts":
        cells = table.column(columns[0]).to_pylist()
        return np.array([cell is not None and bool(cell.strip()) for cell in cells], bool)
    return np.asarray(~np.logical_and.reduce([Column.from_table(table, name).missing for name in columns]))


def _inputs(encoder: Encoder, columns: Sequence[str], table: pa.Table, selected: Bool[np.ndarray, " rows"]) -> Any:
    """Return the encoder's inputs for the selected rows: a list of texts, or a table."""
    if encoder.input_kind == "texts":
        cells = table.column(columns[0]).to_pylist()
        return [cell for cell, here in zip(cells, selected, strict=True) if here]
    import pyarrow as pa

    return table.select(list(columns)).filter(pa.array(selected))


def _to_arrow(column: Column, cells: Shaped[np.ndarray, "q ..."], missing: Bool[np.ndarray, " q"]) -> pa.Array:
    """Return parsed cells of queries as an Arrow array of the column's kind."""
    import pyarrow as pa

    if column.kind in ("number", "boolean"):
        return pa.array(cells.astype(bool) if column.kind == "boolean" else cells, mask=missing)
    convert: Callable[[Any], object] = str
    if column.kind == "timestamp":
        convert = column.timestamp
    elif column.kind == "vector":
        convert = np.ndarray.tolist
    values = [None if absent else convert(cell) for cell, absent in zip(cells, missing, strict=True)]
    types = {"timestamp": column.type, "vector": pa.list_(pa.float64())}
    return pa.array(values, types.get(column.kind, pa.string()))
