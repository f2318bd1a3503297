"""One `ask`: queries go to the engine a chunk at a time, and come back as answers with evidence."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.core.progress import Progress
from qkv.database.answer import Entry
from qkv.database.execute.aggregates import Reading, Values
from qkv.database.keys.comparisons import Comparison
from qkv.database.keys.part_registry import parse_normalizer
from qkv.database.keys.queries import Queries
from qkv.engine import observe
from qkv.errors import KindError, QueryError, ShapeError
from qkv.masks import Keys as KeysMask
from qkv.masks.base import Mask
from qkv.normalizers import Hard, Mean
from qkv.normalizers.base import Normalizer
from qkv.readouts import Dense, Entropy, TopWeights

__all__ = ["NOBODY", "Asking", "Found", "entries_of"]

NOBODY = "no row satisfies the predicate"
_CHUNK = 1024
# Votes need the weights of all rows: a chunk then holds this many, 32 MiB of float64.
_MOST_WEIGHTS = 4 * 2**20


@dataclass(frozen=True, eq=False)
class Asking:
    """What is fixed for all queries of a call."""

    comparison: Comparison
    normalizer: Normalizer | None
    values: Values
    kept: np.ndarray
    mask: Mask | None
    top: int
    seed: int | None

    @property
    def effective(self) -> Normalizer:
        """The normalizer that runs: the one given, or the score's own."""
        return self.normalizer or parse_normalizer(self.comparison.score.default_normalizer)

    @property
    def normalizer_text(self) -> str:
        """Its name, for the notes."""
        return str(self.effective)

    def run(self, queries: Queries, progress: Progress | None) -> tuple[tuple[Entry, ...], Any]:
        """The entries in the order asked, and the plan of the first chunk."""
        chunk = _CHUNK if not self.values.votes else max(1, min(_CHUNK, _MOST_WEIGHTS // len(self.kept)))
        mask = self._rows_mask()
        entries: list[Entry] = []
        plan = None
        # At least once, so that no query at all still has a plan.
        for start in range(0, max(len(queries), 1), chunk):
            part = queries.part(start, min(start + chunk, len(queries)))
            found, chunk_plan = self._chunk(part, mask)
            plan = plan if plan is not None else chunk_plan
            entries += found
            if progress is not None:
                progress("answering", len(entries), len(queries))
        return tuple(entries), plan

    def _rows_mask(self) -> Mask | None:
        if self.kept.all():
            return self.mask
        rows = KeysMask(self.kept)
        return rows if self.mask is None else rows & self.mask

    def _chunk(self, queries: Queries, mask: Mask | None) -> tuple[list[Entry], Any]:
        query = self.comparison.query(queries.cells)
        top = min(self.top, len(self.kept))
        sums_to_one = self.effective.sums_to_one
        readouts = [
            TopWeights(top),
            *([Entropy()] if sums_to_one else []),
            *([Dense()] if self.values.votes else []),
        ]
        seen = self._observe(query, self.values.matrix, mask, self.normalizer, readouts)
        strongest = seen.readouts[0]
        weights, rows = np.asarray(strongest.weights), np.asarray(strongest.keys)
        support = np.exp(np.asarray(seen.readouts[1])) if sums_to_one else None
        dense = np.asarray(seen.readouts[-1]) if self.values.votes else None
        output = np.asarray(seen.output)
        readings = self.values.read(output, dense)
        nearest = rows[:, 0]
        if self.effective.stochastic:
            # The row that was drawn need not be the nearest, so the nearest is looked for by itself.
            alone = self._observe(query, np.ones((len(self.kept), 1)), mask, Hard(), [TopWeights(1)])
            nearest = np.asarray(alone.readouts[0].keys)[:, 0]
        found = Found(rows, weights, nearest, support, readings)
        nobody = "" if self.kept.any() else NOBODY
        return entries_of(queries, query, self.comparison, found, self.effective, nobody), seen.plan

    def _observe(
        self,
        query: np.ndarray,
        value: np.ndarray,
        mask: Mask | None,
        normalizer: Normalizer | None,
        readouts: list[Any],
    ) -> Any:
        try:
            return observe(
                query,
                self.comparison.key,
                value,
                score=self.comparison.score,
                normalizer=normalizer,
                mask=mask,
                readouts=tuple(readouts),
                seed=self.seed,
            )
        except (KindError, ShapeError) as error:
            # The score was chosen by the user, and the key is what the table holds: they do not go together.
            raise QueryError(f"{self.comparison.score} does not fit this key: {error}") from None


@dataclass(frozen=True, eq=False)
class Found:
    """What was found for some queries.

    Fields:
        rows: the rows of most weight, heaviest first, `(q, n)`; −1 where there are fewer.
        weights: theirs.
        nearest: the row that is nearest, `(q,)`; −1 where there is none.
        support: `(q,)`; None where the weights do not sum to 1.
        readings: an answer for each query.
    """

    rows: np.ndarray
    weights: np.ndarray
    nearest: np.ndarray
    support: np.ndarray | None
    readings: list[Reading]


def entries_of(
    queries: Queries,
    query: np.ndarray,
    comparison: Comparison,
    found: Found,
    normalizer: Normalizer,
    nobody: str = "",
    places: np.ndarray | None = None,
) -> list[Entry]:
    """Answers with their evidence, or with the reason why there is none.

    Args:
        queries, query: what was asked, and the engine's array of it.
        comparison: over the rows that `found` speaks of.
        found: what was found.
        normalizer: that ran.
        nobody: why no row takes part at all; "" where some do.
        places: where these rows are in the table; None: they are the table.
    """
    reasons = _reasons(queries, query, comparison, found, normalizer, nobody)
    safe = np.maximum(found.rows, 0)
    nearness = comparison.nearness(query, safe) if len(comparison.key) else None
    entries = []
    for i, asked in enumerate(queries.asked):
        if reasons[i]:
            entries.append(Entry(asked, False, reason=reasons[i]))
            continue
        shown = (found.rows[i] >= 0) & (found.weights[i] != 0)
        rows = safe[i][shown]
        entries.append(
            Entry(
                asked,
                True,
                found.readings[i].value,
                found.readings[i].spread,
                None if found.support is None else float(found.support[i]),
                "",
                found.readings[i].probabilities,
                rows if places is None else places[rows],
                found.weights[i][shown],
                None if nearness is None else nearness[i][shown],
            )
        )
    return entries


def _reasons(
    queries: Queries,
    query: np.ndarray,
    comparison: Comparison,
    found: Found,
    normalizer: Normalizer,
    nobody: str,
) -> list[str]:
    """Why each query has no match; empty where it has one."""
    empty = (found.nearest < 0) | (found.weights[:, 0] == 0)
    # The mean of all rows looks at no query, so no query is unlike its keys.
    unlike: list[str | None] = [None] * len(found.nearest)
    if not isinstance(normalizer, Mean) and len(comparison.key):
        unlike = comparison.refusals(query, np.maximum(found.nearest, 0))
    reasons = []
    for missing, none, refusal in zip(queries.missing, empty, unlike, strict=True):
        if missing:
            reasons.append("the query is missing")
        elif nobody:
            reasons.append(nobody)
        elif none:
            reasons.append(comparison.no_weight)
        else:
            reasons.append(refusal or "")
    return reasons
