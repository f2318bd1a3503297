"""Random calls in PyTorch, with gradients, against plain float64 NumPy; `covering.py` says what is drawn."""

import contextlib
from typing import Any

import numpy as np
import pytest

from qkv.errors import RefusedError
from qkv.kernels import RowBlocksKernel, TiledKernel
from qkv.kernels.fused import kernel as fused_kernel
from qkv.plan.cache import PLANS
from tests.effort import LONG
from tests.random_calls.covering import FEATURES, Design, Row
from tests.random_calls.draw import RandomCall, draw_call, draw_shape, random_row
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
    observe,
    rows_of,
    trained,
)

torch = pytest.importorskip("torch")

KERNELS = ("dense", "batched", "fused", "linear", "tiled", "row_blocks")
COVERED_SHORT, COVERED = 5500, 20_000
"""Pairs of features that the rows of `make test` cover at least, and all rows."""
SMALL = {  # kernels with so small tiles and blocks that short calls have several
    "tiled": (TiledKernel(budget=30, row_block_budget=3000), TiledKernel(budget=900), "tiled"),
    "row_blocks": (RowBlocksKernel(budget=3000), "row_blocks"),
}


def rounding(dtype: Any) -> Any:
    return lambda x: torch.tensor(np.asarray(x)).to(dtype).double().numpy()


def layout(x: Any, kind: str) -> Any:
    """Return a tensor of the same elements that is not contiguous."""
    if kind == "transposed" and x.ndim > 1:
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if kind == "strided":
        return torch.stack([x, x], -1)[..., 0]
    if kind == "heads last" and x.ndim > 2:
        return x.transpose(-3, -2).contiguous().transpose(-3, -2)
    if kind == "broadcast" and x.ndim > 2 and x.shape[0] > 1 and bool((x == x[:1]).all()):
        return x[:1].expand(x.shape)
    return x


