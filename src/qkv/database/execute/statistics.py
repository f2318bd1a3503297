"""Statistics of all rows of a store, which are computed in one pass and saved in the cache folder of the store.

The statistics are counts of missing cells, means and standard deviations, the earliest timestamp, the number of
occurrences of the most common text, and the indices of a sample of rows from which bandwidths are chosen. Statistics
of the rows that satisfy a predicate are computed and saved in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from qkv.core.checksums import digest
from qkv.core.partial import merge_means
from qkv.core.progress import Progress, report
from qkv.core.typing import Bool, Float, Int, Shaped
from qkv.core.untrusted_json import Fields
from qkv.database.execute.row_reader import RowTile, StoredRows, read_note, save_note
from qkv.database.io.identifiers import TextForms
from qkv.database.keys.row_sample import MOST_ROWS, RowSampler
from qkv.encoders import arrow_columns
from qkv.encoders.columns import Column
from qkv.errors import DamagedError
from qkv.estimators.regression.bandwidth import column_means, square_unit

_FORMAT = 9
_SUFFIX = ".statistics"
_MOST_SAVED = 16
_EXAMPLES = 256
_MOST_HASHES = 2**22


@dataclass
class _ColumnStatistics:
    """Statistics of a column of a store, such as the number of missing cells, the mean and the standard deviation.

    Attributes:
        missing: number of missing cells.
        origin: the earliest timestamp, from which timestamps are counted.
        width: width of vectors.
        mean, deviation: mean and standard deviation of the cells of complete rows, in the unit of the column and
            relative to the origin. Vectors have a mean alone; both are empty for texts and categories.
        repeats: number of complete rows with the most common text.
        largest: the largest magnitude of the numbers of complete rows.
        form: the form of the texts of the complete rows, see `identifiers.TextForms`.
    """

    missing: int = 0
    origin: int = 0
    width: int = 1
    mean: list[float] = field(default_factory=list)
    deviation: list[float] = field(default_factory=list)
    repeats: int = 0
    largest: float = 0.0
    form: str = ""


@dataclass
class TableStatistics:
    """Statistics of the key columns and the value column of one version of a store.

    Attributes:
        rows: number of rows.
        complete: number of rows with key and value.
        columns: statistics by column name.
        sample: indices of a sample of the complete rows.
        incomplete_tiles: indices of the tiles with an incomplete row.
        without_value: a bit for each row, 1 if it has a key and no value; empty if there is no such row.
        selected_missing: number of missing cells of the selected rows by column; empty if all rows are selected.
    """

    rows: int
    complete: int
    columns: dict[str, _ColumnStatistics]
    sample: Int[np.ndarray, " _"]
    incomplete_tiles: Int[np.ndarray, " _"]
    without_value: Int[np.ndarray, " bytes"]
    selected_missing: dict[str, int] = field(default_factory=dict)

    @property
    def examples(self) -> Int[np.ndarray, " _"]:
        """A few hundred evenly spaced elements of `sample`, or all of them if there are fewer."""
        return self.sample[:: max(1, len(self.sample) // _EXAMPLES)]

    def rows_without_value(self, selected: Bool[np.ndarray, " rows"] | None) -> Int[np.ndarray, " _"]:
        """Return the indices of the selected rows that have a key and no value."""
        if not len(self.without_value):
            return np.zeros(0, np.int64)
        marked = np.unpackbits(self.without_value, count=self.rows).astype(bool)
        return np.flatnonzero(marked if selected is None else marked & selected)


def load_statistics(
    rows: StoredRows, key: Sequence[str], value: str, folded: bool, progress: Progress | None = None
) -> TableStatistics:
    """Return the saved statistics of a store, or compute them in one pass over its rows and save them."""
    return _load(_StatisticsScan(rows, key, value, folded), [list(key), value, folded], progress)


def restricted_statistics(
    whole: TableStatistics,
    rows: StoredRows,
    key: Sequence[str],
    value: str,
    folded: bool,
    selected: Bool[np.ndarray, " rows"],
    progress: Progress | None = None,
) -> TableStatistics:
    """Return the saved statistics of the selected rows of a store, or compute them in one pass and save them."""
    selection = digest(np.packbits(selected).tobytes())
    found = _load(_StatisticsScan(rows, key, value, folded, selected), [list(key), value, folded, selection], progress)
    # How cells are read does not depend on the selection, such as the origin from which timestamps are counted.
    found.selected_missing = {name: column.missing for name, column in found.columns.items()}
    for name, column in found.columns.items():
        base = whole.columns[name]
        if column.mean and column.origin != base.origin:
            column.mean = [mean + (column.origin - base.origin) for mean in column.mean]
        column.missing, column.origin, column.width = base.missing, base.origin, base.width
    found.incomplete_tiles, found.without_value = whole.incomplete_tiles, whole.without_value
    return found


def _load(scan: _StatisticsScan, options: list[object], progress: Progress | None) -> TableStatistics:
    rows = scan.rows
    chosen = digest(json.dumps(options).encode())
    path = rows.store.cache_folder / f"{rows.store.version:010d}-{chosen[:16]}{_SUFFIX}"
    made_from: dict[str, object] = {
        "format": _FORMAT,
        "tile": scan.tile,
        "rows": rows.num_rows,
        "store": rows.store.identity,
        "options": chosen,
    }
    statistics = _saved(path, made_from, scan)
    if statistics is None:
        statistics = scan.run(progress)
        columns = {name: asdict(column) for name, column in statistics.columns.items()}
        arrays = {name: getattr(statistics, name) for name in ("sample", "incomplete_tiles", "without_value")}
        save_note(path, made_from, {"complete": statistics.complete, "columns": columns}, arrays)
        for older in sorted(path.parent.glob(f"*{_SUFFIX}"))[:-_MOST_SAVED]:
            older.unlink(missing_ok=True)
    return statistics


def _saved(path: Path, made_from: dict[str, object], scan: _StatisticsScan) -> TableStatistics | None:
    """Return the statistics in a file, or None if they were made from other rows or have impossible values."""
    note = read_note(path, made_from)
    if note is None:
        return None
    try:
        fields, rows = note.fields(), scan.rows.num_rows
        columns = {name: _parse_column(each, rows) for name, each in fields.record("columns").items()}
        if set(columns) != set(scan.names):
            return None
        sample, incomplete_tiles = note.array("sample", 1), note.array("incomplete_tiles", 1)
        without_value = note.array("without_value", 1)
        if not all(_are_indices(each, rows) for each in (sample, incomplete_tiles)):
            return None
        if without_value.dtype != np.uint8 or len(without_value) not in (0, -(-rows // 8)):
            return None
        return TableStatistics(
            rows,
            fields.integer("complete", most=rows),
            columns,
            sample.copy(),
            incomplete_tiles.copy(),
            without_value.copy(),
        )
    except DamagedError:
        return None


def _parse_column(value: object, rows: int) -> _ColumnStatistics:
    fields = Fields(value, "the statistics of a column")
    most = 2**63
    return _ColumnStatistics(
        fields.integer("missing", most=rows),
        fields.integer("origin", -most, most),
        fields.integer("width", 1, 2**31),
        fields.numbers("mean"),
        fields.numbers("deviation"),
        fields.integer("repeats", most=rows),
        fields.number("largest"),
        fields.text("form"),
    )


def _are_indices(array: Shaped[np.ndarray, " _"], rows: int) -> bool:
    return array.dtype.kind in "iu" and (not len(array) or (int(array.min()) >= 0 and int(array.max()) < max(rows, 1)))


class _StatisticsScan:
    """Computation of the statistics in one pass over the rows of a store, or over some of them."""

    def __init__(
        self,
        rows: StoredRows,
        key: Sequence[str],
        value: str,
        folded: bool,
        selected: Bool[np.ndarray, " rows"] | None = None,
    ) -> None:
        self.rows, self.key, self.value, self.selected = rows, tuple(key), value, selected
        self.without_value: Bool[np.ndarray, " rows"] | None = None
        self.names = tuple(dict.fromkeys((*key, value)))
        self.tile = rows.tile_rows(self.names)
        self.folded = folded
        self.statistics = {name: _ColumnStatistics() for name in self.names}
        self.first: dict[str, Column] = {}
        self.earliest: dict[str, int] = {}
        self.variances = {name: _RunningVariance() for name in self.names}
        self.texts = {name: _TextCounts() for name in self.names}
        self.forms = {name: TextForms() for name in self.names}
        self.sampler = RowSampler(MOST_ROWS)

    def run(self, progress: Progress | None) -> TableStatistics:
        complete, incomplete_tiles = 0, []
        for number, tile in enumerate(self.rows.tiles(self.names)):
            stop = tile.number + tile.table.num_rows
            selected = None if self.selected is None else self.selected[tile.number : stop]
            if selected is None or selected.any():
                present = self._add_tile(tile, selected)
                complete += int(present.sum())
                incomplete_tiles += [] if present.all() else [number]
            report(progress, "reading the rows once", stop, self.rows.num_rows)
        for name, statistics in self.statistics.items():
            variance, column = self.variances[name], self.first.get(name)
            if column is None:
                continue
            statistics.repeats = self.texts[name].most()
            statistics.form = self.forms[name].form(name)
            if variance.count:
                shift = column.origin - self.earliest[name] if column.kind == "timestamp" else 0
                statistics.mean = (variance.mean + shift).tolist()
                statistics.deviation = variance.deviation.tolist()
            statistics.origin = self.earliest.get(name, 0)
        incomplete = np.array(incomplete_tiles, np.int64)
        sample = self.sampler.rows
        without_value = np.zeros(0, np.uint8) if self.without_value is None else np.packbits(self.without_value)
        arrays = sample, incomplete, without_value
        return TableStatistics(self.rows.num_rows, complete, self.statistics, *arrays)

    def _add_tile(self, tile: RowTile, selected: Bool[np.ndarray, " rows"] | None) -> Bool[np.ndarray, " rows"]:
        """Add the selected rows of a tile, and return a boolean array that is True for those with key and value."""
        table = tile.table
        columns, missing = {}, [np.zeros(table.num_rows, bool) if selected is None else ~selected]
        for name in self.names:
            if name != self.value and (width := _complete_vector_width(table.column(name))):
                self.statistics[name].width = width  # key vectors need no other statistics
                continue
            column = Column.from_table(table, name, self.folded, self.first.get(name))
            if name not in self.first and not column.missing.all():
                self.first[name] = column  # its origin and width are used for the following tiles
            columns[name] = column
            lacking = column.missing if selected is None else column.missing & selected
            self.statistics[name].missing += int(lacking.sum())
            if column.kind == "vector" and name in self.first:
                self.statistics[name].width = self.first[name].cells.shape[1]
            if column.kind == "timestamp" and not column.missing.all():
                earliest = int(column.cells[~column.missing].min()) + column.origin
                self.earliest[name] = min(earliest, self.earliest.get(name, earliest))
        missing += [column.missing for column in columns.values()]
        present = np.asarray(~np.logical_or.reduce(missing))
        if self.value in columns and columns[self.value].missing.any():
            keys = [column.missing for name, column in columns.items() if name in self.key]
            alone = np.logical_and.reduce([columns[self.value].missing, *(~each for each in keys)])
            if self.without_value is None:
                self.without_value = np.zeros(self.rows.num_rows, bool)
            self.without_value[tile.number : tile.number + len(alone)] = alone
        for name, column in columns.items():
            if column.kind == "text":
                self.texts[name].add(column.cells[present])
                self.forms[name] += TextForms.count(column, present)
            elif column.kind != "category":
                cells = column.cells[present]
                if column.kind == "number":
                    statistics = self.statistics[name]
                    statistics.largest = max(statistics.largest, float(np.abs(cells).max(initial=0.0)))
                self.variances[name].add(cells if cells.ndim == 2 else cells[:, None])
        self.sampler.add(tuple(columns.values()), present, tile.number)
        return present


def _complete_vector_width(column: pa.ChunkedArray) -> int:
    """Return the width of a column of float vectors, or 0 if an element may be missing or not finite.

    Return 0 for columns of other types and for columns of several chunks, too.
    """
    if column.num_chunks != 1 or arrow_columns.float_dtype(column.type) is None or column.chunks[0].null_count:
        return 0
    matrix = arrow_columns.vector_matrix(column.chunks[0])
    with np.errstate(over="ignore", invalid="ignore"):
        return matrix.shape[1] if matrix is not None and np.isfinite(matrix.sum()) else 0


class _RunningVariance:
    """Running mean and sum of squared deviations of the columns of a matrix, to which rows are added in parts."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Float[np.ndarray, " width"] = np.zeros(1)
        self.squares: Float[np.ndarray, " width"] = np.zeros(1)  # of numbers divided by `unit`
        self.unit: Float[np.ndarray, " width"] = np.zeros(1)

    def add(self, cells: Float[np.ndarray, "rows width"]) -> None:
        if not len(cells):
            return
        masses = np.array([float(self.count)]), np.array([float(len(cells))])
        mean = column_means(cells)
        merged, difference, weight = merge_means(masses[0], np.broadcast_to(self.mean, mean.shape), masses[1], mean)
        spread = np.maximum(np.abs(cells - mean).max(axis=0), np.abs(np.asarray(difference)))
        own = np.maximum(self.unit, np.where(spread > 0, square_unit(spread), 0.0))
        unit = np.where(own > 0, own, 1.0)
        between = np.square(np.asarray(difference) / unit) * np.asarray(weight)
        squares = np.square((cells - mean) / unit).sum(axis=0)
        self.squares = self.squares * np.square(self.unit / unit) + squares + between
        self.mean, self.count, self.unit = np.asarray(merged), self.count + len(cells), own

    @property
    def deviation(self) -> Float[np.ndarray, " width"]:
        """The standard deviation of each column."""
        return np.asarray(np.sqrt(self.squares / self.count) * self.unit)


class _TextCounts:
    """Running count of the rows with each distinct text, stored by hash in 16 bytes per text."""

    def __init__(self) -> None:
        self.pending: list[Int[np.ndarray, " _"]] = []
        self.size = 0
        self.hashes = np.zeros(0, np.int64)
        self.counts = np.zeros(0, np.int64)

    def add(self, texts: Shaped[np.ndarray, " rows"]) -> None:
        # Texts with equal hashes are counted together. Among 10^7 distinct texts this happens with a probability
        # below 10^-5, and its only effect is that one more key can have weight.
        self.pending.append(np.fromiter(map(hash, texts.tolist()), np.int64, len(texts)))
        self.size += len(texts)
        if self.size > _MOST_HASHES:
            self._merge()

    def most(self) -> int:
        self._merge()
        return int(self.counts.max(initial=0))

    def _merge(self) -> None:
        hashes = np.concatenate([self.hashes, *self.pending])
        ones = np.ones(len(hashes) - len(self.hashes), np.int64)
        counts = np.concatenate([self.counts, ones])
        self.hashes, inverse = np.unique(hashes, return_inverse=True)
        self.counts = np.bincount(inverse, weights=counts, minlength=len(self.hashes)).astype(np.int64)
        self.pending, self.size = [], 0
