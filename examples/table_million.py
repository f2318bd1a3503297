"""Regression on a million rows of 40 columns with exact predictions over all rows.

    python -m examples.table_million
    python -m examples.table_million --rows 50000      a smaller table

The table is derived from California housing, in the folder given by the variable QKV_DATA: rows are resampled,
every number is perturbed by a tenth of its column's standard deviation, and the price of the new row is the
prediction of boosted trees fitted to the original rows, plus one of their residuals; columns of noise are added
until there are 40. The test rows are derived in the same way from 1,000 original rows that are used for no
other row. The program prints the seconds of fitting and predicting, the peak memory above the table, and the
root mean squared error (in 100,000 dollars) with the learned metric and without.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["main", "table"]

_ASKED = 1000


def table(folder: Path, rows: int, columns: int, seed: int = 0) -> tuple[Any, np.ndarray, Any, np.ndarray]:
    """Return training rows and prices, and test rows and prices."""
    import pandas as pd
    from sklearn.ensemble import HistGradientBoostingRegressor

    rng = np.random.default_rng(seed)
    old = pd.read_csv(folder / "tables" / "california_housing.csv.gz")
    price = old.pop("median_house_value").to_numpy() / 1e5
    old["total_bedrooms"] = old["total_bedrooms"].fillna(old["total_bedrooms"].median())
    numbers = old.select_dtypes("number")
    order = rng.permutation(len(old))
    half = len(old) // 2
    trees = HistGradientBoostingRegressor(random_state=0)
    # Errors on rows that the trees were not fitted to; errors on the training rows are too small.
    first, second = order[:half], order[half:]
    errors = price[second] - trees.fit(numbers.iloc[first], price[first]).predict(numbers.iloc[second])
    trees.fit(numbers, price)
    spread = numbers.std().to_numpy()

    def made(sources: np.ndarray, count: int) -> tuple[Any, np.ndarray]:
        drawn = sources if len(sources) == count else rng.choice(sources, count)
        cells = numbers.to_numpy()[drawn] + 0.1 * spread * rng.normal(size=(count, len(spread)))
        frame = pd.DataFrame(cells, columns=numbers.columns)
        y = trees.predict(frame) + rng.choice(errors, count)
        noise = rng.normal(size=(count, columns - old.shape[1]))
        frame = pd.concat([frame, pd.DataFrame(noise).add_prefix("noise ")], axis=1)
        frame["ocean_proximity"] = old["ocean_proximity"].to_numpy()[drawn]
        return frame, y

    X, y = made(order[_ASKED:], rows)
    return X, y, *made(order[:_ASKED], _ASKED)


def _memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def main(arguments: list[str] | None = None) -> None:
    """Fit, predict and print."""
    parser = argparse.ArgumentParser(prog="python -m examples.table_million", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=40)
    parser.add_argument("--verbose", action="store_true", help="show a progress bar")
    asked = parser.parse_args(arguments)
    folder = os.environ.get("QKV_DATA")
    if not folder:
        parser.exit(2, "The variable QKV_DATA must name the folder of the tables.\n")
    from qkv.estimators import AttentionRegressor

    X, y, new, wanted = table(Path(folder), asked.rows, asked.columns)
    size = int(X.memory_usage(deep=True).sum())
    print(f"table: {X.shape[0]:,} × {X.shape[1]}, {size / 1e6:,.0f} MB; {len(new):,} test rows", flush=True)
    print(f"standard deviation of the prices: {wanted.std():.3f}", flush=True)
    small = slice(0, 200)
    # Lazy imports happen before the start.
    AttentionRegressor(effort="best", max_steps=2).fit(X[small], y[small]).predict(new[small])
    for metric in ("none", "network"):
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        before, began, worked = _memory("VmRSS"), time.monotonic(), time.process_time()
        model = AttentionRegressor(metric, effort="best", random_state=0, verbose=asked.verbose).fit(X, y)
        fitted, fit_work, fit_peak = time.monotonic(), time.process_time(), _memory("VmHWM") - before
        found = model.predict(new)
        ended, peak = time.monotonic(), _memory("VmHWM") - before
        error = np.sqrt(np.mean((found - wanted) ** 2))
        seconds, work = fitted - began, fit_work - worked
        print(f"metric {metric}: error {error:.4f}, {model.n_steps_} training steps", flush=True)
        print(f"  fit {seconds:.0f} s ({work:.0f} s of CPU), {len(new):,} exact predictions {ended - fitted:.1f} s")
        print(f"  peak memory above the table: {fit_peak / 1e6:,.0f} MB in fit, {peak / 1e6:,.0f} MB overall")
        del model


if __name__ == "__main__":
    main()
