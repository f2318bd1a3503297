"""Estimated time of a call on a kernel, from coefficients that were fitted to measured calls.

    seconds = Σ_n c_n · w_n

w are amounts of work that the kernel states (`Kernel.work`): 1 for the call, batch elements, tiles, pairs, and
so on. The coefficients c ≥ 0 of a kernel, a kind of score and a direction (forward, or with a gradient) are those of
softmax; for another kind of normalizer, coefficients of the kernel, the normalizer and the direction are added. They
are read from the table that `qkv tune` has written for this processor, otherwise from the table of this package.

Calls that were not measured (of other libraries, on GPUs, with readouts, longer ones) have one row for each kernel,
library and direction, "any call" in the file, with amounts more: "whole_rows", the pairs if the normalizer needs whole
rows, and "searched" and "searched_elements", the pairs and elements if row blocks search candidates, which takes less.
These times were not fitted to measurements and only order the kernels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias, cast

from qkv.plan.devices import processor_name
from qkv.plan.problem import Problem
from qkv.scores.forms import (
    Distance,
    Gated,
    Offset,
    Pairwise,
    Product,
    ScaledProduct,
    SquaredDistance,
    Tanh,
    UnitProduct,
    Wrapped,
)

LARGE_BYTES = 2**25
"""Size in bytes from which arrays are slower per element: memory is requested from the operating system every time."""
WORK = ("call", "batch", "tiles", "rows", "queries", "pairs", "products", "elements", "large_pairs", "large_elements")
"""Names of the amounts of work.

call: 1. batch: batch elements. tiles: tiles of all batch elements. rows: elements of query, key and value. queries:
queries of all batch elements, each of which has a row of logits. pairs: pairs that are computed. products: pairs times
the widths of keys and values. elements: pairs times the array elements per logit. large_pairs, large_elements: the
same where the arrays exceed `LARGE_BYTES`.
"""

Table: TypeAlias = Mapping[str, Sequence[float]]
"""Coefficients in the order of `WORK`, in nanoseconds, by `table_key`."""

_MAX_LENGTH = 1024
"""Largest number of queries or keys of the measured calls, which have as many queries as keys.

