"""Base classes of scores that wrap another score: `WrapperScore`, and `PointwiseScore`, which changes each logit."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from qkv.core.parts import delegates
from qkv.core.tile import Tile
from qkv.core.typing import Array, Num, Shaped
from qkv.errors import KindError
from qkv.scores.base import Score, require_score
from qkv.scores.forms import Form, LiftKind, Offset, Product, Wrapped

__all__ = ["PointwiseScore", "WrapperScore"]


@delegates("score", "accepts", "accepts_records", "default_normalizer", "elements_per_logit", "lifted_width")
@delegates("score", "lift_description", "check_widths", "centre", "cancels", "lift_range")
class WrapperScore(Score):
    """Base class of scores that wrap an inner score and by default accept the same inputs as the inner score."""

    score: Score
    uses_positions: ClassVar[bool] = False
    """Whether the wrapper itself depends on positions."""

    def __post_init__(self) -> None:
        require_score(self.score, f"score of {type(self).__name__}")
        super().__post_init__()

    @property
    def positional(self) -> bool:  # type: ignore[override]
        return self.uses_positions or self.score.positional

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        return self.score.flop_per_logit(query_width, key_width) + 4

    def simplify(self, q: int, k: int) -> Score:
        return self._with_inner(self.score.simplify(q, k))

    def by_differences(self, query: Array | None = None, key: Array | None = None) -> Score:
        # Otherwise a constant per query would change the logits by more than a constant.
        constant = isinstance(self.form, Offset)
        return self._with_inner(self.score.by_differences(*((query, key) if constant else (None, None))))

    def _with_inner(self, inner: Score) -> Score:
        return self if inner is self.score else replace(self, score=inner)

    def _lift_description_with(self, addition: str) -> str:
        return ", ".join(words for words in (self.score.lift_description(), addition) if words)


@delegates("score", "query_term")
class PointwiseScore(WrapperScore):
    """Base class of scores that change each logit of an inner score. Subclasses define `offset` or `transform`.

    Example:
        >>> import numpy as np
        >>> from dataclasses import dataclass
        >>> from qkv import scores
        >>> @dataclass(frozen=True, eq=False)
        ... class Halved(scores.PointwiseScore):
        ...     score: scores.Score
        ...     def transform(self, logits, tile):
        ...         return logits / 2
        >>> Halved(scores.Dot())(np.array([[2.0]]), np.array([[3.0]]))
        array([[3.]])
    """

    @property
    def lift_kind(self) -> LiftKind | None:
        """How far the changed logits are the inner products of the vectors of `lift`; None if there is no `lift`."""
        return None

    @property
    def form(self) -> Form:  # type: ignore[override]
        """An inner product if `lift` is exact, otherwise an offset or another function of the inner logit."""
        lift = self.lift_kind
        if lift == "exact":
            return Product(inner=self.score)
        # Whatever adds an offset to logits uses the transform of this class.
        return (Offset if type(self).transform is PointwiseScore.transform else Wrapped)(self.score, lift=lift)

    def offset(self, tile: Tile, reference: Array) -> Num[Array, "*#batch #q #k"]:
        """Return the array to add to the inner logits of a tile; it broadcasts to `(*batch, q, k)`.

        Args:
            tile: the tile.
            reference: an array of the library, device and dtype of the result.

        Raises:
            KindError: the class defines neither `offset` nor `transform`.
        """
        raise KindError(
            f"subclasses of PointwiseScore must define offset or transform, got neither in {type(self).__name__}. "
            "Define one of them."
        )

    def transform(self, logits: Num[Array, "*#batch #q #k"], tile: Tile) -> Num[Array, "*#batch #q #k"]:
        """Return the changed logits of a tile, `(*batch, q, k)`. The default adds `offset` to the inner logits."""
        return logits + self.offset(tile, logits)

    def logits(self, query: Shaped[Array, "*_"], key: Shaped[Array, "*_"], tile: Tile) -> Num[Array, "*#batch #q #k"]:
        return self.transform(self.score.logits(query, key, tile), tile)

    def project(
        self, query: Shaped[Array, "*_"], key: Shaped[Array, "*_"], tile: Tile
    ) -> tuple[Shaped[Array, "*_"], Shaped[Array, "*_"]]:
        if self.lift_kind == "exact":
            return super().project(query, key, tile)
        return self.score.project(query, key, tile)

    def projected_logits(
        self, left: Shaped[Array, "*_"], right: Shaped[Array, "*_"], tile: Tile
    ) -> Num[Array, "*#batch #q #k"]:
        if self.lift_kind == "exact":
            return super().projected_logits(left, right, tile)
        return self.transform(self.score.projected_logits(left, right, tile), tile)
