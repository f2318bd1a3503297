"""Calls whose score subtracts large numbers: they run as planned, in float64, or with a score of differences.

    −‖q − k‖²/2h² = <x, y> − ‖y‖²/2 − ‖x‖²/2        x = (q − c)/h, y = (k − c)/h, c: the mean of the keys

The right side is a matrix product, but its rounding errors are about eps · max ‖y‖²/2, however near q is to k. It is
used where this number (`Score.lift_range`) is at most `LIFT_RANGES`, which the data of each call decides. Otherwise
the call runs in float64, whose limit is larger, and beyond that limit the score computes differences. While a graph is
traced, so that there is no data, the score computes differences; JAX and TensorFlow choose when the function runs.

Calls that select keys, such as the nearest one, depend on the smallest differences of logits. With few coordinates, of
which many keys may be nearly equal, they run in float64, and with one coordinate the score computes differences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from qkv.core.arrays import (
    accumulation_dtype,
    cast,
    choose,
    dtype_name,
    ignore_numpy_warnings,
    is_floating,
    library,
    namespace,
    result_dtype,
    statically_known_true,
)
from qkv.core.axes import Axes
from qkv.core.tile import Centre
from qkv.core.typing import Array, DType, KeyArray, Num, QueryArray, Shaped
from qkv.errors import RefusedError
from qkv.normalizers import NORMALIZERS, Normalizer
from qkv.plan.cache import SpecFields
from qkv.plan.kernel_protocol import Result
from qkv.plan.plan import Plan
from qkv.readouts import LogSumExp, Readout
from qkv.readouts.base import flatten, unflatten
from qkv.scores import Score
from qkv.scores.forms import lift_limits
from qkv.scores.gaussian import has_no_data

_Run = Callable[..., tuple[Result, Plan | None]]

_FEW_ELEMENTS = 2**14
"""Number of differences up to which a compiled function computes them in any case, instead of two branches."""
_FEW_QUERIES = 4
"""Number of queries up to which differences take less time than a copy of the keys in float64."""
_FEW_COLUMNS = 8
"""Width up to which selected keys are compared more precisely. Of 2,000 random numbers of one coordinate products in
float32 took another for the nearest one in a tenth of all queries, of two coordinates in one of 2,000."""


def lift_suffices(
    score: Score, query: QueryArray, key: KeyArray, centre: Centre = None, cheap: bool = False
) -> bool | Array:
    """Return whether the lift of a score is accurate for arrays, as a bool, or an array if they are traced.

    Args:
        score: a score whose logits cancel, bound to the arrays unless `cheap`.
        query: queries.
        key: keys.
        centre: the point that the score subtracts from both; None: that of `score.centre`.
        cheap: whether to compare upper bounds that are computed in little time, so that False means nothing.
    """
    # Bound queries have the dtype of accumulation, unlike keys, which may be a file.
    for_keys, for_queries = lift_limits(dtype_name(key if cheap else query))
    key_range: Any
    query_range: Any
    if cheap:
        key_range, query_range = score.lift_range(query, key, cheap=True)
        return bool(key_range <= for_keys and query_range <= for_queries)
    with ignore_numpy_warnings():
        key_range, query_range = score.lift_range(query, key, centre)
    suffices = (key_range <= for_keys) & (query_range <= for_queries)
    if statically_known_true(suffices):
        return True
    return False if statically_known_true(~suffices) else suffices


def selects_near_keys(normalizer: Normalizer | None, readouts: tuple[Readout, ...], width: int) -> bool:
    """Return whether a call selects keys of few coordinates by the order of their logits."""
    ordered = normalizer is not None and normalizer.selects_keys
    return width <= _FEW_COLUMNS and (ordered or any(readout.largest for readout in readouts))


def run_precisely(
    run: _Run,
    query: Shaped[Array, "*_"],
    key: Shaped[Array, "*_"],
    value: Num[Array, "*#batch k value_width"],
    fields: SpecFields,
    readouts: tuple[Readout, ...],
    options: tuple[object, ...],
    traced: str,
) -> tuple[Result, Plan | None] | None:
    """Run a call in float64 or with a score of differences, and return its result and plan; None: run it as planned.

    Args:
        run: function that runs a call.
        fields: score, normalizer, mask, positions and dropout; the logits of the score cancel.
        readouts: readouts of the weights.
        options: seed, kernel and memory limit.
        traced: kind of tracing that hides the data, as in `Problem.traced`, or "export".
    """
    score = fields[0]
    assert score is not None
    selects = selects_near_keys(fields[1], readouts, query.shape[-1])
    if not (traced or selects) and lift_suffices(score, query, key, cheap=True):
        return None
    axes = Axes.of(query.shape, key.shape, value.shape)
    if 0 in (axes.q, axes.k, axes.query_width):
        return None
    dtype = accumulation_dtype(query, key, value)
    name = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    traced = traced or ("no data" if has_no_data(query, key) else "")
    bound, sides = score, (query, key)
    suffices: Any = None
    if not traced:
        bound = score.bind(value, axes.batch, dtype, {"q": axes.q, "k": axes.k})
        # NumPy converts keys block by block, which may be a file that is not in memory.
        sides = cast(query, dtype), key if isinstance(key, np.ndarray) else cast(key, dtype)
        selects &= name == "float32" or axes.query_width == 1
        suffices = False if selects else lift_suffices(bound, *sides)
        if suffices is True:
            return None
        reason = "keys are selected" if selects else "too far apart for inner products in float32"
        narrow = suffices is False and name == "float32" and axes.q > _FEW_QUERIES
        if narrow and not (selects and axes.query_width == 1) and (double := _float64(query)) is not None:
            return _run_in(double, run, (query, key, value), fields, readouts, options, dtype, reason)
        sides = sides[0], cast(key, dtype)
    normalizer = fields[1] or NORMALIZERS[score.default_normalizer]()
    missing = [len(axes.batch) + 2 - x.ndim for x in sides]  # arrays of a part have all batch axes or none
    sides = sides[0][(None,) * missing[0]], sides[1][(None,) * missing[1]]
    relative = not traced and normalizer.shift_invariant and not any(isinstance(each, LogSumExp) for each in readouts)
    exact = (bound.by_differences(*(sides if relative else ())), *fields[1:])

    def run_exactly() -> tuple[Result, Plan | None]:
        try:
            result, plan = run(query, key, value, exact, readouts, *options)
        except RefusedError:  # the named kernel may compute inner products alone
            result, plan = run(query, key, value, exact, readouts, options[0], None, *options[2:])
        reason = "keys are selected" if selects else "too far apart for inner products"
        return replace(result, guards=(*result.guards, f"{reason}: differences")), plan

    few = axes.pairs * axes.query_width <= _FEW_ELEMENTS
    if suffices is None or suffices is False or few or library(query) == "torch":
        return run_exactly()
    found: list[tuple[Result, Plan | None]] = []

    def arrays(run: Callable[[], tuple[Result, Plan | None]]) -> tuple[Any, ...]:
        found.append(run())
        result = found[-1][0]
        return result.output, [flatten(each) for each in result.readouts]

    lifted = partial(run, query, key, value, fields, readouts, *options, checked=True)
    output, read = choose(suffices, lambda: arrays(lifted), lambda: arrays(run_exactly))
    result, plan = found[0]
    # Of the readouts found while a branch was traced, only the types are used.
    whole = tuple(unflatten(tuple(own), like) for own, like in zip(read, result.readouts, strict=True))
    return Result(output, whole, ("products or differences, chosen when the function runs",)), plan


def _float64(x: Shaped[Array, "*_"]) -> DType:
    """Return the dtype float64 of the library of `x`, or None if it is absent, or slow because `x` is on a GPU."""
    kind = library(x)
    if kind == "jax":
        import jax

        return namespace(x).float64 if jax.config.jax_enable_x64 else None
    if kind == "torch" and x.device.type != "cpu":  # type: ignore[attr-defined]
        return None
    return namespace(x).float64


def _run_in(
    double: DType,
    run: _Run,
    sides: tuple[Array, Array, Array],
    fields: SpecFields,
    readouts: tuple[Readout, ...],
    options: tuple[object, ...],
    dtype: DType,
    reason: str,
) -> tuple[Result, Plan | None]:
    """Run a call in float64 for a reason, and cast its output and readouts to the dtypes of the call."""
    out_dtype = result_dtype(*sides)
    query, key, value = sides  # the dtype of one of them decides for the others, which kernels may cast tile by tile
    result, plan = run(cast(query, double), key, value, fields, readouts, *options)

    def narrowed(x: Array) -> Array:
        return cast(x, dtype) if is_floating(x) else x

    read = tuple(unflatten(tuple(map(narrowed, flatten(each))), each) for each in result.readouts)
    return Result(cast(result.output, out_dtype), read, (*result.guards, f"{reason}: float64")), plan
