"""Top weights: which keys each query looks at most, and how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from qkv.core.arrays import Array, namespace, zeros
from qkv.core.ordering import finite_top_k_indices
from qkv.core.tile import Tile
from qkv.errors import OptionError
from qkv.readouts.base import Readout, Reduction, across_keys, query_slice

__all__ = ["Top", "TopWeights"]


class Top(NamedTuple):
    """The strongest keys of each query, strongest first.

    weights: `(*batch, q, k)`; 0 where fewer keys take part.
    keys: index of each, `(*batch, q, k)`; −1 where fewer keys take part.
    """

    weights: Array
    keys: Array


@dataclass(frozen=True, eq=False)
class TopWeights(Readout):
    """The k largest weights of each query and the keys they fall on; ties go to the lowest index.

    Args:
        k: how many, at least 1.

    Raises:
        OptionError: k is no whole number of at least 1.

    Example:
        >>> import numpy as np, qkv
        >>> keys = np.array([[0.0], [2.0], [1.0]])
        >>> qkv.observe(np.ones((1, 1)), keys, keys, readouts=[TopWeights(2)]).readouts[0].keys
        array([[1, 2]])
    """

    k: int

    def validate(self) -> None:
        """A whole number of at least 1."""
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise OptionError(f"TopWeights was given k={self.k!r}. It must be a whole number of at least 1.")

    def element_count(self, q: int, k: int) -> int:
        """A weight and an index, counted as two, for each."""
        return 3 * q * self.k

    def read(self, logits: Array, weights: Array, normalizer: Any, tile: Tile) -> Top:
        """The largest, in order."""
        xp = namespace(weights)
        order = finite_top_k_indices(_rank(weights), self.k)
        top = xp.take_along_axis(weights, order, axis=-1)
        keys = xp.where(top == 0, xp.zeros_like(order) - 1, order + tile.cols[0])
        missing = self.k - order.shape[-1]
        if missing > 0:
            shape = (*order.shape[:-1], missing)
            top, keys = (
                xp.concat([top, zeros(top, shape)], axis=-1),
                xp.concat([keys, zeros(keys, shape) - 1], axis=-1),
            )
        return Top(top, keys)

    def reductions(self, tile: Tile) -> tuple[Reduction, ...]:
        """As many as are kept, for each query."""
        shape, at = (tile.q_total, self.k), (*query_slice(tile), slice(None))
        how = across_keys(tile, "top-k")
        return Reduction(shape, at, how), Reduction(shape, at, how, -1)

    def merge(self, old: tuple[Array, ...], new: tuple[Array, ...], tile: Tile) -> tuple[Array, ...]:
        """The largest of both; of equals those that came first, whose keys are lower."""
        xp = namespace(*old)
        weights, keys = (xp.concat(list(both), axis=-1) for both in zip(old, new, strict=True))
        order = finite_top_k_indices(_rank(weights), self.k)
        return tuple(xp.take_along_axis(x, order, axis=-1) for x in (weights, keys))


def _rank(weights: Array) -> Array:
    xp = namespace(weights)
    # What has no weight goes last, behind negative weights.
    return xp.where(weights == 0, xp.zeros_like(weights) - xp.inf, weights)
