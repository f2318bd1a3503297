"""Scaled dot-product score: the inner product of query and key, divided by the square root of their width.

    logit(q, k) = <q, k> / sqrt(width)

Source: Vaswani et al. (2017), Attention Is All You Need, section 3.2.1,
https://arxiv.org/abs/1706.03762. The paper's d_k is called width in this project.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from qkv.core.parts import require_number
from qkv.core.tile import Tile
from qkv.core.typing import Array, Num
from qkv.scores.base import InnerProductScore

__all__ = ["ScaledDot"]


@dataclass(frozen=True, eq=False)
class ScaledDot(InnerProductScore):
    """Inner product of query and key, divided by the square root of their width or times another scale.

    By default, inputs of unit variance give logits of unit variance at every width. `Dot` is the score without the
    division, and `Projected(ScaledDot(), …)` is this score with learned projections.

    Args:
        scale: factor of the inner product in place of 1/sqrt(width), as in
            `torch.nn.functional.scaled_dot_product_attention`; None: 1/sqrt(width).

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> logits `(*batch, q, k)`

    Raises:
        ShapeError: the widths of query and key differ.
        OptionError: the scale is not a finite number.

    Example:
        >>> import numpy as np
        >>> ScaledDot()(np.array([[2.0, 0.0, 0.0, 0.0]]), np.eye(4))
        array([[1., 0., 0., 0.]])
    """

    scale: float | None = None
    is_scaled_dot = True

    def validate(self) -> None:
        if self.scale is not None:
            require_number("ScaledDot", "scale", self.scale, math.isfinite, "a finite number or None")

    def lift(
        self, query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"], tile: Tile
    ) -> tuple[Num[Array, "*#batch q width"], Num[Array, "*#batch k width"]]:
        # Scale before the product: in float16 the raw inner product can overflow.
        if self.scale is None:
            return query / math.sqrt(max(1, query.shape[-1])), key
        return query * self.scale, key

    def scaled_lift(
        self, query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"], tile: Tile
    ) -> tuple[Num[Array, "*#batch q width"], Num[Array, "*#batch k width"], float]:
        return query, key, 1 / math.sqrt(max(1, query.shape[-1])) if self.scale is None else self.scale
