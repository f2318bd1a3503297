"""Dot-product scores: the inner product of query and key, times a scale or divided by the square root of their width.

    Dot           logit(q, k) = scale · <q, k>
    ScaledDot     logit(q, k) = <q, k> / sqrt(width)

Sources: Luong, Pham, Manning (2015), Effective approaches to attention-based neural machine translation, section 3.1
("dot"), https://arxiv.org/abs/1508.04025; Vaswani et al. (2017), Attention Is All You Need, section 3.2.1,
https://arxiv.org/abs/1706.03762. Their d_k is called width in this project.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from qkv.core.parts import require_number
from qkv.core.tile import Tile
from qkv.core.typing import Array, Num
from qkv.scores.base import InnerProductScore
from qkv.scores.forms import Form, Product, ScaledProduct

__all__ = ["Dot", "ScaledDot"]


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
        require_number("Dot", "scale", self.scale, math.isfinite, "a finite number")

    def lift(
        self, query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"], tile: Tile
    ) -> tuple[Num[Array, "*#batch q width"], Num[Array, "*#batch k width"]]:
        return _scaled(query, key, self.scale)

    @property
    def form(self) -> Form:  # type: ignore[override]
        return _form(self.scale)


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

    def validate(self) -> None:
        if self.scale is not None:
            require_number("ScaledDot", "scale", self.scale, math.isfinite, "a finite number or None")

    def lift(
        self, query: Num[Array, "*#batch q width"], key: Num[Array, "*#batch k width"], tile: Tile
    ) -> tuple[Num[Array, "*#batch q width"], Num[Array, "*#batch k width"]]:
        # Scale before the product: in float16 the raw inner product can overflow.
        if self.scale is None:
            return query / math.sqrt(max(1, query.shape[-1])), key
        return _scaled(query, key, self.scale)

    @property
    def form(self) -> Form:  # type: ignore[override]
        return _form(self.scale)


def _form(scale: float | None) -> Form:
    """Return the form of a product; float32 may not hold an extreme scale, of which each side gets one factor."""
    return Product() if scale and abs(math.frexp(scale)[1]) > 60 else ScaledProduct(scale)


def _scaled(query: Num[Array, "*_"], key: Num[Array, "*_"], scale: float) -> tuple[Num[Array, "*_"], Num[Array, "*_"]]:
    power = 1.0 if isinstance(_form(scale), ScaledProduct) else 2.0 ** (math.frexp(scale)[1] // 2)
    return (query if scale == 1 else query * (scale / power)), (key if power == 1 else key * power)
