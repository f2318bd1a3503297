"""`python -m benchmarks [CLAIM …] [--quick]`: measure claims, print their tables and save the results."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks._claim import CLAIMS, Claim, MissingError, Row, Setting, load

READY = "QKV_BENCHMARK_READY"
"""Environment variable that marks processes with one thread and separate folders for compiled code of peers."""
CONSOLE = Console(width=None if sys.stdout.isatty() else 150, highlight=False)


def main() -> int:
    """Run each claim in a process of its own, so that no claim warms the caches of another."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("claims", nargs="*", metavar="CLAIM", help=f"{', '.join(CLAIMS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="use small shapes to check that claims run; save nothing")
    parser.add_argument("--repeats", type=int, default=5, help="number of rounds of each race, at least 5")
    parser.add_argument("--results", type=Path, help="folder for results (default: benchmarks/results)")
    asked = parser.parse_args()
    for name in asked.claims:
        if name not in CLAIMS:
            parser.error(f"claims must be among {', '.join(CLAIMS)}, got {name!r}.")
    names = asked.claims or list(CLAIMS)
    if len(names) == 1 and os.environ.get(READY):
        return _one(names[0], asked)
    # Libraries read thread counts when they are loaded, so these are set before the process starts.
    with tempfile.TemporaryDirectory(prefix="qkv-bench") as caches:
        settings = {
            READY: "1",
            "OMP_NUM_THREADS": "1",
            "KERAS_BACKEND": "torch",
            "KEOPS_CACHE_FOLDER": f"{caches}/keops",
            "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
        }
        options = [word for word in sys.argv[1:] if word not in asked.claims]
        done = [
            subprocess.run([sys.executable, "-m", "benchmarks", name, *options], env=os.environ | settings)
            for name in names
        ]
    return max(run.returncode for run in done)


def _one(name: str, asked: argparse.Namespace) -> int:
    from benchmarks import _record

    claim = load(name)
    CONSOLE.rule(f"[bold]{name}", align="left")
    CONSOLE.print(claim.says)
    CONSOLE.print(f"goal: {claim.goal}\npeers: {', '.join(claim.peers)}")
    began, rows = time.monotonic(), []

    def say(text: str) -> None:
        CONSOLE.print(f"  … {text}", style="dim")

    try:
        for row in claim.rows(Setting(asked.quick, asked.repeats, say)):
            rows.append(row)
            say(f"{row.case}: {row.measure} {_number(row)}")
    except MissingError as missing:
        CONSOLE.print(f"[yellow]not measured: {missing}")
    if not rows:
        return 0
    CONSOLE.print(_table(claim, rows))
    for note in dict.fromkeys(row.note for row in rows if row.note):
        CONSOLE.print(f"  {note}", style="dim")
    if asked.quick and asked.results is None:
        CONSOLE.print("a quick run is no measurement: the result is not saved")
        return 0
    words = ["python -m benchmarks", name, *(["--quick"] if asked.quick else [])]
    folder = asked.results or _record.RESULTS
    seconds = time.monotonic() - began
    path = _record.save(name, claim, rows, " ".join(words), seconds, folder, _record.onednn_gain())
    CONSOLE.print(f"saved in {path}")
    return 0


def _number(row: Row) -> str:
    text = f"{row.number:.3g} {row.unit}".strip()
    return text if row.spread is None else f"{text} ({row.spread[0]:.3g}–{row.spread[1]:.3g})"


def _table(claim: Claim, rows: list[Row]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("case", "measured", "", "goal", "", "seconds", "MB", "error", "kernel"):
        table.add_column(title, justify="left", overflow="fold")
    for row in rows:
        mark = {True: "[green]met", False: "[red]missed", None: ""}[row.met]
        seconds = "  ".join(f"{name} {value:.3g}" for name, value in row.seconds.items())
        megabytes = "  ".join(f"{name} {value:.0f}" for name, value in row.megabytes.items())
        error = f"{max(row.errors.values()):.1g}" if row.errors else ""
        goal = "" if row.goal is None else str(row.goal)
        table.add_row(row.case, _number(row), row.measure, goal, mark, seconds, megabytes, error, row.kernel)
    return table


if __name__ == "__main__":
    sys.exit(main())
