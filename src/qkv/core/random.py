"""Random numbers that know where they belong: one counter generator indexed by (seed, batch, q, k).

Every kernel, tile order and backward pass sees the same draw, because the draw is a function of the absolute
position and of nothing else. The generator is Threefry-2x32: with 20 rounds from the seed to a key for each
batch element and purpose, with 13 from there to the words of pairs. A call gives two words, for a query of
even number and the one after it:

    uniform    words x, y = threefry(key, (q // 2, k))            x for even q, y for odd
    kept       words x, y = threefry(key, (q // 2, k // 2))       low half for even k, high half for odd

NumPy's words, which PyTorch on a CPU shares, are made in place (`words.py`).

Source: Salmon, Moraes, Dror, Shaw (2011), Parallel random numbers: as easy as 1, 2, 3,
https://doi.org/10.1145/2063384.2063405.
"""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from typing import Any, TypeGuard

import numpy as np

from qkv.core.arrays import (
    Array,
    arange,
    asarray_like,
    cast,
    dtype_name,
    is_array,
    itemsize,
    library,
    namespace,
)
from qkv.core.batch import BatchIndex, take_batch
from qkv.core.threefry import PARITY, ROTATIONS, pair_words

__all__ = ["DROPOUT", "ROUNDS", "SAMPLE", "gumbel", "dropout_mask", "dropout_rate", "seed_words", "threefry", "uniform"]

DROPOUT, SAMPLE = 1, 2
"""Streams: what a draw is for. Different streams of one seed are independent."""
ROUNDS = 13
"""Of the words of pairs; decision 0008 says why so many do."""
_MASK = 0xFFFFFFFF
_HALF = 1 << 15
_HIGHEST = 1.0 - 2.0**-24

Limits = tuple[int, int]
Indices = Limits | Array
"""First and one past the last; or integers that broadcast to `(*batch, q, k)`, which Python need not know."""


def _word(reference: Array, value: Any) -> Array:
    """`value` modulo 2^32 as 32-bit words; in PyTorch, which has no unsigned ones, the same bits signed."""
    if library(reference) == "torch":
        if isinstance(value, int):
            value = value & _MASK
            value = value - (1 << 32) if value >> 31 else value
            return asarray_like(reference, np.int64(value).reshape(())).to(namespace(reference).int32)
        return value.to(namespace(reference).int32)
    xp = namespace(reference)
    if isinstance(value, int):
        return asarray_like(reference, np.asarray(value & _MASK, dtype=np.uint32))
    return xp.astype(asarray_like(reference, value), xp.uint32)


def _rotate(x: Array, by: int) -> Array:
    if library(x) == "tensorflow":
        return namespace(x).rotate(x, by)
    if library(x) == "torch":  # the right shift of a signed word brings its sign along: mask it away
        return (x << by) | ((x >> (32 - by)) & ((1 << by) - 1))
    return (x << by) | (x >> (32 - by))


def threefry(key: tuple[Array, Array], counter: tuple[Array, Array], rounds: int = 20) -> tuple[Array, Array]:
    """Two random words for a key and a counter of two words each (arrays of one library, broadcasting).

    Example:
        >>> zero = np.zeros((), dtype=np.uint32)
        >>> [hex(int(word)) for word in threefry((zero, zero), (zero, zero))]
        ['0x6b200159', '0x99ba4efe']
    """
    with np.errstate(over="ignore"):
        keys = (key[0], key[1], key[0] ^ key[1] ^ _word(key[0], PARITY))
        x, y = counter[0] + keys[0], counter[1] + keys[1]
        for done in range(rounds):
            x = x + y
            y = _rotate(y, ROTATIONS[done % 8]) ^ x
            if done % 4 == 3:
                step = done // 4 + 1
                x = x + keys[step % 3]
                y = y + keys[(step + 1) % 3] + _word(y, step)
    return x, y


def seed_words(seed: Any) -> tuple[Any, Any]:
    """The two words of a seed: low and high 32 bits of an integer, or of an integer array without axes.

    Two words are a seed taken apart already.

    Example:
        >>> seed_words(2**32 + 5)
        (5, 1)
    """
    if isinstance(seed, tuple):
        return seed
    if not is_array(seed):
        return seed & _MASK, (seed >> 32) & _MASK
    # By divisions, which all libraries have, and which carry the sign on as Python's shift does.
    if itemsize(dtype_name(seed)) == 8:
        return seed, seed // 65536 // 65536
    return seed, seed // 65536 // 32768 if dtype_name(seed).startswith("int") else seed * 0


