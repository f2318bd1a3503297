"""Sums of exponentials for a block of queries, tile by tile: the NumPy block kernel's softmax.

    total = Σ_j e^(l_j − s)          weighted = Σ_j e^(l_j − s) v_j

The shift s need not be the largest logit: it is near the largest of the first tile that holds a key, and
moves only when a later tile would overflow. So the largest logit of most tiles is never looked for, and where
logits are small nothing is subtracted. Some thousand keys are summed in the dtype of the call, and these sums
are added up in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qkv.core.online_softmax import ExponentialSums
from qkv.kernels.numpy_blocks.exponential import Exponential

__all__ = ["ExponentialAccumulator"]

_MANY = 2.0**60
"""A sum of a tile beyond this moves the shift."""
_NEAR = 22.0
"""A largest logit within ± this needs no shift: the total keeps its digits, and no exponential overflows."""
_CHUNK = 2**12
"""Keys that are summed in the dtype of the call; longer sums lose digits."""


class ExponentialAccumulator:
    """What is known of some queries so far.

    Attributes:
        shift: `(*batch, rows, 1)`, in the unit of the exponential.
        lost: something that is not finite was met; these sums are not to be used.
    """

    def __init__(self, batch: tuple[int, ...], rows: int, width: int, dtype: Any, exp: Exponential) -> None:
        self.exp = exp
        self.shift = np.zeros((*batch, rows, 1), dtype=dtype)
        self.moved = False
        self.met = np.zeros((*batch, rows, 1), dtype=bool)
        self.complete = False
        self.total = np.zeros((*batch, rows, 1))
        self.weighted = np.zeros((*batch, rows, width))
        self.lost = False

    def update(
        self, write_logits: Callable[[np.ndarray | None], np.ndarray], value: np.ndarray, ones: np.ndarray
    ) -> None:
        """Add a tile.

        Args:
            write_logits: gives the logits of the tile minus a shift, in a buffer that may be written to.
            value: of the tile's keys.
            ones: `(cols, 1)`, or more.
        """
        e = write_logits(self.shift if self.moved else None)
        if not self.complete and not self._centre(e):
            return
        total = self._exponentials(e, ones)
        if not self._fits(total):
            e = write_logits(self.shift if self.moved else None)
            if not self._centre(e):
                return
            total = self._exponentials(e, ones)
            if not self._fits(total):
                self.lost = True
                return
        self.total += total
        for start in range(0, e.shape[-1], _CHUNK):
            piece = slice(start, start + _CHUNK)
            self.weighted += np.matmul(e[..., piece], value[..., piece, :])

    def result(self) -> ExponentialSums | None:
        """The sums; None where something was not finite, in a logit or in a value that meets a weight."""
        if self.lost or not (np.isfinite(self.weighted).all() and np.isfinite(self.total).all()):
            return None
        if self.exp.unit != 1 and not self.complete:
            return None  # a row without a key, or with nothing but logits so low that log2 e made them −inf
        dtype = self.shift.dtype
        maximum = np.where(self.met, self.shift / self.exp.unit, -np.inf).astype(dtype)
        return ExponentialSums(maximum, self.total.astype(dtype), self.weighted.astype(dtype))

    def _exponentials(self, e: np.ndarray, ones: np.ndarray) -> np.ndarray:
        self.exp.replace(e)
        total = np.zeros_like(self.total)
        for start in range(0, e.shape[-1], _CHUNK):
            piece = e[..., start : start + _CHUNK]
            # A product with ones: BLAS sums three times as fast as NumPy.
            total += np.matmul(piece, ones[: piece.shape[-1]])
        return total

    def _fits(self, total: np.ndarray) -> bool:
        return bool(total.max(initial=0) <= _MANY)  # False for NaN

    def _centre(self, e: np.ndarray) -> bool:
        """Move the shift to where these logits are, and the sums with it; False where they are not finite."""
        largest = e.max(axis=-1, keepdims=True)
        if not (largest < np.inf).all():
            self.lost = True
            return False
        near = _NEAR * self.exp.unit
        exists = largest > -np.inf
        move = (largest > near) | (~self.met & exists & (largest < -near))
        if move.any():
            by = np.where(move, largest, 0)
            np.subtract(e, by, out=e)
            self.shift += by
            self.moved = True
            # Where no key was met the sums are 0: a far shift downwards must not make them 0 · inf.
            factor = self.exp.power(np.where(self.met, -by, 0).astype(np.float64))
            self.total *= factor
            self.weighted *= factor
        self.met |= exists
        self.complete = bool(self.met.all())
        return True
