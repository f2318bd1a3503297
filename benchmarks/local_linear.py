"""`python -m benchmarks.local_linear`: errors of `--aggregate local-linear` on known functions, beside statsmodels.

    mean          `ask`, the weighted mean, with its bandwidth chosen by leave-one-out
    local-linear  `ask` with `aggregate="local-linear"`, with its bandwidth chosen by leave-one-out
    KernelReg     statsmodels, local linear, bandwidth by least-squares cross-validation
    LOESS         statsmodels' lowess without robust steps, with the fraction of neighbors chosen by leave-one-out

From each function, rows with keys drawn evenly and normal noise are drawn. The error is the root mean square of the
answers minus the function, over 201 keys and all tables; at the edges, over the outer tenth of the keys. The last
column is the largest difference between `ask` and KernelReg if both use the bandwidth of KernelReg.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import numpy as np

from qkv import scores
from qkv.database import Database

__all__ = ["FUNCTIONS", "compare", "same_bandwidth"]

FUNCTIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "line": (lambda x: 10 * x, 1.0),
    "sine": (lambda x: np.sin(6 * x), 0.3),
    "exponential": (lambda x: np.exp(4 * x), 3.0),
    "bend": (lambda x: np.abs(x - 0.5) * 8, 0.5),
    "wave of growing frequency": (lambda x: np.sin(12 * x * x), 0.2),
    "constant": (lambda x: 0 * x, 1.0),
}
"""Functions on 0 to 1 and the standard deviation of the noise."""

_FRACTIONS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.75, 1.0)
_ROWS = 150


def compare(name: str, tables: int) -> tuple[dict[str, tuple[float, float]], float]:
    """Return the error of each method over all keys and at the edges, and the largest difference at equal bandwidth.

    Args:
        name: the name of the function.
        tables: number of tables.
    """
    function, noise = FUNCTIONS[name]
    at = np.linspace(0.0, 1.0, 201)
    squares: dict[str, list[np.ndarray]] = {}
    largest = 0.0
    for seed in range(tables):
        draw = np.random.default_rng(seed)
        x = draw.random(_ROWS)
        y = function(x) + noise * draw.normal(size=_ROWS)
        database = Database.open({"x": x, "y": y}, "x", "y")
        found = {aggregate: _ask(database, at, aggregate) for aggregate in ("mean", "local-linear")}
        found["KernelReg"], width = _kernel_regression(x, y, at)
        found["LOESS"] = _loess(x, y, at)
        for method, values in found.items():
            squares.setdefault(method, []).append(np.square(values - function(at)))
        largest = max(largest, same_bandwidth(x, y, at, width))
    edges = (at < 0.05) | (at > 0.95)
    errors = {
        method: (float(np.sqrt(np.mean(each))), float(np.sqrt(np.mean(np.array(each)[:, edges]))))
        for method, each in squares.items()
    }
    return errors, largest


def same_bandwidth(x: np.ndarray, y: np.ndarray, at: np.ndarray, width: float) -> float:
    """Return the largest difference between `ask` and KernelReg with the same bandwidth, where `ask` fits a line."""
    from statsmodels.nonparametric.kernel_regression import KernelReg

    expected, _ = KernelReg(y, x, "c", reg_type="ll", bw=[width]).fit(at)
    how = {"score": scores.Gaussian(width), "max_distance": np.inf, "aggregate": "local-linear"}
    answer = Database.open({"x": x, "y": y}, "x", "y").ask(at.tolist(), **how)
    line = np.array([note == "" for note in answer.fit_note])
    return float(np.abs(np.array(answer.value) - expected)[line].max())


def _ask(database: Database, at: np.ndarray, aggregate: str) -> np.ndarray:
    answer = database.ask(at.tolist(), aggregate=aggregate, max_distance=np.inf, top=1)
    return np.array(answer.value, np.float64)


def _kernel_regression(x: np.ndarray, y: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, float]:
    from statsmodels.nonparametric.kernel_regression import KernelReg

    model = KernelReg(y, x, "c", reg_type="ll", bw="cv_ls")
    return model.fit(at)[0], float(np.abs(model.bw[0]))


def _loess(x: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
    from statsmodels.nonparametric.smoothers_lowess import lowess

    def error(fraction: float) -> float:
        others = [np.arange(len(x)) != i for i in range(len(x))]
        left = [lowess(y[o], x[o], fraction, it=0, xvals=x[~o])[0] for o in others]
        return float(np.square(np.array(left) - y).mean())

    errors = [error(fraction) for fraction in _FRACTIONS]
    best = _FRACTIONS[int(np.nanargmin(errors))]
    # At the edges, lowess without given keys is interpolated between its own fits.
    return np.asarray(lowess(y, x, best, it=0, xvals=at))


def main() -> int:
    """Print the errors of all methods on each function."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.local_linear", description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=10, help="tables per function")
    given = parser.parse_args()
    names = ["mean", "local-linear", "KernelReg", "LOESS"]
    for place, title in enumerate(("all keys", "edges")):
        print(f"Root mean squared error, {title}:\n")
        last = " | difference at equal bandwidth" if not place else ""
        print("| | " + " | ".join(f"`{name}`" if name in names[:2] else name for name in names) + last + " |")
        print("|---" * (5 + (not place)) + "|")
        for name in FUNCTIONS:
            errors, largest = _cached(name, given.tables)
            cells = [f"{errors[method][place]:.3f}" for method in names]
            print(f"| {name} | " + " | ".join(cells) + (f" | {largest:.0e} |" if not place else " |"), flush=True)
        print()
    return 0


_RESULTS: dict[str, tuple[dict[str, tuple[float, float]], float]] = {}


def _cached(name: str, tables: int) -> tuple[dict[str, tuple[float, float]], float]:
    if name not in _RESULTS:
        _RESULTS[name] = compare(name, tables)
    return _RESULTS[name]


if __name__ == "__main__":
    sys.exit(main())
