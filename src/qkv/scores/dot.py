"""Dot-product score: the inner product of query and key, times an optional scale.

    logit(q, k) = scale · <q, k>

Source: Luong, Pham, Manning (2015), Effective approaches to attention-based neural machine translation,
section 3.1 ("dot"), https://arxiv.org/abs/1508.04025.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from qkv.core.parts import require_number
from qkv.core.tile import Tile
from qkv.core.typing import Array, Num
from qkv.scores.base import InnerProductScore
from qkv.scores.forms import Form, ScaledProduct

__all__ = ["Dot"]


@dataclass(frozen=True, eq=False)
class Dot(InnerProductScore):
    """Inner product of query and key, times a scale.

    Args:
        scale: factor of the inner product, as in `torch.nn.functional.scaled_dot_product_attention`.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> logits `(*batch, q, k)`

    Raises:
        ShapeError: the widths of query and key differ.
        OptionError: the scale is not a finite number.

    Example:
        >>> import numpy as np
        >>> Dot()(np.array([[2.0, 1.0]]), np.array([[1.0, 0.0], [1.0, 1.0]]))
        array([[2., 3.]])
        >>> Dot(scale=0.5)(np.array([[2.0, 1.0]]), np.array([[1.0, 0.0], [1.0, 1.0]]))
        array([[1. , 1.5]])
    """

    scale: float = 1.0

    def validate(self) -> None:
        """Check that the scale is a finite number."""
        require_number("Dot", "scale", self.scale, math.isfinite, "a finite number")

    def lift(
        self, query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"], tile: Tile
    ) -> tuple[Num[Array, "*#batch q width"], Num[Array, "*#batch k width"]]:
        """Return the queries times the scale, and the keys unchanged."""
        return (query if self.scale == 1 else query * self.scale), key

    @property
    def form(self) -> Form:  # type: ignore[override]
        """A number times <q, k>."""
        return ScaledProduct(self.scale)
