"""Projected: a score that applies another score to linear projections of query and key.

    logit(q, k) = score(W_Q q, W_K k)

Source: Vaswani et al. (2017), Attention Is All You Need, section 3.2.2, https://arxiv.org/abs/1706.03762.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from qkv.core.arrays import namespace
from qkv.core.parts import array_field, delegates
from qkv.core.tile import Centre, Tile
from qkv.core.typing import Array, KeyArray, LiftedArrays, Num, QueryArray
from qkv.errors import ShapeError
from qkv.scores.base import Score
from qkv.scores.forms import Form, of_projections
from qkv.scores.wrapper import WrapperScore

__all__ = ["Projected"]


@delegates("score", "projected_logits", "bound")
@dataclass(frozen=True, eq=False)
class Projected(WrapperScore):
    """Score that applies an inner score to linear projections of query and key, whose widths may differ.

    Args:
        score: the inner score, which compares the projected query and key.
        query_weight: W_Q `(hidden, query_width)`, the layout of `torch.nn.Linear.weight`; None: no projection.
        key_weight: W_K `(hidden, key_width)`; None: no projection.

    Shapes:
        query `(*batch, q, query_width)`, key `(*batch, k, key_width)` -> logits `(*batch, q, k)`

    Raises:
        ShapeError: a weight does not match the width of query or key, or the inner score cannot compare the
            projected widths.

    Example:
        >>> import numpy as np
        >>> from qkv import scores
        >>> score = scores.Projected(scores.Dot(), query_weight=np.array([[1.0, 1.0, 1.0]]))  # from width 3 to width 1
        >>> score(np.ones((1, 3)), np.array([[2.0]]))
        array([[6.]])
    """

    score: Score
    query_weight: Array | None = array_field("hidden", "query_width", default=None)
    key_weight: Array | None = array_field("hidden", "key_width", default=None)

    @property
    def form(self) -> Form:  # type: ignore[override]
        """The form of the inner score as far as it holds for queries and keys that are projected before."""
        return of_projections(self.score.form, self.query_weight, self.key_weight)

    def check_widths(self, query_width: int, key_width: int) -> None:
        for side, weight, width in (("query", self.query_weight, query_width), ("key", self.key_weight, key_width)):
            if weight is not None and weight.shape[-1] != width:
                raise ShapeError(
                    f"{side} of width {width} must match {side}_weight of Projected, got a weight for width "
                    f"{weight.shape[-1]}. Give {side}_weight of shape (hidden, {width})."
                )
        self.score.check_widths(*self._widths(query_width, key_width))

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        return self.score.elements_per_logit(*self._widths(query_width, key_width))

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        return self.score.flop_per_logit(*self._widths(query_width, key_width))

    def logits(self, query: QueryArray, key: KeyArray, tile: Tile) -> Num[Array, "*#batch #q #k"]:
        return self.score.logits(*self._project(query, key), tile)

    def lifted_width(self, query_width: int, key_width: int) -> int:
        return self.score.lifted_width(*self._widths(query_width, key_width))

    def lift_description(self) -> str:
        return self._lift_description_with("query and key projected")

    def query_term(self, query: QueryArray, tile: Tile) -> Num[Array, "*#batch q"] | None:
        return self.score.query_term(linear_map(query, self.query_weight), tile)

    def project(
        self, query: QueryArray, key: KeyArray, tile: Tile
    ) -> tuple[Num[Array, "*#batch q left_width"], Num[Array, "*#batch k right_width"]]:
        return self.score.project(*self._project(query, key), tile)

    def lift(self, query: QueryArray, key: KeyArray, tile: Tile) -> LiftedArrays:
        return self.score.lift(*self._project(query, key), tile)

    def by_differences(self, query: Array | None = None, key: Array | None = None) -> Score:
        if query is None or key is None:
            return super().by_differences()
        return self._with_inner(self.score.by_differences(*self._project(query, key)))

    def lift_range(
        self, query: QueryArray, key: KeyArray, centre: Centre = None, cheap: bool = False
    ) -> tuple[Num[Array, ""] | float, Num[Array, ""] | float]:
        if cheap:  # the projections take as long as the range itself
            return math.inf, math.inf
        return self.score.lift_range(*self._project(query, key), centre)

    def centre(self, key: Num[Array, "*batch k key_width"]) -> Centre:
        return self.score.centre(linear_map(key, self.key_weight))

    def _project(
        self, query: QueryArray, key: KeyArray
    ) -> tuple[Num[Array, "*#batch q left_width"], Num[Array, "*#batch k right_width"]]:
        return linear_map(query, self.query_weight), linear_map(key, self.key_weight)

    def _widths(self, query_width: int, key_width: int) -> tuple[int, int]:
        left = query_width if self.query_weight is None else self.query_weight.shape[-2]
        right = key_width if self.key_weight is None else self.key_weight.shape[-2]
        return left, right


def linear_map(
    x: Num[Array, "*#batch n width"], weight: Num[Array, "*#batch hidden width"] | None
) -> Num[Array, "*#batch n hidden"]:
    """Return W x for each row x, or x if there is no weight W."""
    xp = namespace(x)
    return x if weight is None else xp.matmul(x, xp.matrix_transpose(weight))
