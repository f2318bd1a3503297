"""Log-probability: how likely the drawn key was. Its gradient is the score function of REINFORCE.

    log p_j = l_j / T − log Σ_i e^(l_i / T)          j the key that was drawn

Source: Williams (1992), Simple statistical gradient-following algorithms, https://doi.org/10.1007/BF00992696.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from qkv.core.arrays import Array, namespace
from qkv.core.tile import Tile
from qkv.readouts.base import Readout, Reduction, across_keys, query_slice
from qkv.readouts.sampled_key import refuse_without_draw

__all__ = ["LogProbability"]


class _Drawn(NamedTuple):
    logit: Array
    total: Array


@dataclass(frozen=True, eq=False)
class LogProbability(Readout):
    """Log-probability of the key that `Sample` drew, `(*batch, q)`, in nats; 0 where no key is left.

    Raises:
        RefusedError: the normalizer draws no single key.

    Example:
        >>> import numpy as np, qkv
        >>> seen = qkv.observe(np.ones((1, 1)), np.zeros((4, 1)), np.zeros((4, 1)),
        ...                    normalizer=qkv.normalizers.Sample(), seed=1, readouts=[LogProbability()])
        >>> np.exp(seen.readouts[0]).round(12)
        array([0.25])
    """

    def refuse(self, normalizer: Any) -> str | None:
        """Only a draw has one."""
        return refuse_without_draw("LogProbability", normalizer)

    def element_count(self, q: int, k: int) -> int:
        """The drawn logit, the total, and what comes of them."""
        return 3 * q

    def read(self, logits: Array, weights: Array, normalizer: Any, tile: Tile) -> _Drawn:
        """The drawn logit, 0 where it is not here, and the logarithm of the total."""
        xp = namespace(logits)
        prepared = normalizer.softmax.prepare(logits)
        drawn = xp.sum(xp.where(weights != 0, prepared, xp.zeros_like(logits)), axis=-1)
        return _Drawn(drawn, normalizer.softmax.log_total(logits)[..., 0])

    def reductions(self, tile: Tile) -> tuple[Reduction, ...]:
        """Two numbers for each query."""
        shape, at = (tile.q_total,), query_slice(tile)
        return (
            Reduction(shape, at, across_keys(tile, "add")),
            Reduction(shape, at, across_keys(tile, "logaddexp"), -math.inf),
        )

    def finalize(self, whole: _Drawn, tile: Tile) -> Array:
        """The drawn logit minus the total."""
        xp = namespace(whole.total)
        empty = whole.total == -math.inf
        zero = xp.zeros_like(whole.total)
        return xp.where(empty, zero, whole.logit - xp.where(empty, zero, whole.total))
