"""The class `AskOptions`, the arguments of `Database.ask` except the queries, and checks of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

from qkv.core.checks import check_choice
from qkv.core.progress import Progress
from qkv.errors import OptionError
from qkv.masks.base import Mask
from qkv.normalizers.base import Normalizer
from qkv.scores.base import Score

if TYPE_CHECKING:
    from qkv.database.candidates.candidates import Candidates

__all__ = ["AGGREGATES", "AskOptions", "check_aggregate", "check_threshold"]

AGGREGATES = ("mean", "vote", "local-linear")
"""The values of the argument `aggregate` of `Database.ask`; None: mean or vote, by the kind of the values."""


@dataclass(frozen=True, eq=False)
class AskOptions:
    """The arguments of `Database.ask` except the queries."""

    score: Score | str | None = None
    normalizer: Normalizer | str | None = None
    mask: Mask | None = None
    where: str | None = None
    top: int = 10
    threshold: float | None = None
    seed: int | None = None
    progress: Progress | None = None
    on_bad_query: str = "refuse"
    aggregate: str | None = None
    printed: bool = False
    candidates: Candidates | None = None

    @property
    def linear(self) -> bool:
        """Whether answers are on a line through the rows near the query."""
        return self.aggregate == "local-linear"


def check_aggregate(aggregate: str | None, name: str = "aggregate") -> None:
    """Raise an `OptionError` if `aggregate` is neither None nor one of `AGGREGATES`."""
    if aggregate is not None:
        check_choice(name, aggregate, AGGREGATES)


def check_threshold(threshold: object) -> None:
    """Raise an `OptionError` if the threshold of a match is neither None nor a number."""
    number = isinstance(threshold, Real) and not isinstance(threshold, bool) and not math.isnan(threshold)
    if threshold is not None and not number:
        raise OptionError(
            f"threshold must be a number, got {threshold!r}. Pass the smallest similarity, or the largest distance, of "
            "a match."
        )
