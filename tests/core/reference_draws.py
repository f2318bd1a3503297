"""Generate random numbers with Python integers, as a reference for the implementation in each array library.

Threefry-2x32, from Salmon, Moraes, Dror, Shaw (2011), https://doi.org/10.1145/2063384.2063405.
"""

import math

_MASK_32 = 0xFFFFFFFF


def reference_threefry(key: tuple[int, int], counter: tuple[int, int], rounds: int = 20) -> tuple[int, int]:
    """Return the two random 32-bit integers that Threefry-2x32 computes from a key and a counter.

    Example:
        >>> [hex(bits) for bits in reference_threefry((0, 0), (0, 0))]
        ['0x6b200159', '0x99ba4efe']
    """
    keys = [key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA]
    x, y = (counter[0] + keys[0]) & _MASK_32, (counter[1] + keys[1]) & _MASK_32
    for rnd in range(rounds):
        by = (13, 15, 26, 6, 17, 29, 16, 24)[rnd % 8]
        x = (x + y) & _MASK_32
        y = ((y << by | y >> (32 - by)) & _MASK_32) ^ x
        if rnd % 4 == 3:
            step = rnd // 4 + 1
            x = (x + keys[step % 3]) & _MASK_32
            y = (y + keys[(step + 1) % 3] + step) & _MASK_32
    return x, y


def _random_bits(seed: int, stream: int, batch: int, q: int, k: int) -> int:
    """Return the random 32-bit integer of query q and key k, where queries 2i and 2i + 1 share a Threefry call."""
    inner = reference_threefry((seed & _MASK_32, seed >> 32 & _MASK_32), (batch, stream))
    return reference_threefry(inner, (q // 2, k), rounds=13)[q % 2]


def reference_uniform(seed: int, stream: int, batch: int, q: int, k: int) -> float:
    """Return the random number of query q and key k, uniform in (0, 1), for the batch element of flat index `batch`."""
    return (_random_bits(seed, stream, batch, q, k) + 0.5) / 2**32


def reference_dropout_mask(seed: int, stream: int, batch: int, q: int, k: int, dropout: float) -> bool:
    """Return True if dropout keeps the weight of query q and key k.

    Keys 2j and 2j + 1 use the low and the high 16 bits of one random integer.
    """
    half = _random_bits(seed, stream, batch, q, k // 2) >> 16 * (k % 2) & 0xFFFF
    return half ^ 0x8000 >= round(dropout * 2**16)


def reference_gumbel(seed: int, stream: int, batch: int, q: int, k: int) -> float:
    """Return the Gumbel-distributed random number of query q and key k."""
    return -math.log(-math.log1p(-min(reference_uniform(seed, stream, batch, q, k), 1 - 2.0**-24)))
