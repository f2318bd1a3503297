"""Hard: the whole weight on the key with the largest logit.

    w_j = [j = argmax_i l_i]

A database look-up (mission A7). No gradient reaches the logits; `Sample` has one by the score function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import Array, cast, namespace, row_max
from qkv.core.online_softmax import TopKeys
from qkv.core.tile import Tile
from qkv.normalizers.base import Normalizer, Summary
from qkv.normalizers.selection import is_selected, select_top, selection_threshold, top_keys_of_tile, weigh_top_keys

__all__ = ["Hard", "OneHot"]


class OneHot(Normalizer):
    """One key per query takes the whole weight: the one that ranks highest."""

    selects_keys: ClassVar[bool] = True
    top_k = 1
    differentiable: ClassVar[bool] = False

    def perturb(self, logits: Array, tile: Tile | None) -> Array:
        """What decides."""
        return logits

    def weights(self, logits: Array, tile: Tile | None = None) -> Array:
        """1 for the key of the highest rank; NaN where a logit is NaN."""
        return self._one(self.prepare(logits), select_top(self.perturb(self.prepare(logits), tile), 1))

    def support(self, logits: Array, weights: Array) -> Array:
        """The chosen key."""
        return weights != 0

    def selection_logits(self, logits: Array, tile: Tile) -> Array:
        """`rank` of the prepared logits."""
        return self.perturb(self.prepare(logits), tile)

    def threshold_bound(self, largest: Array) -> Array:
        """The largest of all."""
        return row_max(largest)

    def candidate_weights(self, logits: Array, ranks: Array, tile: Tile) -> Array:
        """1 for the first of those that rank highest."""
        return self._one(self.prepare(logits), select_top(ranks, 1))

    def accumulate(self, logits: Array, value: Array, tile: Tile, dropout: float, clean: bool) -> TopKeys:
        """The best of the tile."""
        return top_keys_of_tile(self.perturb(logits, tile), logits, value, tile, 1)

    def finalize(self, partial: TopKeys, tile: Tile, dropout: float) -> tuple[Array, Summary]:
        """Its value."""
        weights = self._one(partial.logit, partial.rank != -namespace(partial.rank).inf)
        return weigh_top_keys(weights, partial, tile, dropout), selection_threshold(partial)

    def tile_weights(self, logits: Array, summary: Summary, tile: Tile) -> Array:
        """1 where the tile holds the chosen key."""
        return self._one(logits, is_selected(self.perturb(logits, tile), (summary[0], summary[1]), tile))

    def logit_gradient(
        self,
        logits: Array,
        weights: Array,
        weight_gradient: Array,
        row_dot: Array,
        summary: Summary,
        tile: Tile,
    ) -> Array:
        """0: a small change of a logit changes nothing."""
        return namespace(logits).zeros_like(logits)

    def _one(self, logits: Array, chosen: Array) -> Array:
        xp = namespace(logits)
        one = cast(chosen, logits.dtype)
        return xp.where(chosen & xp.isnan(logits), one + xp.nan, one)


@dataclass(frozen=True, eq=False)
class Hard(OneHot):
    """One-hot weights on the largest logit; ties go to the lowest index.

    Example:
        >>> import numpy as np
        >>> Hard().weights(np.array([[1.0, 3.0, 3.0]]))
        array([[0., 1., 0.]])
    """

    shift_invariant = True
