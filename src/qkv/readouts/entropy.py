"""The readout `Entropy`, which measures how widely the weights of each query are spread.

H = −Σ_j w_j log w_j          in nats; e^H is the effective number of keys
"""

from __future__ import annotations

import math
import typing
from dataclasses import dataclass

from qkv.core.arrays import is_tensor, namespace, requires_gradient
from qkv.core.partial import nonzero
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, Int, PairArray, Tensor
from qkv.normalizers.base import Normalizer
from qkv.readouts.base import Readout

__all__ = ["Entropy"]


@dataclass(frozen=True, eq=False)
class Entropy(Readout):
    """Readout that returns the entropy of each query's weights in nats, `(*batch, q)`; 0 for rows without keys.

    Raises:
        RefusedError: the normalizer's weights do not sum to 1.

    Example:
        >>> import numpy as np, qkv
        >>> rows = np.zeros((4, 1))
        >>> np.exp(qkv.observe(rows[:1], rows, rows, readouts=[Entropy()]).readouts[0])
        array([4.])
    """

    requires = "sums_to_one"
    reduce_op = "add"
    largest = 0

    def read(
        self, logits: PairArray, weights: PairArray, normalizer: Normalizer, tile: Tile
    ) -> Float[Array, "*batch q"]:
        """Return −Σ w log w over the keys of the tile for each query, with 0 log 0 = 0."""
        of_softmax = normalizer.log_sum_exp and is_tensor(weights) and weights.shape[-1]
        if of_softmax and not (requires_gradient(logits) or requires_gradient(weights)):
            return _of_softmax(typing.cast("Tensor", normalizer.prepare(logits)), typing.cast("Tensor", weights))
        return self.of_candidates(weights)

    def of_candidates(
        self, weights: Float[Array, "*batch q n"], keys: Int[Array, "*batch q n"] | None = None
    ) -> Float[Array, "*batch q"]:
        xp = namespace(weights)
        return -xp.sum(weights * xp.log(nonzero(weights)), axis=-1)


def _of_softmax(logits: Float[Tensor, "*batch q k"], weights: Float[Tensor, "*batch q k"]) -> Float[Tensor, "*batch q"]:
    """Return −Σ w log w = Σ w (max l − l) − log(max w) Σ w, without a logarithm of each weight.

    Weights of a softmax are proportional to e^l, so that log w − l is the same for all keys of a query. Of the terms of
    the sum, none is negative.
    """
    import torch

    largest = logits.amax(dim=-1, keepdim=True)
    below = (largest.masked_fill(largest == -math.inf, 0.0) - logits).clamp_(max=torch.finfo(logits.dtype).max)
    of_largest = typing.cast("Tensor", nonzero(weights.amax(dim=-1))).log()
    return below.mul_(weights).sum(dim=-1) - of_largest * weights.sum(dim=-1)
