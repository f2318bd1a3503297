"""Mask for packed sequences that allows each query to attend only to keys of the same document."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkv.core.arrays import as_array, to_numpy
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.core.typing import Array, ArrayLike, Bool
from qkv.errors import ShapeError
from qkv.masks.base import Coverage, Mask

__all__ = ["Documents"]


@dataclass(frozen=True, eq=False)
class Documents(Mask):
    """Document mask, which allows the pairs whose query and key belong to the same document.

    Args:
        query_ids: id of the document of each query, integers `(*batch, q)`.
        key_ids: id of the document of each key, integers `(*batch, k)`; None: the same as `query_ids`.

    Raises:
        ShapeError: the number of ids differs from the number of queries or keys.

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

    @classmethod
    def from_offsets(cls, offsets: ArrayLike, key_offsets: ArrayLike | None = None) -> Documents:
        """Return the mask of documents that are stored one after the other, such as `cu_seqlens` describes them.

        Args:
            offsets: index of the first query of each document, followed by the number of queries; integers that
                increase from 0.
            key_offsets: the same for the keys; None: as for the queries.

        Raises:
            ShapeError: queries and keys differ in the number of documents.

        Example:
            >>> Documents.from_offsets([0, 2, 3]).query_ids
            array([0, 0, 1])
        """
        found = [np.asarray(to_numpy(as_array(x))) for x in (offsets, offsets if key_offsets is None else key_offsets)]
        if len(found[0]) != len(found[1]):
            raise ShapeError(
                f"offsets and key_offsets must have the same length, got {len(found[0])} and {len(found[1])}. Pass one "
                "entry for each document, also for those without rows."
            )
        return cls(*(np.repeat(np.arange(len(x) - 1), np.diff(x)) for x in found))

    def validate(self) -> None:
        object.__setattr__(self, "query_ids", as_array(self.query_ids))
        object.__setattr__(self, "key_ids", self.query_ids if self.key_ids is None else as_array(self.key_ids))

    def check(self, q: int, k: int) -> None:
        assert self.key_ids is not None
        got = (self.query_ids.shape[-1], self.key_ids.shape[-1])
        if got != (q, k):
            raise ShapeError(
                f"query_ids and key_ids of Documents must have lengths {q} and {k}, got lengths {got[0]} and {got[1]}. "
                "Pass one id for each query and one for each key."
            )

    def allowed(self, tile: Tile, reference: Array) -> Bool[Array, "*batch q k"]:
        assert self.key_ids is not None
        return self.query_ids[..., :, None] == self.key_ids[..., None, :]

    def key_range(self, tile: Tile) -> tuple[int, int]:
        """Return a range that contains all keys with an id between the smallest and largest id of the queries."""
        rows = to_numpy(self.slice(slice(*tile.rows), slice(0, 0)).query_ids)
        keys = None if self.key_ids is None else to_numpy(self.key_ids)
        if rows is None or keys is None or rows.size == 0 or keys.size == 0:
            return 0, tile.k_total
        inside = (keys >= rows.min()) & (keys <= rows.max())
        index = np.flatnonzero(inside.any(axis=tuple(range(inside.ndim - 1))))
        return (int(index[0]), int(index[-1]) + 1) if index.size else (0, 0)

    def coverage(self, tile: Tile) -> Coverage:
        """Return "none" if the id ranges of queries and keys are disjoint, "all" if all ids are equal, else "part"."""
        part = self.slice(slice(*tile.rows), slice(*tile.cols))
        rows, cols = to_numpy(part.query_ids), None if part.key_ids is None else to_numpy(part.key_ids)
        if rows is None or cols is None or rows.size == 0 or cols.size == 0:
            return "part"
        if rows.max() < cols.min() or cols.max() < rows.min():
            return "none"
        return "all" if rows.min() == rows.max() == cols.min() == cols.max() else "part"
