"""Random calls in TensorFlow against plain float64 NumPy: eager with gradients, and compiled by `tf.function`."""

import contextlib
import os
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from qkv.errors import RefusedError
from qkv.kernels import TensorflowBlocksKernel
from qkv.testing.libraries import installed
from tests.effort import LONG
from tests.random_calls.covering import FEATURES, Design, Row
from tests.random_calls.draw import RandomCall, draw_call, draw_shape, redraw
from tests.random_calls.libraries import (
    Counts,
    acceptance,
    arguments_of,
    bounds_of,
    check_directions,
    check_output,
    cotangents_of,
    expected,
    observe,
    rows_of,
    trained,
)

if not installed("tensorflow"):
    pytest.skip("TensorFlow or Keras is not installed", allow_module_level=True)

KERNELS = ("dense", "tensorflow_blocks")
SMALL = ("tensorflow_blocks", TensorflowBlocksKernel(budget=900))
GIVEN = {
    "kernel": KERNELS,
    "layout": ("contiguous",),
    "length": ("empty", "one query", "short", "medium"),
    "batch": ("none", "heads", "broadcast", "grouped", "values"),
}
CALLS = 10  # with the same parts and shapes


def library() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    return tf


def build(call: RandomCall, row: Row) -> tuple[list[Any], dict[str, Any]]:
    def convert(x: Any) -> Any:
        x = np.asarray(x)
        return library().convert_to_tensor(x, row["dtype"] if x.dtype.kind == "f" else None)

    return [convert(x) for x in call.poisoned], arguments_of(call, convert)


accepts = acceptance(build)


def run_row(row: Row, seed: int, counts: Counts) -> None:
    """Run ten calls of a row with the same parts and shapes, every fifth group in a compiled function."""
    tf, rng, kernel = library(), np.random.default_rng(seed), row["kernel"]
    dtype = ml_dtypes.bfloat16 if row["dtype"] == "bfloat16" else np.dtype(row["dtype"])
    in_function = seed % 5 == 0
    if kernel == "tensorflow_blocks":
        kernel = SMALL[rng.integers(len(SMALL))]

    def round_to(x: Any) -> Any:
        return np.asarray(np.asarray(x).astype(dtype).astype(np.float64))

    first = None
    while first is None:
        call = draw_call(rng, row, draw_shape(rng, row), round_to)
        with contextlib.suppress(RefusedError):  # the options of a part, such as a sink, may be refused
            observe(call, *build(call, row), kernel)
            first = call
    needed = trained(first, row["gradient"], rng)
    for n in range(CALLS):
        call = redraw(first, rng, round_to) if n else first
        rows = rows_of(call, rng)
        wanted = expected(call, rows)
        bounds = bounds_of(call, wanted, rows, row["dtype"])
        parts, wholes = cotangents_of(call, wanted, rows, bounds, rng, round_to)
        try:
            results, found = run(call, row, kernel, in_function, needed, wholes)
            counts.add(bounds, row["kernel"])
            assert results[0].dtype == row["dtype"]
            numbers = [None if x is None else tf.cast(x, tf.float64).numpy() for x in results]
            check_output(call, *numbers, row["dtype"], rows, wanted, bounds)
            if any(needed) and not in_function:
                counts.gradients += 1
                gradients = [None if x is None else tf.cast(x, tf.float64).numpy() for x in found]
                check_directions(call, gradients, parts, rng, row["dtype"], counts, rows, bounds)
        except Exception as error:
            error.add_note(f"seed {seed}, kernel {kernel}, compiled {in_function}, {row}: {call}")
            raise


def run(call: RandomCall, row: Row, kernel: Any, in_function: bool, needed: list[bool], wholes: Any) -> Any:
    """Return output and readout and, of eager calls, the gradient of each array that needs one."""
    tf, leaves = library(), []

    def convert(x: Any) -> Any:
        x = np.asarray(x)
        made = tf.convert_to_tensor(x, row["dtype"] if x.dtype.kind == "f" else None)
        if x.dtype.kind == "f":
            leaves.append(made)
        return made

    arrays, arguments = [convert(x) for x in call.poisoned], arguments_of(call, convert)
    if in_function:
        return tf.function(lambda *arrays: observe(call, arrays, arguments, kernel))(*arrays), None
    trained_leaves = [x for need, x in zip(needed, leaves, strict=True) if need]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(trained_leaves)
        results = observe(call, arrays, arguments, kernel)
    targets = [x for x in results if x is not None]
    cotangents = [tf.cast(whole, x.dtype) for whole, x in zip(wholes, results, strict=True) if x is not None]
    zero = tf.UnconnectedGradients.ZERO
    found = iter(tape.gradient(targets, trained_leaves, cotangents, unconnected_gradients=zero))
    return results, [next(found) if need else None for need in needed]


def test_the_first_rows_of_the_design_agree_with_plain_numpy() -> None:
    design, counts = Design(FEATURES | GIVEN, accepts), Counts()
    for seed, row in zip(range(1, 301 if LONG else 3), design.rows(), strict=False):  # TensorFlow compiles for seconds
        run_row(row, seed, counts)
    assert counts.calls >= (2000 if LONG else CALLS)  # without the rows that are left out
