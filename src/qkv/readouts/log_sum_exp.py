"""The readout `LogSumExp`, the log-sum-exp of each query's logits.

log Σ_j e^(l_j / T)          including the sink, if there is one
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from qkv.core.arrays import is_tensor, library, requires_gradient, row_max, where
from qkv.core.partial import nonzero
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, PairArray, Tensor
from qkv.normalizers.base import Normalizer, excluded
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
        whole = normalizer.sums_to_one and 0 < tile.k_total == tile.cols[1] - tile.cols[0]
        if whole and is_tensor(weights) and not (requires_gradient(logits) or requires_gradient(weights)):
            # Without exponentials: log w = l − log Σ e^l for each key.
            largest = typing.cast("Tensor", normalizer.prepare(logits)).amax(dim=-1)
            return largest - typing.cast("Tensor", nonzero(weights.amax(dim=-1))).log()
        if whole and library(weights) == "jax":
            return _jax_log_total()(normalizer.prepare(logits), weights)
        if tile.cols[0] > 0 and isinstance(normalizer, Softmax) and normalizer.sink is not None:
            normalizer = replace(normalizer, sink=None)
        return normalizer.log_total(logits)[..., 0]


@cache
def _jax_log_total() -> Callable[[PairArray, PairArray], Float[Array, "*batch q"]]:
    """Return the log-sum-exp in JAX of rows with their softmax, without exponentials: log w = l − log Σ e^l."""
    import jax
    import jax.numpy as jnp

    def log_total(logits: Array, weights: Array) -> Array:
        return typing.cast("Array", row_max(logits)[..., 0] - jnp.log(nonzero(row_max(weights)[..., 0])))

    def derivative(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
        (logits, weights), (tangent, _) = primals, tangents
        return total(logits, weights), jnp.sum(weights * where(excluded(logits), 0.0, tangent), axis=-1)

    total = jax.custom_jvp(log_total)
    total.defjvp(derivative)
    return typing.cast("Callable[[Array, Array], Array]", total)
