"""What must be known of all rows before the first is compared: found in one pass, and remembered.

Counts of missing cells, means and deviations, the first moment, how often the commonest text occurs; and
some rows, evenly spread, from which bandwidths are chosen. The notes of a store keep it for its version.
"""

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from qkv.core.progress import Progress
from qkv.database.execute.row_reader import Rows
from qkv.database.io import arrow_columns
from qkv.database.keys.bandwidth import Bandwidth, thinning_step
from qkv.database.keys.columns import Column
from qkv.errors import StoreFullError
from qkv.store.disk import write_synced

__all__ = ["ColumnStatistics", "TableStatistics", "load_statistics"]

_FORMAT = 1
_MOST_NOTES = 16
_EXAMPLES = 256
_MOST_HASHES = 2**22


@dataclass
class ColumnStatistics:
    """What is known of a column.

    Fields:
        missing: how many cells are.
        origin: the first moment, from which others count.
        width: of vectors.
        mean, deviation: of the cells of rows that take part, in the column's own unit from the origin; empty
            for other kinds than numbers, timestamps and booleans, and but for the mean, vectors.
        repeats: how many of these rows hold the commonest text.
    """

    missing: int = 0
    origin: int = 0
    width: int = 1
    mean: list[float] = field(default_factory=list)
    deviation: list[float] = field(default_factory=list)
    repeats: int = 0


