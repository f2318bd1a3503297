"""`python -m benchmarks.tables`: the attention estimators on public tables beside other methods.

    python -m benchmarks.tables                             all that is not in the results yet; days on one core
    python -m benchmarks.tables yacht servo --splits 3      some tables, their first three splits
    python -m benchmarks.tables --methods XGBoost TabM      some methods
    python -m benchmarks.tables --tuned                     each with a random search of the same number of steps
    python -m benchmarks.tables --page                      write the section of docs/evidence/tables.md and its picture

Every result is saved at once (`benchmarks/results/tables.csv`), and what is saved is not computed again,
so the command can be stopped at any time. A failure is saved with its reason; methods without their package are
left out. If one fit and prediction took more than `--seconds`, the other splits of that table and method are left for
another run; with `--limit`, a fit that takes more CPU time is stopped, and saved as a failure.

    error         root mean squared error, or the share of wrong classes, of the test rows
    log loss      mean of −log p of the true class, with p clipped at 1e-6
    calibration   expected calibration error of the most likely class, in ten bins of equal width
    coverage      share of test values in 90 % intervals, of the methods that have intervals
    length        median length of these intervals, relative to the interval of the middle 90 % of test values
    seconds       CPU time of the process; libraries are told to use one thread; compared on the same machine only
    bytes         size of the pickled estimator

The random search starts with the defaults, draws other parameters, and judges by the error (classes: log loss) of a
quarter of the training rows, drawn at random; its time is part of the fit.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import os
import pickle
import signal
import sys
import time
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from examples.tables import Split

from benchmarks._record import machine

__all__ = ["RESULTS", "Result", "append_result", "evaluate", "main", "read_results", "score"]

RESULTS = Path(__file__).parent / "results" / "tables.csv"
_LEVEL = 0.9
_SMALLEST = 1e-6
_BINS = 10


@dataclass(frozen=True)
class Result:
    """One method on one split of a table; numbers that do not apply are NaN."""

    table: str
    method: str
    setting: str
    split: int
    rows: int
    error: float = np.nan
    log_loss: float = np.nan
    calibration: float = np.nan
    coverage: float = np.nan
    length: float = np.nan
    fit_seconds: float = np.nan
    predict_seconds: float = np.nan
    bytes: float = np.nan
    version: str = ""
    date: str = ""
    machine: str = ""
    failure: str = ""

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.table, self.method, self.setting, self.split


def read_results(path: Path = RESULTS) -> list[Result]:
    """Return the saved results; a last line that was cut off is left out, and a column may be missing."""
    if not path.exists():
        return []
    texts = {"table", "method", "setting", "version", "date", "machine", "failure"}
    kinds = {field.name: str if field.name in texts else int if field.name in ("split", "rows") else float
             for field in fields(Result)}  # fmt: skip
    found = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if None in row.values() or None in row:
                continue
            result = Result(**{name: kind(row.get(name) or ("nan" if kind is float else ""))
                               for name, kind in kinds.items()})  # fmt: skip
            found[result.key] = result
    return list(found.values())


def append_result(path: Path, result: Result) -> None:
    """Append a result to a file; a line that was cut off before is ended."""
    row = {name: (f"{value:.6g}" if value == value else "") if isinstance(value, float) else value
           for name, value in asdict(result).items()}  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        size = file.tell()
        file.seek(max(0, size - 1))
        cut_off = size > 0 and file.read() != b"\n"
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if size == 0:
            writer.writeheader()
        elif cut_off:  # the process was stopped while it wrote a line
            file.write("\n")
        writer.writerow(row)


def score(probabilities: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Return the error, the log loss and the calibration error of class probabilities, `(rows, classes)`.

    Args:
        probabilities: probability of each class.
        y: index of the true class of each row; −1 for a class without a probability.
    """
    found = probabilities.argmax(axis=1)
    right = found == y
    true = np.where(y < 0, 0.0, probabilities[np.arange(len(y)), y])
    sure = probabilities.max(axis=1)
    bins = np.minimum((sure * _BINS).astype(int), _BINS - 1)
    gaps = [abs(np.sum(right[bins == place] - sure[bins == place])) for place in range(_BINS)]
    return 1 - right.mean(), -np.log(np.clip(true, _SMALLEST, 1)).mean(), sum(gaps) / len(y)


