"""Random calls in JAX, with gradients, against plain float64 NumPy; `draw.py` says what is drawn.

JAX compiles a function for each shape and each combination of parts, so that ten calls share one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.kernels import JaxLoopsKernel
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

jax = pytest.importorskip("jax")
jnp = jax.numpy

KERNELS = (None, "dense", "jax_loops", "linear", JaxLoopsKernel(budget=12, row_block_budget=3000))
NAMES = {"dense", "jax_loops", "linear"}
CALLS = 10  # that share a compiled function


def arrays_of(call: RandomCall, dtype: Any) -> tuple[list[Any], list[Any]]:
    """Return the arrays of a call in the order in which it is built: numbers, and integers and booleans."""
    found: list[Any] = []
    for x in call.poisoned:
        found.append(x)
    arguments_of(call, lambda x: found.append(np.asarray(x)) or jnp.asarray(x))
    numbers = [jnp.asarray(x, dtype) for x in found if x.dtype.kind == "f"]
    return numbers, [jnp.asarray(x) for x in found if x.dtype.kind != "f"]


def attend(call: RandomCall, numbers: list[Any], others: list[Any], kernel: Any) -> Any:
    """Build the parts from (traced) arrays, and run the call."""
    left: tuple[Iterator[Any], Iterator[Any]] = (iter(numbers), iter(others))

    def convert(x: Any) -> Any:
        return next(left[np.asarray(x).dtype.kind != "f"])

    query, key, value = (convert(x) for x in call.poisoned)
    return qkv.attend(query, key, value, **arguments_of(call, convert), kernel=kernel)


def run_ten(seed: int, counts: Counts) -> float:
    """Run ten calls with the same parts and shapes."""
    rng = np.random.default_rng(seed)
    name = str(rng.choice(["float32", "float32", "float64", "float16", "bfloat16"]))
    kernel, shape = KERNELS[rng.integers(len(KERNELS))], SHAPES[rng.integers(len(SHAPES))]
    gradient, eager = bool(rng.random() < 0.5), bool(rng.random() < 0.1)
    dtype, worst = jnp.dtype(name), 0.0

    def round_to(x: Any) -> Any:
        return np.asarray(np.asarray(x).astype(dtype).astype(np.float64))

    call = first = draw_call(rng, shape, round_to, kernel)
    with jax.enable_x64(name == "float64"):
        try:
            numbers, others = arrays_of(call, dtype)
            shapes = lambda kernel: jax.eval_shape(lambda n, o: attend(call, n, o, kernel), numbers, others)  # noqa: E731
            _, used = run_or_plan(shapes, kernel, counts)

            def pull(numbers: list[Any], others: list[Any], cotangent: Any) -> Any:
                output, back = jax.vjp(lambda numbers: attend(call, numbers, others, used), numbers)
                return output, back(cotangent)[0] if gradient else None

            run = pull if eager else jax.jit(pull)
            for n in range(CALLS):
                call = redraw(first, rng, round_to) if n else first
                numbers, others = arrays_of(call, dtype)
                wanted = wanted_output(call)
                cotangent = jnp.asarray(rng.normal(size=wanted.shape), dtype)
                got, found = run(numbers, others, cotangent)
                counts.add(qkv.explain(*numbers[:3], **arguments_of(call, as_jax(dtype))), used, name)
                assert got.dtype == dtype
                worst = max(worst, check_output(call, np.asarray(got, np.float64), wanted, name))
                if gradient:
                    counts.gradients += 1
                    found = [np.asarray(g, np.float64) for g in found]
                    check_directions(call, found, np.asarray(cotangent, np.float64), rng, name, counts)
        except Exception as error:
            error.add_note(f"seed {seed}, {name}, kernel {kernel}, gradient {gradient}, eager {eager}: {call}")
            raise
    return worst


def as_jax(dtype: Any) -> Any:
    return lambda x: jnp.asarray(x, dtype if np.asarray(x).dtype.kind == "f" else None)


def test_random_calls_agree_with_plain_numpy() -> None:
    counts = Counts()
    count = 4 if LONG else 2  # JAX compiles for seconds
    for seed in range(1000, 1000 + count):
        run_ten(seed, counts)
    assert counts.calls == count * CALLS


@pytest.mark.long
def test_two_thousand_random_calls_agree_with_plain_numpy() -> None:
    counts = Counts()
    for seed in range(200):
        run_ten(seed, counts)
    assert counts.calls == 2000
    assert counts.gradients == 970
    assert set(counts.kernels) == NAMES
