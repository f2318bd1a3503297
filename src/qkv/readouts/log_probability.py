"""Log-probability: how likely the drawn key was. Its gradient is the score function of REINFORCE.

    log p_j = l_j / T − log Σ_i e^(l_i / T)          j the key that was drawn

Source: Williams (1992), Simple statistical gradient-following algorithms, https://doi.org/10.1007/BF00992696.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qkv.core.arrays import Array, namespace
from qkv.core.positions import Place
from qkv.readouts.base import Readout
from qkv.readouts.sampled_key import refuse_without_draw

__all__ = ["LogProbability"]


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

    def read(self, logits: Array, weights: Array, normalizer: Any, place: Place) -> Array:
        """The drawn logit minus the total."""
        xp = namespace(logits)
        softmax = normalizer.softmax
        chosen = weights != 0
        drawn = xp.sum(xp.where(chosen, softmax.prepare(logits), xp.zeros_like(logits)), axis=-1)
        total = softmax.log_total(logits)[..., 0]
        empty = ~xp.any(chosen, axis=-1)
        return xp.where(empty, xp.zeros_like(drawn), drawn - xp.where(empty, xp.zeros_like(total), total))
