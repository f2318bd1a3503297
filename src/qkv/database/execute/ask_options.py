"""The class `AskOptions`, the arguments of `Database.ask` except the queries, and their defaults in stores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qkv.core.checks import check_choice, check_integers
from qkv.core.progress import Progress
from qkv.core.typing import Bool
from qkv.database.keys.comparisons import MatchLimits
from qkv.errors import OptionError
from qkv.masks import AllowedKeys
from qkv.masks.base import Mask
from qkv.normalizers.base import Normalizer
from qkv.scores.base import Score

if TYPE_CHECKING:
    from qkv.database.candidates.candidates import Candidates


AGGREGATES = ("mean", "vote", "local-linear")
"""The values of the argument `aggregate` of `Database.ask`; None: mean or vote, by the kind of the values."""


class AskDefaults(NamedTuple):
    """The defaults of `Database.ask` that are saved with a store; None where its own defaults hold."""

    score: str | None = None
    normalizer: str | None = None
    min_similarity: float | None = None
    max_distance: float | None = None


@dataclass(frozen=True, eq=False)
class AskOptions:
    """The arguments of `Database.ask` except the queries.

    Raises:
        OptionError: `top`, `on_bad_query`, `aggregate`, `tolerance` or a limit is not allowed.
    """

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
    tolerance: float = 0.0
    default_limits: bool = False

    def __post_init__(self) -> None:
        check_integers(top=self.top)
        check_choice("on_bad_query", self.on_bad_query, ("refuse", "report"))
        if self.aggregate is not None:
            check_choice("aggregate", self.aggregate, AGGREGATES)
        if not (isinstance(self.tolerance, Real) and 0 <= self.tolerance < 1):
            raise OptionError(
                f"tolerance must be a number from 0 to below 1, got {self.tolerance!r}. Pass the weight that may be "
                "left out, such as 1e-3."
            )
        for name, noun in (("min_similarity", "least similarity"), ("max_distance", "largest distance")):
            limit = getattr(self, name)
            least, kind = (0.0, "number of at least 0") if name == "max_distance" else (-math.inf, "number")
            number = isinstance(limit, Real) and not isinstance(limit, bool) and limit >= least  # no NaN
            if limit is not None and not number:
                raise OptionError(f"{name} must be a {kind}, got {limit!r}. Pass the {noun} of a match.")

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `Database.ask`."""
        return {name: value for name, value in vars(self).items() if name != "default_limits"}

    @property
    def limits(self) -> MatchLimits:
        """The limits of a match."""
        return MatchLimits(self.min_similarity, self.max_distance, self.default_limits)

    @property
    def allowed_keys(self) -> Bool[np.ndarray, " rows"] | None:
        """Which rows the mask allows, if they are the same for all queries; otherwise None. One element is for all."""
        array = np.asarray(self.mask.array) if isinstance(self.mask, AllowedKeys) else np.zeros((1, 1))
        return array if array.ndim == 1 else None

    @property
    def linear(self) -> bool:
        """Whether answers are on a line through the rows near the query."""
        return self.aggregate == "local-linear"
