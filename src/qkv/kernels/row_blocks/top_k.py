"""Exact top-k of each row by NumPy's partition. Ties go to the key with the lowest index.

NumPy's partition is vectorized and takes a tenth of the time of `torch.topk` on short rows. Each rank is packed with
its key into a 64-bit integer: the rank in the upper half, and the key, subtracted from a constant, in the lower half.
The largest integers then belong to the highest ranks, and among equal ranks to the first key.
"""

from __future__ import annotations

import numpy as np

from qkv.core.typing import Float, Int, Tensor

__all__ = ["can_pack", "select_top_k"]

_LOW = 0xFFFFFFFF


def can_pack(ranks: Float[Tensor, "rows width"]) -> bool:
    """Return whether ranks can be packed with their keys into 64-bit integers: float32 tensors on a CPU."""
    return ranks.device.type == "cpu" and str(ranks.dtype) == "torch.float32"


def select_top_k(
    ranks: Float[Tensor, "rows width"],
    group_max: Float[Tensor, "rows groups"],
    bound: Float[Tensor, "rows 1"],
    count: int,
    max_candidates: int,
) -> tuple[Int[Tensor, "rows selected"], Float[Tensor, "rows selected"]] | None:
    """Return the keys and ranks of the top k of each row, in any order, or None if too many reach the bound.

    Args:
        ranks: values to compare. Key j belongs to group j modulo `groups`.
        group_max: largest rank of each group.
        bound: lower bound that at least `count` ranks of each row, or all finite ranks, reach.
        count: number k of keys to select.
        max_candidates: largest number of ranks per row that may reach the bound.

    Returns:
        Keys and ranks, where rows with fewer than k keys are padded with key 0 and rank −inf. None if more than
        `max_candidates` ranks of a row reach the bound.
    """
    import torch

    numbers, maxima, bounds = (np.asarray(x.detach()) for x in (ranks, group_max, bound))
    rows, width = numbers.shape
    reached = np.flatnonzero(maxima >= bounds)
    if len(reached) > rows * max_candidates:
        return None
    row, group = np.divmod(reached, maxima.shape[1])
    positions = (row * width + group)[:, None] + np.arange(0, width, maxima.shape[1])
    members = numbers.reshape(-1).take(positions)
    hits = np.flatnonzero(members >= bounds[:, 0].take(row)[:, None])
    if len(hits) > rows * max_candidates:
        return None
    row = row.take(hits // positions.shape[1])
    packed = _pack(members.reshape(-1).take(hits), positions.reshape(-1).take(hits) - row * width)
    lengths = np.bincount(row, minlength=rows)
    longest = int(lengths.max(initial=1))
    if longest > max_candidates:
        return None
    # Each query has one row, in which the ranks that reach the bound come first.
    starts = np.cumsum(lengths) - lengths
    table = np.full((rows, longest), _pack(np.full(1, -np.inf, numbers.dtype), np.zeros(1, np.int64))[0])
    table.reshape(-1)[np.arange(len(row)) + (row * longest - starts.take(row))] = packed
    if longest > count:
        table.partition(longest - count, axis=-1)
        table = table[:, longest - count :]
    keys = _LOW - (table & _LOW)
    return torch.from_numpy(keys.astype(np.int32)), torch.from_numpy(_unpack_ranks(table))


def _pack(ranks: Float[np.ndarray, " n"], keys: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Return integers that sort like the ranks. Of equal ranks, the first key has the largest integer.

    −0 equals 0.
    """
    bits = (ranks + np.float32(0)).view(np.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    packed: np.ndarray = (ordered.astype(np.int64) << 32) | (_LOW - keys)
    return packed


def _unpack_ranks(packed: Int[np.ndarray, "rows selected"]) -> Float[np.ndarray, "rows selected"]:
    ordered = (packed >> 32).astype(np.int32)
    ranks: np.ndarray = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(np.float32)
    return ranks
