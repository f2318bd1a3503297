"""Random numbers that know where they belong: one counter generator indexed by (seed, batch, q, k).

Every kernel, tile order and backward pass sees the same draw, because the draw is a function of the absolute
position and of nothing else. The generator is Threefry-2x32 with 20 rounds.

Source: Salmon, Moraes, Dror, Shaw (2011), Parallel random numbers: as easy as 1, 2, 3,
https://doi.org/10.1145/2063384.2063405.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.core.arrays import Array, arange, library, like, namespace
from qkv.core.batch import Index, take

__all__ = ["DROPOUT", "SAMPLE", "gumbel", "threefry", "uniform"]

DROPOUT, SAMPLE = 1, 2
"""Streams: what a draw is for. Different streams of one seed are independent."""

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_MASK = 0xFFFFFFFF


def _word(reference: Array, value: Any) -> Array:
    """`value` modulo 2^32 as 32-bit words; in PyTorch, which has no unsigned ones, the same bits signed."""
    if library(reference) == "torch":
        if isinstance(value, int):
            value = value & _MASK
            value = value - (1 << 32) if value >> 31 else value
            return like(reference, np.int64(value).reshape(())).to(namespace(reference).int32)
        return value.to(namespace(reference).int32)
    xp = namespace(reference)
    if isinstance(value, int):
        return xp.asarray(np.uint32(value & _MASK))
    return xp.astype(value, xp.uint32)


def _rotate(x: Array, by: int) -> Array:
    if library(x) == "torch":  # the right shift of a signed word brings its sign along: mask it away
        return (x << by) | ((x >> (32 - by)) & ((1 << by) - 1))
    return (x << by) | (x >> (32 - by))


def threefry(key: tuple[Array, Array], counter: tuple[Array, Array]) -> tuple[Array, Array]:
    """Two random words for a key and a counter of two words each (arrays of one library, broadcasting).

    Example:
        >>> zero = np.zeros((), dtype=np.uint32)
        >>> [hex(int(word)) for word in threefry((zero, zero), (zero, zero))]
        ['0x6b200159', '0x99ba4efe']
    """
    with np.errstate(over="ignore"):
        keys = (key[0], key[1], key[0] ^ key[1] ^ _word(key[0], _PARITY))
        x, y = counter[0] + keys[0], counter[1] + keys[1]
        for step in range(5):
            for by in _ROTATIONS[step % 2]:
                x = x + y
                y = _rotate(y, by) ^ x
            x = x + keys[(step + 1) % 3]
            y = y + keys[(step + 2) % 3] + _word(y, step + 1)
    return x, y


def _bits(
    reference: Array, seed: int, stream: int, batch: tuple[int, ...], q: Array, k: Array, index: Index
) -> Array:
    size = int(np.prod(batch, dtype=np.int64))
    number = namespace(reference).reshape(arange(reference, 0, size), (*batch, 1, 1))
    number = take(number, index, 2)
    key = (_word(reference, seed), _word(reference, seed >> 32))
    # Two levels, so that neighbouring batch elements get unrelated keys.
    inner = threefry(key, (_word(reference, number), _word(reference, stream)))
    return threefry(inner, (_word(reference, q), _word(reference, k)))[0]


def uniform(
    reference: Array,
    seed: int,
    stream: int,
    batch: tuple[int, ...],
    q: Array,
    k: Array,
    dtype: Any = None,
    index: Index = (),
) -> Array:
    """Uniform numbers in (0, 1) for absolute positions `q` and `k`, integers that broadcast to
    `(*batch, q, k)`; of some batch elements where `index` names them.

    Equal in every array library up to rounding to `dtype` (default float32).
    """
    xp = namespace(reference)
    bits = _bits(reference, seed, stream, batch, q, k, index)
    dtype = xp.float32 if dtype is None else dtype
    if library(reference) == "torch":
        bits = bits.to(xp.int64) & _MASK
    # Half a step up: 0 is never drawn, and small numbers keep their relative precision for the Gumbel below.
    u = (xp.astype(bits, dtype) + 0.5) * 2.0**-32
    # Nor is 1, to which the largest words would be rounded.
    return xp.minimum(u, like(u, np.asarray(1.0 - 2.0**-24), u.dtype))


def gumbel(
    reference: Array,
    seed: int,
    stream: int,
    batch: tuple[int, ...],
    q: Array,
    k: Array,
    dtype: Any = None,
    index: Index = (),
) -> Array:
    """Standard Gumbel numbers: the key with the largest logit plus Gumbel is a draw from the softmax."""
    xp = namespace(reference)
    u = uniform(reference, seed, stream, batch, q, k, dtype, index)
    # −log(1 − u) is a standard exponential; its small values, which win, are drawn finely because u is.
    return -xp.log(-xp.log1p(-u))
