"""The reading of columns of floats that hold whole numbers."""

from __future__ import annotations

from dataclasses import dataclass

from qkv.database.io.identifier_names import whole_sql
from qkv.database.io.text_readings import TextReading

__all__ = ["WholeFloats"]


@dataclass(frozen=True)
class WholeFloats(TextReading):
    """The reading of a column of floats, most of which are whole numbers, as whole numbers."""

    def sql(self, cell: str) -> str:
        """Return the SQL expression of the converted cell, which is null for other numbers."""
        return f"case when {whole_sql(cell)} then {cell}::bigint end"

    def bad(self, cell: str) -> str:
        """Return the SQL condition that a cell is a number, but no whole number."""
        return f"not isnan({cell}) and not coalesce({whole_sql(cell)}, false)"
