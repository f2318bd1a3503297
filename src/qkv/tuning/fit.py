"""Fit of the coefficients of the time model to measured calls, and their file."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from qkv.core.files import atomic_path
from qkv.core.typing import Float
from qkv.plan.cache import PLANS
from qkv.plan.devices import processor_name
from qkv.plan.step_cache import STEPS
from qkv.plan.time_model import WORK, Table, coefficients_of, load_table, table_path
from qkv.tuning.measure import MIN_CALLS, Measurement


def save_table(table: Table, path: Path | None = None) -> Path:
    """Write the coefficients to a file, which the planner of this and of later processes reads, and return its path.

    Args:
        table: coefficients by table key.
        path: the file; None: `time_model.table_path`.
    """
    path = table_path() if path is None else path
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"processor": processor_name(), "work": WORK, "nanoseconds": dict(table)}
    with atomic_path(path) as temporary:
        rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(list(row))}" for key, row in table.items())
        head = json.dumps({name: content[name] for name in ("processor", "work")}, indent=1)[:-2]
        temporary.write_text(f'{head},\n "nanoseconds": {{\n{rows}\n }}\n}}\n', encoding="utf-8")
    load_table.cache_clear()
    PLANS.clear()
    STEPS.clear()
    return path


_Example: TypeAlias = tuple[list[float], float, float]
"""Amounts of work of a measured call, its time, and the part of the time that other rows of the table explain."""


def fit_table(measurements: Sequence[Measurement]) -> dict[str, list[float]]:
    """Return non-negative coefficients in nanoseconds that minimize the squared relative errors of the times.

    The rows of scores are fitted to calls with softmax, and then those of other normalizers to what is left of the
    times of their calls. Rows with fewer than `MIN_CALLS` measurements are left out.
    """
    scores: dict[str, list[_Example]] = defaultdict(list)
    normalizers: dict[str, list[_Example]] = defaultdict(list)
    measured_calls = [
        (*key.partition(" + ")[::2], [measured.work[key][name] for name in WORK], seconds * 1e9)
        for measured in measurements
        for key, seconds in measured.seconds.items()
        if key in measured.work
    ]
    for score, normalizer, work, time in measured_calls:
        if not normalizer:
            scores[score].append((work, time, 0.0))
    table = _fit_rows(scores)
    for score, normalizer, work, time in measured_calls:
        if normalizer and score in table:
            normalizers[normalizer].append((work, time, float(np.dot(work, table[score]))))
    return table | _fit_rows(normalizers)


def _fit_rows(examples: Mapping[str, Sequence[_Example]]) -> dict[str, list[float]]:
    """Return the coefficients of each key that has at least `MIN_CALLS` examples."""
    table = {}
    for key, rows in sorted(examples.items()):
        if len(rows) >= MIN_CALLS:
            times = np.array([time for _, time, _ in rows])
            relative = np.array([work for work, _, _ in rows]) / times[:, None]
            left = 1 - np.array([explained for _, _, explained in rows]) / times
            table[key] = [float(f"{c:.4g}") for c in _nonnegative_fit(relative, left)]
    return table


def _nonnegative_fit(a: Float[np.ndarray, "rows work"], b: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " work"]:
    """Return x ≥ 0 that minimizes ‖a x − b‖."""
    from scipy.optimize import nnls

    norms = np.maximum(np.linalg.norm(a, axis=0), 1e-30)  # the amounts of work differ by many orders of magnitude
    return np.asarray(nnls(a / norms, b)[0] / norms)


def predicted(measured: Measurement, table: Table) -> dict[str, float]:
    """Return the estimated seconds by table key for each kernel of a measurement."""
    rows = {key: coefficients_of(table, key) for key in measured.seconds if key in measured.work}
    return {
        key: 1e-9 * sum(c * measured.work[key][name] for name, c in zip(WORK, row, strict=True))
        for key, row in rows.items()
        if row is not None
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
    return {"median": float(np.median(losses)), "p95": float(np.quantile(losses, 0.95)), "max": float(np.max(losses))}
