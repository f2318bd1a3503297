"""Creation and opening of databases on disk, with settings that are saved in the metadata of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa

from qkv import store as stores
from qkv.core.cell_kinds import cell_kind
from qkv.core.formatting import memory_bytes
from qkv.core.printable import first_line
from qkv.core.progress import Progress
from qkv.core.untrusted_json import Fields
from qkv.database.execute.aggregates import Values
from qkv.database.execute.ask_options import AskDefaults
from qkv.database.io.cell_notes import collect_notes, without_notes
from qkv.database.io.read_options import ReadOptions
from qkv.database.io.sources import iterate_tables, requested_columns, require_columns
from qkv.database.keys.part_registry import parse_normalizer, parse_score
from qkv.database.keys.row_sample import sample_rows
from qkv.database.storage.encoding import FILE, Encoding, prepare_rows
from qkv.database.storage.stored import StoredDatabase
from qkv.encoders.columns import Column, key_names, with_periods
from qkv.encoders.encoder import Encoder
from qkv.errors import DataError, OptionError
from qkv.estimators.regression.bandwidth import choose_bandwidth
from qkv.estimators.regression.neighbor_blocks import nearest_distance_quantile
from qkv.store.base import fit_table

_PAIRS = 2**14
_FIRST_BYTES = 2**27
_LEAST_COSINE, _LARGEST_COSINE = 0.2, 0.9
_SETTINGS = "database"
"""The key of the database's settings in the metadata of a store."""


def create_database(
    path: stores.Location,
    source: object,
    key: str | Sequence[str],
    value: str,
    *,
    fold: bool,
    defaults: AskDefaults,
    encoder: str | PathLike[str] | Encoder | None,
    backend: str,
    memory: int | str,
    progress: Progress | None,
    options: ReadOptions,
    cyclic: Mapping[str, float] | None = None,
    storage_options: stores.StorageOptions = None,
) -> StoredDatabase:
    """Create a database on disk; see `Database.create` for the arguments."""
    _check_name(defaults.score, parse_score)
    _check_name(defaults.normalizer, parse_normalizer)
    memory_bytes(memory)
    place = stores.locate(path, storage_options)
    stores.require_free(place, backend)
    names, notes = requested_columns(key, value, source, options), list[str]()
    given = iter([source.empty_table()]) if isinstance(source, pa.Schema) else iterate_tables(source, names, options)
    tables = collect_notes((with_periods(table, cyclic) for table in given), names, notes)
    pending, schema, tables = _with_types(tables)
    if not pending:
        raise DataError(
            "source must yield at least one table, got an empty iterator. For an empty database, pass a pyarrow schema."
        )
    try:
        schema.empty_table()
    except pa.ArrowNotImplementedError as error:
        raise DataError(
            f"source must have columns of types that a store holds, got {first_line(error)}. Convert or omit this one."
        ) from None
    keys = key_names(key, schema.names)
    require_columns(pending[0], (*keys, value), "the source")
    for name in (*keys, value):
        Column.from_table(pending[0].slice(0, 0), name)
    encoding, attached, columns, encoded = None, {}, schema, []
    if encoder is not None:
        from qkv.encoders.serialization import as_encoder, pack

        built = as_encoder(encoder, progress)
        first = pa.concat_tables([fit_table(table, schema, place.name) for table in pending])
        encoding = Encoding.learn(built, keys, first, progress)
        columns = encoding.schema(schema)
        # The rows that determine how vectors are compared are themselves appended below.
        encoded, pending = list(encoding.encode_tables(iter([first]), progress)), []
        if built.input_kind == "table" and defaults.score is None:
            score, distance = _distance_defaults(encoding, encoded[0], value, fold, progress)
            distance = distance if defaults.max_distance is None else defaults.max_distance
            defaults = defaults._replace(score=score, max_distance=distance)
        elif defaults.score is None and defaults.min_similarity is None:
            defaults = defaults._replace(min_similarity=_default_min_cosine(encoding, encoded[0]))
        attached[FILE] = pack(built)
    settings: dict[str, Any] = {"key": list(keys), "value": value, "fold": fold, **defaults._asdict()}
    if encoding is not None:
        settings["encoder"] = encoding.record()
    done = sum(table.num_rows for table in encoded)
    rows = chain(encoded, prepare_rows(encoding, chain(pending, tables), schema, place.name, progress, done))
    store = stores.create(
        place, columns, metadata={_SETTINGS: settings}, backend=backend, attached=attached, tables=rows
    )
    database = StoredDatabase(store, keys, value, fold=fold, defaults=defaults, memory=memory, encoding=encoding)
    database.cell_notes = tuple(notes)
    return database


