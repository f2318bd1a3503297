"""Random numbers that depend only on the seed, batch element, query and key, not on the kernel or the tiles.

Every kernel, every order of tiles and the backward pass use the same random numbers, because each number depends only
on the absolute indices of its pair. The generator is Threefry-2x32: 20 rounds turn the seed into a key for each batch
element and stream, and 13 rounds turn this key into 32 random bits for each pair. One evaluation of the generator gives
two 32-bit integers x and y, for queries 2i and 2i + 1:

    uniform         x, y = threefry(key, (q // 2, k))            x for even q, y for odd
    dropout_mask    x, y = threefry(key, (q // 2, k // 2))       low half for even k, high half for odd

NumPy arrays and PyTorch tensors on a CPU share the bits that `threefry.numpy_pair_words` computes in place.
"""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from typing import NamedTuple, TypeAlias, TypeGuard

import numpy as np

from qkv.core.arrays import arange, asarray_like, cast, is_tensor, library, namespace
from qkv.core.batch import BatchIndex, take_batch
from qkv.core.threefry import MASK, Seed, numpy_pair_words, seed_words, threefry, word
from qkv.core.typing import Array, Bool, Float, Int, Num, PairArray, Shaped

DROPOUT, SAMPLE = 1, 2
"""Streams of random numbers, for dropout and for `Sample`. Different streams of one seed are independent."""
ROUNDS = 13
"""Number of rounds that turn a key into the random bits of pairs; see docs/decisions/0003."""
_HALF = 1 << 15
_HIGHEST = 1.0 - 2.0**-24

Range: TypeAlias = tuple[int, int]
Indices: TypeAlias = Range | Array
"""A range (first index, one past the last), or an integer array that broadcasts to `(*batch, q, k)`, also traced."""


class Draws(NamedTuple):
    """The pairs of a call for each of which a random number is drawn.

    Attributes:
        seed: seed of all draws.
        batch: batch axes of the whole call.
        rows: queries.
        cols: keys.
        elements: batch elements; empty: all.
    """

    seed: Seed
    batch: tuple[int, ...]
    rows: Indices
    cols: Indices
    elements: BatchIndex = ()


@lru_cache(maxsize=8)
def _element_keys(seed: int, stream: int, count: int) -> tuple[Num[Array, " n"], Num[Array, " n"]]:
    """Return the key of the random number generator for each of `count` batch elements.

    A key consists of two 32-bit integers, which are returned as two arrays. The keys of neighboring batch elements are
    unrelated.
    """
    reference = np.zeros(())
    key = (word(reference, seed), word(reference, seed >> 32))
    return threefry(key, (np.arange(count, dtype=np.uint32), word(reference, stream)))


def _keys(
    seed: int, stream: int, batch: tuple[int, ...], index: BatchIndex
) -> tuple[Num[np.ndarray, "*batch 1 1"], Num[np.ndarray, "*batch 1 1"]]:
    """Return the keys of the random number generator for the batch elements that `index` selects.

    A key consists of two 32-bit integers, which are returned as two NumPy arrays `(*batch, 1, 1)`.
    """
    keys = (np.asarray(x).reshape(*batch, 1, 1) for x in _element_keys(seed, stream, math.prod(batch)))
    first, second = (np.asarray(take_batch(x, index, 2)) for x in keys)
    return first, second


def _by_numpy(reference: Shaped[Array, "*_"]) -> bool:
    """Return whether random bits for arrays like `reference` can be computed in NumPy.

    They can for NumPy arrays and for tensors on a CPU, on machines with little-endian byte order.
    """
    if library(reference) == "numpy":
        return sys.byteorder == "little"
    if not is_tensor(reference) or sys.byteorder != "little":
        return False
    import torch

    # Subclasses stand for tensors while a function is traced.
    return type(reference) in (torch.Tensor, torch.nn.Parameter) and reference.device.type == "cpu"


