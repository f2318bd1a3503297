"""Random words of pairs of queries and keys in NumPy: Threefry-2x32 in place, in arrays that fit a cache."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["PARITY", "ROTATIONS", "pair_words"]

ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
PARITY = 0x1BD11BDA
CHUNK = 2**15
"""Words made at once."""


def pair_words(
    key: tuple[np.ndarray, np.ndarray], rows: tuple[int, int], cols: tuple[int, int], rounds: int
) -> np.ndarray:
    """Words `(*batch, q, n)` of queries and counters within limits.

    Queries 2i and 2i + 1 share a call: they have the first and the second word of counter `(i, n)`.

    Args:
        key: two words of each batch element, `(*batch, 1, 1)`.
        rows: first and last query.
        cols: first and last counter.
        rounds: of the generator.
    """
    batch = key[0].shape[:-2]
    first, n = rows[0] >> 1, cols[1] - cols[0]
    count = ((rows[1] + 1) >> 1) - first
    out = np.empty((*batch, count, 2, n), dtype=np.uint32)
    above = np.arange(first, first + count, dtype=np.uint32)[:, None]
    across = np.arange(*cols, dtype=np.uint32)
    step = max(1, CHUNK // max(1, math.prod(batch) * n))
    room = np.empty((3, *batch, min(step, count), n), dtype=np.uint32)
    if out.size:
        third = key[0] ^ key[1] ^ np.uint32(PARITY)
        # Numbers where there is one batch element: nothing is broadcast then.
        keys = [x if x.size > 1 else x.reshape(())[()] for x in (*key, third)]
        for start in range(0, count, step):
            part = out[..., start : start + step, :, :]
            rooms = room[..., : part.shape[-3], :]
            _mix(keys, above[start : start + step], across, rounds, part, rooms)
    skip = rows[0] & 1
    return out.reshape(*batch, 2 * count, n)[..., skip : skip + rows[1] - rows[0], :]


def _mix(
    keys: list[np.ndarray],
    above: np.ndarray,
    across: np.ndarray,
    rounds: int,
    out: np.ndarray,
    room: np.ndarray,
) -> None:
    """Both words of each counter into `out[..., 0, :]` and `out[..., 1, :]`."""
    x, y, t = room
    # The first round, of sides that are still apart.
    right = across + keys[1]
    np.add(above + keys[0], right, out=x)
    by = np.uint32(ROTATIONS[0])
    np.bitwise_xor((right << by) | (right >> (np.uint32(32) - by)), x, out=y)
    for done in range(1, rounds):
        by = np.uint32(ROTATIONS[done % 8])
        np.add(x, y, out=x)
        np.left_shift(y, by, out=t)
        np.right_shift(y, np.uint32(32) - by, out=y)
        np.bitwise_or(y, t, out=y)
        np.bitwise_xor(y, x, out=y)
        if done % 4 == 3:
            step = done // 4 + 1
            np.add(x, keys[step % 3], out=x)
            with np.errstate(over="ignore"):
                np.add(y, keys[(step + 1) % 3] + np.uint32(step), out=y)
    out[..., 0, :], out[..., 1, :] = x, y
