"""Functions that several programs for GPUs call."""

# mypy: ignore-errors
# Triton compiles these functions: their arguments are pointers and its decorator has no types.

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["allowed_pairs", "load_block"]


@triton.jit
def allowed_pairs(rows, cols, bias, q, k, offset, CAUSAL: tl.constexpr):
    """Return which pairs of a tile exist and are not masked."""
    allowed = (rows < q)[:, None] & ((cols < k) & (bias != -float("inf")))[None, :]
    if CAUSAL:
        allowed = allowed & (cols[None, :] <= rows[:, None] + offset)
    return allowed


@triton.jit
def load_block(pointer, index, n, W: tl.constexpr, WP: tl.constexpr):
    """Return the vectors of a block as (index, unit), with 0 beyond the last vector and unit."""
    units = tl.arange(0, WP)
    inside = (index < n)[:, None] & (units < W)[None, :]
    return tl.load(pointer + index[:, None] * W + units[None, :], mask=inside, other=0.0)
