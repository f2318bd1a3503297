"""Random calls in NumPy against plain float64 NumPy; `draw.py` says what is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qkv
from qkv.kernels import NumpyBlocksKernel
from tests.random_calls.draw import draw_call, draw_shape
from tests.random_calls.libraries import Counts, arguments_of, check_output, run_or_plan, wanted_output

KERNELS = (
    *(None, None, "dense", "linear", "numpy_blocks"),
    *(NumpyBlocksKernel(budget=12, row_block_budget=3000), NumpyBlocksKernel(budget=300, row_block_budget=900)),
)
NAMES = {"dense", "linear", "numpy_blocks"}


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


def run_one(seed: int, counts: Counts) -> float:
    rng = np.random.default_rng(seed)
    dtype = np.dtype(str(rng.choice(["float64", "float32", "float32", "float16"])))
    kernel = KERNELS[rng.integers(len(KERNELS))]
    call = draw_call(rng, draw_shape(rng), lambda x: np.asarray(x).astype(dtype).astype(np.float64), kernel)
    kind = str(rng.choice(["contiguous", "reversed", "fortran", "strided", "read only"]))

    def convert(x: Any) -> Any:
        return layout(x.astype(dtype) if x.dtype.kind == "f" else x.copy(), kind)

    try:
        arrays, arguments = [convert(x) for x in call.poisoned], arguments_of(call, convert)
        plan = qkv.explain(*arrays, **arguments)
        got, used = run_or_plan(lambda kernel: qkv.attend(*arrays, **arguments, kernel=kernel), kernel, counts)
        counts.add(plan, used, dtype.name)
        assert got.dtype == dtype
        return check_output(call, got.astype(np.float64), wanted_output(call), dtype.name)
    except Exception as error:
        error.add_note(f"seed {seed}, {dtype}, kernel {kernel}, {kind}: {call}")
        raise


def test_random_calls_agree_with_plain_numpy() -> None:
    for seed in range(2000, 2080):
        run_one(seed, Counts())


@pytest.mark.long
def test_two_thousand_random_calls_agree_with_plain_numpy() -> None:
    counts = Counts()
    for seed in range(2000):
        run_one(seed, counts)
    assert counts.calls == 2000
    assert set(counts.kernels) == NAMES
