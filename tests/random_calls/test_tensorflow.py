"""Random calls in TensorFlow against plain float64 NumPy: eager with gradients, and compiled by `tf.function`."""

from __future__ import annotations

import os
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import qkv
from qkv.kernels import TensorflowBlocksKernel
from tests.effort import LONG
from tests.random_calls.draw import SHAPES, RandomCall, draw_call, redraw
from tests.random_calls.libraries import (
    Counts,
    arguments_of,
    check_directions,
    check_output,
    run_or_plan,
    wanted_output,
)

pytest.importorskip("tensorflow")
pytest.importorskip("keras")

KERNELS = (None, "dense", "tensorflow_blocks", TensorflowBlocksKernel(budget=900))
NAMES = {"dense", "tensorflow_blocks"}
CALLS = 10  # with the same parts and shapes


def run_ten(seed: int, counts: Counts) -> float:
    """Run ten calls with the same parts and shapes, every fifth group in a compiled function."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    rng = np.random.default_rng(seed)
    name = str(rng.choice(["float32", "float32", "float64", "float16", "bfloat16"]))
    numpy_dtype = ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)
    kernel, compiled, worst = KERNELS[rng.integers(len(KERNELS))], seed % 5 == 0, 0.0

    def round_to(x: Any) -> Any:
        return np.asarray(np.asarray(x).astype(numpy_dtype).astype(np.float64))

    leaves: list[Any] = []

    def convert(x: Any) -> Any:
        x = np.asarray(x)
        made = tf.convert_to_tensor(x, getattr(tf, name) if x.dtype.kind == "f" else None)
        if x.dtype.kind == "f":
            leaves.append(made)
        return made

    def run(call: RandomCall, kernel: Any) -> tuple[Any, list[Any]]:
        """Return the output and, of eager calls, the gradients."""
        leaves.clear()
        arrays, arguments = [convert(x) for x in call.poisoned], arguments_of(call, convert)

        def attend(*arrays: Any) -> Any:
            return qkv.attend(*arrays, **arguments, kernel=kernel)

        if compiled:
            return tf.function(attend)(*arrays), []
        with tf.GradientTape() as tape:
            tape.watch(leaves)
            output = attend(*arrays)
        cotangent = tf.cast(tf.reshape(tf.linspace(-1.0, 1.0, tf.size(output)), output.shape), output.dtype)
        zero = tf.UnconnectedGradients.ZERO
        return output, [cotangent, *tape.gradient(output, list(leaves), cotangent, unconnected_gradients=zero)]

    call = first = draw_call(rng, SHAPES[rng.integers(len(SHAPES))], round_to)
    for n in range(CALLS):
        call = redraw(first, rng, round_to) if n else first
        try:
            wanted = wanted_output(call)
            (got, found), used = run_or_plan(lambda kernel, call=call: run(call, kernel), kernel, counts)
            shapes = [convert(x) for x in call.poisoned]
            counts.add(qkv.explain(*shapes, **arguments_of(call, convert)), used, name)
            assert got.dtype == getattr(tf, name)
            worst = max(worst, check_output(call, tf.cast(got, tf.float64).numpy(), wanted, name))
            if found:
                counts.gradients += 1
                cotangent, *gradients = (tf.cast(x, tf.float64).numpy() for x in found)
                check_directions(call, gradients, cotangent, rng, name, counts)
        except Exception as error:
            error.add_note(f"seed {seed}, {name}, kernel {kernel}, compiled {compiled}: {call}")
            raise
    return worst


def test_random_calls_agree_with_plain_numpy() -> None:
    counts = Counts()
    count = 3 if LONG else 1  # TensorFlow compiles for seconds
    for seed in range(1000, 1000 + count):
        run_ten(seed, counts)
    assert counts.calls == count * CALLS


@pytest.mark.long
def test_two_thousand_random_calls_agree_with_plain_numpy() -> None:
    counts = Counts()
    for seed in range(200):
        run_ten(seed, counts)
    assert counts.calls == 2000
    assert counts.gradients == 1600
    assert set(counts.kernels) == NAMES
