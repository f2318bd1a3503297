"""The normalizer `Sample`, which gives weight 1 to one key per query, sampled from the softmax.

    j ~ softmax(l / T)          w_j = 1

The sampled key is the argmax of l / T + Gumbel noise. No gradient flows through the choice of the key. The readout
`LogProbability` is log p_j, so the loss −(reward − baseline) · LogProbability gives the gradient estimate of REINFORCE.
Sources: Xu et al. (2015), Show, attend and tell, section 4.1, https://arxiv.org/abs/1502.03044; Williams
(1992), Simple statistical gradient-following algorithms, https://doi.org/10.1007/BF00992696.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qkv.core import random
from qkv.core.parts import array_field, delegates
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float
from qkv.errors import OptionError
from qkv.normalizers.hard import OneHot
from qkv.normalizers.softmax import Softmax

__all__ = ["Sample"]


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

    def perturb(self, logits: Float[Array, "*batch q k"], tile: Tile | None) -> Float[Array, "*batch q k"]:
        if tile is None:
            raise OptionError(
                "tile must be given for Sample, because it holds the seed of the call, got None. Pass a tile with a "
                "seed, such as Tile.whole(q, k, seed=0)."
            )
        # Gumbel noise is finite, so excluded keys stay at −inf.
        return logits + tile.gumbel(logits, random.SAMPLE)
