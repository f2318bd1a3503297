"""Projected: learned linear maps bring query and key to one width before another score compares them.

    logit(q, k) = score(W_Q q, W_K k)

Source: Vaswani et al. (2017), Attention Is All You Need, section 3.2.2, https://arxiv.org/abs/1706.03762.
"""

from dataclasses import dataclass
from typing import Any

from qkv.core.arrays import Array, namespace
from qkv.core.parts import array_field
from qkv.core.tile import Tile
from qkv.errors import ShapeError
from qkv.scores.base import LiftKind, Score, WrapperScore

__all__ = ["Projected"]


@dataclass(frozen=True, eq=False)
class Projected(WrapperScore):
    """Another score of the mapped query and key; the widths may differ.

    Args:
        score: compares what the maps give.
        query_weight: W_Q `(hidden, query_width)`, laid out as `torch.nn.Linear` has it; None: the query as it
            is.
        key_weight: W_K `(hidden, key_width)`; None: the key as it is.

    Shapes:
        query `(*batch, q, query_width)`, key `(*batch, k, key_width)` -> logits `(*batch, q, k)`

    Raises:
        ShapeError: a map does not fit its side, or the mapped widths do not fit the score.

    Example:
        >>> import numpy as np
        >>> from qkv.scores import Dot
        >>> Projected(Dot(), query_weight=np.array([[1.0, 1.0, 1.0]]))(np.ones((1, 3)), np.array([[2.0]]))
        array([[6.]])
    """

    score: Score
    query_weight: Array | None = array_field("hidden", "query_width", default=None)
    key_weight: Array | None = array_field("hidden", "key_width", default=None)

    @property
    def is_inner_product(self) -> bool:
        """Fact: as the score within."""
        return self.score.is_inner_product

    @property
    def tanh_vector(self) -> Array | None:  # type: ignore[override]
        """The fact of the inner score."""
        return self.score.tanh_vector

    @property
    def gated_product(self) -> bool:  # type: ignore[override]
        """The fact of the inner score."""
        return self.score.gated_product

    @property
    def lift_kind(self) -> LiftKind | None:
        """Fact: as the score within."""
        return self.score.lift_kind

    def check_widths(self, query_width: int, key_width: int) -> None:
        """Each map fits its side, and what comes out fits the score."""
        widths = []
        for side, weight, width in (
            ("query", self.query_weight, query_width),
            ("key", self.key_weight, key_width),
        ):
            if weight is not None and weight.shape[-1] != width:
                raise ShapeError(
                    f"{side} has width {width}; Projected has a {side}_weight for width {weight.shape[-1]}. "
                    f"Give {side}_weight of shape (hidden, {width})."
                )
            widths.append(width if weight is None else weight.shape[-2])
        self.score.check_widths(*widths)

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        """Fact: as the score within, at the mapped widths."""
        return self.score.elements_per_logit(*self._widths(query_width, key_width))

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        """Fact: as the score within, at the mapped widths."""
        return self.score.flop_per_logit(*self._widths(query_width, key_width))

    def logits(self, query: Array, key: Array, tile: Tile) -> Array:
        """The inner score of the mapped tile."""
        return self.score.logits(*self._maps(query, key), tile)

    def lifted_width(self, query_width: int, key_width: int) -> int:
        """Fact: as the score within, at the mapped widths."""
        return self.score.lifted_width(*self._widths(query_width, key_width))

    def lift_description(self) -> str:
        """Fact: both sides mapped."""
        return ", ".join(said for said in (self.score.lift_description(), "both sides mapped") if said)

    def query_term(self, query: Array, tile: Tile) -> Array | None:
        """That of the score within, of the mapped query."""
        return self.score.query_term(self._through(query, self.query_weight), tile)

    def project(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array]:
        """Those of the score within, of the mapped sides."""
        return self.score.project(*self._maps(query, key), tile)

    def projected_logits(self, left: Array, right: Array, tile: Tile) -> Array:
        """As the score within."""
        return self.score.projected_logits(left, right, tile)

    def bound(self, left: Array, right: Array) -> Array | None:
        """As the score within."""
        return self.score.bound(left, right)

    def lift(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array]:
        """The inner lift of the mapped sides."""
        return self.score.lift(*self._maps(query, key), tile)

    def centre(self, key: Array) -> Any:
        """That of the score within, of the mapped keys."""
        return self.score.centre(self._through(key, self.key_weight))

    def _maps(self, query: Array, key: Array) -> tuple[Array, Array]:
        return self._through(query, self.query_weight), self._through(key, self.key_weight)

    def _through(self, x: Array, weight: Array | None) -> Array:
        xp = namespace(x)
        return x if weight is None else xp.matmul(x, xp.matrix_transpose(weight))

    def _widths(self, query_width: int, key_width: int) -> tuple[int, int]:
        left = query_width if self.query_weight is None else self.query_weight.shape[-2]
        right = key_width if self.key_weight is None else self.key_weight.shape[-2]
        return left, right