def _measure(model: Any, split: Split, classes: int) -> dict[str, float]:
    """Fit a model, predict the test rows, and return all numbers; classes is the number of classes, 0 for numbers."""
    began = time.process_time()
    model.fit(split.X, split.y)
    fitted = time.process_time()
    numbers = {"fit_seconds": fitted - began}
    if classes:
        found = np.asarray(model.predict_proba(split.X_test), np.float64)
        numbers["predict_seconds"] = time.process_time() - fitted
        if found.shape != (len(split.y_test), classes) or not np.isfinite(found).all():
            raise ValueError(f"probabilities have shape {found.shape} or are not finite")
        numbers["error"], numbers["log_loss"], numbers["calibration"] = score(found, split.y_test)
    else:
        found = np.ravel(model.predict(split.X_test))
        numbers["predict_seconds"] = time.process_time() - fitted
        if not np.isfinite(found).all():
            raise ValueError("predictions are not finite")
        numbers["error"] = float(np.sqrt(np.mean((found - split.y_test) ** 2)))
        if hasattr(getattr(model, "model", model), "predict_interval"):
            low, high = model.predict_interval(split.X_test, _LEVEL)
            middle = np.subtract(*np.quantile(split.y_test, [0.95, 0.05]))
            numbers["coverage"] = float(np.mean((low <= split.y_test) & (split.y_test <= high)))
            numbers["length"] = float(np.median(high - low) / middle) if middle else np.nan
    return numbers


def _search(method: Any, split: Split, classes: int, steps: int, seed: int) -> dict[str, Any]:
    """Return the parameters of the smallest validation error; a step that fails is passed over."""
    from sklearn.model_selection import train_test_split

    from benchmarks._table_methods import draw_parameters

    common = classes and np.bincount(split.y).min() > 1
    fit, held = train_test_split(
        np.arange(len(split.y)), test_size=0.25, random_state=seed, stratify=split.y if common else None
    )
    inner = Split(split.X.iloc[fit], split.y[fit], split.X.iloc[held], split.y[held])
    if classes and len(np.unique(inner.y)) < classes:
        return {}
    best, parameters = np.inf, {}
    for number in range(steps):
        tried = draw_parameters(method, seed, number)
        with contextlib.suppress(Exception):
            numbers = _measure(method.make(bool(classes), inner.X, **tried), inner, classes)
            loss = numbers["log_loss" if classes else "error"]
            if loss < best:
                best, parameters = loss, tried
    return parameters


@contextlib.contextmanager
def _limit_cpu(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block when it has taken so much CPU time; 0 means no limit."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError(f"more than {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, stop) if seconds else None
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if seconds:
            signal.signal(signal.SIGPROF, before)


def evaluate(
    table: str,
    name: str,
    number: int,
    split: Split,
    steps: int = 0,
    classification: bool | None = None,
    limit: float = 0,
) -> Result:
    """Return the result of a method on one split, tuned by a search of so many steps if it is not 0.

    An exception of the method is the result's `failure`, unless its package is not installed. `classification` says
    whether the target is a class; None asks the list of tables. `limit` is the largest CPU time in seconds, or 0.
    """
    from benchmarks._table_methods import METHODS
    from benchmarks._table_sets import classification_tables

    method, classes = METHODS[name], 0
    if table in classification_tables() if classification is None else classification:
        labels, codes = np.unique(split.y, return_inverse=True)
        places = {label: place for place, label in enumerate(labels)}
        known = np.array([places.get(label, -1) for label in split.y_test])
        split, classes = Split(split.X, codes, split.X_test, known), len(labels)
    numbers: dict[str, float] = {}
    failure = ""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), _limit_cpu(limit):
            warnings.simplefilter("ignore")
            began = time.process_time()
            seed = zlib.crc32(f"{table} {number}".encode())
            parameters = _search(method, split, classes, steps, seed) if steps else {}
            searched = time.process_time() - began
            model = method.make(bool(classes), split.X, **parameters)
            numbers = _measure(model, split, classes)
            numbers["fit_seconds"] += searched
            with contextlib.suppress(Exception):
                numbers["bytes"] = len(pickle.dumps(model))
    except ImportError:
        raise
    except Exception as error:
        failure = f"{type(error).__name__}: {error}".splitlines()[0][:120]
    setting = f"tuned {steps}" if steps else "default"
    date, cpu = datetime.now(UTC).date().isoformat(), machine()["cpu"]
    return Result(
        table,
        name,
        setting,
        number,
        len(split.y),
        **numbers,
        version=method.version,
        date=date,
        machine=cpu,
        failure=failure,
    )


