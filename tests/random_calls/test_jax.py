"""Random calls in JAX, with gradients, against plain float64 NumPy; `covering.py` says what is drawn.

JAX compiles a function for each shape and each combination of parts, so that ten calls share one.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from qkv.errors import RefusedError
from qkv.kernels import JaxLoopsKernel
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
    chosen_length,
    cotangents_of,
    expected,
    inputs_of,
    observe,
    rows_of,
    trained,
)

jax = pytest.importorskip("jax")
jnp = jax.numpy

KERNELS = ("dense", "jax_loops", "linear")
SMALL = ("jax_loops", JaxLoopsKernel(budget=12, row_block_budget=3000))
GIVEN = {"kernel": KERNELS, "layout": ("contiguous",)}
CALLS = 10  # that share a compiled function


def attend(call: RandomCall, row: Row, numbers: list[Any], others: list[Any], kernel: Any) -> tuple[Any, Any]:
    """Build the parts from (traced) arrays, and return output and readout."""
    left: tuple[Iterator[Any], Iterator[Any]] = (iter(numbers), iter(others))

    def convert(x: Any) -> Any:
        return next(left[np.asarray(x).dtype.kind != "f"])

    arrays = [convert(x) for x in call.poisoned]
    return observe(call, arrays, arguments_of(call, convert), kernel)


def arrays_of(call: RandomCall, dtype: Any) -> tuple[list[Any], list[Any]]:
    """Return the arrays of a call in the order in which it is built: numbers, and integers and booleans."""
    found: list[Any] = list(call.poisoned)
    arguments_of(call, lambda x: found.append(np.asarray(x)) or jnp.asarray(x))
    numbers = [jnp.asarray(x, dtype) for x in found if x.dtype.kind == "f"]
    return numbers, [jnp.asarray(x) for x in found if x.dtype.kind != "f"]


def build(call: RandomCall, row: Row) -> tuple[list[Any], dict[str, Any]]:
    def convert(x: Any) -> Any:
        return jnp.asarray(x, row["dtype"] if np.asarray(x).dtype.kind == "f" else None)

    return [convert(x) for x in call.poisoned], arguments_of(call, convert)


accepts = acceptance(build)


def run_row(row: Row, seed: int, counts: Counts) -> None:
    """Run ten calls of a row with the same shapes, and compare their results with those of the oracle."""
    rng, dtype, kernel = np.random.default_rng(seed), jnp.dtype(row["dtype"]), row["kernel"]

    def round_to(x: Any) -> Any:
        return np.asarray(np.asarray(x).astype(dtype).astype(np.float64))

    with jax.enable_x64(row["dtype"] == "float64"):
        length = chosen_length(row, rng, build)
        if length is not None:
            kernel = None
        elif kernel == "jax_loops":
            kernel = SMALL[rng.integers(len(SMALL))]
        shape = None
        while shape is None:
            first = draw_call(rng, row, draw_shape(rng, row, length), round_to)
            numbers, others = arrays_of(first, dtype)
            with contextlib.suppress(RefusedError):  # the options of a part, such as a sink, may be refused
                shape = jax.eval_shape(lambda n, o: attend(first, row, n, o, kernel), numbers, others)  # noqa: B023
        needed = trained(first, row["gradient"], rng)
        run = compiled(first, row, kernel, needed)
        call = first
        try:
            for n in range(CALLS):
                call = redraw(first, rng, round_to) if n else first
                numbers, others = arrays_of(call, dtype)
                rows = rows_of(call, rng)
                wanted = expected(call, rows)
                bounds = bounds_of(call, wanted, rows, row["dtype"])
                parts, wholes = cotangents_of(call, wanted, rows, bounds, rng, round_to)
                given = [None if x is None else jnp.asarray(x, dtype) for x in wholes]
                (got, readout), found = run(numbers, others, given)
                counts.add(bounds, row["kernel"] if length is None else f"{row['kernel']} by the planner")
                assert got.dtype == dtype
                results = [None if x is None else np.asarray(x, np.float64) for x in (got, readout)]
                check_output(call, *results, row["dtype"], rows, wanted, bounds)
                if any(needed):
                    counts.gradients += 1
                    left = iter(found)
                    gradients = [np.asarray(next(left), np.float64) if need else None for need in needed]
                    assert len(gradients) == len(inputs_of(call))
                    check_directions(call, gradients, parts, rng, row["dtype"], counts, rows, bounds)
        except Exception as error:
            error.add_note(f"seed {seed}, kernel {kernel}, {row}: {call}")
            raise


def compiled(first: RandomCall, row: Row, kernel: Any, needed: list[bool]) -> Any:
    """Return a compiled function that returns output and readout, and the gradients of the arrays that need one."""

    def pull(numbers: list[Any], others: list[Any], cotangents: list[Any]) -> Any:
        def of(some: list[Any]) -> Any:
            changed = iter(some)
            all_numbers = [next(changed) if need else x for need, x in zip(needed, numbers, strict=True)]
            return attend(first, row, all_numbers, others, kernel)

        results, back = jax.vjp(of, [x for need, x in zip(needed, numbers, strict=True) if need])
        cotangents = [None if x is None else c.astype(x.dtype) for x, c in zip(results, cotangents, strict=True)]
        return results, back(tuple(cotangents))[0]

    return jax.jit(pull)


def test_the_first_rows_of_the_design_agree_with_plain_numpy() -> None:
    design, counts = Design(FEATURES | GIVEN, accepts), Counts()
    for seed, row in zip(range(300 if LONG else 2), design.rows(), strict=False):  # JAX compiles for seconds
        run_row(row, seed, counts)
    assert counts.calls >= (2000 if LONG else CALLS)  # without the rows that are left out