@lru_cache(maxsize=8)
def _element_keys(seed: int, stream: int, count: int) -> tuple[Array, Array]:
    """A key for each batch element. Two levels, so that neighbouring ones get unrelated keys."""
    reference = np.zeros(())
    key = (_word(reference, seed), _word(reference, seed >> 32))
    return threefry(key, (np.arange(count, dtype=np.uint32), _word(reference, stream)))


def _keys(seed: int, stream: int, batch: tuple[int, ...], index: BatchIndex) -> tuple[Array, Array]:
    """Keys `(*batch, 1, 1)` of some batch elements."""
    found = _element_keys(seed, stream, math.prod(batch))
    one, two = (take_batch(x.reshape(*batch, 1, 1), index, 2) for x in found)
    return one, two


def _by_numpy(reference: Array) -> bool:
    """Whether words may be NumPy's."""
    if library(reference) == "numpy":
        return sys.byteorder == "little"
    if library(reference) != "torch" or sys.byteorder != "little":
        return False
    import torch

    # Not what stands in for a tensor while a function is traced.
    return type(reference) in (torch.Tensor, torch.nn.Parameter) and reference.device.type == "cpu"


def _key_words(
    reference: Array, seed: Any, stream: int, batch: tuple[int, ...], index: BatchIndex
) -> tuple[Array, Array]:
    """Keys `(*batch, 1, 1)` in the library of `reference`; the seed may be an array, as while JAX traces."""
    if not (isinstance(seed, int) and all(isinstance(n, int) for n in batch)):
        number = namespace(reference).reshape(arange(reference, 0, math.prod(batch)), (*batch, 1, 1))
        low, high = (_word(reference, x) for x in seed_words(seed))
        counter = (_word(reference, take_batch(number, index, 2)), _word(reference, stream))
        return threefry((low, high), counter)
    found = _keys(seed, stream, batch, index)
    bits = (x.view(np.int32) if library(reference) == "torch" else x for x in found)
    one, two = (asarray_like(reference, x) for x in bits)
    return one, two


