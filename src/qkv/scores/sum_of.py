"""SumOf: the sum of several scores of the same query and key.

    logit(q, k) = Σ_s score_s(q, k)

With softmax, the weights are proportional to the product of the weights that the individual scores give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

from qkv.core.tile import Centre, Tile
from qkv.core.typing import Array, KeyArray, LiftedArrays, Num, QueryArray, Shaped
from qkv.errors import OptionError
from qkv.scores.base import Score
from qkv.scores.forms import Form, Pairwise, Product, concat_features

__all__ = ["SumOf"]


@dataclass(frozen=True, eq=False)
class SumOf(Score):
    """Sum of several scores, all of which compare the same query and key.

    Args:
        scores: a tuple of one or more scores.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> logits `(*batch, q, k)`

    Raises:
        OptionError: `scores` is not a tuple of one or more scores.
        ShapeError: any of the scores cannot compare query and key of these widths.

    Example:
        >>> import numpy as np
        >>> from qkv.scores import Constant, Dot
        >>> SumOf((Dot(), Dot(), Constant()))(np.array([[3.0]]), np.array([[1.0]]))
        array([[6.]])
    """

    scores: tuple[Score, ...]

    def validate(self) -> None:
        if not isinstance(self.scores, tuple) or not self.scores:
            raise OptionError(
                f"scores must be a tuple of one or more scores, got {self.scores!r}. Pass SumOf((score, …))."
            )
        for score in self.scores:
            if not isinstance(score, Score):
                raise OptionError(f"each of scores must be a score, such as Dot(), got {score!r}. Pass instances.")

    @property
    def form(self) -> Form:  # type: ignore[override]
        """An inner product if all scores have a lift, which is exact if all lifts are; otherwise any function."""
        lifts = {score.form.lift for score in self.scores}
        if None in lifts:
            return Pairwise()
        return Product(lift="up_to_query_constant" if len(lifts) > 1 else lifts.pop())

    @property
    def positional(self) -> bool:  # type: ignore[override]
        return any(score.positional for score in self.scores)

    @property
    def cancels(self) -> bool:  # type: ignore[override]
        return any(score.cancels for score in self.scores)

    @property
    def accepts_records(self) -> bool:  # type: ignore[override]
        return all(score.accepts_records for score in self.scores)

    @property
    def accepts(self) -> str:  # type: ignore[override]
        return next((score.accepts for score in self.scores if score.accepts != "any"), "any")

    @property
    def default_normalizer(self) -> str:  # type: ignore[override]
        return self.scores[0].default_normalizer

    def check_widths(self, query_width: int, key_width: int) -> None:
        for score in self.scores:
            score.check_widths(query_width, key_width)

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        return 1 + max(score.elements_per_logit(query_width, key_width) for score in self.scores)

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        return sum(score.flop_per_logit(query_width, key_width) + 1 for score in self.scores)

    def logits(self, query: Shaped[Array, "*_"], key: Shaped[Array, "*_"], tile: Tile) -> Num[Array, "*#batch #q #k"]:
        return reduce(add, (score.logits(query, key, at) for score, at in self._with_centers(tile)))

    def centre(self, key: Num[Array, "*batch k key_width"]) -> tuple[Centre, ...]:
        return tuple(score.centre(key) for score in self.scores)

    def lift(self, query: QueryArray, key: KeyArray, tile: Tile) -> LiftedArrays:
        lefts, rights = zip(*(score.lift(query, key, at) for score, at in self._with_centers(tile)), strict=True)
        return concat_features(*lefts), concat_features(*rights)

    def lifted_width(self, query_width: int, key_width: int) -> int:
        return sum(score.lifted_width(query_width, key_width) for score in self.scores)

    def lift_description(self) -> str:
        return "; ".join(["lifts concatenated", *filter(None, (score.lift_description() for score in self.scores))])

    def flatten(self) -> Score:
        scores: list[Score] = []
        for score in (score.flatten() for score in self.scores):
            scores += score.scores if isinstance(score, SumOf) else (score,)
        if len(scores) == 1:
            return scores[0]
        return self._with_scores(scores) if len(scores) == len(self.scores) else SumOf(tuple(scores))

    def simplify(self, q: int, k: int) -> Score:
        return self._with_scores([score.simplify(q, k) for score in self.scores])

    def by_differences(self, query: Array | None = None, key: Array | None = None) -> Score:
        return self._with_scores([score.by_differences(query, key) for score in self.scores])

    def lift_range(
        self, query: QueryArray, key: KeyArray, centre: Centre = None, cheap: bool = False
    ) -> tuple[Num[Array, ""] | float, Num[Array, ""] | float]:
        centers = centre if isinstance(centre, tuple) else (None,) * len(self.scores)
        own = zip(self.scores, centers, strict=True)
        ranges = [score.lift_range(query, key, each, cheap) for score, each in own if score.cancels]
        return reduce(add, (each[0] for each in ranges)), reduce(add, (each[1] for each in ranges))

    def _with_scores(self, scores: Sequence[Score]) -> Score:
        same = all(new is old for new, old in zip(scores, self.scores, strict=True))
        return self if same else SumOf(tuple(scores))

    def query_term(self, query: QueryArray, tile: Tile) -> Num[Array, "*#batch q"] | None:
        terms = [score.query_term(query, at) for score, at in self._with_centers(tile)]
        given = [term for term in terms if term is not None]
        return reduce(add, given) if given else None

    def _with_centers(self, tile: Tile) -> list[tuple[Score, Tile]]:
        centers = tile.centre if isinstance(tile.centre, tuple) else (None,) * len(self.scores)
        return [(score, replace(tile, centre=each)) for score, each in zip(self.scores, centers, strict=True)]
