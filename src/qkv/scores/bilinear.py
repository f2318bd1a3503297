"""Bilinear score: the inner product of a linearly projected query and a key.

    logit(q, k) = qᵀ W k            or, with low rank,            logit(q, k) = qᵀ U Vᵀ k

Source: Luong, Pham, Manning (2015), Effective approaches to attention-based neural machine translation,
section 3.1 ("general"), https://arxiv.org/abs/1508.04025.
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.core.arrays import namespace
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.core.typing import Array, KeyArray, LiftedArrays, QueryArray
from qkv.errors import ShapeError
from qkv.scores.base import InnerProductScore
from qkv.scores.forms import Form, MappedProduct

__all__ = ["Bilinear"]


@dataclass(frozen=True, eq=False)
class Bilinear(InnerProductScore):
    """Score qᵀ W k with a matrix W of full or low rank, for queries q and keys k that may differ in width.

    Args:
        weight: W `(query_width, key_width)`; or U `(query_width, rank)` if `key_factor` is given.
        key_factor: V `(key_width, rank)`, for W = U Vᵀ.

    Shapes:
        query `(*batch, q, query_width)`, key `(*batch, k, key_width)` -> logits `(*batch, q, k)`

    Raises:
        ShapeError: the shapes of the weights do not match query and key, or each other.

    Example:
        >>> import numpy as np
        >>> Bilinear(np.array([[0.0, 2.0]]))(np.array([[3.0]]), np.array([[1.0, 1.0], [5.0, 0.0]]))
        array([[6., 0.]])
    """

    weight: Array = array_field("query_width", "key_width")
    key_factor: Array | None = array_field("key_width", "rank", default=None)

    def check_widths(self, query_width: int, key_width: int) -> None:
        expected = (self.weight.shape[-2], self.weight.shape[-1])
        if self.key_factor is not None:
            rank, key_rank = expected[1], self.key_factor.shape[-1]
            if rank != key_rank:
                raise ShapeError(
                    f"weight and key_factor of Bilinear must have the same rank, got {rank} and {key_rank}. The rank "
                    "is the length of their last axes."
                )
            expected = (expected[0], self.key_factor.shape[-2])
        if (query_width, key_width) != expected:
            shapes = (
                f"weight of shape ({query_width}, {key_width})"
                if self.key_factor is None
                else f"weight of shape ({query_width}, rank) and key_factor of shape ({key_width}, rank)"
            )
            raise ShapeError(
                f"query and key of width {query_width} and {key_width} must match the weight of Bilinear, got a weight "
                f"for widths {expected[0]} and {expected[1]}. Give {shapes}."
            )

    @property
    def form(self) -> Form:  # type: ignore[override]
        return MappedProduct(self.weight, self.key_factor, transposed=True)

    def lifted_width(self, query_width: int, key_width: int) -> int:
        return key_width if self.key_factor is None else int(self.key_factor.shape[-1])

    def lift_description(self) -> str:
        return "query · W" if self.key_factor is None else "query · U, key · V"

    def lift(self, query: QueryArray, key: KeyArray, tile: Tile) -> LiftedArrays:
        """Return query · W and the key, or query · U and key · V if W is factored as U Vᵀ."""
        xp = namespace(query)
        query = xp.matmul(query, self.weight)
        return query, key if self.key_factor is None else xp.matmul(key, self.key_factor)