For longer calls with at most as many pairs the coefficients hold as well (2,048 queries × 64 keys, for example): the
formulas of the kernels chose a kernel that took more than 1.15 times as long as the fastest for 9 of 17 random calls,
the coefficients for 3 of 53; with 1 to 8 queries, for 9 of 44 and for 4 of 44 (AMD EPYC, CPU time).
"""
_MIN_QUERIES = 16
"""Smallest number of queries of products forward, with softmax, of vectors or of linear maps of them, and of longer
calls of several array elements per logit. For fewer, the time is that of reading the keys."""
FEW_KEYS = 64
"""Largest number of keys for which the batched kernel computes sparse weights by sorting."""
_DEFAULT = Path(__file__).with_name("measured_times.json")


def _score_kind(problem: Problem) -> str | None:
    """Return the kind of a score, which determines the coefficients, or None for kinds that were not measured."""
    match problem.score.form:
        case SquaredDistance(factor) if factor is not None and not problem.score.arrays():
            return "squared distance"
        case ScaledProduct():
            return "product"
        case UnitProduct(temperature) if temperature is not None:
            return "cosine"
        case Product():
            return "mapped product"
        case Tanh():
            return "tanh"
        case Gated():
            return "gated"
        case Wrapped(inner=inner) as form:
            while isinstance(form, Offset) and isinstance(inner.form, Offset):  # several offsets take about as long
                inner = inner.form.inner
            if isinstance(inner.form, Product):
                return "biased product" if isinstance(form, Offset) else "changed product"
            if not isinstance(inner.form, Pairwise):
                return None
        case Distance():
            return "distance"
    return "pairwise" if problem.elements_per_logit > 2 else "narrow pairwise"


def _normalizer_kind(problem: Problem) -> str | None:
    """Return the kind of a normalizer, "softmax" for the one of the scores' coefficients; None if it was not measured.

    Kernels compute the sparse normalizers of rows of few keys by another algorithm.
    """
    normalizer = problem.normalizer
    if normalizer.arrays() or normalizer.stochastic:
        return None
    if normalizer.log_sum_exp and normalizer.scale is not None:
        return "softmax"
    inner = normalizer.inner
    if normalizer.top_k is not None and inner is not None:
        return "top-k" if inner.log_sum_exp and inner.shift_invariant and inner.scale is not None else None
    if normalizer.power is not None and normalizer.scale is not None:
        length = "few" if problem.axes.k <= FEW_KEYS else "many"
        return f"power {normalizer.power} of {length} keys" if normalizer.power in (1, 2) else "other power"
    return "sigmoid" if normalizer.is_sigmoid else None


def table_key(kernel: str, problem: Problem) -> str | None:
    """Return the key of the coefficients of a kernel for a problem, or None if such problems were not measured.

    The sum of several rows of the table has their keys with " + " between them.
    """
    kind, normalizer = _score_kind(problem), _normalizer_kind(problem)
    q, k = problem.axes.q, problem.axes.k
    if max(q, k) > _MAX_LENGTH and (q * k > _MAX_LENGTH**2 or (q < _MIN_QUERIES and kind == "pairwise")):
        return None
    if kind is None or normalizer is None or problem.library != "torch" or problem.device.is_gpu:
        return None
    if problem.readouts or problem.traced:
        return None
    products = kind in ("product", "mapped product")
    if q < _MIN_QUERIES and normalizer == "softmax" and products and not problem.gradient:
        return None
    # The fused operator adds the bias. The measured biases depended on positions: one that is given takes no time.
    given = kernel == "batched" and not (problem.gradient or problem.score.positional)
    if kind == "biased product" and (kernel == "fused" or given):
        kind = "product"
    direction = "gradient" if problem.gradient else "forward"
    key = f"{kernel}, {kind}, {direction}"
    return key if normalizer == "softmax" else f"{key} + {kernel}, {normalizer}, {direction}"


def coefficients_of(table: Table, key: str) -> Sequence[float] | None:
    """Return the coefficients of a key, which are sums of rows if it names several; None if the table lacks one."""
    rows = [table.get(part) for part in key.split(" + ")]
    return None if None in rows else [sum(column) for column in zip(*cast("list[list[float]]", rows), strict=True)]


def known_coefficients(kernel: str, problem: Problem, measured: bool) -> Mapping[str, float] | None:
    """Return coefficients of a kernel by the name of the amount of work, or None if there are none.

    Args:
        kernel: name of the kernel.
        problem: the problem.
        measured: whether they must be those of measured calls of the same kind, or of calls of any kind.
    """
    if measured:
        key = table_key(kernel, problem)
        row = None if key is None else coefficients_of(load_table(), key)
        return None if row is None else dict(zip(WORK, row, strict=True))
    place = "GPU" if problem.device.is_gpu else problem.library
    return _general_table().get(f"{kernel}, {place}, {'gradient' if problem.gradient else 'forward'}")


def estimated_seconds(coefficients: Mapping[str, float], work: Mapping[str, float]) -> float:
    """Return the estimated seconds of a call on one core."""
    return 1e-9 * sum(c * work[name] for name, c in coefficients.items())


def amounts_of_work(
    problem: Problem, pairs: float, tiles: float = 0, array_elements: float | None = None, elements: int = 1
) -> dict[str, float]:
    """Return the amounts of work of a call by the names in `WORK`, and its floating-point operations as "flop".

    A backward pass counts as 2.5 times the forward pass.

    Args:
        problem: the problem.
        pairs: number of pairs that the kernel computes.
        tiles: number of tiles of all batch elements.
        array_elements: pairs in an array of the kernel; None: `pairs`.
        elements: array elements per logit in such an array.
    """
    axes = problem.axes
    array = (pairs if array_elements is None else array_elements) * problem.itemsize
    total = pairs * problem.elements_per_logit
    width = axes.query_width + axes.value_width
    searched = problem.normalizer.has_threshold_bound and reads_candidates(problem)
    return {
        "flop": pairs * problem.flop_per_pair * (3.5 if problem.gradient else 1),
        "call": 1,
        "batch": axes.batch_size,
        "tiles": tiles,
        "rows": axes.batch_size * (axes.q * width + axes.k * (axes.key_width + axes.value_width)),
        "queries": axes.batch_size * axes.q,
        "pairs": pairs,
        "products": pairs * width,
        "elements": total,
        "large_pairs": pairs if array >= LARGE_BYTES else 0,
        "large_elements": total if array * elements >= LARGE_BYTES else 0,
        "whole_rows": 0 if problem.normalizer.online else pairs,
        "searched": pairs if searched else 0,
        "searched_elements": total if searched else 0,
    }


def reads_candidates(problem: Problem) -> bool:
    """Return whether the readouts, if any, are computed from the keys with weight."""
    return not problem.readouts or (
        not problem.gradient and all(readout.largest is not None for readout in problem.readouts)
    )


def visible_pairs(problem: Problem, rows: int, keys: int = 1) -> float:
    """Estimate the number of pairs in the tiles that the mask does not exclude, from a sample of the queries.

    The sample is up to 16 blocks of `rows` queries, for each of which the key range of the mask is computed, and
    extended to whole blocks of `keys` keys. Masks of keys alone, such as lengths, differ between calls of one plan, and
    count as if they allowed every key.
    """
    axes, mask = problem.axes, problem.spec.mask
    parts = () if mask is None else [part for part in mask.conjuncts if not part.key_only]
    if not parts or 0 in (axes.q, axes.k):
        return axes.pairs
    starts = range(0, axes.q, max(rows, -(-axes.q // 16)))
    visible = 0
    for start in starts:
        tile = problem.tile.restrict((start, min(axes.q, start + rows)), (0, axes.k))
        found = [part.key_range(tile) for part in parts]
        first, last = max(limits[0] for limits in found), min(limits[1] for limits in found)
        if last > first:
            visible += min(axes.k, -(-last // keys) * keys) - first // keys * keys
    return axes.pairs * visible / (len(starts) * axes.k)


@cache
def load_table() -> Table:
    """Return the table of this processor if `qkv tune` has written one, otherwise that of the package."""
    return _read_table(table_path(), processor_name()) or _read_table(_DEFAULT, None) or {}


@cache
def _general_table() -> Mapping[str, Mapping[str, float]]:
    """Return the coefficients of each kernel for calls of any kind, by the name of the amount of work."""
    return cast("dict[str, dict[str, float]]", json.loads(_DEFAULT.read_text(encoding="utf-8"))["any call"])


def is_tuned() -> bool:
    """Return whether `load_table` returns what `qkv tune` measured on this machine."""
    return _read_table(table_path(), processor_name()) is not None


def _read_table(path: Path, processor: str | None) -> Table | None:
    """Return the table of a file; None if there is no valid one, or if it was measured on another processor."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    table = content.get("nanoseconds") if isinstance(content, dict) else None
    if isinstance(table, dict) and _is_valid(table) and processor in (None, content.get("processor")):
        return table
    return None


def _is_valid(table: dict[str, object]) -> bool:
    """Return whether `table` has the form of a `Table`, so that a damaged or older file is ignored."""
    return all(
        isinstance(row, list) and len(row) == len(WORK) and all(isinstance(c, (int, float)) and c >= 0 for c in row)
        for row in table.values()
    )


def table_path() -> Path:
    """Return the path of the table of this machine, in the user's cache folder (`QKV_CACHE` overrides the folder)."""
    from qkv.core.files import user_cache  # here, because it imports modules that most calls do not need

    return user_cache("times.json")
