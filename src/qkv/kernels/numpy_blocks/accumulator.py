"""Accumulation of sums of exponentials for a block of queries in NumPy, tile by tile.

    total = Σ_j e^(l_j − s)          weighted = Σ_j e^(l_j − s) v_j

This is the online softmax of `core/online_softmax.py`, with a shift s near the maximum instead of the maximum itself.
The shift starts near the largest logit of the first tile with an allowed key, and changes only if a tile would
overflow. The maximum of most tiles is therefore never computed, and small logits need no subtraction. Up to 4096 keys
are summed in the dtype of the call, and these sums are added in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qkv.core.online_softmax import ExponentialSums
from qkv.core.typing import Bool, DType, Float
from qkv.kernels.numpy_blocks.exponential import Exponential

__all__ = ["ExponentialAccumulator"]

_WriteLogits = Callable[[Float[np.ndarray, "*batch q 1"] | None], Float[np.ndarray, "*batch q k"]]
"""Function that returns the logits of a tile minus a shift, in a buffer that may be overwritten."""

_MAX_TILE_SUM = 2.0**60
"""Largest sum over a tile for which the shift is not changed."""
_MAX_UNSHIFTED = 22.0
"""Largest magnitude of a row's maximum without a shift, at which exponentials neither overflow nor lose precision."""
_CHUNK = 2**12
"""Number of keys that are summed in the dtype of the call. Longer sums lose precision."""


class ExponentialAccumulator:
    """Accumulator of sums of exponentials for a block of queries, updated tile by tile.

    Args:
        batch: batch shape.
        rows: number of queries.
        width: width of the values.
        dtype: dtype of the logits.
        exp: exponential function for the logits.

    Attributes:
        shift: shift of each query, multiplied by the factor of the exponential.
        total: Σ e^(l − s), in float64.
        weighted: Σ e^(l − s) v, in float64.
        non_finite: whether a logit was infinite or NaN, which makes the sums invalid.
    """

    def __init__(self, batch: tuple[int, ...], rows: int, width: int, dtype: DType, exp: Exponential) -> None:
        self.exp = exp
        self.shift: Float[np.ndarray, "*batch q 1"] = np.zeros((*batch, rows, 1), dtype=dtype)
        self.total: Float[np.ndarray, "*batch q 1"] = np.zeros((*batch, rows, 1))
        self.weighted: Float[np.ndarray, "*batch q value_width"] = np.zeros((*batch, rows, width))
        self.non_finite = False
        self._shifted = False
        self._has_key: Bool[np.ndarray, "*batch q 1"] = np.zeros((*batch, rows, 1), dtype=bool)
        self._all_have_keys = False

    def update(
        self,
        write_logits: _WriteLogits,
        value: Float[np.ndarray, "*#batch k value_width"],
        ones: Float[np.ndarray, "ones 1"],
    ) -> None:
        """Add the contribution of a tile to the sums of exponentials.

        Args:
            write_logits: function that returns the logits of the tile minus a shift, in a buffer that may be
                overwritten.
            value: values of the tile's keys.
            ones: a column of ones, at least as long as the tile.
        """
        for again in (False, True):
            e = write_logits(self.shift if self._shifted else None)
            if (again or not self._all_have_keys) and not self._move_shift(e):
                return
            total = self._exponentials(e, ones)
            if total.max(initial=0) <= _MAX_TILE_SUM:  # False for NaN
                break
        else:
            self.non_finite = True
            return
        self.total += total
        for start in range(0, e.shape[-1], _CHUNK):
            chunk = slice(start, start + _CHUNK)
            self.weighted += np.matmul(e[..., chunk], value[..., chunk, :])

    def result(self) -> ExponentialSums | None:
        """Return the sums of exponentials, or None if they may be wrong because an input was not finite.

        They may also be wrong for a row without keys, whose logits may have become −inf when multiplied by `factor`.
        """
        if self.non_finite or not (np.isfinite(self.weighted).all() and np.isfinite(self.total).all()):
            return None
        if self.exp.factor != 1 and not self._all_have_keys:
            return None  # a row has no key, or all of its logits became −inf when multiplied by log2 e
        dtype = self.shift.dtype
        maximum = np.where(self._has_key, self.shift / self.exp.factor, -np.inf).astype(dtype)
        return ExponentialSums(maximum, self.total.astype(dtype), self.weighted.astype(dtype))

    def _exponentials(
        self, e: Float[np.ndarray, "*batch q k"], ones: Float[np.ndarray, "ones 1"]
    ) -> Float[np.ndarray, "*batch q 1"]:
        """Replace shifted logits by their exponentials, in place, and return the sum of each row."""
        self.exp.apply_(e)
        total = np.zeros_like(self.total)
        for start in range(0, e.shape[-1], _CHUNK):
            chunk = e[..., start : start + _CHUNK]
            # A matrix product with ones, because BLAS sums three times as fast as NumPy.
            total += np.matmul(chunk, ones[: chunk.shape[-1]])
        return total

    def _move_shift(self, e: Float[np.ndarray, "*batch q k"]) -> bool:
        """Move the shift of rows whose logits are far from it, and return whether all logits are below +inf.

        The sums are rescaled to the new shift.
        """
        largest = e.max(axis=-1, keepdims=True)
        if not (largest < np.inf).all():
            self.non_finite = True
            return False
        near = _MAX_UNSHIFTED * self.exp.factor
        exists = largest > -np.inf
        move = (largest > near) | (~self._has_key & exists & (largest < -near))
        if move.any():
            difference = np.where(move, largest, 0)
            np.subtract(e, difference, out=e)
            self.shift += difference
            self._shifted = True
            # The sums of a row without a key are 0: rescaling them for a large decrease must not compute 0 · inf.
            factor = self.exp.function(np.where(self._has_key, -difference, 0).astype(np.float64))
            self.total *= factor
            self.weighted *= factor
        self._has_key |= exists
        self._all_have_keys = bool(self._has_key.all())
        return True
