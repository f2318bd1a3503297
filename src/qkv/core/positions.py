"""`Positions`: how the positions of queries relate to the positions of keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from qkv.core.arrays import as_array, dtype_name, is_array
from qkv.core.parts import Part, array_field
from qkv.errors import KindError, OptionError

__all__ = ["Align", "Positions"]

Align = Literal["start", "end"]


@dataclass(frozen=True, eq=False)
class Positions(Part):
    """How query positions relate to key positions; key j stands at position j.

    `align="start"`: query i stands at position i. `align="end"`: the last query stands where the last key
    does (a decoder that continues). `query_start=s`: query i stands at s + i (cached decoding); `s` may be an
    integer array with one start per batch element.

    Example:
        >>> Positions(align="end").offset(q=2, k=5)
        3
    """

    align: Align | None = None
    query_start: Any = array_field(default=None)

    def validate(self) -> None:
        if self.align not in (None, "start", "end"):
            raise OptionError(f'Positions was given align={self.align!r}. It must be "start" or "end".')
        if (self.align is None) == (self.query_start is None):
            raise OptionError('Positions wants one of align="start", align="end" or query_start=….')
        start = self.query_start
        if start is not None and not is_array(start) and not isinstance(start, int):
            object.__setattr__(self, "query_start", start := as_array(start))
        if is_array(start) and "int" not in dtype_name(start):
            raise KindError(f"Positions was given query_start of {dtype_name(start)}. Give integers.")

    def offset(self, q: int, k: int) -> Any:
        """Position of query 0."""
        if self.query_start is not None:
            return self.query_start
        return 0 if self.align == "start" else k - q
