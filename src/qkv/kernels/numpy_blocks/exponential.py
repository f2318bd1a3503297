"""Exponentials in NumPy: e^x, or 2^x of logits that were multiplied by log2 e, whichever is faster here.

Where NumPy has vector code for 2^x it takes half the time of e^x; where it has none, ten times as long. Which
it is, is measured once for each process and dtype, in less than a millisecond. Neither is fast where the
result is below the smallest normal number (a hundred times slower, and so are products with such results):
what is that small is made 0.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

__all__ = ["NATURAL", "Exponential", "exponential"]


@dataclass(frozen=True)
class Exponential:
    """`power(x · unit)` is e^x.

    Attributes:
        power: `np.exp` or `np.exp2`, both with `out`.
        unit: 1, or log2 e.
    """

    power: Any
    unit: float

    def replace(self, x: np.ndarray) -> None:
        """Write the exponentials of `x` into it; those below 2^−100 (2^−900 in float64) may become 0.

        Example:
            >>> x = np.array([0.0, -1000.0])
            >>> NATURAL.replace(x)
            >>> x
            array([1., 0.])
        """
        smallest = x.min(initial=0)
        bits = -900.0 if x.dtype == np.float64 else -100.0
        floor = bits * math.log(2) * self.unit
        if smallest >= 1.2 * floor:  # the smallest normal numbers are 2^−126 and 2^−1022; False for NaN
            self.power(x, out=x)
            return
        np.maximum(x, floor, out=x)
        self.power(x, out=x)
        # Exactly what the floor became: what stood on it is 0, the rest loses less than its last digit.
        np.subtract(x, self.power(np.full(64, floor, dtype=x.dtype))[0], out=x)


NATURAL = Exponential(np.exp, 1.0)
BINARY = Exponential(np.exp2, math.log2(math.e))


@cache
def exponential(dtype: str) -> Exponential:
    """The faster of the two for a dtype, such as `"float32"`.

    Example:
        >>> import numpy as np
        >>> e = exponential("float64")
        >>> round(float(e.power(1.0 * e.unit)), 9)
        2.718281828
    """
    sample = np.linspace(-20, 0, 4096, dtype=dtype)
    room = np.empty_like(sample)

    def seconds(power: Any) -> float:
        start = time.perf_counter()
        power(sample, out=room)
        return time.perf_counter() - start

    natural, binary = (min(seconds(each.power) for _ in range(9)) for each in (NATURAL, BINARY))
    return BINARY if binary < natural else NATURAL
