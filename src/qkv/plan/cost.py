"""Class `Cost`, the cost of a call on a kernel, and functions that parse and format amounts."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from qkv.errors import OptionError


@dataclass(frozen=True)
class Cost:
    """Memory, operations and estimated time of a call on one kernel.

    Attributes:
        flop: floating-point operations.
        scratch: bytes in memory at the peak besides inputs, output and gradients.
        seconds: estimated time, by which the planner compares kernels.
        results: bytes of the output and the gradients, which every kernel returns.
        measured: whether the time is that of measured calls like this one; otherwise it only orders the kernels.
    """

    flop: float
    scratch: float
    seconds: float = 0.0
    results: float = 0.0
    measured: bool = False

    @property
    def peak(self) -> float:
        """Peak memory in bytes, including output and gradients but not inputs."""
        return self.scratch + self.results


_UNITS = {"": 1, "b": 1} | {
    f"{letter}{kind}b": (1024 if kind else 1000) ** power
    for power, letter in enumerate("kmgt", start=1)
    for kind in ("", "i")
}


def memory_bytes(amount: int | str) -> int:
    """Return the number of bytes in an amount of memory such as `"512 MiB"`, `"2 GB"` or `1_000_000`.

    Raises:
        OptionError: the text is not a number with a known unit, or the amount is not positive.

    Example:
        >>> memory_bytes("1.5 KiB")
        1536
    """
    if isinstance(amount, int) and not isinstance(amount, bool) and amount > 0:
        return amount
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z]*)\s*", amount) if isinstance(amount, str) else None
    if found is None or found[2].lower() not in _UNITS or float(found[1]) <= 0:
        raise OptionError(
            f'memory must be a positive amount, got {amount!r}. Pass a number of bytes, or text such as "512 MiB".'
        )
    return int(float(found[1]) * _UNITS[found[2].lower()])


def memory_text(amount: float) -> str:
    """Format a number of bytes with a unit.

    Example:
        >>> memory_text(1536)
        '1.5 KiB'
    """
    return _scaled(amount, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def rounded_up(amount: int) -> str:
    """Format a number of bytes with a unit, rounded up, so that `memory_bytes` of the text is at least the number.

    Example:
        >>> rounded_up(1537)
        '1.51 KiB'
    """
    power = min(4, int(math.log(amount, 1024))) if amount >= 1 else 0
    unit = ("B", "KiB", "MiB", "GiB", "TiB")[power]
    if amount % 1024**power == 0:
        return f"{amount // 1024**power} {unit}"
    hundredths = -(-amount * 100 // 1024**power)
    return f"{hundredths // 100}.{hundredths % 100:02d} {unit}"


def flop_text(amount: float) -> str:
    """Format a number of floating-point operations with a unit.

    Example:
        >>> flop_text(2.5e9)
        '2.5 Gflop'
    """
    return _scaled(amount, 1000, ("flop", "kflop", "Mflop", "Gflop", "Tflop", "Pflop"))


def _scaled(amount: float, base: int, units: tuple[str, ...]) -> str:
    power = min(len(units) - 1, int(math.log(amount, base))) if amount >= 1 else 0
    number = amount / base**power
    return f"{number:.3g} {units[power]}" if number < 1000 else f"{number:.0f} {units[power]}"


def counted(number: int, one: str, many: str) -> str:
    """Format a number followed by its noun in singular or plural.

    Example:
        >>> counted(1, "query", "queries"), counted(4096, "key", "keys")
        ('1 query', '4,096 keys')
    """
    return f"{number:,} {one if number == 1 else many}"


def tile_sides(q: int, k: int, pairs: int) -> tuple[int, int]:
    """Return the numbers of queries and keys of a tile with at most `pairs` pairs, as nearly equal as possible.

    Example:
        >>> tile_sides(10_000, 10_000, 2**18)
        (512, 512)
        >>> tile_sides(1, 10_000_000, 2**18)
        (1, 262144)
    """
    side = max(1, math.isqrt(pairs))
    rows = max(1, min(q, side))
    cols = max(1, min(k, pairs // rows))
    return max(1, min(q, pairs // cols)), cols
