"""Functions that several programs for GPUs call."""

# mypy: ignore-errors
# Triton compiles these functions: their arguments are pointers and its decorator has no types.

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["allowed_pairs"]


@triton.jit
def allowed_pairs(rows, cols, bias, q, k, offset, CAUSAL: tl.constexpr):
    """Return which pairs of a tile exist and are not masked."""
    allowed = (rows < q)[:, None] & ((cols < k) & (bias != -float("inf")))[None, :]
    if CAUSAL:
        allowed = allowed & (cols[None, :] <= rows[:, None] + offset)
    return allowed
