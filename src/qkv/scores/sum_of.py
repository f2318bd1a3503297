"""Sum of scores: several comparisons of the same query and key, added.

    logit(q, k) = Σ_s score_s(q, k)

Under softmax the weights are the normalised product of what each score alone would give.
"""

from dataclasses import dataclass, replace
from typing import Any

from qkv.core.arrays import Array
from qkv.core.tile import Tile
from qkv.errors import OptionError
from qkv.scores.base import LiftKind, Score, concat_features

__all__ = ["SumOf"]


@dataclass(frozen=True, eq=False)
class SumOf(Score):
    """The sum of several scores of the same pair.

    Args:
        scores: one or more scores, as a tuple.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> logits `(*batch, q, k)`

    Raises:
        OptionError: no score, or something that is none.
        ShapeError: as the scores.

    Example:
        >>> import numpy as np
        >>> from qkv.scores import Constant, Dot
        >>> SumOf((Dot(), Dot(), Constant()))(np.array([[3.0]]), np.array([[1.0]]))
        array([[6.]])
    """

    scores: tuple[Score, ...]

    def validate(self) -> None:
        """A tuple of scores."""
        if not isinstance(self.scores, tuple) or not self.scores:
            raise OptionError(f"SumOf was given {self.scores!r}. Give a tuple of one or more scores.")
        for score in self.scores:
            if not isinstance(score, Score):
                raise OptionError(f"SumOf was given {score!r} among its scores, which is none.")

    @property
    def lift_kind(self) -> LiftKind | None:
        """Fact: the weakest of the scores within."""
        facts = {score.lift_kind for score in self.scores}
        return None if None in facts else "up_to_query_constant" if len(facts) > 1 else facts.pop()

    @property
    def positional(self) -> bool:  # type: ignore[override]
        """Fact: any of them is."""
        return any(score.positional for score in self.scores)

    @property
    def accepts(self) -> str:  # type: ignore[override]
        """Fact: what the first of them that minds takes."""
        return next((score.accepts for score in self.scores if score.accepts != "any"), "any")

    @property
    def default_normalizer(self) -> str:  # type: ignore[override]
        """Fact: that of the first score."""
        return self.scores[0].default_normalizer

    def check_widths(self, query_width: int, key_width: int) -> None:
        """Every score can compare these widths."""
        for score in self.scores:
            score.check_widths(query_width, key_width)

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        """Fact: the largest of them; they run one after another."""
        return 1 + max(score.elements_per_logit(query_width, key_width) for score in self.scores)

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        """Fact: the sum of them."""
        return sum(score.flop_per_logit(query_width, key_width) + 1 for score in self.scores)

    def logits(self, query: Array, key: Array, tile: Tile) -> Array:
        """The sum of their tiles."""
        total = self.scores[0].logits(query, key, tile)
        for score in self.scores[1:]:
            total = total + score.logits(query, key, tile)
        return total

    def centre(self, key: Array) -> tuple[Any, ...]:
        """One for each score."""
        return tuple(score.centre(key) for score in self.scores)

    def lift(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array]:
        """The lifted vectors side by side."""
        centres = tile.centre if tile.centre is not None else (None,) * len(self.scores)
        lifted = [
            score.lift(query, key, replace(tile, centre=centre))
            for score, centre in zip(self.scores, centres, strict=True)
        ]
        return concat_features([left for left, _ in lifted]), concat_features([right for _, right in lifted])

    def lifted_width(self, query_width: int, key_width: int) -> int:
        """Fact: all of them, side by side."""
        return sum(score.lifted_width(query_width, key_width) for score in self.scores)

    def lift_description(self) -> str:
        """Fact: those of the scores."""
        return "; ".join(["side by side", *(said for score in self.scores if (said := score.lift_description()))])

    def flatten(self) -> Score:
        """Sums within are opened; one score alone is itself."""
        parts = [score.flatten() for score in self.scores]
        opened = tuple(one for part in parts for one in (part.scores if isinstance(part, SumOf) else (part,)))
        if len(opened) == 1:
            return opened[0]
        unchanged = len(opened) == len(self.scores) and all(
            mine is theirs for mine, theirs in zip(opened, self.scores, strict=True)
        )
        return self if unchanged else SumOf(opened)

    def query_term(self, query: Array, tile: Tile) -> Array | None:
        """The sum of what their lifts leave out."""
        centres = tile.centre if tile.centre is not None else (None,) * len(self.scores)
        terms = [
            score.query_term(query, replace(tile, centre=centre))
            for score, centre in zip(self.scores, centres, strict=True)
        ]
        known = [term for term in terms if term is not None]
        return sum(known[1:], known[0]) if known else None
