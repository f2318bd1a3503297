"""Exact top-k of each row, ties to the first key, by NumPy's partition.

NumPy's partition is vectorised and takes a tenth of the time of `torch.topk` on rows this short. A rank and its
key are packed into one integer of 64 bits, the rank in the upper half and the key, counted down, in the lower
one: the largest integers are the highest ranks, the first of equal ones, and each tells its key.
"""

from __future__ import annotations

import numpy as np

from qkv.core.typing import Float, Int, Tensor

__all__ = ["can_pack", "select_top_k"]

_LOW = 0xFFFFFFFF


def can_pack(ranks: Tensor) -> bool:
    """Return whether a rank and its key fit one integer, in memory that NumPy can read."""
    return ranks.device.type == "cpu" and str(ranks.dtype) == "torch.float32"


def select_top_k(
    ranks: Float[Tensor, "rows width"],
    group_max: Float[Tensor, "rows groups"],
    bound: Float[Tensor, "rows 1"],
    count: int,
    max_candidates: int,
) -> tuple[Int[Tensor, "rows selected"], Float[Tensor, "rows selected"]] | None:
    """Return keys and ranks of the top k of each row, unordered.

    Args:
        ranks: numbers to compare; key j belongs to group j modulo `groups`.
        group_max: largest rank of each group.
        bound: at least `count` ranks of a row reach it, or all that are finite.
        count: k.
        max_candidates: maximum number of ranks per row that may reach the bound.

    Returns:
        Keys and ranks; rows with fewer than k keys are padded with key 0 of rank −inf. None where more than
        `max_candidates` ranks of some row reach the bound.
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
    # One row per query; the ranks that reach the bound come first.
    starts = np.cumsum(lengths) - lengths
    table = np.full((rows, longest), _pack(np.full(1, -np.inf, numbers.dtype), np.zeros(1, np.int64))[0])
    table.reshape(-1)[np.arange(len(row)) + (row * longest - starts.take(row))] = packed
    if longest > count:
        table.partition(longest - count, axis=-1)
        table = table[:, longest - count :]
    keys = _LOW - (table & _LOW)
    return torch.from_numpy(keys.astype(np.int32)), torch.from_numpy(_unpack_ranks(table))


def _pack(ranks: Float[np.ndarray, " n"], keys: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Return integers in the order of the ranks (−0 equals 0), the first key before later ones."""
    bits = (ranks + np.float32(0)).view(np.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    packed: np.ndarray = (ordered.astype(np.int64) << 32) | (_LOW - keys)
    return packed


def _unpack_ranks(packed: Int[np.ndarray, "rows selected"]) -> Float[np.ndarray, "rows selected"]:
    ordered = (packed >> 32).astype(np.int32)
    ranks: np.ndarray = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(np.float32)
    return ranks
