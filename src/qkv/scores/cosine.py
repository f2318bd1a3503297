"""Cosine similarity of query and key, divided by a temperature.

    logit(q, k) = <q, k> / (‖q‖ ‖k‖ T)

The cosine similarity with a zero vector is defined as 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qkv.core.arrays import namespace, stop_gradient, where
from qkv.core.parts import array_field, expand_to_pairs, require_number
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, Num
from qkv.scores.base import InnerProductScore
from qkv.scores.forms import Form, SavedArrays, UnitProduct

__all__ = ["Cosine"]

_SAVED = SavedArrays(copies=2.5, sides=(1.1, 1.1), peak=5.1)


@dataclass(frozen=True, eq=False)
class Cosine(InnerProductScore):
    """Cosine of the angle between query and key, divided by a temperature.

    Args:
        temperature: T > 0, a number or one number per batch element. Rounding changes logits by 1e-7 / T in float32.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> logits `(*batch, q, k)`

    Raises:
        ShapeError: the widths of query and key differ.
        OptionError: the temperature is not positive.

    Example:
        >>> import numpy as np
        >>> Cosine()(np.array([[3.0, 0.0]]), np.array([[9.0, 0.0], [0.0, 0.0], [-1.0, 0.0]]))
        array([[ 1.,  0., -1.]])
    """

    temperature: Array | float = array_field(default=1.0)

    def validate(self) -> None:
        require_number("Cosine", "temperature", self.temperature, lambda t: t > 0, "a positive number")

    @property
    def form(self) -> Form:  # type: ignore[override]
        """An inner product of unit vectors, with one temperature or one for each batch element."""
        temperature = self.temperature
        single = isinstance(temperature, (int, float)) or math.prod(temperature.shape) == 1
        return UnitProduct(temperature if single else None, saved=_SAVED)

    def lift_description(self) -> str:
        return "query and key normalized to length 1"

    def lift(
        self, query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"], tile: Tile
    ) -> tuple[Num[Array, "*#batch q width"], Num[Array, "*#batch k width"]]:
        return _normalize(query) / expand_to_pairs(self.temperature), _normalize(key)

    def logits(
        self, query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"], tile: Tile
    ) -> Num[Array, "*#batch q k"]:
        """Return the logits; for few queries, the products are divided by the norms of the keys, not the keys."""
        norms = _norms(key) if 2 * query.shape[-2] <= query.shape[-1] else None
        if norms is None:
            return super().logits(query, key, tile)
        left = _normalize(query) / expand_to_pairs(self.temperature)
        return namespace(key).matmul(left, namespace(key).matrix_transpose(key)) / norms[..., None, :]


def _normalize(x: Num[Array, "*batch n width"]) -> Num[Array, "*batch n width"]:
    """Return each row divided by its norm, and rows of zeros unchanged with gradient 0."""
    if (norms := _norms(x)) is not None:
        return x / norms[..., None]
    xp = namespace(x)
    largest = xp.max(xp.abs(stop_gradient(x)), axis=-1, keepdims=True) if x.shape[-1] else xp.ones_like(x[..., :1])
    # Divide by the largest entry first: squares of 1e30 or 1e-30 overflow or underflow in float32.
    x = x / where(largest > 0, largest, 1.0)
    square = xp.sum(x * x, axis=-1, keepdims=True)
    # Dividing a row of zeros by infinity makes its gradient 0 too.
    return x / xp.sqrt(where(square == 0, math.inf, square))


def _norms(x: Num[Array, "*batch n width"]) -> Float[np.ndarray, "*batch n"] | None:
    """Return the norms of the rows, in one pass; None if squares may overflow or underflow, or for other libraries."""
    if not isinstance(x, np.ndarray) or x.dtype not in (np.float32, np.float64) or not x.size:
        return None
    squares: Float[np.ndarray, "*batch n"] = np.einsum("...d,...d->...", x, x)
    return np.sqrt(squares) if squares.min() > 1e-24 and squares.max() < 1e36 else None
