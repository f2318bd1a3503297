"""Normalizers whose weights are an elementwise function of the logits, optionally divided by its sum.

    Mean         w_j = 1 / m,   m = number of keys that are not excluded
    Sum          w_j = s_j / Σ_i s_i
    Identity     w_j = l_j
    Sigmoid      w_j = σ(l_j + b)

Source: Ramapuram et al. (2024), Theory, analysis and best practices for sigmoid self-attention,
https://arxiv.org/abs/2409.04431. The authors recommend b = −log(number of keys).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import cast, is_array, namespace, sigmoid, statically_known_true, stop_gradient, where
from qkv.core.equation import apply_dropout
from qkv.core.guard import apply_weights
from qkv.core.partial import PartialResult, WeightedSums, nonzero
from qkv.core.parts import array_field, expand_to_pairs
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, Float, OutputArray, PairArray, RowArray, ValueArray
from qkv.errors import NegativeScoreError
from qkv.normalizers.base import Normalizer, Summary, excluded

__all__ = ["Identity", "LinearNormalizer", "Mean", "Sigmoid", "Sum"]


class LinearNormalizer(Normalizer):
    """Base class of normalizers with weights `mass(logits)`, divided by their sum in each row if `divides` is True."""

    divides: bool = True

    @abstractmethod
    def mass(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Return the unnormalized weight of each key, which is 0 for excluded keys."""

    def weights(self, logits: PairArray, tile: Tile | None = None) -> PairArray:
        """Return `mass(logits)`, divided by its sum in each row if `divides` is True; rows with sum 0 get weights 0."""
        mass = self.mass(self.prepare(logits))
        return _share(mass, namespace(mass).sum(mass, axis=-1, keepdims=True)) if self.divides else mass

    def accumulate(
        self, logits: PairArray, value: ValueArray, tile: Tile, dropout: float, finite: bool
    ) -> WeightedSums:
        mass = self.mass(logits)
        weighted = apply_weights(apply_dropout(mass, tile, dropout), value, lambda: self.support(logits, mass), finite)
        return WeightedSums(namespace(mass).sum(mass, axis=-1, keepdims=True), weighted)

    def finalize(self, partial: PartialResult, tile: Tile, dropout: float) -> tuple[OutputArray, Summary]:
        """Return the output, and the sum of the unnormalized weights as the summary if `divides` is True.

        The output is the weighted sum of the values, divided by this sum if `divides` is True.
        """
        assert isinstance(partial, WeightedSums)
        if not self.divides:
            return partial.weighted, ()
        return _share(partial.weighted, partial.total), (partial.total,)

    def tile_weights(self, logits: PairArray, summary: Summary, tile: Tile) -> PairArray:
        return _share(self.mass(logits), summary[0]) if self.divides else self.mass(logits)

    def slope(self, weights: PairArray) -> PairArray | None:
        """Return the derivative of each element of `mass`, given weights that are not divided; None: 1."""
        return None

    def logit_gradient(
        self,
        logits: PairArray,
        weights: PairArray,
        weight_gradient: PairArray,
        row_dot: RowArray,
        summary: Summary,
        tile: Tile,
    ) -> PairArray:
        """Return g times the slope, or (g − Σ w g) / Σ s where the scores s are divided by their sum.

        g is the gradient with respect to the weights w. Excluded keys get 0.
        """
        if not self.differentiable:
            return super().logit_gradient(logits, weights, weight_gradient, row_dot, summary, tile)
        gradient, empty = weight_gradient, excluded(logits)
        if self.divides:
            total = summary[0]
            gradient, empty = (gradient - row_dot) / nonzero(total), empty | (total == 0)
        slope = self.slope(weights)
        return where(empty, 0.0, gradient if slope is None else gradient * slope)


def _share(part: Float[Array, "*batch q n"], total: RowArray) -> Float[Array, "*batch q n"]:
    # Filling with 0, besides the division by 1, makes the gradient of a row without keys 0 too.
    return where(total == 0, 0.0, part / nonzero(total))


@dataclass(frozen=True, eq=False)
class Mean(LinearNormalizer):
    """Normalizer that gives equal weights to all keys that are not excluded, so that the output is a mean of values.

    Example:
        >>> import numpy as np
        >>> Mean().weights(np.array([[5.0, -1.0, -np.inf]]))
        array([[0.5, 0.5, 0. ]])
    """

    shift_invariant = True
    constant: ClassVar[bool] = True
    symmetric: ClassVar[bool] = True
    differentiable: ClassVar[bool] = False

    def mass(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        xp, one = namespace(logits), cast(~excluded(logits), logits.dtype)
        return xp.where(xp.isnan(logits), one + xp.nan, one)  # TopK does not know which keys are the nearest


@dataclass(frozen=True, eq=False)
class Sum(LinearNormalizer):
    """Normalizer that divides the scores of each row by their sum, for counts, similarities or matches.

    The values of keys with score 0 have no effect. If all scores of a row are 0, all its weights are 0.

    Raises:
        NegativeScoreError: a score is negative. Under `jax.jit` no error is raised, and the row becomes NaN.

    Example:
        >>> import numpy as np
        >>> Sum().weights(np.array([[0.9, 0.1, 0.0], [0.0, 0.0, 0.0]]))
        array([[0.9, 0.1, 0. ],
               [0. , 0. , 0. ]])
    """

    linear: ClassVar[bool] = True
    nonnegative: ClassVar[bool] = True

    def mass(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Return the scores with 0 in place of −inf, and raise a `NegativeScoreError` if a score is negative.

        For traced arrays, negative scores become NaN instead.
        """
        xp = namespace(logits)
        mass = where(excluded(logits), 0.0, logits)
        negative = mass < 0
        if statically_known_true(xp.any(negative)):
            smallest = float(xp.min(stop_gradient(mass)))
            raise NegativeScoreError(
                f"scores must be non-negative for Sum, got {smallest:.4g}. Use Softmax for scores that may be negative."
            )
        return where(negative, math.nan, mass)

    def support(self, logits: PairArray, weights: PairArray) -> Bool[Array, "*batch q k"]:
        return weights != 0


@dataclass(frozen=True, eq=False)
class Identity(LinearNormalizer):
    """Normalizer that returns the logits as weights, which may be negative and need not sum to 1.

    Example:
        >>> import numpy as np
        >>> Identity().weights(np.array([[2.0, -1.0, -np.inf]]))
        array([[ 2., -1.,  0.]])
    """

    divides = False
    sums_to_one = False
    linear: ClassVar[bool] = True

    def mass(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return where(excluded(logits), 0.0, logits)


@dataclass(frozen=True, eq=False)
class Sigmoid(LinearNormalizer):
    """Normalizer that computes the sigmoid of each logit plus a bias; the weights need not sum to 1.

    Args:
        bias: b, a number or one number per batch element.

    Example:
        >>> import numpy as np
        >>> Sigmoid().weights(np.array([[0.0, 100.0, -np.inf]]))
        array([[0.5, 1. , 0. ]])
    """

    bias: Array | float = array_field(default=0.0)
    divides = False
    sums_to_one = False
    is_sigmoid: ClassVar[bool] = True

    @property
    def shifts(self) -> bool:  # type: ignore[override]
        return is_array(self.bias) or bool(self.bias)

    def prepare(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return logits + expand_to_pairs(self.bias) if self.shifts else logits

    def mass(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Return the sigmoid of each logit, and 0 for −inf."""
        return sigmoid(logits)

    def slope(self, weights: PairArray) -> PairArray:
        return weights * (1 - weights)
