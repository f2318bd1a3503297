"""Random calls in PyTorch, with gradients, against plain float64 NumPy; `draw.py` says what is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qkv
from qkv.kernels import RowBlocksKernel, TiledKernel
from tests.random_calls.draw import draw_call, draw_shape
from tests.random_calls.libraries import (
    Counts,
    arguments_of,
    check_directions,
    check_output,
    run_or_plan,
    wanted_output,
)

torch = pytest.importorskip("torch")

KERNELS = (
    *(None, None, None, "dense", "batched", "fused", "linear", "tiled", "row_blocks"),
    *(TiledKernel(budget=30, row_block_budget=3000), TiledKernel(budget=900), RowBlocksKernel(budget=3000)),
)
NAMES = {"batched", "dense", "fused", "linear", "row_blocks", "tiled"}


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
    return x


def run_one(seed: int, counts: Counts) -> float:
    rng = np.random.default_rng(seed)
    name = str(rng.choice(["float64", "float32", "float32", "float16", "bfloat16"]))
    dtype = getattr(torch, name)
    kernel, gradient = KERNELS[rng.integers(len(KERNELS))], bool(rng.random() < 0.6)
    call = draw_call(rng, draw_shape(rng), rounding(dtype), kernel)
    kind = str(rng.choice(["contiguous", "contiguous", "transposed", "strided", "heads last"]))
    leaves: list[Any] = []

    def convert(x: Any) -> Any:
        x = np.asarray(x)
        if x.dtype.kind != "f":
            return torch.tensor(x)
        made = layout(torch.tensor(x).to(dtype), kind).detach().requires_grad_(gradient)
        leaves.append(made)
        return made

    arrays = [convert(x) for x in call.poisoned]
    arguments = arguments_of(call, convert)
    try:
        plan = qkv.explain(*arrays, **arguments, kernel=None)

        def run(kernel: Any) -> Any:
            return qkv.attend(*arrays, **arguments, kernel=kernel)

        got, used = run_or_plan(run, kernel, counts)
        counts.add(plan, used, name)
        assert got.dtype == dtype
        worst = check_output(call, got.detach().double().numpy(), wanted_output(call), name)
        if gradient and got.requires_grad:
            counts.gradients += 1
            cotangent = torch.tensor(rng.normal(size=tuple(got.shape))).to(dtype)
            found = torch.autograd.grad(got, leaves, cotangent, allow_unused=True)
            found = [None if g is None else g.double().numpy() for g in found]
            check_directions(call, found, cotangent.double().numpy(), rng, name, counts)
    except Exception as error:
        error.add_note(f"seed {seed}, {name}, kernel {kernel}, {kind}, gradient {gradient}: {call}")
        raise
    return worst


def test_random_calls_agree_with_plain_numpy() -> None:
    counts = Counts()
    for seed in range(2000, 2040):
        run_one(seed, counts)
    assert counts.calls == 40


@pytest.mark.long
def test_two_thousand_random_calls_agree_with_plain_numpy() -> None:
    counts = Counts()
    for seed in range(2000):
        run_one(seed, counts)
    assert counts.calls == 2000
    assert counts.gradients == 1212
    assert set(counts.kernels) == NAMES
