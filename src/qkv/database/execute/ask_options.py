"""The class `AskOptions`, the arguments of `Database.ask` except the queries, and checks of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

from qkv.core.checks import check_choice
from qkv.core.progress import Progress
from qkv.database.keys.comparisons import MatchLimits
from qkv.errors import OptionError
from qkv.masks.base import Mask
from qkv.normalizers.base import Normalizer
from qkv.scores.base import Score

if TYPE_CHECKING:
    from qkv.database.candidates.candidates import Candidates

__all__ = ["AGGREGATES", "AskOptions", "check_aggregate", "check_limits"]

AGGREGATES = ("mean", "vote", "local-linear")
"""The values of the argument `aggregate` of `Database.ask`; None: mean or vote, by the kind of the values."""
_LIMITS = {"min_similarity": "least similarity", "max_distance": "largest distance"}


@dataclass(frozen=True, eq=False)
class AskOptions:
    """The arguments of `Database.ask` except the queries."""

    score: Score | str | None = None
    normalizer: Normalizer | str | None = None
    mask: Mask | None = None
    where: str | None = None
    top: int = 10
    min_similarity: float | None = None
    max_distance: float | None = None
    seed: int | None = None
    progress: Progress | None = None
    on_bad_query: str = "refuse"
    aggregate: str | None = None
    printed: bool = False
    candidates: Candidates | None = None
    default_limits: bool = False

    @property
    def limits(self) -> MatchLimits:
        """The limits of a match."""
        return MatchLimits(self.min_similarity, self.max_distance, self.default_limits)

    @property
    def linear(self) -> bool:
        """Whether answers are on a line through the rows near the query."""
        return self.aggregate == "local-linear"


def check_aggregate(aggregate: str | None, name: str = "aggregate") -> None:
    """Raise an `OptionError` if `aggregate` is neither None nor one of `AGGREGATES`."""
    if aggregate is not None:
        check_choice(name, aggregate, AGGREGATES)


def check_limits(min_similarity: object, max_distance: object) -> None:
    """Raise an `OptionError` if a limit of a match is neither None nor a number."""
    for name, limit in (("min_similarity", min_similarity), ("max_distance", max_distance)):
        number = isinstance(limit, Real) and not isinstance(limit, bool) and not math.isnan(limit)
        if limit is not None and not number:
            raise OptionError(f"{name} must be a number, got {limit!r}. Pass the {_LIMITS[name]} of a match.")