def _todo(asked: argparse.Namespace, folder: Path, done: set[tuple[str, str, str, int]]) -> Iterator[tuple[Any, ...]]:
    """Yield what is to be measured: table, method, number of the split, split."""
    from benchmarks._table_methods import METHODS
    from benchmarks._table_sets import classification_tables, load_splits

    setting = f"tuned {asked.steps}" if asked.tuned else "default"
    for table in asked.tables:
        splits: list[Split] | None = None
        for name in asked.methods:
            method = METHODS[name]
            if not method.classes and table in classification_tables():
                continue
            if (table, name, setting, asked.splits - 1) in done:
                continue
            if splits is None:
                splits = [split for split, _ in zip(load_splits(table, folder), range(asked.splits), strict=False)]
            for number, split in enumerate(splits):
                if (table, name, setting, number) in done or (method.largest and len(split.y) > method.largest):
                    continue
                yield table, name, number, split


def main(arguments: list[str] | None = None) -> None:
    """Measure what is asked and not saved yet, or write the page."""
    from benchmarks._table_methods import METHODS
    from benchmarks._table_sets import classification_tables, regression_tables

    tables = [*regression_tables(), *classification_tables()]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"any of {', '.join(tables)} (default: all)")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), metavar="METHOD",
                        help=f"any of {', '.join(METHODS)} (default: all)")  # fmt: skip
    parser.add_argument("--splits", type=int, default=100, help="maximum number of splits of each table")
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU time of a fit after which no split follows")
    parser.add_argument("--limit", type=float, default=0.0, help="CPU time at which a fit is stopped; 0: none")
    parser.add_argument("--tuned", action="store_true", help="choose parameters by random search")
    parser.add_argument("--steps", type=int, default=8, help="steps of the random search")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of the results")
    parser.add_argument("--page", action="store_true", help="write the page from the saved results and stop")
    asked = parser.parse_args(arguments)
    if unknown := sorted(set(asked.tables) - set(tables)):
        parser.error(f"TABLE must be one of {', '.join(tables)}, got {unknown[0]!r}")
    if asked.page:
        from benchmarks._table_page import write_page

        write_page(read_results(asked.results))
        return
    folder = os.environ.get("QKV_DATA")
    if not folder:
        parser.exit(2, "The variable QKV_DATA must name the folder of the tables.\n")
    asked.tables = asked.tables or tables
    done = {result.key for result in read_results(asked.results)}
    stopped: set[tuple[str, str]] = set()
    for table, name, number, split in _todo(asked, Path(folder), done):
        if (table, name) in stopped:
            continue
        try:
            result = evaluate(table, name, number, split, asked.steps if asked.tuned else 0, limit=asked.limit)
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            asked.methods = [other for other in asked.methods if other != name]
            stopped.add((table, name))
            continue
        append_result(asked.results, result)
        seconds = result.fit_seconds + result.predict_seconds
        print(f"{table}\t{name}\t{number}\t{result.error:.4g}\t{seconds:.2f} s\t{result.failure}", flush=True)
        if result.failure or seconds > asked.seconds:
            print(f"{table}: no further splits of {name}", file=sys.stderr)
            stopped.add((table, name))


if __name__ == "__main__":
    main()