def _with_types(tables: Iterator[pa.Table]) -> tuple[list[pa.Table], pa.Schema, Iterator[pa.Table]]:
    """Return the first tables, until each column has a cell, the types of the columns, and the other tables.

    Without cells, a column has texts or nulls, whatever its cells in later tables are. After `_FIRST_BYTES`, cells of
    another type raise a `DataError`.
    """
    pending: list[pa.Table] = []
    fields: dict[str, pa.Field] = {}
    undecided: set[str] = set()
    size = 0

    def decide(table: pa.Table) -> dict[str, pa.Field]:
        """Return the columns that have their first cells in a table."""
        names = [name for name in table.column_names if name in undecided and table[name].null_count < len(table)]
        undecided.difference_update(names)
        return {name: table.schema.field(name) for name in names}

    def checked() -> Iterator[pa.Table]:
        for table in tables:
            for name, field in decide(table).items():
                if field.type != fields[name].type:
                    raise DataError(
                        f"{name!r} must have cells in the first tables of the source, which determine its type, got "
                        f"{cell_kind(field.type) or field.type}s only later. Pass a table with such cells first."
                    )
            yield table

    for table in tables:
        if not pending:
            fields, undecided = {field.name: field for field in table.schema}, set(table.column_names)
        fields |= decide(table)
        pending.append(table)
        size += table.nbytes
        if not undecided or size >= _FIRST_BYTES:
            break
    return pending, without_notes(pa.schema(list(fields.values()))), checked()


def open_database(
    path: stores.Location,
    key: str | Sequence[str] | None,
    value: str | None,
    *,
    fold: bool | None,
    memory: int | str,
    damaged: str,
    checksums: bool | None = None,
    cache: bool = True,
    cluster: str | None = None,
    storage_options: stores.StorageOptions = None,
) -> StoredDatabase:
    """Open a database on disk; see `Database.open` and `qkv.store.open` for the arguments."""
    if cluster is not None and isinstance(path, stores.ObjectPath):
        raise OptionError(
            "source must be a path or a URL with a cluster, got an ObjectPath, which cannot be sent. Pass its URL."
        )
    store = stores.open(path, damaged=damaged, checksums=checksums, storage_options=storage_options)
    saved = _saved_settings(store)
    record = saved.get("encoder")
    encoding = None if record is None else Encoding.load(store, record, use=damaged != "skip")
    key = saved.get("key") if key is None else key
    value = saved.get("value") if value is None else value
    if key is None or value is None:
        raise DataError(
            f"{'key' if key is None else 'value'} must be the name of a column of the store {store.path.name!r}, which "
            f"has no saved key and value, got None. Choose from the columns {', '.join(store.schema.names)}."
        )
    same_key = list(key_names(key, store.schema.names)) == saved.get("key")
    defaults = AskDefaults(*[saved.get(name) if same_key else None for name in AskDefaults._fields])
    folded = bool(saved.get("fold", True)) if fold is None else fold
    workers = None
    if cluster is not None:
        from qkv.database.cluster.opening import open_cluster

        workers = open_cluster(cluster, damaged == "skip", storage_options)
    return StoredDatabase(
        store,
        key,
        value,
        fold=folded,
        defaults=defaults,
        memory=memory,
        encoding=encoding,
        cache=cache,
        cluster=workers,
    )


