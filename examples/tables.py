"""Accuracy of the attention estimators on tables with one set of defaults, compared with other methods.

    python -m examples.tables                      all tables; hours on one core
    python -m examples.tables yacht --splits 3     one of them, its first three splits
    python -m examples.tables airfoil --only "attention, quick" --only "boosted trees (scikit-learn)"
    python -m examples.tables --intervals          coverage of 90 % prediction intervals of the attention estimators

Tables, in the folder that the variable QKV_DATA names: yacht, energy and wine-quality-red with their 20
standard splits (Hernández-Lobato and Adams 2015), airfoil, autompg, parkinsons, pol, servo, sml and stock with
their 10 folds (Evans and Nair 2018), abalone and California housing in 5 folds shuffled with seed 0, and adult with
its own test file. The figure is the root mean squared error (California: in 100,000 dollars; the seven tables of
Evans and Nair: in standard deviations of the training values), or the accuracy (adult), as mean over splits ±
standard error. No setting depends on the table. With `--intervals`, it is the share of test values in their intervals,
and the CPU time is replaced by the median length of the intervals relative to that of the middle 90 % of test values.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "GOALS",
    "PEERS",
    "TABLES",
    "Split",
    "coded_columns",
    "main",
    "measure",
    "measure_intervals",
    "scaled_columns",
    "splits_of",
]

_EVANS = ("airfoil", "autompg", "parkinsons", "pol", "servo", "sml", "stock")
TABLES = ("yacht", "energy", "wine-quality-red", *_EVANS, "abalone", "california", "adult")
GOALS = {"yacht": 0.75, "energy": 0.45, "wine-quality-red": 0.62, "adult": 0.865}
"""Goals of each table; California's goal is the error of the boosted trees."""
_OURS = "attention"
_TREES = "boosted trees (scikit-learn)"


@dataclass(frozen=True)
class Split:
    """Training rows and test rows, as pandas frames and arrays."""

    X: Any
    y: np.ndarray
    X_test: Any
    y_test: np.ndarray


def splits_of(table: str, folder: Path) -> Iterator[Split]:
    """Return all splits of a table, in order."""
    import pandas as pd

    if table == "california":
        from sklearn.model_selection import KFold

        frame = pd.read_csv(folder / "tables" / "california_housing.csv.gz")
        y = frame.pop("median_house_value").to_numpy() / 1e5
        for train, test in KFold(5, shuffle=True, random_state=0).split(frame):
            yield Split(frame.iloc[train], y[train], frame.iloc[test], y[test])
    elif table == "abalone":
        from sklearn.model_selection import KFold

        frame = pd.read_csv(folder / "tables" / "abalone.csv", header=None).rename(columns=lambda n: f"column {n}")
        y = frame.pop(frame.columns[-1]).to_numpy(np.float64)
        for train, test in KFold(5, shuffle=True, random_state=0).split(frame):
            yield Split(frame.iloc[train], y[train], frame.iloc[test], y[test])
    elif table in _EVANS:
        home = folder / "uci-evans" / table
        frame = pd.read_csv(home / "data.csv.gz", header=None).rename(columns=lambda n: f"column {n}")
        y = frame.pop(frame.columns[-1]).to_numpy(np.float64)
        masks = pd.read_csv(home / "test_mask.csv.gz", header=None).to_numpy().astype(bool)
        for mask in masks.T:
            values = (y - y[~mask].mean()) / y[~mask].std()
            yield Split(frame[~mask], values[~mask], frame[mask], values[mask])
    elif table == "adult":
        frames = []
        for part in ("train", "test"):
            path = folder / "tables" / f"adult-{part}.csv.gz"
            read = pd.read_csv(path, header=None, skipinitialspace=True, comment="|", na_values="?")
            frames.append(read.rename(columns=lambda place: f"column {place}"))
        # The test file writes "<=50K." where the other writes "<=50K".
        y, y_test = (frame.pop("column 14").str.rstrip(".").to_numpy() for frame in frames)
        yield Split(frames[0], y, frames[1], y_test)
    else:
        home = folder / "uci" / table
        data = np.loadtxt(home / "data.txt")
        columns = np.loadtxt(home / "index_features.txt").astype(int)
        target = int(np.loadtxt(home / "index_target.txt"))
        frame = pd.DataFrame(data[:, columns]).rename(columns=lambda place: f"column {place}")
        for number in range(int(np.loadtxt(home / "n_splits.txt"))):
            train, test = (np.loadtxt(home / f"index_{part}_{number}.txt").astype(int) for part in ("train", "test"))
            yield Split(frame.iloc[train], data[train, target], frame.iloc[test], data[test, target])


def _attention(classes: bool, effort: str) -> Any:
    from qkv.estimators import AttentionClassifier, AttentionRegressor

    return (AttentionClassifier if classes else AttentionRegressor)(effort=effort, random_state=0)


