"""`python -m benchmarks.second_question`: CPU time of the first and of further questions to a file of 5,000,000 rows.

The file has two columns of numbers, a column of ten shops and a value. Each question is a process of `qkv ask`.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

__all__ = ["write_table"]

QUESTIONS = (("x", ("42.1", "57.3")), ("x,y", ("42.1,10", "57.3,80")), ("shop,x", ("shop 3,42.1", "shop 7,57.3")))


def write_table(path: Path, rows: int) -> None:
    """Write a CSV file with the columns x, y, shop and v, last modified an hour ago."""
    draw = np.random.default_rng(0)
    x, y, shop = draw.uniform(0, 100, rows).round(4), draw.uniform(0, 100, rows).round(4), draw.integers(10, size=rows)
    v = (10 * np.sin(x / 5) + x + y / 10 + 5 * shop + draw.normal(0, 5, rows)).round(3)
    shops = np.array([f"shop {number}" for number in range(10)])[shop]
    pyarrow.csv.write_csv(pa.table({"x": x, "y": y, "shop": shops, "v": v}), path)
    earlier = path.stat().st_mtime - 3600
    os.utime(path, (earlier, earlier))


def _seconds(arguments: list[str], cache: Path) -> float:
    """Return the CPU time of a process of `qkv ask` in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "QKV_CACHE": str(cache)}
    subprocess.run([sys.executable, "-m", "qkv", "ask", *arguments], env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Print a table of CPU times."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.second_question", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5_000_000, help="number of rows of the file")
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        path, cache = Path(folder) / "big.csv", Path(folder) / "cache"
        write_table(path, rows)
        size = f"{rows:,} rows, {path.stat().st_size / 1e6:,.0f} MB"
        print(f"| key ({size}) | first question | second question | `--no-cache` |")
        print("|---|---|---|---|")
        for key, (first, second) in QUESTIONS:
            given = [str(path), "--key", key, "--value", "v", "--top", "1"]
            times = [_seconds([*given, query], cache) for query in (first, second)]
            times.append(_seconds([*given, second, "--no-cache"], cache))
            print(f"| {key} | " + " | ".join(f"{each:.1f} s" for each in times) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