def _key_words(
    reference: Shaped[Array, "*_"], draws: Draws, stream: int
) -> tuple[Num[Array, "*batch 1 1"], Num[Array, "*batch 1 1"]]:
    """Return the keys of the random number generator as arrays of the library of `reference`.

    A key consists of two 32-bit integers, which are returned as two arrays `(*batch, 1, 1)`, with the batch elements
    that `index` selects.
    """
    seed, batch, _, _, index = draws
    if not (isinstance(seed, int) and all(isinstance(n, int) for n in batch)):
        number = namespace(reference).reshape(arange(reference, 0, math.prod(batch)), (*batch, 1, 1))
        low, high = (word(reference, x) for x in seed_words(seed))
        counter = (word(reference, take_batch(number, index, 2)), word(reference, stream))
        return threefry((low, high), counter)
    words = (x.view(np.int32) if is_tensor(reference) else x for x in _keys(seed, stream, batch, index))
    first, second = (asarray_like(reference, x) for x in words)
    return first, second


def _words(
    reference: Shaped[Array, "*_"],
    key: tuple[Num[Array, "*#batch 1 1"], Num[Array, "*#batch 1 1"]],
    rows: Indices,
    cols: Indices,
) -> Num[Array, "*batch q n"]:
    """Return a random 32-bit integer for each pair of a query and a counter, `(*batch, q, n)`."""
    xp = namespace(reference)
    if not (_known(rows) and _known(cols)):
        q = _index_array(reference, rows)[:, None] if _known(rows) else _index_array(reference, rows)
        n = _index_array(reference, cols)
        x, y = threefry(key, (word(reference, q // 2), word(reference, n)), ROUNDS)
        return xp.where(q % 2 == 0, x, y)
    pairs = arange(reference, rows[0] >> 1, (rows[1] + 1) >> 1)[:, None]
    counter = (word(reference, pairs), word(reference, arange(reference, *cols)))
    both = xp.stack(threefry(key, counter, ROUNDS), axis=-2)
    both = xp.reshape(both, (*both.shape[:-3], 2 * both.shape[-3], both.shape[-1]))
    return both[..., rows[0] & 1 : (rows[0] & 1) + rows[1] - rows[0], :]


def _known(indices: Indices) -> TypeGuard[Range]:
    return isinstance(indices, tuple)


def _index_array(reference: Shaped[Array, "*_"], indices: Indices) -> Int[Array, "*_"]:
    return arange(reference, *indices) if isinstance(indices, tuple) else indices


def uniform(reference: Array, draws: Draws, stream: int) -> PairArray:
    """Return a uniform random number in (0, 1) for each pair of a query and a key, `(*batch, q, k)`.

    The numbers are equal in every array library up to rounding.

    Args:
        reference: an array of the library, device and dtype of the result.
        draws: the pairs.
        stream: one of `DROPOUT` and `SAMPLE`.
    """
    found = _numpy_uniform(reference, draws, stream)
    if found is not None:
        return cast(asarray_like(reference, found), reference.dtype)
    bits = _words(reference, _key_words(reference, draws, stream), draws.rows, draws.cols)
    if is_tensor(bits):
        bits = bits.to(namespace(reference).int64) & MASK
    # Half a step up avoids 0 and keeps the relative precision of small numbers for `gumbel`.
    u = (cast(bits, reference.dtype) + 0.5) * 2.0**-32
    # The largest integers would round to 1.
    return namespace(u).minimum(u, asarray_like(u, np.asarray(_HIGHEST), u.dtype))


def _numpy_uniform(reference: Array, draws: Draws, stream: int) -> Float[np.ndarray, "*batch q k"] | None:
    """Return the numbers of `uniform` in NumPy, or None if they cannot be computed there."""
    seed, batch, rows, cols, index = draws
    if not (_known(rows) and _known(cols) and isinstance(seed, int) and _by_numpy(reference)):
        return None
    bits = numpy_pair_words(_keys(seed, stream, batch, index), rows, cols, ROUNDS)
    u = bits.astype(np.float64 if "64" in str(reference.dtype) else np.float32)
    np.add(u, 0.5, out=u)
    np.multiply(u, 2.0**-32, out=u)
    np.minimum(u, u.dtype.type(_HIGHEST), out=u)
    return u


def gumbel(reference: Array, draws: Draws, stream: int) -> PairArray:
    """Return a standard Gumbel random number for each pair of a query and a key, `(*batch, q, k)`.

    The key with the largest sum of logit and Gumbel number is a random sample from the softmax of the logits.

    Args:
        reference: an array of the library, device and dtype of the result.
        draws: the pairs.
        stream: one of `DROPOUT` and `SAMPLE`.
    """
    # −log(1 − u) is a standard exponential. Its small values decide the maximum, and small u are precise.
    found = _numpy_uniform(reference, draws, stream)
    if found is not None:
        for step in (np.negative, np.log1p, np.negative, np.log, np.negative):
            step(found, out=found)
        return cast(asarray_like(reference, found), reference.dtype)
    xp = namespace(reference)
    u = uniform(reference, draws, stream)
    return -xp.log(-xp.log1p(-u))


def dropout_rate(dropout: float) -> float:
    """Return `dropout` rounded to a multiple of 2^-16, because 16 random bits are drawn for each weight.

    Example:
        >>> dropout_rate(0.25), round(dropout_rate(0.1), 6)
        (0.25, 0.100006)
    """
    return _threshold(dropout) / 2**16


def _threshold(dropout: float) -> int:
    return min(round(dropout * 2**16), 2**16 - 1)


def dropout_mask(reference: Array, draws: Draws, dropout: float) -> Bool[Array, "*batch q k"]:
    """Return a boolean array `(*batch, q, k)` that is True for the weights that dropout keeps.

    Each weight is kept with probability `1 - dropout_rate(dropout)`.

    Args:
        reference: an array of the library and device of the result.
        draws: the pairs.
        dropout: probability of dropping a weight.
    """
    threshold, (seed, batch, rows, cols, index) = _threshold(dropout), draws
    if not (_known(rows) and _known(cols)):
        key = _key_words(reference, draws, DROPOUT)
        k = _index_array(reference, cols)
        return _half(_words(reference, key, rows, k // 2), k % 2) >= threshold
    # Each 32-bit integer serves two keys.
    halves = (cols[0] >> 1, (cols[1] + 1) >> 1)
    skip = cols[0] & 1
    if isinstance(seed, int) and _by_numpy(reference):
        words = numpy_pair_words(_keys(seed, DROPOUT, batch, index), rows, halves, ROUNDS)
        # Compare the bits as signed numbers, so the threshold is lower by half of the range.
        signed = words.view(np.int16)[..., skip : skip + cols[1] - cols[0]]
        return asarray_like(reference, signed >= np.int16(threshold - _HALF))
    xp = namespace(reference)
    tile_words = _words(reference, _key_words(reference, draws, DROPOUT), rows, halves)
    both = xp.stack([_half(tile_words, 0), _half(tile_words, 1)], axis=-1)
    both = xp.reshape(both, (*both.shape[:-2], 2 * (halves[1] - halves[0])))[..., skip : skip + cols[1] - cols[0]]
    return both >= threshold


def _half(words: Num[Array, "*shape"], high: int | Int[Array, "*#shape"]) -> Num[Array, "*shape"]:
    """Return the upper 16 bits of 32-bit integers where `high` is not 0, otherwise the lower 16 bits.

    The top bit of the result is flipped.
    """
    xp = namespace(words)
    low = words & 0xFFFF
    if not isinstance(high, int):
        low = xp.where(high == 0, low, _upper(words))
    elif high:
        low = _upper(words)
    return low ^ _HALF


def _upper(words: Num[Array, "*shape"]) -> Num[Array, "*shape"]:
    return namespace(words).shift(words, 16) if library(words) == "tensorflow" else (words >> 16) & 0xFFFF
