"""The counter-based random number generator Threefry-2x32 for arrays of every library, and a version for NumPy.

The version for NumPy works in place and is faster.

Source: Salmon, Moraes, Dror, Shaw (2011), Parallel random numbers: as easy as 1, 2, 3,
https://doi.org/10.1145/2063384.2063405.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from qkv.core.arrays import asarray_like, dtype_name, is_array, is_tensor, itemsize, library, namespace
from qkv.core.typing import Array, Num, Shaped

Seed: TypeAlias = int | Array | tuple["int | Array", "int | Array"]
"""A seed: an integer, a zero-dimensional integer array, or a tuple with the low and the high 32 bits."""

MASK = 0xFFFFFFFF
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA
_CHUNK = 2**15
"""Number of 32-bit words per pass in NumPy, chosen so that temporary arrays fit into the CPU cache."""


def word(reference: Shaped[Array, "*_"], value: int | Num[Array, "*shape"]) -> Num[Array, "*shape"]:
    """Return `value` modulo 2^32 as an array of dtype uint32 in the library of `reference`.

    In PyTorch the dtype is int32, and the elements have the same bits.
    """
    xp = namespace(reference)
    if is_tensor(reference):
        if isinstance(value, int):
            value = value & MASK
            value = asarray_like(reference, np.asarray(value - (1 << 32) if value >> 31 else value, dtype=np.int64))
        return xp.astype(value, xp.int32)
    if isinstance(value, int):
        return asarray_like(reference, np.asarray(value & MASK, dtype=np.uint32))
    return xp.astype(asarray_like(reference, value), xp.uint32)


def _rotate(x: Num[Array, "*shape"], by: int) -> Num[Array, "*shape"]:
    if library(x) == "tensorflow":
        return namespace(x).rotate(x, by)
    if isinstance(x, np.ndarray | np.generic):  # before NumPy 2, a scalar shifted by an int is an int64
        return (x << np.uint32(by)) | (x >> np.uint32(32 - by))
    if is_tensor(x):  # the right shift of a signed word extends the sign: mask it
        return (x << by) | ((x >> (32 - by)) & ((1 << by) - 1))
    return (x << by) | (x >> (32 - by))


def threefry(
    key: tuple[Num[Array, "*#shape"], Num[Array, "*#shape"]],
    counter: tuple[Num[Array, "*#shape"], Num[Array, "*#shape"]],
    rounds: int = 20,
) -> tuple[Num[Array, "*shape"], Num[Array, "*shape"]]:
    """Return two arrays of random 32-bit integers, computed from a key and a counter of two integers each.

    Args:
        key: two arrays of 32-bit words; see `word`.
        counter: two arrays of 32-bit words that broadcast with the key.
        rounds: number of rounds of the generator.

    Example:
        >>> zero = np.zeros((), dtype=np.uint32)
        >>> [hex(int(word)) for word in threefry((zero, zero), (zero, zero))]
        ['0x6b200159', '0x99ba4efe']
    """
    with np.errstate(over="ignore"):
        keys = (key[0], key[1], key[0] ^ key[1] ^ word(key[0], _PARITY))
        x, y = counter[0] + keys[0], counter[1] + keys[1]
        for number in range(rounds):
            x = x + y
            y = _rotate(y, _ROTATIONS[number % 8]) ^ x
            if number % 4 == 3:
                step = number // 4 + 1
                x = x + keys[step % 3]
                y = y + keys[(step + 1) % 3] + word(y, step)
    return x, y


def seed_words(seed: Seed) -> tuple[int | Num[Array, ""], int | Num[Array, ""]]:
    """Return two integers or arrays whose last 32 bits are the low and the high 32 bits of a seed.

    Example:
        >>> seed_words(2**32 + 5)
        (5, 1)
    """
    if isinstance(seed, tuple):
        return seed
    if not is_array(seed):
        return seed & MASK, (seed >> 32) & MASK
    # All libraries have the division, which extends the sign as Python's shift does.
    if itemsize(dtype_name(seed)) == 8:
        return seed, seed // 65536 // 65536
    return seed, seed // 65536 // 32768 if dtype_name(seed).startswith("int") else seed * 0


def numpy_pair_words(
    key: tuple[Num[np.ndarray, "*batch 1 1"], Num[np.ndarray, "*batch 1 1"]],
    rows: tuple[int, int],
    cols: tuple[int, int],
    rounds: int,
) -> Num[np.ndarray, "*batch q n"]:
    """Return a random 32-bit integer for each pair of a query and a counter, as a NumPy array `(*batch, q, n)`.

    Query 2i gets the first and query 2i + 1 the second word that `threefry` computes for the counter `(i, n)`.

    Args:
        key: two arrays `(*batch, 1, 1)` with the two words of the key of each batch element.
        rows: index of the first query and one past the last.
        cols: first counter n and one past the last.
        rounds: number of rounds of the generator.
    """
    batch = key[0].shape[:-2]
    first, n = rows[0] >> 1, cols[1] - cols[0]
    count = ((rows[1] + 1) >> 1) - first
    out = np.empty((*batch, count, 2, n), dtype=np.uint32)
    row_counters = np.arange(first, first + count, dtype=np.uint32)[:, None]
    col_counters = np.arange(*cols, dtype=np.uint32)
    step = max(1, _CHUNK // max(1, math.prod(batch) * n))
    workspace = np.empty((3, *batch, min(step, count), n), dtype=np.uint32)
    if out.size:
        third = key[0] ^ key[1] ^ np.uint32(_PARITY)
        # With one batch element the keys are numbers, which avoids broadcasting.
        keys = [x if x.size > 1 else x.reshape(())[()] for x in (*key, third)]
        for start in range(0, count, step):
            part = out[..., start : start + step, :, :]
            temporary = workspace[..., : part.shape[-3], :]
            _mix(keys, row_counters[start : start + step], col_counters, rounds, part, temporary)
    skip = rows[0] & 1
    return out.reshape(*batch, 2 * count, n)[..., skip : skip + rows[1] - rows[0], :]


def _mix(
    keys: list[Num[np.ndarray, "*batch 1 1"] | np.uint32],
    row_counters: Num[np.ndarray, "rows 1"],
    col_counters: Num[np.ndarray, " n"],
    rounds: int,
    out: Num[np.ndarray, "*batch rows 2 n"],
    workspace: Num[np.ndarray, "3 *batch rows n"],
) -> None:
    """Compute two random 32-bit integers for each counter and write them to `out[..., :2, :]`."""
    x, y, t = workspace
    # The first round, before the two counters are broadcast.
    right = col_counters + keys[1]
    np.add(row_counters + keys[0], right, out=x)
    by = np.uint32(_ROTATIONS[0])
    np.bitwise_xor((right << by) | (right >> (np.uint32(32) - by)), x, out=y)
    for number in range(1, rounds):
        by = np.uint32(_ROTATIONS[number % 8])
        np.add(x, y, out=x)
        np.left_shift(y, by, out=t)
        np.right_shift(y, np.uint32(32) - by, out=y)
        np.bitwise_or(y, t, out=y)
        np.bitwise_xor(y, x, out=y)
        if number % 4 == 3:
            step = number // 4 + 1
            np.add(x, keys[step % 3], out=x)
            with np.errstate(over="ignore"):
                np.add(y, keys[(step + 1) % 3] + np.uint32(step), out=y)
    out[..., 0, :], out[..., 1, :] = x, y
