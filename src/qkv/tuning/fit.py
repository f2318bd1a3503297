"""Fit of the coefficients of the time model to measured calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from qkv.core.typing import Float
from qkv.plan.time_model import WORK, Table
from qkv.tuning.measure import MIN_CALLS, Measurement

__all__ = ["fit_table", "median_loss", "predicted"]


def fit_table(measurements: Sequence[Measurement]) -> dict[str, list[float]]:
    """Return non-negative coefficients in nanoseconds that minimize the squared relative errors of the times.

    A kernel, kind of score and direction with fewer than `MIN_CALLS` measurements are left out.
    """
    rows: dict[str, list[tuple[list[float], float]]] = defaultdict(list)
    for measured in measurements:
        for key, seconds in measured.seconds.items():
            if key in measured.work:
                rows[key].append(([measured.work[key][name] for name in WORK], seconds * 1e9))
    table = {}
    for key, examples in sorted(rows.items()):
        if len(examples) >= MIN_CALLS:
            times = np.array([nanoseconds for _, nanoseconds in examples])
            relative = np.array([work for work, _ in examples]) / times[:, None]
            table[key] = [float(f"{c:.4g}") for c in _nonnegative_fit(relative, np.ones(len(times)))]
    return table


def _nonnegative_fit(a: Float[np.ndarray, "rows work"], b: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " work"]:
    """Return x ≥ 0 that minimizes ‖a x − b‖."""
    from scipy.optimize import nnls

    norms = np.maximum(np.linalg.norm(a, axis=0), 1e-30)  # the amounts of work differ by many orders of magnitude
    return np.asarray(nnls(a / norms, b)[0] / norms)


def predicted(measured: Measurement, table: Table) -> dict[str, float]:
    """Return the estimated seconds by table key for each kernel of a measurement."""
    return {
        key: 1e-9 * sum(c * measured.work[key][name] for name, c in zip(WORK, table[key], strict=True))
        for key in measured.seconds
        if key in table and key in measured.work
    }


def median_loss(measurements: Sequence[Measurement], table: Table) -> Mapping[str, float]:
    """Return how much longer the chosen kernel takes than the fastest: the median, 95th percentile and maximum.

    1 means that the fastest kernel was chosen.
    """
    losses = []
    for measured in measurements:
        estimates = predicted(measured, table)
        if len(estimates) == len(measured.seconds) and estimates:
            chosen = min(estimates, key=lambda key: estimates[key])
            losses.append(measured.seconds[chosen] / min(measured.seconds.values()))
    if not losses:
        return {}
    return {
        "median": float(np.median(losses)),
        "p95": float(np.quantile(losses, 0.95)),
        "max": float(np.max(losses)),
    }
