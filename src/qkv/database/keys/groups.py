"""Groups of rows with equal texts, categories and identifiers, and Gaussian logits with a bandwidth per group."""

from __future__ import annotations

import numpy as np

from qkv.core.typing import Float, Int
from qkv.database.keys.columns import Column

__all__ = ["gaussian_of_keys", "group_rows"]


def gaussian_of_keys(
    query: Float[np.ndarray, "q columns"], key: Float[np.ndarray, "k columns"], bandwidth: Float[np.ndarray, ""]
) -> Float[np.ndarray, "q k"]:
    """Return Gaussian logits with a bandwidth for each key, whose inverse factor is the last column of `key`."""
    squares = np.square(query[:, None, :-1] - key[None, :, :-1]).sum(axis=-1)
    return np.asarray(-0.5 * squares * np.square(key[:, -1] / bandwidth))


def group_rows(columns: list[Column]) -> Int[np.ndarray, " rows"] | None:
    """Return the index of the group of each row, whose cells in all columns are equal, or None without columns."""
    if not columns:
        return None
    codes: dict[tuple[object, ...], int] = {}
    cells = zip(*(column.cells.tolist() for column in columns), strict=True)
    return np.array([codes.setdefault(row, len(codes)) for row in cells], np.int64)
