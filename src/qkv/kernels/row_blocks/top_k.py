"""The k keys of highest rank of each row of a strip, exactly, ties to the first: by NumPy's partition.

NumPy's partition runs on vectors and takes a tenth of the time of `torch.topk` on rows this short. A rank and
its key are one integer of 64 bits, the rank above and the key, counted down, below: so the largest integers
are the highest ranks, the first of equal ones, and they still say which keys they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.core.typing import Tensor

__all__ = ["best_keys", "packs"]

_LOW = 0xFFFFFFFF


def packs(ranks: Any) -> bool:
    """Whether these ranks and their keys fit one integer each, in memory that NumPy sees."""
    return ranks.device.type == "cpu" and str(ranks.dtype) == "torch.float32"


def best_keys(ranks: Tensor, largest: Tensor, floor: Tensor, count: int, most: int) -> tuple[Tensor, Tensor] | None:
    """Keys and ranks of the best of each row, `(rows, at most count)`, in no order.

    Rows that have fewer are filled up with key 0 of rank −inf. None where more than `most` keys of some row
    reach the floor.

    Args:
        ranks: `(rows, groups · n)`; key j is in group j modulo groups.
        largest: the largest rank of each group, `(rows, groups)`.
        floor: `(rows, 1)`; at least `count` ranks of a row reach it, or all that are numbers.
        count: how many are wanted.
        most: how many may reach the floor.
    """
    import torch

    numbers, tops, least = (np.asarray(x.detach()) for x in (ranks, largest, floor))
    rows, width = numbers.shape
    at = np.flatnonzero(tops >= least)
    if len(at) > rows * most:
        return None
    row, group = np.divmod(at, tops.shape[1])
    places = (row * width + group)[:, None] + np.arange(0, width, tops.shape[1])
    found = numbers.reshape(-1).take(places)
    hit = np.flatnonzero(found >= least[:, 0].take(row)[:, None])
    if len(hit) > rows * most:
        return None
    row = row.take(hit // places.shape[1])
    packed = _packed(found.reshape(-1).take(hit), places.reshape(-1).take(hit) - row * width)
    lengths = np.bincount(row, minlength=rows)
    longest = int(lengths.max(initial=1))
    if longest > most:
        return None
    # One row of the table for each of the strip, in which those that reach the floor stand first.
    starts = np.cumsum(lengths) - lengths
    table = np.full((rows, longest), _packed(np.full(1, -np.inf, numbers.dtype), np.zeros(1, np.int64))[0])
    table.reshape(-1)[np.arange(len(row)) + (row * longest - starts.take(row))] = packed
    if longest > count:
        table.partition(longest - count, axis=-1)
        table = table[:, longest - count :]
    keys = _LOW - (table & _LOW)
    return torch.from_numpy(keys.astype(np.int32)), torch.from_numpy(_unpacked(table))


def _packed(ranks: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Integers in the order of the ranks (−0 is 0), the first key before later ones."""
    bits = (ranks + np.float32(0)).view(np.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    packed: np.ndarray = (ordered.astype(np.int64) << 32) | (_LOW - keys)
    return packed


def _unpacked(packed: np.ndarray) -> np.ndarray:
    """The ranks."""
    ordered = (packed >> 32).astype(np.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(np.float32)
