"""The readout `LogSumExp`, the log-sum-exp of each query's logits.

log Σ_j e^(l_j / T)          including the sink, if there is one
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, PairArray
from qkv.normalizers.base import Normalizer
from qkv.normalizers.softmax import Softmax
from qkv.readouts.base import Readout

__all__ = ["LogSumExp"]


@dataclass(frozen=True, eq=False)
class LogSumExp(Readout):
    """Readout that returns the log-sum-exp of each query's logits, `(*batch, q)`; −inf for rows without keys.

    With a sink, the result for a row without keys is the sink.

    Raises:
        RefusedError: the normalizer does not define a log-sum-exp, as only Softmax does.

    Example:
        >>> import numpy as np, qkv
        >>> rows = np.zeros((4, 1))
        >>> np.exp(qkv.observe(rows[:1], rows, rows, readouts=[LogSumExp()]).readouts[0]).round(12)
        array([4.])
    """

    is_log_sum_exp = True
    requires = "log_sum_exp"
    reduce_op = "logaddexp"
    initial = -math.inf

    def read(
        self, logits: PairArray, weights: PairArray, normalizer: Normalizer, tile: Tile
    ) -> Float[Array, "*batch q"]:
        """Return the log-sum-exp of each query over the keys of the tile.

        The sink is included only in the tile that contains key 0.
        """
        if tile.cols[0] > 0 and isinstance(normalizer, Softmax) and normalizer.sink is not None:
            normalizer = replace(normalizer, sink=None)
        return normalizer.log_total(logits)[..., 0]
