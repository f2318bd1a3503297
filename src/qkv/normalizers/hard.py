"""The normalizer `Hard`, which gives weight 1 to the key with the largest logit and 0 to all other keys.

    w_j = [j = argmax_i l_i]

The output is the value of the best match. No gradient reaches the logits. For a gradient estimate, sample the key with
`Sample` and use the readout `LogProbability`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import cast, namespace, row_max
from qkv.core.partial import PartialResult, TopKeys
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, Float
from qkv.normalizers.base import Normalizer, Summary
from qkv.normalizers.selection import is_selected, select_top, top_keys_of_tile, weigh_top_keys

__all__ = ["Hard", "OneHot"]


class OneHot(Normalizer):
    """Base class of normalizers that give weight 1 to the key with the highest rank and 0 to all other keys."""

    selects_keys: ClassVar[bool] = True
    top_k = 1
    has_threshold_bound: ClassVar[bool] = True
    differentiable: ClassVar[bool] = False

    def perturb(self, logits: Float[Array, "*batch q k"], tile: Tile | None) -> Float[Array, "*batch q k"]:
        """Return the rank of each key: the logit that `prepare` returned, to which stochastic normalizers add noise."""
        return logits

    def weights(self, logits: Float[Array, "*batch q k"], tile: Tile | None = None) -> Float[Array, "*batch q k"]:
        """Return weight 1 for the key of highest rank in each row, or NaN if its logit is NaN, and 0 for other keys."""
        return self._one(self.prepare(logits), select_top(self.perturb(self.prepare(logits), tile), 1))

    def support(
        self, logits: Float[Array, "*batch q k"], weights: Float[Array, "*batch q k"]
    ) -> Bool[Array, "*batch q k"]:
        return weights != 0

    def selection_logits(self, logits: Float[Array, "*batch q k"], tile: Tile) -> Float[Array, "*batch q k"]:
        return self.perturb(self.prepare(logits), tile)

    def threshold_bound(self, largest: Float[Array, "*batch q groups"]) -> Float[Array, "*batch q 1"]:
        """Return the largest rank of each row, because only the key with this rank gets weight."""
        return row_max(largest)

    def candidate_weights(
        self, logits: Float[Array, "*batch q k"], ranks: Float[Array, "*batch q k"], tile: Tile
    ) -> Float[Array, "*batch q k"]:
        return self._one(self.prepare(logits), select_top(ranks, 1))

    def accumulate(
        self,
        logits: Float[Array, "*batch q k"],
        value: Float[Array, "*#batch k value_width"],
        tile: Tile,
        dropout: float,
        finite: bool,
    ) -> TopKeys:
        return top_keys_of_tile(self.perturb(logits, tile), logits, value, tile, 1)

    def finalize(
        self, partial: PartialResult, tile: Tile, dropout: float
    ) -> tuple[Float[Array, "*batch q value_width"], Summary]:
        assert isinstance(partial, TopKeys)
        weights = self._one(partial.logit, partial.rank != -namespace(partial.rank).inf)
        return weigh_top_keys(weights, partial, tile, dropout), (partial.index,)

    def tile_weights(
        self, logits: Float[Array, "*batch q k"], summary: Summary, tile: Tile
    ) -> Float[Array, "*batch q k"]:
        return self._one(logits, is_selected(summary[0], logits, tile))

    def _one(self, logits: Float[Array, "*batch q k"], chosen: Bool[Array, "*batch q k"]) -> Float[Array, "*batch q k"]:
        xp = namespace(logits)
        one = cast(chosen, logits.dtype)
        return xp.where(chosen & xp.isnan(logits), one + xp.nan, one)


@dataclass(frozen=True, eq=False)
class Hard(OneHot):
    """Normalizer that gives weight 1 to the key with the largest logit; ties go to the lowest index.

    Example:
        >>> import numpy as np
        >>> Hard().weights(np.array([[1.0, 3.0, 3.0]]))
        array([[0., 1., 0.]])
    """

    shift_invariant = True
