"""The numbers among the keys of a comparison, as coordinates in which a line can be fitted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from qkv.core.typing import Float, Shaped
from qkv.database.keys.comparisons import Comparison, DistanceComparison, MixedComparison, ScoreComparison
from qkv.encoders.columns import Column

__all__ = ["Coordinates", "find_coordinates"]

_NUMERIC = ("number", "timestamp", "boolean")


@dataclass(frozen=True, eq=False)
class Coordinates:
    """The place of the numbers in the key and query arrays of a comparison.

    Attributes:
        columns: the key columns of numbers, timestamps and booleans.
        scale: the unit of each coordinate in the unit of its column, of days for timestamps.
        field: the field of a structured array that holds them; "" for an array without fields.
    """

    columns: tuple[Column, ...]
    scale: Float[np.ndarray, " width"]
    field: str = ""

    def of(self, array: Shaped[np.ndarray, "n ..."]) -> Float[np.ndarray, "n width"]:
        """Return the coordinates of the elements of a key array or of a query array."""
        part = array[self.field] if self.field else array
        return np.asarray(part[:, : len(self.columns)], np.float64)


def find_coordinates(comparison: Comparison) -> Coordinates | None:
    """Return where the numbers among the keys of a comparison are, or None if it compares none as numbers."""
    if isinstance(comparison, MixedComparison):
        for name, part in comparison.parts:
            found = find_coordinates(part)
            if found is not None:
                return replace(found, field=name)
        return None
    columns = comparison.key_columns
    if not all(column.kind in _NUMERIC for column in columns):
        return None
    if isinstance(comparison, DistanceComparison):
        return Coordinates(columns, comparison.scale)
    if isinstance(comparison, ScoreComparison) and not comparison.structured:
        return Coordinates(columns, np.ones(len(columns)))
    return None
