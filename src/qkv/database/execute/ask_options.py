"""The class `AskOptions`, the arguments of `Database.ask` except the queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qkv.core.progress import Progress
from qkv.masks.base import Mask
from qkv.normalizers.base import Normalizer
from qkv.scores.base import Score

if TYPE_CHECKING:
    from qkv.database.candidates.candidates import Candidates

__all__ = ["AskOptions"]


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
    fit: str | None = None
    printed: bool = False
    candidates: Candidates | None = None

    @property
    def linear(self) -> bool:
        """Whether answers are on a line through the rows near the query."""
        return self.fit == "local-linear"
