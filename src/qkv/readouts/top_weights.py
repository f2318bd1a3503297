"""The readout `TopWeights`, the largest weights of each query and their keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from qkv.core.arrays import is_tensor, namespace, where, zeros
from qkv.core.ordering import nonzero_top_k_indices
from qkv.core.parts import require_positive_integer
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, Int, Num, PairArray
from qkv.normalizers.base import Normalizer
from qkv.readouts.base import Readout, Reduction, across_keys

__all__ = ["Top", "TopWeights"]


class Top(NamedTuple):
    """The largest weights of each query in descending order, and the indices of their keys.

    Attributes:
        weights: weights `(*batch, q, k)`, padded with 0.
        keys: indices of the keys `(*batch, q, k)`, padded with −1.

    Example:
        >>> import numpy as np, qkv
        >>> from qkv import readouts
        >>> key = np.log([[1.0], [3.0]])
        >>> top = qkv.observe(np.ones((1, 1)), key, key, readouts=[readouts.TopWeights(2)]).readouts[0]
        >>> top.weights, top.keys
        (array([[0.75, 0.25]]), array([[1, 0]]))
    """

    weights: PairArray
    keys: Int[Array, "*batch q k"]


@dataclass(frozen=True, eq=False)
class TopWeights(Readout):
    """Readout that returns the k largest weights of each query and the indices of their keys.

    Ties go to the lowest index.

    Args:
        k: number of weights per query, at least 1.

    Raises:
        OptionError: `k` is not a positive integer.

    Example:
        >>> import numpy as np, qkv
        >>> keys = np.array([[0.0], [2.0], [1.0]])
        >>> qkv.observe(np.ones((1, 1)), keys, keys, readouts=[TopWeights(2)]).readouts[0].keys
        array([[1, 2]])
    """

    k: int

    def validate(self) -> None:
        require_positive_integer("TopWeights", "k", self.k)

    @property
    def largest(self) -> int:  # type: ignore[override]
        """The number `k` of largest weights."""
        return self.k

    def element_count(self, q: int, k: int) -> int:
        """Return three times the number of returned weights, because an index takes twice the memory of a weight."""
        return 3 * q * self.k

    def read(self, logits: PairArray, weights: PairArray, normalizer: Normalizer, tile: Tile) -> Top:
        return self._select(weights, lambda order: order + tile.cols[0])

    def of_candidates(self, weights: Float[Array, "*batch q n"], keys: Int[Array, "*batch q n"]) -> Top:
        xp = namespace(weights)
        by_key = xp.argsort(keys, axis=-1)  # ties go to the lowest index
        weights, keys = _take(weights, by_key), _take(keys, by_key)
        return self._select(weights, lambda order: _take(keys, order))

    def _select(
        self,
        weights: Float[Array, "*batch q n"],
        keys_at: Callable[[Int[Array, "*batch q top"]], Int[Array, "*batch q top"]],
    ) -> Top:
        """Return the k largest weights and their keys, of which `keys_at` returns those at some places."""
        xp = namespace(weights)
        order = nonzero_top_k_indices(weights, self.k)
        top = _take(weights, order)
        keys = where(top == 0, -1, keys_at(order))
        missing = self.k - order.shape[-1]
        if missing > 0:
            shape = (*order.shape[:-1], missing)
            top, keys = (
                xp.concat([top, zeros(top, shape)], axis=-1),
                xp.concat([keys, zeros(keys, shape) - 1], axis=-1),
            )
        return Top(top, keys)

    def reductions(self, tile: Tile) -> tuple[Reduction, ...]:
        shape, at = (tile.q_total, self.k), (slice(*tile.rows), slice(None))
        how = across_keys(tile, "top-k")
        return Reduction(shape, at, how), Reduction(shape, at, how, -1)

    def merge(
        self, old: tuple[Num[Array, "*batch q old"], ...], new: tuple[Num[Array, "*batch q new"], ...], tile: Tile
    ) -> tuple[Num[Array, "*batch q k"], ...]:
        """Return the k largest of the weights stored so far and those of a tile, and the indices of their keys.

        Ties go to the weights stored so far.
        """
        xp = namespace(*old)
        weights, keys = (xp.concat(list(both), axis=-1) for both in zip(old, new, strict=True))
        order = nonzero_top_k_indices(weights, self.k)
        return _take(weights, order), _take(keys, order)


def _take(x: Num[Array, "*batch q n"], index: Int[Array, "*batch q top"]) -> Num[Array, "*batch q top"]:
    if is_tensor(x) and is_tensor(index):  # a third of the time of the general function
        return x.gather(-1, index)
    return namespace(x).take_along_axis(x, index, axis=-1)