@dataclass
class TableStatistics:
    """Of the rows of one version, for some key columns and a value.

    Fields:
        rows: of the store.
        kept: how many have key and value.
        columns: by name.
        sample: the numbers of evenly spread rows that take part.
        gaps: the numbers of the tiles with a row that does not take part.
        bandwidth: of standardised points, once it was chosen.
        between: distances between nearest keys, by their unit.
        tile: rows of a tile.
    """

    rows: int
    kept: int
    columns: dict[str, ColumnStatistics]
    sample: np.ndarray
    gaps: np.ndarray
    bandwidth: Bandwidth | None = None
    between: dict[str, float] = field(default_factory=dict)
    tile: int = 0
    home: Path | None = None

    @property
    def examples(self) -> np.ndarray:
        """A few of the sample."""
        return self.sample[:: max(1, len(self.sample) // _EXAMPLES)]

    def remember(self) -> None:
        """Write it into the notes; where they cannot be written it is found again the next time."""
        if self.home is None:
            return
        said = {
            "format": [_FORMAT, self.tile],
            "rows": self.rows,
            "kept": self.kept,
            "columns": {name: asdict(facts) for name, facts in self.columns.items()},
            "bandwidth": None if self.bandwidth is None else asdict(self.bandwidth),
            "between": self.between,
        }
        data = io.BytesIO()
        np.savez(data, said=np.array(json.dumps(said)), sample=self.sample, gaps=self.gaps)
        try:
            self.home.parent.mkdir(exist_ok=True)
            write_synced(self.home, data.getvalue())
            for older in sorted(self.home.parent.glob("*.npz"))[:-_MOST_NOTES]:
                older.unlink(missing_ok=True)
        except (OSError, StoreFullError):
            return


def load_statistics(
    rows: Rows, key: Sequence[str], value: str, folded: bool, progress: Progress | None = None
) -> TableStatistics:
    """The profile that the notes hold, or a new one."""
    asked = json.dumps([list(key), value, folded]).encode()
    name = f"{rows.store.version:010d}-{hashlib.sha256(asked).hexdigest()[:16]}.npz"
    home = rows.store.notes / name
    found = _remembered(home, rows.tile_rows(list(dict.fromkeys((*key, value)))))
    if found is None:
        found = replace(_Pass(rows, key, value, folded).run(progress), home=home)
        found.remember()
    return found


def _remembered(home: Path, tile: int) -> TableStatistics | None:
    try:
        with np.load(home, allow_pickle=False) as file:
            said, sample, gaps = json.loads(str(file["said"])), file["sample"], file["gaps"]
        if said.pop("format") != [_FORMAT, tile]:
            return None
        return TableStatistics(
            said["rows"],
            said["kept"],
            {name: ColumnStatistics(**facts) for name, facts in said["columns"].items()},
            sample,
            gaps,
            _bandwidth(said["bandwidth"]),
            said["between"],
            tile,
            home,
        )
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None


def _bandwidth(said: Any) -> Bandwidth | None:
    return None if said is None else Bandwidth(**{**said, "tried": tuple(map(tuple, said["tried"]))})


class _Pass:
    """One pass over some columns of all rows."""

    def __init__(self, rows: Rows, key: Sequence[str], value: str, folded: bool) -> None:
        self.rows, self.value = rows, value
        self.names = tuple(dict.fromkeys((*key, value)))
        self.tile = rows.tile_rows(self.names)
        self.folded = folded
        self.facts = {name: ColumnStatistics() for name in self.names}
        self.first: dict[str, Column] = {}
        self.earliest: dict[str, int] = {}
        self.sums = {name: _Sums() for name in self.names}
        self.texts = {name: _Texts() for name in self.names}

    def run(self, progress: Progress | None) -> TableStatistics:
        kept, bits, whole = 0, [], []
        for tile in self.rows.tiles(self.names):
            start, here = tile.number, self._absorb(tile.table)
            kept += int(here.sum())
            bits.append(np.packbits(here))
            whole.append(bool(here.all()))
            if progress is not None:
                progress("reading the rows once", start + len(here), self.rows.num_rows)
        for name, facts in self.facts.items():
            sums, column = self.sums[name], self.first.get(name)
            if column is None:
                continue
            facts.repeats = self.texts[name].most()
            if sums.count:
                shift = column.origin - self.earliest[name] if column.kind == "timestamp" else 0
                facts.mean = (sums.mean + shift).tolist()
                facts.deviation = np.sqrt(sums.squares / sums.count).tolist()
            facts.origin = self.earliest.get(name, 0)
        gaps = np.array([number for number, here in enumerate(whole) if not here], np.int64)
        sample = self._sample(kept, bits)
        return TableStatistics(self.rows.num_rows, kept, self.facts, sample, gaps, tile=self.tile)

    def _absorb(self, table: Any) -> np.ndarray:
        columns, missing = {}, [np.zeros(table.num_rows, bool)]
        for name in self.names:
            if name != self.value and (width := _whole_vectors(table.column(name))):
                self.facts[name].width = width  # of keys that are vectors nothing else is wanted
                continue
            column = Column.from_table(table, name, self.folded, self.first.get(name))
            if name not in self.first and not column.missing.all():
                self.first[name] = column  # its origin and width hold for those that follow
            columns[name] = column
            self.facts[name].missing += int(column.missing.sum())
            if column.kind == "vector" and name in self.first:
                self.facts[name].width = self.first[name].cells.shape[1]
            if column.kind == "timestamp" and not column.missing.all():
                earliest = int(column.cells[~column.missing].min()) + column.origin
                self.earliest[name] = min(earliest, self.earliest.get(name, earliest))
        missing += [column.missing for column in columns.values()]
        here: np.ndarray = ~np.logical_or.reduce(missing)
        for name, column in columns.items():
            if column.kind == "text":
                self.texts[name].absorb(column.cells[here])
            elif column.kind != "category":
                self.sums[name].absorb(column.cells[here].reshape(int(here.sum()), -1))
        return here

    def _sample(self, kept: int, bits: list[np.ndarray]) -> np.ndarray:
        """The rows that `leave_one_out` would compare if it saw all."""
        step, found, rank, first = thinning_step(kept), [np.zeros(0, np.int64)], 0, 0
        counts = [
            min(self.tile, count - start)
            for count in self.rows.store.block_lengths()
            for start in range(0, count, self.tile)
        ]
        for packed, count in zip(bits, counts, strict=True):
            here = np.flatnonzero(np.unpackbits(packed, count=count))
            found.append(first + here[-rank % step :: step])
            rank += len(here)
            first += count
        return np.concatenate(found)


def _whole_vectors(column: Any) -> int:
    """The width of vectors none of which is missing, as a look at their sum can tell; else 0."""
    if column.num_chunks != 1 or arrow_columns.float_dtype(column.type) is None or column.chunks[0].null_count:
        return 0
    matrix = arrow_columns.matrix(column.chunks[0])
    with np.errstate(over="ignore", invalid="ignore"):
        return matrix.shape[1] if matrix is not None and np.isfinite(matrix.sum()) else 0


class _Sums:
    """Mean and squared deviations of rows that come in parts.

    Source: Chan, Golub, LeVeque (1983), Algorithms for computing the sample variance.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: Any = 0.0
        self.squares: Any = 0.0

    def absorb(self, cells: np.ndarray) -> None:
        if not len(cells):
            return
        mean = cells.mean(axis=0)
        apart, count = mean - self.mean, self.count + len(cells)
        self.squares = self.squares + np.square(cells - mean).sum(axis=0)
        self.squares = self.squares + np.square(apart) * (self.count * len(cells) / count)
        self.mean = self.mean + apart * (len(cells) / count)
        self.count = count


class _Texts:
    """How often the commonest of many texts occurs, by their hashes: 16 bytes for each different one."""

    def __init__(self) -> None:
        self.waiting: list[np.ndarray] = []
        self.size = 0
        self.hashes = np.zeros(0, np.int64)
        self.counts = np.zeros(0, np.int64)

    def absorb(self, texts: np.ndarray) -> None:
        # Two texts of one hash are counted together: one more key then takes part, in one of 10^5 tables of
        # 10^7 different texts.
        self.waiting.append(np.fromiter(map(hash, texts.tolist()), np.int64, len(texts)))
        self.size += len(texts)
        if self.size > _MOST_HASHES:
            self._join()

    def most(self) -> int:
        self._join()
        return int(self.counts.max(initial=0))

    def _join(self) -> None:
        hashes = np.concatenate([self.hashes, *self.waiting])
        ones = np.ones(len(hashes) - len(self.hashes), np.int64)
        counts = np.concatenate([self.counts, ones])
        self.hashes, inverse = np.unique(hashes, return_inverse=True)
        self.counts = np.bincount(inverse, weights=counts, minlength=len(self.hashes)).astype(np.int64)
        self.waiting, self.size = [], 0
