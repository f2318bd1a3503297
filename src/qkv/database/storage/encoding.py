"""The encoder that a store keeps: it makes a column of vectors beside the rows, and the vectors of queries.

    create    the encoder is fitted to the first rows, and attached to the store
    append    key columns → vectors, some rows at a time; a row without a key has none
    ask       queries → vectors, which are compared with the column

What the encoder knows nothing of is the zero vector: its cosine with everything is 0, and a query of that
kind finds nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.core.progress import Progress
from qkv.database.answer import Answer, Entry
from qkv.database.execute.stream_plan import StreamedPlan
from qkv.database.keys.columns import Column
from qkv.database.keys.queries import Queries
from qkv.errors import DataError, OptionError
from qkv.store import Store, read_attached

if TYPE_CHECKING:
    from qkv.encoders.encoder import Encoder

__all__ = ["FILE", "Asked", "Encoding"]

FILE = "encoder.npz"
_BATCH = 1024
_UNKNOWN = "the encoder knows nothing of it"


@dataclass(frozen=True, eq=False)
class Asked:
    """Queries as vectors.

    Fields:
        queries: with the vectors as their one cell.
        unknown: `(q,)`, of which the encoder knows nothing.
    """

    queries: Queries
    unknown: np.ndarray


class Encoding:
    """How the key columns of a store are encoded.

    Args:
        columns: the key columns that are encoded.
        name, settings: of the encoder.
        width: of the vectors.
        said: the encoder in words.
        load: gives the encoder, once it is needed.
    """

    def __init__(
        self,
        columns: Sequence[str],
        name: str,
        settings: dict[str, Any],
        width: int,
        said: str,
        load: Callable[[], "Encoder"],
    ) -> None:
        self.columns = tuple(columns)
        self.name, self.settings, self.width, self.said = name, settings, width, said
        self._load = load
        self._encoder: Encoder | None = None

    @classmethod
    def learned(
        cls, encoder: "Encoder", columns: Sequence[str], table: Any, progress: Progress | None = None
    ) -> "Encoding":
        """An encoding by this encoder, fitted to the rows of a table unless it is fitted already.

        Raises:
            OptionError: the encoder does not go with these columns, or has nothing to learn from.
            DataError: it can learn nothing from these rows.
        """
        _check(encoder, columns, table)
        if not encoder.fitted:
            if not table.num_rows:
                raise OptionError(
                    f"the encoder {encoder.name!r} learns from rows, and the source has none. "
                    "Give the first rows, or an encoder that is fitted."
                )
            encoder.fit_encode(_things(encoder, columns, table, _there(encoder, columns, table)), progress)
        return cls(columns, encoder.name, encoder.settings(), encoder.width, str(encoder), load=lambda: encoder)

    @classmethod
    def kept(cls, store: Store, record: dict[str, Any], use: bool = True) -> "Encoding":
        """The encoding that a store keeps.

        Args:
            store: whose it is.
            record: what `record` gave.
            use: it will be used, so what it needs must be there.

        Raises:
            DataError: a model that it needs is not there.
        """
        from qkv.encoders.serialization import ENCODER_KINDS, unpack

        name, settings = record["name"], record["settings"]
        if name not in ENCODER_KINDS:
            raise DataError(f"{store.path.name!r} was written by a newer qkv. Update: pip install -U qkv.")
        lacking = ENCODER_KINDS[name].missing_resources(settings)
        if use and lacking:
            raise DataError(
                f"{store.path.name!r} was encoded by {lacking}, which is not there. Put it back, or open the "
                "store with damaged='skip' to read its rows."
            )

        def load() -> "Encoder":
            return unpack(name, settings, read_attached(store.path, store.metadata, FILE))

        return cls(**record, load=load)

    def record(self) -> dict[str, Any]:
        """What the metadata of a store say of it."""
        said = {"columns": list(self.columns), "name": self.name, "settings": self.settings}
        return {**said, "width": self.width, "said": self.said}

    @property
    def encoder(self) -> "Encoder":
        """The encoder itself.

        Raises:
            DamagedStoreError: its file is not what was written.
            DataError: the model it needs is not there, or is another.
        """
        if self._encoder is None:
            self._encoder = self._load()
        return self._encoder

    @property
    def vector(self) -> str:
        """The name of the column of vectors."""
        return f"vector of {', '.join(self.columns)}"

    def schema(self, rows: Any) -> Any:
        """A schema of rows, with the column of vectors.

        Raises:
            DataError: there is a column of that name.
        """
        import pyarrow as pa

        # SQL does not tell small letters from capitals, so a predicate could not either.
        if self.vector.casefold() in (name.casefold() for name in rows.names):
            raise DataError(f"the source has a column {self.vector!r}, which is kept for vectors. Rename it.")
        return rows.append(pa.field(self.vector, pa.list_(pa.float32(), self.width)))

    def encoded(self, tables: Iterator[Any], progress: Progress | None = None, done: int = 0) -> Iterator[Any]:
        """Tables with their column of vectors.

        Args:
            tables: with the key columns.
            progress: called as `progress("encoding rows", done, 0)`.
            done: rows that were encoded before these.
        """
        for table in tables:
            parts = []
            for start in range(0, table.num_rows, _BATCH):
                parts.append(self._column(table.slice(start, _BATCH)))
                done += len(parts[-1])
                if progress is not None:
                    progress("encoding rows", done, 0)
            yield table.append_column(self.schema(table.schema).field(-1), _chunked(parts, self.width))

    def queries(self, queries: Any, columns: Sequence[Column]) -> Asked:
        """Queries as vectors.

        Args:
            queries: as in `Database.ask`.
            columns: the key columns of some rows, not folded.

        Raises:
            QueryError: a query does not fit the key.
        """
        parsed = Queries.parse(queries, columns, folded=False)
        vectors = np.zeros((len(parsed), self.width))
        if self.encoder.input_kind == "texts":
            missing = np.array([not text.strip() for text in parsed.cells[0]], bool)
            vectors[~missing] = self._texts(parsed.cells[0][~missing].tolist())
            unknown = ~missing & ~vectors.any(axis=1)
        else:
            missing = np.logical_and.reduce(parsed.absent)
            unknown = np.zeros(len(parsed), bool)
            cells = zip(columns, parsed.cells, parsed.absent, strict=True)
            if len(parsed):
                vectors[:] = self._checked(self.encoder.encode({c.name: _arrow(c, *x) for c, *x in cells}))
        strange = ~np.isfinite(vectors).all(axis=1)
        vectors[strange], unknown = 0.0, unknown | strange
        return Asked(Queries(parsed.asked, (vectors,), missing | unknown, parsed.single), unknown)

    def told(self, answer: Answer, asked: Asked, key: tuple[str, ...]) -> Answer:
        """An answer by vectors in words of the key that they were made of."""
        entries = [
            Entry(entry.asked, False, reason=_UNKNOWN) if unknown else entry
            for entry, unknown in zip(answer.entries, asked.unknown, strict=True)
        ]
        first, *rest = answer.notes
        if isinstance(answer.plan, StreamedPlan):
            plan: Any = replace(answer.plan, encoder=self.said)
        else:
            plan = replace(answer.plan, rewrites=(f"keys to vectors by {self.said}", *answer.plan.rewrites))
        notes = (first, f"keys and queries encoded by {self.said}", *rest)
        return replace(answer, entries=tuple(entries), keys=key, plan=plan, notes=notes)

    # -- within -----------------------------------------------------------------------------------------

    def _column(self, table: Any) -> Any:
        """The vectors of some rows, null where there is no key."""
        import pyarrow as pa

        there = _there(self.encoder, self.columns, table)
        vectors = np.zeros((table.num_rows, self.width), np.float32)
        if there.any():
            things = _things(self.encoder, self.columns, table, there)
            texts = self.encoder.input_kind == "texts"
            vectors[there] = self._texts(things) if texts else self._checked(self.encoder.encode(things))
        there &= np.isfinite(vectors).all(axis=1)
        bits = pa.py_buffer(np.packbits(there, bitorder="little").tobytes())
        type_ = pa.list_(pa.float32(), self.width)
        flat = pa.array(vectors.reshape(-1))
        return pa.Array.from_buffers(type_, len(there), [bits], int((~there).sum()), children=[flat])

    def _texts(self, texts: list[str]) -> np.ndarray:
        """Vectors of texts, each different one encoded once."""
        places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        if not places:
            return np.zeros((0, self.width), np.float32)
        return self._checked(self.encoder.encode(list(places)))[[places[text] for text in texts]]

    def _checked(self, vectors: np.ndarray) -> np.ndarray:
        if vectors.shape[1] != self.width:
            raise DataError(
                f"the encoder makes vectors of {vectors.shape[1]} numbers, and those of the store have "
                f"{self.width}: it is another one. Put the first back, or make the store anew."
            )
        return np.asarray(vectors, np.float32)


def _check(encoder: "Encoder", columns: Sequence[str], table: Any) -> None:
    """Refuse an encoder for columns that it cannot read."""
    kinds = {name: Column.from_table(table.slice(0, 0), name).kind for name in columns}
    if encoder.input_kind == "texts":
        if len(columns) > 1:
            raise OptionError(
                f"the encoder {encoder.name!r} reads one column of texts, and the key has {len(columns)}: "
                f"{', '.join(columns)}. Take encoder='table'."
            )
        if kinds[columns[0]] not in ("text", "category"):
            raise OptionError(
                f"the encoder {encoder.name!r} reads texts, and the key {columns[0]!r} holds "
                f"{kinds[columns[0]]}s. Take encoder='table', or none."
            )
    fitted = getattr(encoder, "columns", ())
    if fitted and set(fitted) != set(columns):
        raise OptionError(
            f"the table vectors were fitted to {', '.join(fitted)}, and the key is {', '.join(columns)}. "
            "Fit them to the key, or give them unfitted."
        )


def _there(encoder: "Encoder", columns: Sequence[str], table: Any) -> np.ndarray:
    """Which rows have a key: a text that is not blank, or of several columns any cell."""
    if encoder.input_kind == "texts":
        cells = table.column(columns[0]).to_pylist()
        return np.array([cell is not None and bool(cell.strip()) for cell in cells], bool)
    return np.asarray(~np.logical_and.reduce([Column.from_table(table, name).missing for name in columns]))


def _things(encoder: "Encoder", columns: Sequence[str], table: Any, there: np.ndarray) -> Any:
    """What the encoder reads of these rows."""
    if encoder.input_kind == "texts":
        cells = table.column(columns[0]).to_pylist()
        return [cell for cell, here in zip(cells, there, strict=True) if here]
    import pyarrow as pa

    return table.select(list(columns)).filter(pa.array(there))


def _arrow(column: Column, cells: np.ndarray, absent: np.ndarray) -> Any:
    """Parsed cells of queries as a column of the kind that was encoded."""
    import pyarrow as pa

    if column.kind in ("number", "boolean"):
        return pa.array(cells.astype(bool) if column.kind == "boolean" else cells, mask=absent)
    read = column.timestamp if column.kind == "timestamp" else np.ndarray.tolist if column.kind == "vector" else str
    there = [None if gone else read(cell) for cell, gone in zip(cells, absent, strict=True)]
    types = {"timestamp": column.type, "vector": pa.list_(pa.float64())}
    return pa.array(there, types.get(column.kind, pa.string()))


def _chunked(parts: list[Any], width: int) -> Any:
    import pyarrow as pa

    return pa.chunked_array(parts, pa.list_(pa.float32(), width))
