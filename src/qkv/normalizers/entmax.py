"""Sparse alternatives to softmax: `Sparsemax`, `Entmax15` and the family `Entmax` with a fixed or learned exponent α.

    w_j = max(0, z_j − τ)^p,   Σ w = 1          z = (α − 1) l,   p = 1 / (α − 1)

    Sparsemax     α = 2: the Euclidean projection of the logits onto the simplex, argmin_p ‖p − l‖²,   p ≥ 0, Σ p = 1
    Entmax15      α = 1.5

The threshold τ is computed without a gradient, for α = 2 and 1.5 exactly by sorting. Two Newton steps that start at the
threshold are recorded for the gradient: the first gives its first derivatives by the logits and α, the second its
second derivatives.

Sources: Martins, Astudillo (2016), From softmax to sparsemax, https://arxiv.org/abs/1602.02068; Peters, Niculae,
Martins (2019), Sparse sequence-to-sequence models, https://arxiv.org/abs/1905.05702; Correia, Niculae, Martins (2019),
Adaptively sparse transformers, https://arxiv.org/abs/1909.00015, for a learned α.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from qkv.core.arrays import (
    arange,
    cast,
    is_array,
    is_ndarray,
    namespace,
    rounded,
    row_max,
    statically_known_true,
    stop_gradient,
    to_numpy,
    where,
)
from qkv.core.partial import finite_shift, nonzero
from qkv.core.parts import array_field, expand_to_pairs, require_number
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, Float, PairArray, RowArray
from qkv.normalizers.base import Normalizer, excluded

__all__ = ["Entmax", "Entmax15", "Sparsemax"]


_BOUND_GROUPS = 128
"""Minimum number of groups of keys from which a bound of the threshold is computed."""
_BOUND_STEPS = 3
"""Number of Newton steps for the lower bound of the threshold; every number of steps gives a valid bound."""


class SparseNormalizer(Normalizer):
    """Base class of normalizers with weights max(0, z − τ)^p that sum to 1, where z is the logit times `scale`.

    p is `power`, and τ is the threshold at which the weights of the row sum to 1.
    """

    online = False
    shift_invariant = True
    symmetric: ClassVar[bool] = True
    has_threshold_bound: ClassVar[bool] = True

    @abstractmethod
    def threshold(self, z: PairArray) -> RowArray:
        """Return the threshold τ of each row, `(*batch, q, 1)`.

        The elements of `z` are at least −2, and the largest of each row that has keys is 0.
        """

    def exponents(self) -> tuple[Array | float, Array | float]:
        """Return `scale` and `power`, as arrays if they differ between batch elements."""
        assert self.scale is not None
        assert self.power is not None
        return self.scale, self.power

    def weights(self, logits: PairArray, tile: Tile | None = None) -> PairArray:
        if logits.shape[-1] == 0:
            return logits
        xp, (scale, power) = namespace(logits), self.exponents()
        # No key below −2 has weight (τ ≥ −1), so excluded keys are set to −2, which avoids inf.
        maximum = row_max(logits := rounded(logits))
        if is_ndarray(logits):
            z = logits - finite_shift(maximum)
            z = np.maximum(z if not is_array(scale) and scale == 1 else z * scale, -2)
            tau = self.threshold(z)
        else:
            out = excluded(logits)
            z = (where(out, 0.0, logits) - finite_shift(maximum)) * scale
            z = where(out | (z < -2), -2.0, z)
            tau = stop_gradient(self.threshold(stop_gradient(z)))
            tau = _newton_step(z, _newton_step(z, tau, power), power)
        weights = _masses(z, tau, power)[0]
        if is_ndarray(maximum) and np.isfinite(maximum).all():
            return weights
        # A comparison with NaN is False and would turn it into 0; rows with NaN, or with inf − inf, become NaN.
        unknown = xp.isnan(xp.sum(z, axis=-1, keepdims=True))
        return where(excluded(logits), 0.0, where(unknown, math.nan, weights))

    def threshold_bound(self, largest: Float[Array, "*batch q groups"]) -> RowArray:
        xp, power = namespace(largest), self.power
        assert power is not None
        while (half := largest.shape[-1] // 2) >= _BOUND_GROUPS:
            # Merging pairs of groups lowers the bound a little and halves the time.
            largest = xp.maximum(largest[..., :half], largest[..., half : 2 * half])
        maximum = row_max(largest)
        z = (largest - maximum) * self.scale
        tau = xp.zeros_like(maximum) - 1
        for _ in range(_BOUND_STEPS):
            # Newton steps on ‖max(0, z − τ)‖_p, which is convex, so that no step overshoots the root.
            above = xp.clip(z - tau, min=0)
            total = xp.sum(above, axis=-1, keepdims=True)
            if power == 1:
                tau = tau + (total - 1) / xp.sum(cast(above > 0, z.dtype), axis=-1, keepdims=True)
            else:
                norm = xp.sum(above**power, axis=-1, keepdims=True) ** (1 / power)
                tau = tau + (norm - 1) * norm / total
        # The slack covers the rounding of τ and of the shifted logits. A row without keys gets NaN.
        slack: Array = 16 * xp.finfo(largest.dtype).eps * (1 + xp.abs(maximum))
        return tau / self.scale + maximum - slack

    def support(self, logits: PairArray, weights: PairArray) -> Bool[Array, "*batch q k"]:
        return weights != 0


@dataclass(frozen=True, eq=False)
class Sparsemax(SparseNormalizer):
    """Normalizer that computes sparsemax of each row: weights that sum to 1, of which many can be exactly 0.

    Example:
        >>> import numpy as np
        >>> Sparsemax().weights(np.array([[1.0, 0.6, -1.0]]))
        array([[0.7, 0.3, 0. ]])
    """

    power = 1
    scale = 1.0

    def threshold(self, z: PairArray) -> RowArray:
        """Return the threshold τ of each row: the largest (Σ z − 1) / n over the n largest z, for any n."""

        def of_sorted(z: Float[Array, "*batch q n"], count: Float[Array, " n"]) -> RowArray:
            return row_max((namespace(z).cumulative_sum(z, axis=-1) - 1) / count)

        return _by_sorting(z, of_sorted, self.power)


@dataclass(frozen=True, eq=False)
class Entmax15(SparseNormalizer):
    """Normalizer that computes 1.5-entmax of each row: weights that sum to 1, of which many can be exactly 0.

    Example:
        >>> import numpy as np
        >>> Entmax15().weights(np.array([[1.0, 1.0, -3.0]]))
        array([[0.5, 0.5, 0. ]])
    """

    power = 2
    scale = 0.5

    def threshold(self, z: PairArray) -> RowArray:
        """Return the threshold τ_k of each row, for the largest k at which τ_k is at most the k-th largest z.

        τ_k = mean − √((1 − Σ(z − mean)²) / k), where the mean and the sum are over the k largest z.
        """

        def of_sorted(z: Float[Array, "*batch q n"], count: Float[Array, " n"]) -> RowArray:
            xp = namespace(z)
            mean = xp.cumulative_sum(z, axis=-1) / count
            spread = xp.cumulative_sum(z * z, axis=-1) - count * mean * mean
            inside = (1 - spread) / count
            tau = mean - xp.sqrt(where(inside > 0, inside, 0.0))
            size = xp.sum(cast(tau <= z, z.dtype), axis=-1, keepdims=True)
            last = count == xp.maximum(size, xp.ones_like(size))
            return xp.sum(where(last, tau, 0.0), axis=-1, keepdims=True)

        return _by_sorting(z, of_sorted, self.power)


_FIRST_KEYS = (16, 64)
"""Numbers of the largest keys of a row that NumPy sums first, as its cumulative sums take more time than all else."""


def _by_sorting(
    z: PairArray, of_sorted: Callable[[Float[Array, "*batch q n"], Float[Array, " n"]], RowArray], power: float
) -> RowArray:
    """Return the threshold of each row by a function of its elements in descending order and of their counts."""
    ordered = namespace(z).sort(z, axis=-1, descending=True)
    count = cast(arange(z, 1, ordered.shape[-1] + 1), z.dtype)
    for n in _FIRST_KEYS if is_ndarray(ordered) else ():
        first = ordered[..., :n]
        tau = of_sorted(first, count[:n])
        if namespace(z).all(first[..., -1:] <= tau):  # the keys after the first have no weight
            return tau if power == 1 else _newton_step(first, tau, power)  # a sum of few is accurate
    tau = of_sorted(ordered, count)
    return _newton_step(ordered, tau, power) if is_ndarray(ordered) else tau


def _newton_step(z: Float[Array, "*batch q n"], tau: RowArray, power: Float[Array, "*_"] | float) -> RowArray:
    """Return a threshold after one Newton step towards weights that sum to 1."""
    xp, (masses, slopes) = namespace(z), _masses(z, tau, power)
    excess = xp.sum(masses, axis=-1, keepdims=True) - 1
    return tau + excess / nonzero(xp.sum(slopes(), axis=-1, keepdims=True))


_MAX_STEPS = 160
"""Maximum number of steps of the search for τ: three times as many as bisection alone needs in float64."""
_TRACED_STEPS = 30
"""Number of steps where the results cannot be inspected, as under `jax.jit`; each step is compiled."""
_BISECTIONS = 4
"""Number of steps for the lower bound of the threshold; every number of steps gives a valid bound."""


@dataclass(frozen=True, eq=False)
class Entmax(SparseNormalizer):
    """Normalizer that computes α-entmax of each row: weights that sum to 1, of which many can be exactly 0.

    α = 2 is `Sparsemax`, α = 1.5 is `Entmax15`, and α → 1 is `Softmax`: a larger α gives weight to fewer keys. With an
    array, such as a parameter with one number per head, α is learned; gradients reach it and the logits.

    Args:
        alpha: α > 1, a number or one number per batch element. Elements of an array are not checked. For α far above
            2, small weights change fast with the logits, so that float32 gives them fewer digits.

    Raises:
        OptionError: `alpha` is a number that is not greater than 1.

    Example:
        >>> import numpy as np
        >>> Entmax(1.25).weights(np.array([[1.0, 1.0, 0.0]])).round(3)
        array([[0.448, 0.448, 0.104]])
        >>> Entmax(3.0).weights(np.array([[1.0, 1.0, 0.0]])).round(3)
        array([[0.5, 0.5, 0. ]])
    """

    alpha: Array | float = array_field(default=1.5)

    def validate(self) -> None:
        require_number("Entmax", "alpha", self.alpha, lambda alpha: 1 < alpha < math.inf, "a number greater than 1")

    @property
    def power(self) -> float | None:  # type: ignore[override]
        """The exponent p = 1 / (α − 1) of the weights, or None if α is an array or greater than 2."""
        return 1 / (self.alpha - 1) if isinstance(self.alpha, (int, float)) and self.alpha <= 2 else None

    @property
    def scale(self) -> float | None:  # type: ignore[override]
        """The factor α − 1 of the logits, or None if α is an array."""
        return self.alpha - 1 if isinstance(self.alpha, (int, float)) else None

    def simplify(self, k: int) -> Normalizer:
        """Return `Sparsemax` for α = 2 and `Entmax15` for α = 1.5, which take fewer operations."""
        if is_array(self.alpha):
            return self
        return {2.0: Sparsemax(), 1.5: Entmax15()}.get(float(self.alpha), self)

    def exponents(self) -> tuple[Array | float, Array | float]:
        alpha = expand_to_pairs(self.alpha)
        return alpha - 1, 1 / (alpha - 1)

    def threshold(self, z: PairArray) -> RowArray:
        """Return the threshold τ of each row, found by a search."""
        power = self.exponents()[1]
        return _threshold(z, stop_gradient(power) if is_array(power) else power)[0]

    def weights(self, logits: PairArray, tile: Tile | None = None) -> PairArray:
        """Return the weights max(0, z − τ)^p of whole rows, where z = (α − 1)(l − max l) and p = 1 / (α − 1)."""
        weights = super().weights(logits, tile)
        # For α > 2 rounding of τ changes small weights by more than the precision of the sum.
        total = nonzero(namespace(weights).sum(weights, axis=-1, keepdims=True))
        return where(weights == 0, 0.0, weights / total)

    def threshold_bound(self, largest: Float[Array, "*batch q groups"]) -> RowArray:
        """Return a lower bound of the logits of keys with weight in each row, from the maxima of groups of keys.

        The τ of a subset of the keys is a lower bound of the τ of all keys.
        """
        xp = namespace(largest)
        alpha = expand_to_pairs(stop_gradient(self.alpha) if is_array(self.alpha) else self.alpha)
        maximum = row_max(largest)
        z = (largest - maximum) * (alpha - 1)
        _, tau = _threshold(where(xp.isnan(z) | (z < -2), -2.0, z), 1 / (alpha - 1), _BISECTIONS)
        # The slack covers the rounding of τ and of the shifted logits. A row without keys gets NaN.
        slack: Array = 16 * xp.finfo(largest.dtype).eps * (1 + xp.abs(maximum) + 1 / (alpha - 1))
        return where(maximum == -xp.inf, math.nan, tau / (alpha - 1) + maximum - slack)


def _above(z: PairArray, tau: RowArray) -> tuple[PairArray, Bool[Array, "*batch q k"]]:
    """Return z − τ where it is positive and 1 elsewhere, whose powers have finite gradients, and where it is."""
    inside = z > tau
    return where(inside, z - tau, 1.0), inside


def _masses(
    z: PairArray, tau: RowArray, power: Float[Array, "*_"] | float
) -> tuple[PairArray, Callable[[], PairArray]]:
    """Return max(0, z − τ)^p, and a function that returns its derivative p · max(0, z − τ)^(p − 1)."""
    if is_ndarray(z) and not is_array(power) and power in (1, 2):  # without a gradient
        above = np.maximum(z - tau, 0)
        return (above * above, lambda: 2 * above) if power == 2 else (above, lambda: cast(above > 0, z.dtype))
    above, inside = _above(z, tau)
    return where(inside, above**power, 0.0), lambda: where(inside, power * above ** (power - 1), 0.0)


def _threshold(z: PairArray, power: Float[Array, "*_"] | float, steps: int | None = None) -> tuple[RowArray, RowArray]:
    """Return the threshold τ of each row, and a lower bound of it, found by Newton steps and bisection.

    τ is in [−1, −k^(−1/p)]. Newton steps on ‖max(0, z − τ)‖_p, which is convex for p ≥ 1, converge from below; each
    third step bisects the bracket if it has not been halved.

    Args:
        z: scaled logits, at least −2, of which the largest of each row that has keys is 0.
        power: p = 1 / (α − 1).
        steps: number of steps; None: until τ is exact.
    """
    xp = namespace(z)
    eps = xp.finfo(z.dtype).eps
    known = steps is None and to_numpy(z[..., :0]) is not None
    low = xp.zeros_like(z[..., :1]) - 1
    power = low * 0 + power
    keys = z.shape[-1]  # a symbol while exporting with dynamic lengths, of which τ < 0 is all that is known
    high = low * xp.exp(-math.log(max(1, keys)) / power) if type(keys) is int else low * 0
    new = best = low
    error, width = low + math.inf, high - low
    for step in range(steps or (_MAX_STEPS if known else _TRACED_STEPS)):
        above, inside = _above(z, new)
        total = xp.sum(where(inside, above**power, 0.0), axis=-1, keepdims=True)
        slope = xp.sum(where(inside, above ** (power - 1), 0.0), axis=-1, keepdims=True)
        low, high = where(total >= 1, new, low), where(total >= 1, high, new)
        best = where(xp.abs(total - 1) < error, new, best)
        error = xp.minimum(error, xp.abs(total - 1))
        if known and statically_known_true(xp.all((error <= 4 * eps) | ~(high - low > eps / 2))):
            break
        root = nonzero(total) ** (1 / power)
        new = new + (root - 1) * total / nonzero(slope * root)
        middle = low + (high - low) / 2
        new = where((new > low) & (new < high), new, middle)
        if step % 3 == 2:
            new, width = where(high - low > width / 2, middle, new), high - low
    return best, low
