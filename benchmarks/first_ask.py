"""First and second question of a process to a store of 1 GB in the page cache, with and without checksums.

`python -m benchmarks.first_ask` writes the store to a temporary folder and starts 20 pairs of processes in turns. It
prints medians in milliseconds, and the median of the ratios of the pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from qkv import Database

WIDTH = 128
MEASURED = ("first CPU", "first wall", "second CPU", "second wall", "process CPU")


def tables(rows: int) -> Iterator[pa.Table]:
    """Yield tables of random vectors and values."""
    draw = np.random.default_rng(0)
    for start in range(0, rows, 250_000):
        size = min(250_000, rows - start)
        keys = pa.array(draw.standard_normal(size * WIDTH, dtype=np.float32))
        yield pa.table({"key": pa.FixedSizeListArray.from_arrays(keys, WIDTH), "value": draw.standard_normal(size)})


def ask_twice(path: Path) -> list[float]:
    """Return the times of the first and the second question of this process in milliseconds."""
    query = np.random.default_rng(1).standard_normal(WIDTH).tolist()
    times = []
    for _ in range(2):
        cpu, wall = time.process_time(), time.perf_counter()
        Database.open(path).ask(query)
        times += [1000 * (time.process_time() - cpu), 1000 * (time.perf_counter() - wall)]
    return [*times, 1000 * time.process_time()]


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--ask", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        print(json.dumps(ask_twice(options.ask)))
        return
    with tempfile.TemporaryDirectory(prefix="qkv-first-ask") as folder:
        path = Path(folder) / "store"
        Database.create(path, tables(options.rows), "key", "value")
        command = [sys.executable, "-m", "benchmarks.first_ask", "--ask", str(path)]
        times: dict[str, list[list[float]]] = {"1": [], "0": []}
        for number in range(options.pairs):
            for checksums in "10" if number % 2 else "01":
                settings = {**os.environ, "QKV_CHECKSUMS": checksums, "OMP_NUM_THREADS": "1"}
                done = subprocess.run(command, env=settings, check=True, stdout=subprocess.PIPE)
                times[checksums].append(json.loads(done.stdout))
    print(f"{'':12} {'checksums':>10} {'without':>10} {'ratio':>6}")
    for name, with_them, without in zip(
        MEASURED, zip(*times["1"], strict=True), zip(*times["0"], strict=True), strict=True
    ):
        ratio = statistics.median(a / b for a, b in zip(with_them, without, strict=True))
        print(f"{name:12} {statistics.median(with_them):10.0f} {statistics.median(without):10.0f} {ratio:6.2f}")


if __name__ == "__main__":
    main()
