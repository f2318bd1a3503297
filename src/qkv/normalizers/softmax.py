"""The normalizer `Softmax`, which divides the exponentials of the logits by their sum.

    w_j = e^(l_j / T) / (Σ_i e^(l_i / T) + e^s)           the sink s is optional

Source of the sink: Xiao et al. (2024), Efficient streaming language models with attention sinks, section 3.3,
https://arxiv.org/abs/2309.17453; a sink of 0 is "softmax plus one".
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from qkv.core.arrays import (
    choose,
    ignore_numpy_warnings,
    is_array,
    is_ndarray,
    library,
    namespace,
    rounded,
    row_max,
    stop_gradient,
    where,
)
from qkv.core.equation import apply_dropout
from qkv.core.guard import apply_weights
from qkv.core.partial import ExponentialSums, PartialResult, finite_shift, nonzero
from qkv.core.parts import array_field, expand_to_pairs, require_number
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, OutputArray, PairArray, RowArray, ValueArray
from qkv.normalizers.base import Normalizer, Summary, excluded

__all__ = ["Softmax"]

_FEW_KEYS = 2**12
"""Largest number of keys whose exponentials BLAS sums; longer sums lose precision."""
_MIN_TOTAL = 2.0**-30
"""Sum of exponentials from which no maximum needs to be subtracted, up to its reciprocal."""


@dataclass(frozen=True, eq=False)
class Softmax(Normalizer):
    """Normalizer that computes the softmax of each row, with a temperature and an optional attention sink.

    Args:
        temperature: T > 0, a number or one number per batch element; a small T concentrates the weights.
        sink: an additional logit, not divided by the temperature, that takes weight but has no value: a number,
            one number per batch element, or None.

    Raises:
        OptionError: `temperature` is not positive.

    Example:
        >>> import numpy as np
        >>> Softmax().weights(np.log(np.array([[1.0, 3.0]])))
        array([[0.25, 0.75]])
    """

    temperature: Array | float = array_field(default=1.0)
    sink: Array | float | None = array_field(default=None)
    log_sum_exp = True
    symmetric: ClassVar[bool] = True

    def validate(self) -> None:
        require_number("Softmax", "temperature", self.temperature, lambda t: t > 0, "a positive number")

    @property
    def scale(self) -> float | None:  # type: ignore[override]
        """The factor 1 / `temperature` by which `prepare` multiplies, or None if the temperature is an array."""
        return 1.0 / self.temperature if isinstance(self.temperature, (int, float)) else None

    @property
    def shift_invariant(self) -> bool:  # type: ignore[override]
        """Whether adding a number to all logits of a row leaves the weights unchanged, which is true without a sink."""
        return self.sink is None

    @property
    def sums_to_one(self) -> bool:  # type: ignore[override]
        """Whether the weights of each row sum to 1, which is true without a sink."""
        return self.sink is None

    def weights(self, logits: PairArray, tile: Tile | None = None) -> PairArray:
        """Return the weights e^(l − m) / Σ e^(l − m) of whole rows, where m is the maximum of the row.

        l is the logit divided by the temperature. A sink is included in the maximum and in the sum.
        """
        if self.sink is None and library(logits) == "tensorflow":
            import tensorflow as tf

            logits = self.prepare(logits)
            empty = row_max(stop_gradient(logits)) == -math.inf
            careful = lambda: where(empty, 0.0, tf.nn.softmax(where(empty, 0.0, logits)))  # noqa: E731
            return typing.cast("Array", choose(tf.reduce_any(empty), careful, lambda: tf.nn.softmax(logits)))
        if self.sink is None and library(logits) == "jax":
            return _jax_softmax()(self.prepare(logits))
        e, total, _ = self._exponentials(self.prepare(logits))
        total = nonzero(total)
        return np.divide(e, np.asarray(total), out=e) if is_ndarray(e) else e / total

    def log_total(self, logits: PairArray) -> RowArray:
        """Return the log-sum-exp of each row, log Σ e^(l / T), including the sink if there is one.

        The result is −inf for a row without keys and sink.
        """
        _, total, shift = self._exponentials(self.prepare(logits))
        return where(total == 0, -math.inf, namespace(total).log(nonzero(total)) + shift)

    def prepare(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Return the logits divided by the temperature, rounded as their maximum is."""
        if not is_array(self.temperature):
            return rounded(logits if self.temperature == 1 else logits / self.temperature)
        # −inf bypasses the division, whose gradient with respect to T would be 0 · inf.
        out = excluded(logits)
        return rounded(where(out, -math.inf, where(out, 0.0, logits) / expand_to_pairs(self.temperature)))

    def accumulate(
        self, logits: PairArray, value: ValueArray, tile: Tile, dropout: float, finite: bool
    ) -> ExponentialSums:
        return ExponentialSums.accumulate(
            logits, lambda e: apply_weights(apply_dropout(e, tile, dropout), value, lambda: ~excluded(logits), finite)
        )

    def finalize(self, partial: PartialResult, tile: Tile, dropout: float) -> tuple[OutputArray, Summary]:
        """Return the output, and as the summary the maximum m and the sum Σ e^(l − m) of each row.

        The log-sum-exp, which combines both, would lose digits for large m.
        """
        assert isinstance(partial, ExponentialSums)
        shift = self._shift(partial.maximum)
        # Without a sink the shift is that of the sums, which are 0 in a row without keys.
        output, total = partial.finalize(None if self.sink is None else shift, self._sink_mass(shift))
        return output, (shift, total)

    def tile_weights(self, logits: PairArray, summary: Summary, tile: Tile) -> PairArray:
        """Return the weights e^(l − m) / Σ e^(l − m) of a tile; the summary holds m and the sum."""
        return namespace(logits).exp(logits - summary[0]) / nonzero(summary[1])

    def logit_gradient(
        self,
        logits: PairArray,
        weights: PairArray,
        weight_gradient: PairArray,
        row_dot: RowArray,
        summary: Summary,
        tile: Tile,
    ) -> PairArray:
        """Return the gradient with respect to the logits, w (g − Σ w g), with weights w and their gradient g."""
        return weights * (weight_gradient - row_dot)

    def array_gradients(self, summary: Summary, row_dot: RowArray) -> tuple[Array | None, ...]:
        """Return None for the temperature and one gradient per row for the sink, each only if it is an array.

        The gradient of the temperature is not included, because it flows through `prepare`.

        The gradient of the sink is −w_sink Σ w g, with weights w, their gradient g and w_sink = e^(s − m) / Σ e^(l −
        m).
        """
        xp = namespace(row_dot)
        gradients: list[Array | None] = [None] if is_array(self.temperature) else []
        if is_array(self.sink):
            gradients.append(-xp.exp(expand_to_pairs(self.sink) - summary[0]) / nonzero(summary[1]) * row_dot)
        return tuple(gradients)

    def _exponentials(self, logits: PairArray) -> tuple[PairArray, RowArray, RowArray]:
        xp = namespace(logits)
        if is_ndarray(logits) and self.sink is None and 0 < logits.shape[-1] <= _FEW_KEYS:
            with ignore_numpy_warnings():
                e = np.exp(logits)
                total = np.matmul(e, np.ones((e.shape[-1], 1), e.dtype))  # BLAS sums three times as fast as NumPy
            if total.min(initial=1) >= _MIN_TOTAL and total.max(initial=1) <= 1 / _MIN_TOTAL:  # False for NaN
                return e, total, np.zeros_like(total)
        shift = stop_gradient(self._shift(row_max(logits)))
        if is_ndarray(logits):
            e = logits - shift
            np.exp(e, out=e)
        else:
            # The constant in place of logits of excluded keys stops their gradient, which would be 0 · inf.
            e = xp.exp(where(excluded(logits), -math.inf, logits) - shift)
        return e, xp.sum(e, axis=-1, keepdims=True) + self._sink_mass(shift), shift

    def _sink_mass(self, shift: RowArray) -> RowArray | float:
        return 0.0 if self.sink is None else namespace(shift).exp(expand_to_pairs(self.sink) - shift)

    def _shift(self, maximum: RowArray) -> RowArray:
        if self.sink is not None:
            xp = namespace(maximum)
            sink = expand_to_pairs(self.sink)
            maximum = xp.maximum(maximum, xp.zeros_like(maximum) + (stop_gradient(sink) if is_array(sink) else sink))
        return finite_shift(maximum)


@cache
def _jax_softmax() -> Callable[[PairArray], PairArray]:
    """Return the softmax of rows in JAX, 0 in rows of −inf, whose derivative needs the weights alone."""
    import jax
    import jax.numpy as jnp

    def softmax(logits: Array) -> object:
        # In a row without keys, the clamps give 0 / tiny. A choice in their place makes XLA compute exponentials twice.
        limits = jnp.finfo(logits.dtype)
        e = jnp.exp(logits - jnp.maximum(row_max(logits), limits.min))
        return e / jnp.maximum(jnp.sum(e, axis=-1, keepdims=True), limits.tiny)

    def derivative(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        (logits,), (tangent,) = primals, tangents
        weights = weigh(logits)
        # The tangent of a logit of −inf may be NaN.
        change = weights * where(excluded(logits), 0.0, tangent)
        return weights, change - weights * jnp.sum(change, axis=-1, keepdims=True)

    weigh = jax.custom_jvp(softmax)
    weigh.defjvp(derivative)
    return typing.cast("Callable[[Array], Array]", weigh)
