"""How a database on disk is made and opened: what it must remember, and what it remembers."""

from collections.abc import Mapping, Sequence
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from qkv import store as stores
from qkv.core.progress import Progress
from qkv.database.execute.aggregates import values_of
from qkv.database.io.sources import iterate_tables, require_columns
from qkv.database.keys.bandwidth import leave_one_out, scott
from qkv.database.keys.columns import Column, key_names
from qkv.database.keys.neighbor_blocks import nearest_distances
from qkv.database.keys.part_registry import parse_normalizer, parse_score
from qkv.database.storage.encoding import FILE, Encoding
from qkv.database.storage.stored import StoredDatabase
from qkv.errors import DataError, OptionError
from qkv.plan.cost import memory_bytes

__all__ = ["create_database", "open_database"]

_DRAWN = 2**14
_LEAST, _MOST = 0.2, 0.9
SETTINGS = "database"
"""Where the metadata of a store say what a database is."""


def create_database(
    path: str | PathLike[str],
    source: Any,
    key: str | Sequence[str],
    value: str,
    *,
    fold: bool,
    score: str | None,
    normalizer: str | None,
    threshold: float | None,
    encoder: Any,
    backend: str,
    memory: int | str,
    progress: Progress | None,
) -> StoredDatabase:
    """As `Database.create`."""
    import pyarrow as pa

    for name, check in ((score, parse_score), (normalizer, parse_normalizer)):
        if name is not None and not isinstance(name, str):
            raise OptionError(
                f"{name} cannot be kept with a store, which keeps names, such as 'gaussian:0.1'. Give its "
                "name, or give it to ask."
            )
        if name is not None:
            check(name)
    memory_bytes(memory)
    stores.require_free(path, backend)
    empty = isinstance(source, pa.Schema)
    tables = iter([source.empty_table()] if empty else iterate_tables(source))
    waiting = [table for table in (next(tables, None),) if table is not None]
    if not waiting:
        raise DataError("the source gives no table, so there are no columns. Give a pyarrow schema.")
    schema = waiting[0].schema.remove_metadata()
    keys = key_names(key, schema.names)
    require_columns(waiting[0], (*keys, value), "the source")
    for name in (*keys, value):
        Column.from_table(waiting[0].slice(0, 0), name)
    settings = {"key": list(keys), "value": value, "fold": fold}
    settings |= {"score": score, "normalizer": normalizer, "threshold": threshold}
    encoding, attached, columns, ready = None, {}, schema, []
    if encoder is not None:
        from qkv.encoders.serialization import as_encoder, pack

        made = as_encoder(encoder, progress)
        # The first part of a file may be its columns alone.
        while not waiting[-1].num_rows and (more := next(tables, None)) is not None:
            waiting.append(more)
        encoding = Encoding.learned(made, keys, waiting[-1], progress)
        columns = encoding.schema(schema)
        # What tells how vectors are compared is appended, too.
        ready, waiting = list(encoding.encoded(iter(waiting[-1:]), progress)), []
        if made.input_kind == "table" and score is None:
            score, reach = _near(encoding, ready[0], value, fold, progress)
            threshold = reach if threshold is None else threshold
        elif score is None and threshold is None:
            threshold = _unlike(encoding, ready[0])
        settings |= {"score": score, "threshold": threshold}
        attached[FILE] = pack(made)
        settings["encoder"] = encoding.record()
    store = stores.create(path, columns, metadata={SETTINGS: settings}, backend=backend, attached=attached)
    database = StoredDatabase(
        store,
        keys,
        value,
        fold=fold,
        score=score,
        normalizer=normalizer,
        threshold=threshold,
        memory=memory,
        encoding=encoding,
    )
    try:
        done = sum(table.num_rows for table in ready)
        store.append(chain(ready, database.arriving(chain(waiting, tables), progress, done)))
    except BaseException:
        stores.remove(path)
        raise
    return database


def open_database(
    path: str | PathLike[str],
    key: str | Sequence[str] | None,
    value: str | None,
    *,
    fold: bool | None,
    memory: int | str,
    damaged: str,
) -> StoredDatabase:
    """As `Database.open` of a store."""
    store = stores.open(path, damaged=damaged)
    kept: Mapping[str, Any] = store.metadata.get(SETTINGS, {})
    record = kept.get("encoder")
    encoding = None if record is None else Encoding.kept(store, record, use=damaged != "skip")
    key = kept.get("key") if key is None else key
    value = kept.get("value") if value is None else value
    if key is None or value is None:
        lacking = "key" if key is None else "value"
        raise DataError(
            f"the store {Path(path).name!r} does not say which column is the {lacking}. "
            f"It has {', '.join(store.schema.names)}. Name key and value."
        )
    same = list(key_names(key, store.schema.names)) == kept.get("key")
    how = {name: kept.get(name) if same else None for name in ("score", "normalizer", "threshold")}
    folds = bool(kept.get("fold", True)) if fold is None else fold
    return StoredDatabase(store, key, value, fold=folds, memory=memory, encoding=encoding, **how)


def _near(
    encoding: Encoding, table: Any, value: str, fold: bool, progress: Progress | None
) -> tuple[str | None, float | None]:
    """How vectors of whole rows are compared: by their distance, as `ComparisonChooser` compares standardised numbers.

    Their directions say little: a row that is the mean in all columns is the zero vector.
    """
    if not table.num_rows:
        return None, None
    key, values = Column.from_table(table, encoding.vector), values_of(Column.from_table(table, value, fold))
    kept = ~(key.missing | values.column.missing)
    if not kept.any():
        return None, None
    targets, points = values.targets(kept), key.cells[kept]
    if isinstance(targets, str):
        chosen = scott(len(points), points.shape[1], targets)
    else:
        chosen = leave_one_out(points, targets, progress)
    near = nearest_distances(points)
    near = near[np.isfinite(near)]
    reach = max(min(3.0 * chosen.value, 1.0), float(np.quantile(near, 0.99)) if len(near) else 0.0)
    return f"gaussian:{chosen.value:.4g}", float(f"{reach:.4g}")


def _unlike(encoding: Encoding, table: Any) -> float | None:
    """The cosine that the best of as many keys would reach if none of them had to do with the query.

    Pairs of keys are drawn. Most have nothing to do with each other: their median, and their deviation as the
    median absolute one tells it, are those of such pairs, and the largest of n normal numbers is about
    √(2 log n) deviations out.
    """
    if not table.num_rows:
        return None
    cells = Column.from_table(table, encoding.vector).cells
    lengths = np.linalg.norm(cells, axis=1)
    points = cells[lengths > 0] / lengths[lengths > 0, None]
    if len(points) < 2:
        return None
    draw = np.random.default_rng(0)
    left, right = draw.integers(0, len(points), (2, _DRAWN))
    apart = left != right
    cosines = np.einsum("ij,ij->i", points[left[apart]], points[right[apart]])
    middle = float(np.median(cosines))
    deviation = 1.4826 * float(np.median(np.abs(cosines - middle)))
    return round(float(np.clip(middle + deviation * np.sqrt(2 * np.log(len(points))), _LEAST, _MOST)), 3)
