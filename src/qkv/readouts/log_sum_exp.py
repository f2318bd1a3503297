"""Log-sum-exp: the logarithm of the total that softmax divides by.

log Σ_j e^(l_j / T)          with the sink, where there is one
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from qkv.core.arrays import Array
from qkv.core.tile import Tile
from qkv.readouts.base import Readout, Reduction, across_keys, query_slice

__all__ = ["LogSumExp"]


@dataclass(frozen=True, eq=False)
class LogSumExp(Readout):
    """The logarithm of each query's total, `(*batch, q)`; −inf where no key is left.

    Raises:
        RefusedError: the normalizer has no such total.

    Example:
        >>> import numpy as np, qkv
        >>> rows = np.zeros((4, 1))
        >>> np.exp(qkv.observe(rows[:1], rows, rows, readouts=[LogSumExp()]).readouts[0]).round(12)
        array([4.])
    """

    is_log_sum_exp = True

    def refuse(self, normalizer: Any) -> str | None:
        """Only exponentials have one."""
        return None if normalizer.log_sum_exp else f"LogSumExp is the total of a softmax; {normalizer} has none."

    def read(self, logits: Array, weights: Array, normalizer: Any, tile: Tile) -> Array:
        """log Σ e^l; the sink is counted with key 0."""
        if tile.cols[0] > 0 and getattr(normalizer, "sink", None) is not None:
            normalizer = replace(normalizer, sink=None)
        return normalizer.log_total(logits)[..., 0]

    def reductions(self, tile: Tile) -> tuple[Reduction, ...]:
        """A number for each query."""
        return (Reduction((tile.q_total,), query_slice(tile), across_keys(tile, "logaddexp"), -math.inf),)
