"""Random calls in NumPy against plain float64 NumPy; `covering.py` says what is drawn."""

import contextlib
from typing import Any

import numpy as np
import pytest

from qkv.errors import RefusedError
from qkv.kernels import NumpyBlocksKernel
from tests.random_calls.covering import FEATURES, Design, Row
from tests.random_calls.draw import RandomCall, draw_call, draw_shape, random_row
from tests.random_calls.libraries import (
    Counts,
    acceptance,
    arguments_of,
    bounds_of,
    check_output,
    chosen_length,
    expected,
    observe,
    rows_of,
)

KERNELS = ("dense", "linear", "numpy_blocks")
SMALL = (
    NumpyBlocksKernel(budget=12, row_block_budget=3000),
    NumpyBlocksKernel(budget=300, row_block_budget=900),
    "numpy_blocks",
)
GIVEN = {
    "kernel": KERNELS,
    "dtype": ("float64", "float32", "float16"),
    "layout": ("contiguous", "reversed", "fortran", "strided", "read only"),
    "gradient": ("none",),
}
COVERED_SHORT, COVERED = 2500, 8000
"""Pairs of features that the rows of `make test` cover at least, and all rows."""


def layout(x: Any, kind: str) -> Any:
    """Return an array of the same elements that is not contiguous, or that may not be written to."""
    if kind == "reversed" and x.ndim:
        return x[::-1].copy()[::-1]
    if kind == "fortran":
        return np.array(x, order="F")
    if kind == "strided":
        return np.stack([x, x], -1)[..., 0]
    if kind == "read only":
        x.setflags(write=False)
    return x


def build(call: RandomCall, row: Row) -> tuple[list[Any], dict[str, Any]]:
    def convert(x: Any) -> Any:
        return layout(x.astype(row["dtype"]) if x.dtype.kind == "f" else x.copy(), row["layout"])

    return [convert(x) for x in call.poisoned], arguments_of(call, convert)


accepts = acceptance(build)


def run_row(row: Row, seed: int, counts: Counts) -> None:
    """Run the call of a row, and compare its output and readout with those of the oracle."""
    rng, kernel = np.random.default_rng(seed), row["kernel"]
    length = chosen_length(row, rng, build)
    if length is not None:
        kernel = None
    elif kernel == "numpy_blocks":
        kernel = SMALL[rng.integers(len(SMALL))]
    got = None
    while got is None:
        call = draw_call(
            rng, row, draw_shape(rng, row, length), lambda x: np.asarray(x).astype(row["dtype"]).astype(np.float64)
        )
        with contextlib.suppress(RefusedError):  # the options of a part, such as a sink, may be refused
            got, readout = observe(call, *build(call, row), kernel)
    try:
        assert got.dtype == row["dtype"]
        rows = rows_of(call, rng)
        wanted = expected(call, rows)
        bounds = bounds_of(call, wanted, rows, row["dtype"])
        counts.add(bounds, row["kernel"] if length is None else f"{row['kernel']} by the planner")
        numbers = [None if x is None else x.astype(np.float64) for x in (got, readout)]
        check_output(call, *numbers, row["dtype"], rows, wanted, bounds)
    except Exception as error:
        error.add_note(f"seed {seed}, kernel {kernel}, {row}: {call}")
        raise


def test_each_path_agrees_with_plain_numpy() -> None:
    design, counts = Design(FEATURES | GIVEN, accepts), Counts()
    for seed, row in enumerate(design.rows(groups=1)):
        run_row(row, seed, counts)
    assert counts.compared > 0.8 * counts.rows
    assert design.count()[0] > COVERED_SHORT


@pytest.mark.long
def test_three_thousand_random_calls_agree_with_plain_numpy() -> None:
    design, counts = Design(FEATURES | GIVEN, accepts), Counts()
    for seed, row in enumerate(design.rows()):
        run_row(row, seed, counts)
    assert design.count()[0] > COVERED
    rng = np.random.default_rng(1)
    while counts.calls < 3000:
        row = random_row(rng, {name: values[rng.integers(len(values))] for name, values in GIVEN.items()})
        if accepts(row):
            run_row(row, int(rng.integers(2**31)), counts)
