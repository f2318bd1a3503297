"""Sample: the whole weight on one key, drawn from the softmax.

    j ~ softmax(l / T)          w_j = 1

The draw is the largest of l / T + Gumbel. No gradient flows through it; the readout `LogProbability` is log
p_j, so (reward − baseline) · LogProbability is the score-function (REINFORCE) surrogate of mission A9.
Sources: Xu et al. (2015), Show, attend and tell, section 4.1, https://arxiv.org/abs/1502.03044; Williams
(1992), Simple statistical gradient-following algorithms, https://doi.org/10.1007/BF00992696.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qkv.core import random
from qkv.core.arrays import Array
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.errors import OptionError
from qkv.normalizers.hard import OneHot
from qkv.normalizers.softmax import Softmax

__all__ = ["Sample"]


@dataclass(frozen=True, eq=False)
class Sample(OneHot):
    """One key per query, drawn from the softmax with the call's seed.

    Args:
        temperature: T > 0: a number, or one per batch element.

    Raises:
        OptionError: the temperature is not positive, or the call has no seed.

    Example:
        >>> import numpy as np
        >>> from qkv.core.tile import Tile
        >>> Sample().weights(np.array([[0.0, 50.0]]), Tile.whole(1, 2, seed=7))
        array([[0., 1.]])
    """

    temperature: Array | float = array_field(default=1.0)
    stochastic: ClassVar[bool] = True

    def validate(self) -> None:
        """T is positive."""
        self.softmax.validate()

    @property
    def softmax(self) -> Softmax:
        """What is drawn from."""
        return Softmax(self.temperature)

    def prepare(self, logits: Array) -> Array:
        """logits / T"""
        return self.softmax.prepare(logits)

    def perturb(self, logits: Array, tile: Tile | None) -> Array:
        """l + Gumbel"""
        if tile is None:
            raise OptionError("Sample draws at random. Give seed=….")
        # Gumbel numbers are finite: what is excluded stays at −inf.
        return logits + tile.gumbel(logits, random.SAMPLE)