def tensors(call: RandomCall, row: Row, rng: np.random.Generator) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Return all tensors of numbers of a call in the order of `inputs_of`, its three arrays and its other arguments."""
    dtype, leaves, needed = getattr(torch, row["dtype"]), [], iter(trained(call, row["gradient"], rng))

    def convert(x: Any) -> Any:
        x = np.asarray(x)
        if x.dtype.kind != "f":
            return torch.tensor(x)
        leaves.append(layout(torch.tensor(x).to(dtype), row["layout"]).detach().requires_grad_(next(needed)))
        return leaves[-1]

    arrays = [convert(x) for x in call.poisoned]
    return leaves, arrays, arguments_of(call, convert)


def build(call: RandomCall, row: Row) -> tuple[list[Any], dict[str, Any]]:
    return tensors(call, row, np.random.default_rng(0))[1:]


accepts = acceptance(build)


def run_row(row: Row, seed: int, counts: Counts) -> None:
    """Run the call of a row, and compare its output, readout and gradients with those of the oracle."""
    rng, kernel = np.random.default_rng(seed), row["kernel"]
    dtype, length = getattr(torch, row["dtype"]), chosen_length(row, rng, build)
    if length is not None:
        kernel = None
    elif kernel in SMALL and rng.random() < 0.7:
        # Longer calls have thousands of the smallest tiles, which take a quarter of a minute.
        some = SMALL[kernel][-2 if row["length"] == "medium" and not LONG else 0 :]
        kernel = some[rng.integers(len(some))]
    got = None
    while got is None:
        call = draw_call(rng, row, draw_shape(rng, row, length), rounding(dtype))
        leaves, arrays, arguments = tensors(call, row, rng)
        with contextlib.suppress(RefusedError):  # the options of a part, such as a sink, may be refused
            got, readout = observe(call, arrays, arguments, kernel)
            if seed % 2:  # a second call runs the plan of the first
                got, readout = observe(call, arrays, arguments, kernel)
    try:
        rows = rows_of(call, rng)
        assert got.dtype == dtype
        wanted = expected(call, rows)
        bounds = bounds_of(call, wanted, rows, row["dtype"], row["dtype"] == "bfloat16" and row["kernel"] == "fused")
        counts.add(bounds, row["kernel"] if length is None else f"{row['kernel']} by the planner")
        numbers = [None if x is None else x.detach().double().numpy() for x in (got, readout)]
        check_output(call, *numbers, row["dtype"], rows, wanted, bounds)
        results = [(n, x) for n, x in enumerate((got, readout)) if x is not None and x.requires_grad]
        if results:
            counts.gradients += 1
            parts, wholes = cotangents_of(call, wanted, rows, bounds, rng, rounding(dtype))
            found = torch.autograd.grad(
                [x for _, x in results],
                [x for x in leaves if x.requires_grad],
                [torch.tensor(wholes[n]).to(dtype) for n, _ in results],
                allow_unused=True,
                materialize_grads=True,
            )
            left = iter(found)
            gradients = [next(left).double().numpy() if x.requires_grad else None for x in leaves]
            check_directions(call, gradients, parts, rng, row["dtype"], counts, rows, bounds)
    except Exception as error:
        error.add_note(f"seed {seed}, kernel {kernel}, {row}: {call}")
        raise


def test_each_path_agrees_with_plain_numpy_where_the_score_needs_no_gradient() -> None:
    design, counts = Design({"kernel": KERNELS, **FEATURES}, accepts), Counts()
    for seed, row in enumerate(design.rows(groups=1)):
        run_row(row, seed, counts)
        if (
            row["kernel"] == "tiled" and seed % 4 == 0
        ):  # backward computes logits again, with several tiles only in longer calls
            run_row(row | {"length": "medium", "magnitude": "ordinary"}, seed, counts)
    assert counts.compared > 0.75 * counts.rows
    assert design.count()[0] > COVERED_SHORT


def test_products_in_bfloat16_agree_with_plain_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_kernel, "_multiplies_bfloat16", lambda: True)
    rng, counts, row = np.random.default_rng(0), Counts(), {"kernel": "fused", "dtype": "bfloat16", "gradient": "none"}
    PLANS.clear()
    while counts.calls < (1000 if LONG else 50):
        drawn = random_row(rng, row | {"score": ("Dot", "ScaledDot")[rng.integers(2)], "normalizer": "Softmax"})
        if accepts(drawn):
            run_row(drawn, int(rng.integers(2**31)), counts)
    PLANS.clear()


@pytest.mark.long
def test_ten_thousand_random_calls_agree_with_plain_numpy() -> None:
    design, counts = Design({"kernel": KERNELS, **FEATURES}, accepts), Counts()
    for seed, row in enumerate(design.rows()):
        run_row(row, seed, counts)
    assert design.count()[0] > COVERED
    rng = np.random.default_rng(1)
    while counts.calls < 10_000:
        row = random_row(rng, {"kernel": KERNELS[rng.integers(len(KERNELS))], "length": "chosen"})
        if accepts(row):
            run_row(row, int(rng.integers(2**31)), counts)
    assert set(counts.kernels) == {*KERNELS, *(f"{name} by the planner" for name in KERNELS)}


def test_selected_keys_are_the_same_in_backward_whatever_needs_gradients() -> None:
    rng, counts = np.random.default_rng(0), Counts()
    plain = {"kernel": "tiled", "inner": "Additive", "length": "medium", "readout": None}
    while counts.calls < (16 if LONG else 4):
        chosen = {"score": ("Additive", "Biased", "Softcap")[rng.integers(3)], "batch": "heads", "dtype": "float64"}
        chosen |= {"normalizer": ("Hard", "TopK")[rng.integers(2)], "gradient": ("not score", "any")[rng.integers(2)]}
        chosen |= {"magnitude": ("ordinary", "tiny")[rng.integers(2)]}  # which a number that is added rounds away
        row = random_row(rng, plain | chosen)
        if accepts(row):
            run_row(row, int(rng.integers(2**31)), counts)