def _words(reference: Array, key: tuple[Array, Array], rows: Indices, cols: Indices) -> Array:
    """Words `(*batch, q, n)` of queries and counters."""
    xp = namespace(reference)
    if not (_known(rows) and _known(cols)):
        q: Array = arange(reference, *rows)[:, None] if _known(rows) else rows
        n: Array = arange(reference, *cols) if _known(cols) else cols
        x, y = threefry(key, (_word(reference, q // 2), _word(reference, n)), ROUNDS)
        return xp.where(q % 2 == 0, x, y)
    pairs = arange(reference, rows[0] >> 1, (rows[1] + 1) >> 1)[:, None]
    counter = (_word(reference, pairs), _word(reference, arange(reference, *cols)))
    both = xp.stack(threefry(key, counter, ROUNDS), axis=-2)
    both = xp.reshape(both, (*both.shape[:-3], 2 * both.shape[-3], both.shape[-1]))
    return both[..., rows[0] & 1 : (rows[0] & 1) + rows[1] - rows[0], :]


def _known(limits: Indices) -> TypeGuard[Limits]:
    """Whether they are limits that Python knows."""
    return isinstance(limits, tuple)


def uniform(
    reference: Array,
    seed: Any,
    stream: int,
    batch: tuple[int, ...],
    rows: Indices,
    cols: Indices,
    index: BatchIndex = (),
) -> Array:
    """Uniform numbers in (0, 1) `(*batch, q, k)` of queries and keys, in the dtype of `reference`; of some
    batch elements where `index` names them.

    Equal in every array library up to rounding.
    """
    if _known(rows) and _known(cols) and _by_numpy(reference):
        return cast(
            asarray_like(reference, _numpy_uniform(reference, seed, stream, batch, rows, cols, index)),
            reference.dtype,
        )
    bits = _words(reference, _key_words(reference, seed, stream, batch, index), rows, cols)
    if library(reference) == "torch":
        bits = bits.to(namespace(reference).int64) & _MASK
    return _open(cast(bits, reference.dtype))


def _numpy_uniform(
    reference: Array,
    seed: int,
    stream: int,
    batch: tuple[int, ...],
    rows: Limits,
    cols: Limits,
    index: BatchIndex,
) -> np.ndarray:
    """As `uniform`, in place."""
    bits = pair_words(_keys(seed, stream, batch, index), rows, cols, ROUNDS)
    u = bits.astype(np.float64 if "64" in str(reference.dtype) else np.float32)
    np.add(u, 0.5, out=u)
    np.multiply(u, 2.0**-32, out=u)
    np.minimum(u, u.dtype.type(_HIGHEST), out=u)
    return u


def _open(u: Array) -> Array:
    """Numbers of 32 bits in (0, 1)."""
    xp = namespace(u)
    # Half a step up: 0 is never drawn, and small numbers keep their relative precision for the Gumbel below.
    u = (u + 0.5) * 2.0**-32
    # Nor is 1, to which the largest words would be rounded.
    return xp.minimum(u, asarray_like(u, np.asarray(_HIGHEST), u.dtype))


def gumbel(
    reference: Array,
    seed: Any,
    stream: int,
    batch: tuple[int, ...],
    rows: Indices,
    cols: Indices,
    index: BatchIndex = (),
) -> Array:
    """Standard Gumbel numbers: the key with the largest logit plus Gumbel is a draw from the softmax."""
    # −log(1 − u) is a standard exponential; its small values, which win, are drawn finely because u is.
    if _known(rows) and _known(cols) and _by_numpy(reference):
        u = _numpy_uniform(reference, seed, stream, batch, rows, cols, index)
        for step in (np.negative, np.log1p, np.negative, np.log, np.negative):
            step(u, out=u)
        return cast(asarray_like(reference, u), reference.dtype)
    xp = namespace(reference)
    u = uniform(reference, seed, stream, batch, rows, cols, index)
    return -xp.log(-xp.log1p(-u))


def dropout_rate(dropout: float) -> float:
    """The probability with which a weight is dropped: a multiple of 2^-16, as its draw has 16 bits.

    Example:
        >>> dropout_rate(0.25), round(dropout_rate(0.1), 6)
        (0.25, 0.100006)
    """
    return _least(dropout) / 2**16


def _least(dropout: float) -> int:
    return min(round(dropout * 2**16), 2**16 - 1)


def dropout_mask(
    reference: Array,
    seed: Any,
    batch: tuple[int, ...],
    rows: Indices,
    cols: Indices,
    dropout: float,
    index: BatchIndex = (),
) -> Array:
    """Which weights dropout keeps, `(*batch, q, k)` booleans, each with probability `1 - rate(dropout)`."""
    least = _least(dropout)
    if not (_known(rows) and _known(cols)):
        key = _key_words(reference, seed, DROPOUT, batch, index)
        k: Array = arange(reference, *cols) if _known(cols) else cols
        return _half(_words(reference, key, rows, k // 2), k % 2) >= least
    # A word serves two keys.
    halves = (cols[0] >> 1, (cols[1] + 1) >> 1)
    skip = cols[0] & 1
    if _by_numpy(reference):
        made = pair_words(_keys(seed, DROPOUT, batch, index), rows, halves, ROUNDS)
        # The bits as two signed numbers: what compares with them is lower by half of the range.
        signed = made.view(np.int16)[..., skip : skip + cols[1] - cols[0]]
        return asarray_like(reference, signed >= np.int16(least - _HALF))
    xp = namespace(reference)
    words = _words(reference, _key_words(reference, seed, DROPOUT, batch, index), rows, halves)
    both = xp.stack([_half(words, 0), _half(words, 1)], axis=-1)
    both = xp.reshape(both, (*both.shape[:-2], -1))[..., skip : skip + cols[1] - cols[0]]
    return both >= least


def _half(words: Array, high: Any) -> Array:
    """16 bits of each word, as a number of 32; the highest of them turned, as a signed number has it."""
    xp = namespace(words)
    low = words & 0xFFFF
    if not isinstance(high, int):
        low = xp.where(high == 0, low, _upper(words))
    elif high:
        low = _upper(words)
    return low ^ _HALF


def _upper(words: Array) -> Array:
    return namespace(words).shift(words, 16) if library(words) == "tensorflow" else (words >> 16) & 0xFFFF
