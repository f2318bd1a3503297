"""Documents: several texts are packed into one sequence, and each attends to itself alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkv.core.arrays import Array, as_array, to_numpy
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.errors import ShapeError
from qkv.masks.base import Coverage, Mask

__all__ = ["Documents"]


@dataclass(frozen=True, eq=False)
class Documents(Mask):
    """Query and key are of the same document.

    Args:
        query_ids: the document of each query, integers `(*batch, q)`.
        key_ids: the document of each key, integers `(*batch, k)`; None: as the queries.

    Raises:
        ShapeError: the ids are not as many as the queries and keys.

    Example:
        >>> import numpy as np
        >>> from qkv.core.tile import Tile
        >>> Documents(np.array([0, 0, 1])).allowed(Tile.whole(3, 3), np.zeros(()))
        array([[ True,  True, False],
               [ True,  True, False],
               [False, False,  True]])
    """

    query_ids: Array = array_field("q")
    key_ids: Array | None = array_field("k", default=None)

    def validate(self) -> None:
        """Both sides as arrays."""
        object.__setattr__(self, "query_ids", as_array(self.query_ids))
        object.__setattr__(self, "key_ids", self.query_ids if self.key_ids is None else as_array(self.key_ids))

    def check(self, q: int, k: int) -> None:
        """One id per query and per key."""
        assert self.key_ids is not None
        got = (self.query_ids.shape[-1], self.key_ids.shape[-1])
        if got != (q, k):
            raise ShapeError(
                f"Documents has {got[0]} query ids and {got[1]} key ids, there are {q} queries and {k} keys. "
                f"Give one id for each."
            )

    def allowed(self, tile: Tile, reference: Array) -> Array:
        """Equal ids."""
        assert self.key_ids is not None
        return self.query_ids[..., :, None] == self.key_ids[..., None, :]

    def key_range(self, tile: Tile) -> tuple[int, int]:
        """Keys whose document lies between the first and the last of the queries'."""
        rows = to_numpy(self.slice(slice(*tile.rows), slice(0, 0)).query_ids)
        keys = to_numpy(self.key_ids)
        if rows is None or keys is None or rows.size == 0:
            return 0, tile.k_total
        near = (keys >= rows.min()) & (keys <= rows.max())
        found = np.flatnonzero(near.reshape(-1, keys.shape[-1]).any(axis=0))
        return (int(found[0]), int(found[-1]) + 1) if found.size else (0, 0)

    def coverage(self, tile: Tile) -> Coverage:
        """None where the ranges of ids do not meet; all where both sides are one document."""
        cut = self.slice(slice(*tile.rows), slice(*tile.cols))
        rows, cols = to_numpy(cut.query_ids), to_numpy(cut.key_ids)
        if rows is None or cols is None or rows.size == 0 or cols.size == 0:
            return "part"
        if rows.max() < cols.min() or cols.max() < rows.min():
            return "none"
        return "all" if rows.min() == rows.max() == cols.min() == cols.max() else "part"