def visible_columns(store: stores.Store) -> list[str]:
    """Return the names of all columns of a store except the column of vectors that an encoder added."""
    record = _saved_settings(store).get("encoder")
    hidden = None if record is None else Encoding.load(store, record, use=False).vector
    return [name for name in store.schema.names if name != hidden]


def _saved_settings(store: stores.Store) -> dict[str, Any]:
    """Return the settings of the database that are saved with a store, after checking their types.

    Raises:
        DamagedError: A setting has an impossible value.
    """
    if _SETTINGS not in store.metadata:
        return {}
    name = f"the settings of the store {store.path.name!r}"
    fields = Fields(store.metadata[_SETTINGS], name)
    settings: dict[str, Any] = {"key": fields.texts("key"), "value": fields.text("value")}
    if "fold" in fields:
        settings["fold"] = fields.boolean("fold")
    for argument, parse in (("score", parse_score), ("normalizer", parse_normalizer)):
        if fields.get(argument) is not None:
            settings[argument] = fields.text(argument)
            parse(settings[argument])
    for limit in ("min_similarity", "max_distance"):
        # Older versions saved one number, which was either of the two.
        name = "threshold" if "threshold" in fields else limit
        if fields.get(name) is not None:
            settings[limit] = fields.number(name)
    if fields.get("encoder") is not None:
        settings["encoder"] = fields.record("encoder")
    return settings


def _check_name(name: object, parse: Callable[[str], object]) -> None:
    if name is not None and not isinstance(name, str):
        argument = "score" if parse is parse_score else "normalizer"
        raise OptionError(
            f"{argument} must be a name that can be saved, such as 'gaussian:0.1', got {name}. "
            "Pass a name here, or pass the object to ask."
        )
    if name is not None:
        parse(name)


def _distance_defaults(
    encoding: Encoding, table: pa.Table, value: str, fold: bool, progress: Progress | None
) -> tuple[str | None, float | None]:
    """Return the default score and the default largest distance of a match for the vectors of a table encoder.

    Return None for both if the table has no complete row.

    The vectors are compared by distance, like standardized numbers. Their direction has little meaning: a row with
    the mean in all columns is the zero vector.
    """
    if not table.num_rows:
        return None, None
    key, values = Column.from_table(table, encoding.vector), Values.of(Column.from_table(table, value, fold))
    complete = ~(key.missing | values.column.missing)
    if not complete.any():
        return None, None
    sample = sample_rows((key, values.column), complete)
    chosen = choose_bandwidth(key.cells[sample], values.targets(sample), progress, int(complete.sum()))
    nearest = nearest_distance_quantile(key.cells[complete])
    return f"gaussian:{chosen.value:.4g}", float(f"{max(min(3.0 * chosen.value, 1.0), nearest):.4g}")


def _default_min_cosine(encoding: Encoding, table: pa.Table) -> float | None:
    """Return the cosine that unrelated keys of a table are not expected to exceed, as the default `min_similarity`.

    Return None if fewer than two keys have a non-zero vector.

    The median and the median absolute deviation of cosines are estimated from random pairs of keys, most of which
    are unrelated. The largest of n normal variables is about √(2 log n) deviations above the mean.
    """
    if not table.num_rows:
        return None
    cells = Column.from_table(table, encoding.vector).cells
    lengths = np.linalg.norm(cells, axis=1)
    points = cells[lengths > 0] / lengths[lengths > 0, None]
    if len(points) < 2:
        return None
    generator = np.random.default_rng(0)
    left, right = generator.integers(0, len(points), (2, _PAIRS))
    distinct = left != right
    cosines = np.einsum("ij,ij->i", points[left[distinct]], points[right[distinct]])
    median = float(np.median(cosines))
    deviation = 1.4826 * float(np.median(np.abs(cosines - median)))
    largest = median + deviation * np.sqrt(2 * np.log(len(points)))
    return round(float(np.clip(largest, _LEAST_COSINE, _LARGEST_COSINE)), 3)
