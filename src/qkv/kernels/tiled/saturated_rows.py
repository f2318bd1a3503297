"""Removal of the rounding error in the gradients of logits of rows that have all their weight in one tile.

The gradients dS_j = w_j (dw_j − D) of a row sum to 0, because D = Σ_j w_j dw_j. The tiled backward pass computes D as
dO · O and dw_j as dO · v_j, whose rounding errors differ. If a single key has all the weight, every dS_j should be 0,
but the difference of these errors remains, and it is multiplied by the key and the query, which are large in such rows.
"""

from __future__ import annotations

from qkv.core.typing import Float, Tensor

__all__ = ["SaturatedRows"]

_TOLERANCE = 4.0
"""Largest weight outside of the tile of a corrected row, as a multiple of the spacing of numbers near 1."""


class SaturatedRows:
    """Correction of the rows of a range of queries that have all their weight in one tile.

    Args:
        inverse: reciprocal of the total of each row.
    """

    def __init__(self, inverse: Float[Tensor, "*batch q 1"]) -> None:
        import torch

        self._inverse = inverse
        self._tolerance = _TOLERANCE * torch.finfo(inverse.dtype).eps
        self._visited: Tensor | None = inverse.new_zeros(inverse.shape)

    def correct_(self, d_logits: Float[Tensor, "*batch q k"], exponentials: Float[Tensor, "*#batch q k"]) -> None:
        """Subtract, in rows with all their weight in this tile, the weights times the sum of the row's gradients.

        Args:
            d_logits: gradients of the logits of the tile, which are changed in place.
            exponentials: weights of the tile multiplied by the total of each row.
        """
        if self._visited is None:
            return
        mass = exponentials.sum(dim=-1, keepdim=True) * self._inverse
        outside = mass < 1 - self._tolerance
        if not bool(outside.all()):
            # All rows at once, because selecting some takes longer. The three passes over the tile are 2 to 4 % of the
            # time of forward and backward, for inner products of width 64 on one core of a server processor.
            residual = (d_logits.sum(dim=-1, keepdim=True) * self._inverse).masked_fill_(outside, 0.0)
            d_logits.addcmul_(exponentials, residual, value=-1.0)
        self._visited += mass
        if not bool((self._visited <= self._tolerance).any()):
            self._visited = None  # every row has weight in a visited tile, so no later tile has all of it
