"""`python -m benchmarks.appends`: time to append 10 rows, to open and to ask, after many small appends.

Each append is synced to the disk before it returns. The peers get the same rows: Lance through qkv (`backend="lance"`,
synced), Delta Lake (`deltalake`, which does not sync), and SQLite in write-ahead mode with `synchronous=full`. Times
are CPU times of one thread: the mean over the last 30 appends before each count, and the smallest of three for opening
and for opening and asking a query by equality (for Delta Lake and SQLite: for reading all rows).
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from qkv import Database

__all__ = ["Point", "Stream", "markdown", "measure"]

COUNTS = (10, 100, 300, 1000, 2000, 3000, 5000, 10_000, 20_000)
_TIMED = 30


@dataclass(frozen=True)
class Point:
    """Times in milliseconds after some appends.

    Attributes:
        appends: number of appends so far.
        append: CPU time of one append.
        wall: wall time of one append.
        opened: CPU time of opening.
        asked: CPU time of opening and of the first answer.
        size: size on the disk in bytes.
        files: number of files on the disk.
    """

    appends: int
    append: float
    wall: float
    opened: float
    asked: float
    size: int
    files: int


class Stream(ABC):
    """A table to which rows are appended."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def append(self, rows: pa.Table) -> None:
        """Append rows durably."""

    @abstractmethod
    def open(self) -> Any:
        """Open the table as a new process would."""

    @abstractmethod
    def ask(self, opened: Any) -> int:
        """Read all rows for an answer, and return their number."""


class _Store(Stream):
    backend = "arrow"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._database = Database.create(path, _rows(0).schema, key="key", value="value", backend=self.backend)

    def append(self, rows: pa.Table) -> None:
        self._database.append(rows)

    def open(self) -> Any:
        return Database.open(self.path)

    def ask(self, opened: Any) -> int:
        answer = opened.ask(0.3, score="exact")
        return len(opened) if answer is not None else 0


class _Lance(_Store):
    backend = "lance"


class _Delta(Stream):
    def append(self, rows: pa.Table) -> None:
        from deltalake import write_deltalake

        write_deltalake(str(self.path), rows, mode="append")

    def open(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(str(self.path))

    def ask(self, opened: Any) -> int:
        return int(pa.table(opened.to_pyarrow_dataset().to_table()).num_rows)


class _SQLite(Stream):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        path.mkdir()
        self._connection = sqlite3.connect(path / "rows.db")
        for command in (
            "pragma journal_mode=wal",
            "pragma synchronous=full",
            "create table rows (key real, value real)",
        ):
            self._connection.execute(command)

    def append(self, rows: pa.Table) -> None:
        cells = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        with self._connection as connection:
            connection.executemany("insert into rows values (?, ?)", cells)

    def open(self) -> Any:
        return sqlite3.connect(self.path / "rows.db")

    def ask(self, opened: Any) -> int:
        found = len(np.array(opened.execute("select key, value from rows").fetchall()))
        opened.close()
        return found


STREAMS: dict[str, type[Stream]] = {"qkv": _Store, "Lance in qkv": _Lance, "Delta Lake": _Delta, "SQLite": _SQLite}


def measure(create: Callable[[Path], Stream], folder: Path, counts: Sequence[int]) -> list[Point]:
    """Append 10 rows again and again, and return the times at each count of appends."""
    stream, done, points = create(folder), 0, []
    tables = [_rows(seed) for seed in range(64)]
    for count in counts:
        timed = min(_TIMED, count - done)
        for _ in range(count - done - timed):
            stream.append(tables[done % 64])
            done += 1
        gc.collect()
        used, passed = time.process_time(), time.perf_counter()
        for _ in range(timed):
            stream.append(tables[done % 64])
            done += 1
        used, passed = time.process_time() - used, time.perf_counter() - passed
        opened, asked = (min(times) for times in zip(*(_read(stream, 10 * done) for _ in range(3)), strict=True))
        files = [file for file in folder.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        points.append(
            Point(done, 1e3 * used / timed, 1e3 * passed / timed, 1e3 * opened, 1e3 * asked, size, len(files))
        )
        print(points[-1], file=sys.stderr, flush=True)
    return points


def _read(stream: Stream, rows: int) -> tuple[float, float]:
    start = time.process_time()
    table = stream.open()
    opened = time.process_time()
    if stream.ask(table) != rows:
        raise AssertionError(f"{type(stream).__name__} lost rows")
    return opened - start, time.process_time() - start


def _rows(seed: int) -> pa.Table:
    draw = np.random.default_rng(seed)
    return pa.table({"key": draw.normal(size=10), "value": draw.normal(size=10)})


def markdown(points: dict[str, list[Point]]) -> str:
    """Return the points as a Markdown table."""
    titles = ("", "appends", "append, ms", "open, ms", "open and ask, ms", "size, MB", "files")
    rows = [titles, ("---",) * len(titles)]
    for name, found in points.items():
        for p in found:
            times = (f"{p.append:.1f}", f"{p.opened:.1f}", f"{p.asked:.1f}")
            rows.append((name, f"{p.appends:,}", *times, f"{p.size / 1e6:.1f}", f"{p.files:,}"))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all streams and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=3000, help="largest number of appends; default: 3000")
    parser.add_argument("--only", choices=list(STREAMS), help="measure one stream")
    given = parser.parse_args(arguments)
    counts = [count for count in COUNTS if count <= given.most]
    found = {}
    for name, create in STREAMS.items():
        if given.only in (None, name):
            folder = Path(tempfile.mkdtemp(prefix="qkv-appends", dir=os.environ.get("TMPDIR")))
            try:
                found[name] = measure(create, folder / "stream", counts)
                if create is _Store:
                    found["qkv, compacted"] = measure_compacted(folder / "stream", counts[-1])
            finally:
                shutil.rmtree(folder)
    print(markdown(found))
    return 0


def measure_compacted(folder: Path, appends: int) -> list[Point]:
    """Compact the store in a folder, and return the times of opening and asking."""
    Database.open(folder).compact(keep=1)
    times = []
    for _ in range(3):
        start = time.process_time()
        database = Database.open(folder)
        opened = time.process_time()
        database.ask(0.3, score="exact")
        times.append((opened - start, time.process_time() - start))
    opened, asked = (1e3 * min(column) for column in zip(*times, strict=True))
    files = [file for file in folder.rglob("*") if file.is_file()]
    return [Point(appends, 0.0, 0.0, opened, asked, sum(file.stat().st_size for file in files), len(files))]


if __name__ == "__main__":
    sys.exit(main())
