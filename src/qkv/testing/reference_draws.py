"""Reference implementation of random numbers in Python integers, which every array library must reproduce.

Threefry-2x32, from Salmon, Moraes, Dror, Shaw (2011), https://doi.org/10.1145/2063384.2063405.
"""

from __future__ import annotations

import math

__all__ = ["reference_dropout_mask", "reference_gumbel", "reference_threefry", "reference_uniform"]

_WORD = 0xFFFFFFFF


def reference_threefry(key: tuple[int, int], counter: tuple[int, int], rounds: int = 20) -> tuple[int, int]:
    """Return two random 32-bit words computed by Threefry-2x32.

    Example:
        >>> [hex(word) for word in reference_threefry((0, 0), (0, 0))]
        ['0x6b200159', '0x99ba4efe']
    """
    keys = [key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA]
    x, y = (counter[0] + keys[0]) & _WORD, (counter[1] + keys[1]) & _WORD
    for rnd in range(rounds):
        by = (13, 15, 26, 6, 17, 29, 16, 24)[rnd % 8]
        x = (x + y) & _WORD
        y = ((y << by | y >> (32 - by)) & _WORD) ^ x
        if rnd % 4 == 3:
            step = rnd // 4 + 1
            x = (x + keys[step % 3]) & _WORD
            y = (y + keys[(step + 1) % 3] + step) & _WORD
    return x, y


def _word_of_query(seed: int, stream: int, batch: int, q: int, k: int) -> int:
    """Return the random word of a query. Queries 2i and 2i + 1 use the two words of one Threefry call."""
    inner = reference_threefry((seed & _WORD, seed >> 32 & _WORD), (batch, stream))
    return reference_threefry(inner, (q // 2, k), rounds=13)[q % 2]


def reference_uniform(seed: int, stream: int, batch: int, q: int, k: int) -> float:
    """Return the uniform random number of one pair in float64. `batch` is the flat index of the batch element."""
    return (_word_of_query(seed, stream, batch, q, k) + 0.5) / 2**32


def reference_dropout_mask(seed: int, stream: int, batch: int, q: int, k: int, dropout: float) -> bool:
    """Return whether dropout keeps a weight. Keys 2j and 2j + 1 use the low and the high half of one random word."""
    half = _word_of_query(seed, stream, batch, q, k // 2) >> 16 * (k % 2) & 0xFFFF
    return half ^ 0x8000 >= round(dropout * 2**16)


def reference_gumbel(seed: int, stream: int, batch: int, q: int, k: int) -> float:
    """Return the Gumbel-distributed random number of one pair in float64."""
    return -math.log(-math.log1p(-min(reference_uniform(seed, stream, batch, q, k), 1 - 2.0**-24)))
