"""Forward pass of additive attention in Triton with one tanh for each pair and hidden unit, as a peer."""

# mypy: ignore-errors
# Triton compiles this function: its arguments are pointers and its decorator has no types.

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["attend_by_tanh"]


@triton.jit
def _attend(
    left, right, vector, value, output, n, H: tl.constexpr, DV: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr
):
    head = tl.program_id(1).to(tl.int64)
    rows, columns = tl.program_id(0) * BQ + tl.arange(0, BQ), tl.arange(0, DV)
    left, right, value, output = (
        left + head * H * n,
        right + head * H * n,
        value + head * n * DV,
        output + head * n * DV,
    )
    largest = tl.full((BQ,), -float("inf"), tl.float32)
    total, result = tl.zeros((BQ,), tl.float32), tl.zeros((BQ, DV), tl.float32)
    for first in range(0, n, BK):
        cols = first + tl.arange(0, BK)
        logits = tl.zeros((BQ, BK), tl.float32)
        for unit in range(H):
            a = tl.load(left + unit * n + rows, mask=rows < n, other=0.0)
            b = tl.load(right + unit * n + cols, mask=cols < n, other=0.0)
            # tanh s = 2 / (1 + e^(−2s)) − 1: the exponential and the division that a tanh costs in single precision.
            s = a[:, None] + b[None, :]
            logits += tl.load(vector + unit) * (2.0 / (1.0 + tl.exp(-2.0 * s)) - 1.0)
        logits = tl.where((cols < n)[None, :], logits, -float("inf"))
        now = tl.maximum(largest, tl.max(logits, 1))
        weights, scale = tl.exp(logits - now[:, None]), tl.exp(largest - now)
        total, largest = total * scale + tl.sum(weights, 1), now
        x = tl.load(value + cols[:, None] * DV + columns[None, :], mask=(cols < n)[:, None], other=0.0)
        result = result * scale[:, None] + tl.dot(weights, x, input_precision="tf32x3")
    tl.store(output + rows[:, None] * DV + columns[None, :], result / total[:, None], mask=(rows < n)[:, None])


def attend_by_tanh(query, key, value, left_map, right_map, vector, block):
    """Return the output `(heads, n, width)` for as many queries as keys, of a width that is a power of two."""
    left, right = ((x @ w.mT).mT.contiguous() for x, w in ((query, left_map), (key, right_map)))
    output = torch.empty_like(value)
    heads, n, width = value.shape
    _attend[(-(-n // block[0]), heads)](
        left, right, vector, value.contiguous(), output, n,
        H=left.shape[1], DV=width, BQ=block[0], BK=block[1], num_warps=block[2],
    )  # fmt: skip
    return output
