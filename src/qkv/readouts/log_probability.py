"""The readout `LogProbability`, the log-probability of the key that the normalizer `Sample` chose for each query.

The REINFORCE estimator uses its gradient.

    log p_j = l_j / T − log Σ_i e^(l_i / T)          for the sampled key j

Source: Williams (1992), Simple statistical gradient-following algorithms, https://doi.org/10.1007/BF00992696.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from qkv.core.arrays import namespace, where
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, PairArray
from qkv.normalizers.base import Normalizer
from qkv.readouts.base import Readout, Reduction, across_keys

__all__ = ["LogProbability"]


class _SampledWeights(NamedTuple):
    logit: Float[Array, "*batch q"]
    total: Float[Array, "*batch q"]


@dataclass(frozen=True, eq=False)
class LogProbability(Readout):
    """Readout that returns the log-probability of each query's sampled key in nats, `(*batch, q)`.

    The result is 0 for rows without keys.

    Raises:
        RefusedError: the normalizer is not `Sample`.

    Example:
        >>> import numpy as np, qkv
        >>> seen = qkv.observe(np.ones((1, 1)), np.zeros((4, 1)), np.zeros((4, 1)),
        ...                    normalizer=qkv.normalizers.Sample(), seed=1, readouts=[LogProbability()])
        >>> np.exp(seen.readouts[0]).round(12)
        array([0.25])
    """

    requires = "distribution"

    def element_count(self, q: int, k: int) -> int:
        """Return 3 q, for the logit of the sampled key, the log-sum-exp and their difference."""
        return 3 * q

    def read(self, logits: PairArray, weights: PairArray, normalizer: Normalizer, tile: Tile) -> _SampledWeights:
        """Return the logit of each query's sampled key, or 0 if it is outside the tile, and the tile's log-sum-exp."""
        assert normalizer.distribution is not None
        drawn = where(weights != 0, normalizer.distribution.prepare(logits), 0.0)
        return _SampledWeights(namespace(logits).sum(drawn, axis=-1), normalizer.distribution.log_total(logits)[..., 0])

    def reductions(self, tile: Tile) -> tuple[Reduction, ...]:
        shape, at = (tile.q_total,), (slice(*tile.rows),)
        return (
            Reduction(shape, at, across_keys(tile, "add")),
            Reduction(shape, at, across_keys(tile, "logaddexp"), -math.inf),
        )

    def finalize(self, whole: _SampledWeights, tile: Tile) -> Float[Array, "*batch q"]:
        """Return the logit of the sampled key minus the log-sum-exp, or 0 for rows without keys."""
        empty = whole.total == -math.inf
        return where(empty, 0.0, whole.logit - where(empty, 0.0, whole.total))
