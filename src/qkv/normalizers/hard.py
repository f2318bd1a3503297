"""Normalizers that give weight 1 to one key of a row: `Hard` to that of the largest logit, `Sample` to a sampled one.

    Hard       w_j = [j = argmax_i l_i]
    Sample     j ~ softmax(l / T), w_j = 1

The output of `Hard` is the value of the best match. The key of `Sample` is the argmax of l / T + Gumbel noise. No
gradient reaches the logits. The readout `LogProbability` is log p_j, so the loss −(reward − baseline) · LogProbability
gives the gradient estimate of REINFORCE.

Sources: Xu et al. (2015), Show, attend and tell, section 4.1, https://arxiv.org/abs/1502.03044; Williams
(1992), Simple statistical gradient-following algorithms, https://doi.org/10.1007/BF00992696.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qkv.core import random
from qkv.core.arrays import cast, namespace, row_max
from qkv.core.partial import PartialResult, TopKeys
from qkv.core.parts import array_field, delegates
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, Float, OutputArray, PairArray, RowArray, ValueArray
from qkv.errors import OptionError
from qkv.normalizers.base import Normalizer, Summary
from qkv.normalizers.selection import is_selected, select_top, top_keys_of_tile, weigh_top_keys
from qkv.normalizers.softmax import Softmax

__all__ = ["Hard", "Sample"]


class OneHot(Normalizer):
    """Base class of normalizers that give weight 1 to the key with the highest rank and 0 to all other keys."""

    selects_keys: ClassVar[bool] = True
    top_k = 1
    has_threshold_bound: ClassVar[bool] = True
    differentiable: ClassVar[bool] = False

    def perturb(self, logits: PairArray, tile: Tile | None) -> PairArray:
        """Return the rank of each key: the logit that `prepare` returned, to which stochastic normalizers add noise."""
        return logits

    def weights(self, logits: PairArray, tile: Tile | None = None) -> PairArray:
        """Return weight 1 for the key of highest rank in each row, or NaN if its logit is NaN, and 0 for other keys."""
        return self._one(self.prepare(logits), select_top(self.perturb(self.prepare(logits), tile), 1))

    def support(self, logits: PairArray, weights: PairArray) -> Bool[Array, "*batch q k"]:
        return weights != 0

    def selection_logits(self, logits: PairArray, tile: Tile) -> PairArray:
        return self.perturb(self.prepare(logits), tile)

    def threshold_bound(self, largest: Float[Array, "*batch q groups"]) -> RowArray:
        """Return the largest rank of each row, because only the key with this rank gets weight."""
        return row_max(largest)

    def candidate_weights(self, logits: PairArray, ranks: PairArray, tile: Tile) -> PairArray:
        return self._one(self.prepare(logits), select_top(ranks, 1))

    def accumulate(self, logits: PairArray, value: ValueArray, tile: Tile, dropout: float, finite: bool) -> TopKeys:
        return top_keys_of_tile(self.perturb(logits, tile), logits, value, tile, 1)

    def finalize(self, partial: PartialResult, tile: Tile, dropout: float) -> tuple[OutputArray, Summary]:
        assert isinstance(partial, TopKeys)
        weights = self._one(partial.logit, partial.rank != -namespace(partial.rank).inf)
        return weigh_top_keys(weights, partial, tile, dropout), (partial.index,)

    def tile_weights(self, logits: PairArray, summary: Summary, tile: Tile) -> PairArray:
        return self._one(logits, is_selected(summary[0], logits, tile))

    def _one(self, logits: PairArray, chosen: Bool[Array, "*batch q k"]) -> PairArray:
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


@delegates("distribution", "prepare", "validate")
@dataclass(frozen=True, eq=False)
class Sample(OneHot):
    """Normalizer that gives weight 1 to one key per query, sampled from the softmax with the seed of the call.

    Args:
        temperature: T > 0, a number or one number per batch element.

    Raises:
        OptionError: `temperature` is not positive, or the call has no seed.

    Example:
        >>> import numpy as np
        >>> from qkv.core.tile import Tile
        >>> Sample().weights(np.array([[0.0, 50.0]]), Tile.whole(1, 2, seed=7))
        array([[0., 1.]])
    """

    temperature: Array | float = array_field(default=1.0)
    stochastic: ClassVar[bool] = True

    @property
    def distribution(self) -> Softmax:  # type: ignore[override]
        """The softmax from which keys are sampled."""
        return Softmax(self.temperature)

    def perturb(self, logits: PairArray, tile: Tile | None) -> PairArray:
        """Return the rank of each key: the logit that `prepare` returned, plus Gumbel noise."""
        if tile is None:
            raise OptionError(
                "tile must be given for Sample, because it holds the seed of the call, got None. Pass a tile with a "
                "seed, such as Tile.whole(q, k, seed=0)."
            )
        # Gumbel noise is finite, so excluded keys stay at −inf.
        return logits + tile.gumbel(logits, random.SAMPLE)
