"""Encoding of the key columns and queries of a store as vectors.

    create    the encoder is fitted to the first rows, and saved with the store
    append    key columns → vectors, in batches; a row without a key has none
    ask       queries → vectors, which are compared with the vectors of the keys

A text without any known word is encoded as the zero vector. Its cosine with any vector is 0, and such a query has
no match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from qkv.core.cell_kinds import cell_kind
from qkv.core.progress import Progress, report
from qkv.core.typing import Bool, Float, Shaped
from qkv.core.untrusted_json import Fields
from qkv.database.answer import Answer, Entry
from qkv.database.execute.stream_plan import StreamedPlan
from qkv.database.io.cell_notes import check_units
from qkv.database.io.sources import report_rows
from qkv.database.keys.queries import Queries, QueryCells
from qkv.encoders.arrow_columns import with_category_texts
from qkv.encoders.columns import Column
from qkv.encoders.encoder import Encoder
from qkv.errors import DataError, OptionError
from qkv.store import Store, read_attached
from qkv.store.attachments import attached_files
from qkv.store.base import fit_table

FILE = "encoder.npz"
_BATCH = 1024
_UNKNOWN = "the query has a zero or non-finite vector, for example because no word is in the encoder's vocabulary"


@dataclass(frozen=True, eq=False)
class Encoding:
    """The encoder of the key columns of a store, which is loaded when it is first used.

    Attributes:
        columns: the key columns that are encoded.
        name, settings: the name and the settings of the encoder.
        width: the number of elements of a vector.
        description: the encoder in words.
        load_encoder: a function that loads the encoder.
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
        """Return the encoding of key columns by an encoder, which is first fitted to the rows of a table if necessary.

        Raises:
            OptionError: The encoder does not support these columns, or there are no rows to fit it to.
            DataError: The encoder cannot be fitted to these rows.
        """
        _check(encoder, columns, table)
        if not encoder.fitted:
            if not table.num_rows:
                raise OptionError(
                    f"source must have rows to fit the encoder {encoder.name!r} to, got none. "
                    "Pass a source with rows, or a fitted encoder."
                )
            encoder.fit_encode(_inputs(encoder, columns, table, _has_key(encoder, columns, table)), progress)
        return cls(tuple(columns), encoder.name, encoder.settings(), encoder.width, str(encoder), lambda: encoder)

    @classmethod
    def load(cls, store: Store, record: Mapping[str, object], use: bool = True) -> Encoding:
        """Return the encoding that is saved with a store.

        Args:
            store: the store.
            record: the result of `record`.
            use: whether queries will be encoded, which requires the model of the encoder.

        Raises:
            DataError: The model of the encoder does not exist.
        """
        from qkv.encoders.serialization import ENCODER_KINDS, unpack

        fields = Fields(record, f"the encoder of the store {store.path.name!r}")
        name, settings = fields.text("name"), fields.record("settings")
        description = "description" if "description" in fields else "said"  # the name until version 0.1.0
        if name not in ENCODER_KINDS:
            raise DataError(f"{store.path.name!r} was written by a newer version of qkv. Update: pip install -U qkv.")
        missing = ENCODER_KINDS[name].missing_resources(settings)
        if use and missing:
            raise DataError(
                f"{store.path.name!r} was encoded by {missing}, which does not exist. Restore the model, or open the "
                "store with damaged='skip' to read its rows."
            )

        def load() -> Encoder:
            if FILE not in [file.name for file in attached_files(store.path, store.metadata)]:
                raise DataError(
                    f"the encoder of {store.path.name!r} must be intact, but it was damaged and a repair removed it. "
                    "Compare by another score, such as score='spelling', or create the store again from an export: "
                    "qkv store export."
                )
            return unpack(name, settings, read_attached(store.path, store.metadata, FILE))

        encoding = cls(
            tuple(fields.texts("columns")),
            name,
            settings,
            fields.integer("width", 1, 2**31),
            fields.text(description),
            load,
        )
        if encoding.vector not in store.schema.names:
            raise fields.damaged("columns", "the columns whose vectors are in the store")
        return encoding

    def record(self) -> dict[str, object]:
        """Return the encoding as a dict of JSON values, which is saved in the metadata of a store."""
        record = {"columns": list(self.columns), "name": self.name, "settings": self.settings}
        return {**record, "width": self.width, "description": self.description}

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder of the key columns, which is loaded at the first access.

        Raises:
            DamagedStoreError: The file of the encoder is damaged.
            DataError: The model of the encoder does not exist or has changed.
        """
        return self.load_encoder()

    @property
    def vector(self) -> str:
        """The name of the column that holds the vectors of the keys."""
        return f"vector of {', '.join(self.columns)}"

    def schema(self, rows: pa.Schema) -> pa.Schema:
        """Return the schema `rows` with the column of vectors appended.

        Raises:
            DataError: A column of that name exists.
        """
        # SQL ignores the case of names, so a predicate could not distinguish them.
        if self.vector.casefold() in (name.casefold() for name in rows.names):
            raise DataError(
                f"source must not have a column {self.vector!r}, which is reserved for vectors. Rename the column."
            )
        return rows.append(pa.field(self.vector, pa.list_(pa.float32(), self.width)))

    def encode_tables(
        self, tables: Iterator[pa.Table], progress: Progress | None = None, done: int = 0
    ) -> Iterator[pa.Table]:
        """Yield each table with a column appended that holds the vectors of its keys.

        Args:
            tables: tables with the key columns.
            progress: called as `progress("encoding rows", done, 0)`.
            done: number of rows that were encoded before.
        """
        for table in tables:
            parts = []
            for start in range(0, table.num_rows, _BATCH):
                parts.append(self._vectors(table.slice(start, _BATCH)))
                done += len(parts[-1])
                report(progress, "encoding rows", done, 0)
            field = self.schema(table.schema).field(-1)
            yield table.append_column(field, pa.chunked_array(parts, field.type))

    def encode_queries(
        self, queries: object, columns: Sequence[Column], on_bad_query: str = "refuse"
    ) -> tuple[Queries, Bool[np.ndarray, " q"]]:
        """Parse queries and encode them as vectors.

        Args:
            queries: as in `Database.ask`.
            columns: the key columns of some rows, not folded.
            on_bad_query: as in `Database.ask`.

        Returns:
            The queries, with vectors in place of cells, and whether each is a text of vector 0 or is not finite.

        Raises:
            QueryError: A query does not fit the key.
        """
        parsed = Queries.parse(queries, columns, False, on_bad_query)
        vectors = np.zeros((len(parsed), self.width))
        if self.encoder.input_kind == "texts":
            missing = np.array([not text.strip() for text in parsed.columns[0].cells], bool)
            vectors[~missing] = self._encode_texts(parsed.columns[0].cells[~missing].tolist())
            unknown = ~missing & ~vectors.any(axis=1)
        else:
            missing = np.logical_and.reduce(parsed.missing_cells)
            unknown = np.zeros(len(parsed), bool)
            given = zip(columns, parsed.columns, parsed.missing_cells, strict=True)
            if len(parsed):
                arrays = {column.name: _to_arrow(column, cell.cells, absent) for column, cell, absent in given}
                vectors[:] = self._checked(self.encoder.encode(arrays))
        not_finite = ~np.isfinite(vectors).all(axis=1)
        vectors[not_finite], unknown = 0.0, unknown | not_finite
        cells = (QueryCells(vectors),)
        return Queries(parsed.originals, cells, missing | unknown, parsed.single, errors=parsed.errors), unknown

    def describe(self, answer: Answer, unknown: Bool[np.ndarray, " q"], key: tuple[str, ...]) -> Answer:
        """Return a copy of an answer that names the key columns and mentions the encoder in its notes and its plan."""
        entries = [
            Entry(entry.query, False, reason=_UNKNOWN) if without else entry
            for entry, without in zip(answer.entries, unknown, strict=True)
        ]
        first, *rest = answer.common_notes
        plan = answer.plan
        if isinstance(plan, StreamedPlan):
            plan = replace(plan, encoder=self.description)
        else:
            plan = replace(plan, rewrites=(f"keys to vectors by {self.description}", *plan.rewrites))
        notes = (first, f"keys and queries encoded by {self.description}", *rest)
        return replace(answer, entries=tuple(entries), keys=key, plan=plan, common_notes=notes)

    def _vectors(self, table: pa.Table) -> pa.Array:
        """Return the vectors of the keys of a table as an Arrow array, with null for rows without a valid vector.

        A row without a key or with a non-finite vector is null.
        """
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
        """Return the vectors of texts as a matrix `(texts, width)`. Each distinct text is encoded once."""
        places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        if not places:
            return np.zeros((0, self.width), np.float32)
        return self._checked(self.encoder.encode(list(places)))[[places[text] for text in texts]]

    def _checked(self, vectors: Float[np.ndarray, "n width"]) -> Float[np.ndarray, "n width"]:
        if vectors.shape[1] != self.width:
            raise DataError(
                f"vectors of the encoder must have {self.width} elements like the vectors in the store, "
                f"got {vectors.shape[1]} elements. Restore the original encoder, or create the store again."
            )
        return np.asarray(vectors, np.float32)


def prepare_rows(
    encoding: Encoding | None,
    tables: Iterator[pa.Table],
    schema: pa.Schema,
    name: str,
    progress: Progress | None = None,
    done: int = 0,
) -> Iterator[pa.Table]:
    """Yield tables in the form in which a store keeps them, with a column of vectors if the store has an encoder.

    Args:
        encoding: the encoder of the store, or None.
        tables: tables with the visible columns.
        schema: the visible columns of the store.
        name: names the store in errors.
        progress: as in `StoredDatabase.append`.
        done: number of rows that were already prepared.
    """
    from pyarrow import compute

    categories = {field.name for field in schema if pa.types.is_dictionary(field.type)}

    def checked() -> Iterator[pa.Table]:
        for table in tables:
            check_units(schema, table.schema)
            for place, (name, type_) in enumerate(zip(table.column_names, table.schema.types, strict=True)):
                if name in categories and cell_kind(type_) != "text":
                    cells = table.column(place)
                    if pa.types.is_floating(type_):  # NaN is no category
                        cells = compute.if_else(compute.is_nan(cells), pa.scalar(None, type_), cells)
                    table = table.set_column(place, name, cells.dictionary_encode())
            yield with_category_texts(table)

    if encoding is None:
        return report_rows(checked(), progress)
    return encoding.encode_tables((fit_table(table, schema, name) for table in checked()), progress, done)


def _check(encoder: Encoder, columns: Sequence[str], table: pa.Table) -> None:
    """Raise an `OptionError` if an encoder does not support the key columns."""
    kinds = {name: Column.from_table(table.slice(0, 0), name).kind for name in columns}
    if encoder.input_kind == "texts":
        if len(columns) > 1:
            raise OptionError(
                f"key must be one column of texts for the encoder {encoder.name!r}, got {len(columns)} columns: "
                f"{', '.join(columns)}. Use encoder='table'."
            )
        if kinds[columns[0]] not in ("text", "category"):
            raise OptionError(
                f"key must be a column of texts for the encoder {encoder.name!r}, got {columns[0]!r} with "
                f"{kinds[columns[0]]}s. Use encoder='table' or no encoder."
            )
    fitted = [column.name for column in getattr(encoder, "fitted_columns", ())]
    if fitted and set(fitted) != set(columns):
        raise OptionError(
            f"key must be the columns to which the encoder was fitted, {', '.join(fitted)}, got {', '.join(columns)}. "
            "Fit the encoder to the key columns, or pass an unfitted encoder."
        )


def _has_key(encoder: Encoder, columns: Sequence[str], table: pa.Table) -> Bool[np.ndarray, " rows"]:
    """Return a boolean array that is True for the rows of a table that have a key to encode.

    A key is a text that is not blank, or a value in at least one key column.
    """
    if encoder.input_kind == "texts":
        cells = table.column(columns[0]).to_pylist()
        return np.array([cell is not None and bool(cell.strip()) for cell in cells], bool)
    return np.asarray(~np.logical_and.reduce([Column.from_table(table, name).missing for name in columns]))


def _inputs(
    encoder: Encoder, columns: Sequence[str], table: pa.Table, selected: Bool[np.ndarray, " rows"]
) -> list[str] | pa.Table:
    """Return the keys of the selected rows in the form that the encoder takes: a list of texts or a pyarrow table."""
    if encoder.input_kind == "texts":
        cells = table.column(columns[0]).to_pylist()
        return [cell for cell, here in zip(cells, selected, strict=True) if here]
    return table.select(list(columns)).filter(pa.array(selected))


def _to_arrow(column: Column, cells: Shaped[np.ndarray, "q ..."], missing: Bool[np.ndarray, " q"]) -> pa.Array:
    """Return the parsed cells of queries for a key column as an Arrow array of the column's kind."""
    if column.kind in ("number", "boolean", "cyclic"):
        return pa.array(cells.astype(bool) if column.kind == "boolean" else column.numbers(cells), mask=missing)
    convert: Callable[[Any], object] = str
    if column.kind == "timestamp":
        convert = column.timestamp
    elif column.kind == "vector":
        convert = np.ndarray.tolist
    values = [None if absent else convert(cell) for cell, absent in zip(cells, missing, strict=True)]
    types = {"timestamp": column.type, "vector": pa.list_(pa.float64())}
    return pa.array(values, types.get(column.kind, pa.string()))
