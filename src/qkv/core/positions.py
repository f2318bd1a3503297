"""Class `Positions`, which states how the positions of queries relate to the positions of keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from qkv.core.arrays import as_array, dtype_name
from qkv.core.parts import Part, array_field
from qkv.core.typing import Array, Num
from qkv.errors import KindError, OptionError, PositionError

Align: TypeAlias = Literal["start", "end"]


@dataclass(frozen=True, eq=False)
class Positions(Part):
    """Positions of queries relative to keys, where key j has position j. Exactly one argument must be given.

    Args:
        align: "start": query i has position i. "end": the last query has the position of the last key, as in
            decoding with a cache.
        query_start: position of query 0, an integer, or an integer array with one element per batch element.

    Raises:
        OptionError: not exactly one argument is given, or `align` is neither "start" nor "end".
        KindError: `query_start` is not an integer or an integer array.

    Example:
        >>> Positions(align="end").offset(q=2, k=5)
        3
    """

    align: Align | None = None
    query_start: Array | int | None = array_field(default=None)

    def validate(self) -> None:
        if self.align not in (None, "start", "end"):
            raise OptionError(f'align must be "start" or "end", got {self.align!r}. Pass, for example, "end".')
        if (self.align is None) == (self.query_start is None):
            given = "none" if self.align is None else "both"
            raise OptionError(
                f'exactly one of align and query_start must be given, got {given}. Pass align="start", align="end" or '
                "query_start=n."
            )
        start = self.query_start
        if start is not None and not isinstance(start, int):
            object.__setattr__(self, "query_start", start := as_array(start))
        if start is not None and not isinstance(start, int) and "int" not in dtype_name(start):
            raise KindError(
                f"query_start must be an integer or an integer array, got an array of dtype {dtype_name(start)}. "
                "Convert it to an integer dtype."
            )

    def offset(self, q: int, k: int) -> Num[Array, "*batch"] | int:
        """Return the position of query 0 in a call with `q` queries and `k` keys.

        The result is an int, or an integer array with one element per batch element.
        """
        if self.query_start is not None:
            return self.query_start
        return 0 if self.align == "start" else k - q


def unknown_positions(q: int, k: int) -> PositionError:
    """Return the error for numbers of queries and keys that differ, where the call gives no positions."""
    return PositionError(
        f"positions must be given for {q} queries and {k} keys, because the score, mask or readout depends on "
        "positions and the lengths differ. "
        'Pass positions=Positions(align="start") if query 0 has the position of key 0, or '
        'positions=Positions(align="end") if the last query has the position of the last key.'
    )