def _isotropic(classes: bool) -> Any:
    from qkv.estimators import AttentionClassifier, AttentionRegressor

    return (AttentionClassifier if classes else AttentionRegressor)("none", random_state=0)


def scaled_columns() -> Any:
    """Return a transformer that imputes and standardizes numbers and gives each level of a category a column."""
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    return make_column_transformer(
        (
            make_pipeline(SimpleImputer(strategy="median"), StandardScaler()),
            make_column_selector(dtype_include="number"),
        ),
        (OneHotEncoder(handle_unknown="ignore"), make_column_selector(dtype_exclude="number")),
    )


def coded_columns() -> Any:
    """Return a transformer that replaces categories by integer codes and leaves numbers as they are."""
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.preprocessing import OrdinalEncoder

    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    return make_column_transformer((codes, make_column_selector(dtype_exclude="number")), remainder="passthrough")


def _neighbours(classes: bool) -> Any:
    from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
    from sklearn.pipeline import make_pipeline

    return make_pipeline(scaled_columns(), (KNeighborsClassifier if classes else KNeighborsRegressor)(5))


def _trees(classes: bool) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.pipeline import make_pipeline

    trees = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    return make_pipeline(coded_columns(), trees(random_state=0))


PEERS: dict[str, Callable[[bool], Any]] = {
    f"{_OURS}, best": partial(_attention, effort="best"),
    f"{_OURS}, standard": partial(_attention, effort="standard"),
    f"{_OURS}, quick": partial(_attention, effort="quick"),
    "isotropic Nadaraya–Watson": _isotropic,
    "5 nearest neighbours": _neighbours,
    _TREES: _trees,
}


def measure(model: Any, split: Split) -> float:
    """Return the root mean squared error, or the accuracy for classes."""
    found = model.fit(split.X, split.y).predict(split.X_test)
    if split.y.dtype.kind in "OUS":
        return float(np.mean(found == split.y_test))
    return float(np.sqrt(np.mean((found - split.y_test) ** 2)))


def measure_intervals(model: Any, split: Split, level: float = 0.9) -> tuple[float, float]:
    """Return the share of test values in their intervals, and the median length of the intervals.

    Lengths are relative to that of the interval between the 5 % and the 95 % quantile of the test values.
    """
    low, high = model.fit(split.X, split.y).predict_interval(split.X_test, level)
    middle = np.subtract(*np.quantile(split.y_test, [0.95, 0.05]))
    return float(np.mean((low <= split.y_test) & (split.y_test <= high))), float(np.median(high - low) / middle)


def _table(name: str) -> str:
    if name not in TABLES:
        raise argparse.ArgumentTypeError(f"TABLE must be one of {', '.join(TABLES)}, got {name!r}")
    return name


def main(arguments: list[str] | None = None) -> None:
    """Evaluate and print one line per table and method."""
    parser = argparse.ArgumentParser(prog="python -m examples.tables", description=__doc__.splitlines()[0])
    parser.add_argument(
        "tables",
        nargs="*",
        type=_table,
        default=TABLES,
        metavar="TABLE",
        help=f"any of {', '.join(TABLES)} (default: all)",
    )
    parser.add_argument("--splits", type=int, default=100, help="maximum number of splits of each table")
    parser.add_argument("--only", action="append", choices=list(PEERS), help="evaluate this method; may be repeated")
    parser.add_argument("--intervals", action="store_true", help="measure 90 %% prediction intervals, not errors")
    asked = parser.parse_args(arguments)
    folder = os.environ.get("QKV_DATA")
    if not folder:
        parser.exit(2, "The variable QKV_DATA must name the folder of the tables.\n")
    last = "length" if asked.intervals else "CPU seconds of a split"
    print(f"| table | splits | method | figure | {last} |", "|---|---|---|---|---|", sep="\n")
    for table in asked.tables:
        splits = [split for split, _ in zip(splits_of(table, Path(folder)), range(asked.splits), strict=False)]
        for name, make in PEERS.items():
            if asked.only and name not in asked.only:
                continue
            if asked.intervals and (table == "adult" or not name.startswith(_OURS)):
                continue
            began = time.process_time()
            if asked.intervals:
                figures, lengths = zip(*(measure_intervals(make(False), split) for split in splits), strict=True)
            else:
                figures = tuple(measure(make(table == "adult"), split) for split in splits)
            seconds = (time.process_time() - began) / len(splits)
            error = np.std(figures) / len(figures) ** 0.5
            spread = f" ± {error:.3f}" if len(figures) > 1 else ""
            cost = f"{np.mean(lengths):.3f}" if asked.intervals else f"{seconds:.1f}"
            line = f"| {table} | {len(splits)} | {name} | {np.mean(figures):.3f}{spread} | {cost} |"
            print(line, flush=True)


if __name__ == "__main__":
    main()
