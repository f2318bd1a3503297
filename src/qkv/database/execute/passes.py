"""One call of `ask` over the blocks of a store: a pass for some queries, and their answers with evidence."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.core.ordering import top_k_indices
from qkv.core.progress import Progress
from qkv.database.answer import Entry
from qkv.database.execute.accumulators import accumulator_for
from qkv.database.execute.aggregates import values_of
from qkv.database.execute.in_memory import NOBODY, Asking, Found, entries_of
from qkv.database.execute.scan import CellLogits, Logits, fast_logits
from qkv.database.execute.stream_plan import StreamedPlan
from qkv.database.execute.streamed_aggregates import Tally, tally_of
from qkv.database.execute.top_rows import TopRows
from qkv.database.keys.columns import Column
from qkv.database.keys.comparisons import Comparison
from qkv.database.keys.queries import Queries
from qkv.errors import RefusedError
from qkv.normalizers.base import Normalizer

if TYPE_CHECKING:
    from qkv.database.execute.streamed import Streamed

__all__ = ["Call"]

_QUERIES = 64
# So many more rows than are wanted are kept: float32 may take one of two near ones for the other.
_SPARE = 16
_SUPPORT = 128
_TILE_NUMBERS = 2**20
# Rows: logits, exponentials and values of so many stay in a cache of 2 MB.
_AT_ONCE = 2**17
_TOLERANCE = 1e-4
_MOST_VOTES = 4 * 2**20


class Call:
    """What is fixed for all queries of a call."""

    def __init__(
        self,
        streamed: "Streamed",
        comparison: Comparison,
        normalizer: Normalizer,
        taking: np.ndarray | None,
        top: int,
        queries: Queries,
    ) -> None:
        self.of, self.comparison, self.normalizer = streamed, comparison, normalizer
        self.taking, self.top = taking, top
        self.profile, self.rows = streamed.profile, streamed.table
        self.names = tuple(dict.fromkeys((*streamed.key, streamed.value)))
        self.gaps = set(self.profile.gaps.tolist())
        self.elements = max(1, comparison.score.elements_per_logit(1, 1))
        self.whole_sums = accumulator_for(normalizer, 1, self._tally(1), 1) is not None
        slow, fast = self._ways(comparison.query(queries.part(0, 1).cells))
        self.said = fast or slow

    @property
    def queries_at_once(self) -> int:
        """Queries that share a pass."""
        if self.whole_sums and _many_votes(self.of):
            return max(1, min(_QUERIES, _MOST_VOTES // self.profile.kept))
        return _QUERIES

    def answer(self, queries: Queries, progress: Progress | None) -> list[Entry]:
        """The entries of some queries, from one pass over the rows, or two."""
        query = self.comparison.query(queries.cells)
        count = len(queries)
        if not self.whole_sums:
            return self._by_few(queries, query, progress)
        sums = accumulator_for(self.normalizer, count, self._tally(count), self.top + _SPARE)
        assert sums is not None
        self._pass(query, sums.absorb, progress, sums.tally)
        summary, readings, support = sums.finish()
        places = sums.best.union()
        comparison, columns = self._over(places)
        logits = self._exact(comparison, columns, query)
        weights = sums.weights(logits, summary) if len(places) else logits
        rows, found = _heaviest(weights, self.top)
        evidence = Found(rows, found, rows[:, 0], support, readings)
        return entries_of(queries, query, comparison, evidence, self.normalizer, self._nobody(), places)

    def plan(self, queries: int) -> StreamedPlan:
        """How it ran."""
        q = max(1, min(queries, self.queries_at_once))
        columns = [self.rows.store.schema.field(name) for name in self.names]
        return StreamedPlan(
            name=self.of.name,
            version=self.rows.store.version,
            queries=queries,
            rows=self.rows.num_rows,
            blocks=self.rows.blocks,
            key=", ".join(f"{f.name} {f.type}" for f in columns[: len(self.of.key)]),
            score=str(self.comparison.score),
            normalizer=str(self.normalizer),
            predicate=self.taking is not None,
            logits=self.said.said,
            sums=self.whole_sums,
            passes=-(-max(1, queries) // self.queries_at_once),
            bytes=self.rows.size_of(self.names),
            memory=self._memory(q),
            grows=self.taking is not None or (self.whole_sums and self.of.votes),
        )

    def _memory(self, q: int) -> int:
        tile = min(self.rows.tile_rows(self.names), self.rows.num_rows)
        texts = sum(column.original is not None for column in self.of.few)
        width = sum(max(1, facts.width) for facts in self.profile.columns.values()) + 24 * texts
        pairs = min(min(tile, _AT_ONCE) * q, max(q, _TILE_NUMBERS // self.elements))
        logits = pairs * 8 * (self.said.spare + self.elements)
        cells = tile * 8 * width * (4 if isinstance(self.said, CellLogits) else 1)
        votes = 0
        if self.whole_sums and self.of.votes:
            votes = 24 * q * (self.profile.kept if _many_votes(self.of) else 1000)
        predicate = 0 if self.taking is None else 18 * self.rows.num_rows
        return int(logits + cells + votes + predicate)

    # -- within -----------------------------------------------------------------------------------------

    def _ways(self, query: np.ndarray) -> tuple[CellLogits, Logits | None]:
        columns = self.of.few[:-1]
        slow = CellLogits(self.comparison, columns, query, self.of.fold)
        return slow, fast_logits(self.comparison, columns, query, self.of.lengths)

    def _tally(self, queries: int) -> Tally:
        of = self.of
        return tally_of(of.few[-1], of.fold, self.profile.columns[of.value], queries)

    def _nobody(self) -> str:
        if self.taking is None or self.taking.any():
            return ""
        return NOBODY

    def _pass(self, query: np.ndarray, absorb: Any, progress: Progress | None, tally: Tally | None) -> None:
        """Give `absorb` the logits of all rows, some at a time, with the number of the first, and values."""
        slow, fast = self._ways(query)
        values = tally if tally is not None else self._tally(1)
        for number, tile in enumerate(self.rows.tiles(self.names)):
            clean = number not in self.gaps
            way: Logits = slow
            rows = None
            if clean and fast is not None:
                rows, way = fast.rows(tile), fast
            if rows is None:
                rows, way = slow.rows(tile), slow
            count = tile.table.num_rows
            read = values.read(tile.table, clean) if tally is not None or not clean else None
            out = self._out(way.missing(rows), None if read is None else values.missing(read), tile.number, count)
            step = max(1, _TILE_NUMBERS // (len(query) * (self.elements if way is slow else 1)))
            step = min(step, _AT_ONCE)
            for start in range(0, count, step):
                stop = min(start + step, count)
                if out is not None and out[start:stop].all():
                    continue
                logits = way.of(rows, start, stop)
                if out is not None:
                    logits[:, out[start:stop]] = -np.inf
                part = values.part(read, start, stop) if tally is not None else None
                absorb(logits, tile.number + start, part)
            if progress is not None:
                progress("reading blocks", tile.number + count, self.rows.num_rows)

    def _out(self, *parts: Any) -> np.ndarray | None:
        """Which rows of a tile take no part; None: all do."""
        *absent, first, count = parts
        if self.taking is not None:
            absent.append(~self.taking[first : first + count])
        absent = [part for part in absent if part is not None]
        return np.logical_or.reduce(absent) if absent else None

    def _over(self, places: np.ndarray) -> tuple[Comparison, tuple[Column, ...]]:
        """The comparison over these rows, and their columns."""
        columns = self.of.columns_of(self.rows.take(places, self.names))
        return self.comparison.over(columns[:-1]), columns

    def _exact(self, comparison: Comparison, columns: Sequence[Column], query: np.ndarray) -> np.ndarray:
        if not len(comparison.key):
            return np.zeros((len(query), 0))
        cells = CellLogits(comparison, columns[:-1], query, self.of.fold)
        return cells.of((cells.call(comparison.key), None), 0, len(comparison.key))

    def _by_few(self, queries: Queries, query: np.ndarray, progress: Progress | None) -> list[Entry]:
        """Find the rows that can get weight, and ask them in memory."""
        keeps = self.normalizer.keeps
        best = TopRows(len(query), (keeps or _SUPPORT) + _SPARE)
        self._pass(query, lambda logits, first, _: best.absorb(logits, first), progress, None)
        places = best.union()
        if keeps is None:
            places = self._support(query, best, progress)
        comparison, columns = self._over(places)
        if not len(places):
            nothing = np.full((len(query), 1), -1)
            found = Found(nothing, np.zeros((len(query), 1)), nothing[:, 0], None, [])
            return entries_of(queries, query, comparison, found, self.normalizer, self._nobody(), places)
        kept = np.ones(len(places), bool)
        values = values_of(columns[-1])
        asking = Asking(comparison, self.normalizer, values, kept, None, self.top, None)
        entries, _ = asking.run(queries, None)
        return [replace(entry, rows=places[entry.rows]) for entry in entries]

    def _support(self, query: np.ndarray, best: TopRows, progress: Progress | None) -> np.ndarray:
        """The rows at or above the rank below which none gets weight."""
        floor = self.normalizer.threshold_bound(best.rank)
        if floor is None:
            raise RefusedError(
                f"{self.normalizer} needs whole rows of weights, and {self.of.name} is larger than the "
                "memory allowed. Choose another normalizer, or open it with more memory."
            )
        floor = np.asarray(floor) - _TOLERANCE * (1 + np.abs(np.asarray(floor)))
        if (best.rank[:, -1:] < floor).all():
            return best.union()
        found: list[np.ndarray] = []

        def gather(logits: np.ndarray, first: int, _: Any) -> None:
            found.append(first + np.flatnonzero((logits >= floor).any(axis=0)))

        self._pass(query, gather, progress, None)
        return np.concatenate(found)


def _many_votes(streamed: "Streamed") -> bool:
    """Whether there may be as many different values to vote for as rows."""
    return streamed.few[-1].kind == "text"


def _heaviest(weights: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """The columns of most weight, `(q, n)`, −1 where a weight is 0, and these weights."""
    if not weights.shape[1]:
        return np.full((len(weights), 1), -1), np.zeros((len(weights), 1))
    rank = np.where(weights == 0, -np.inf, weights)
    order = top_k_indices(rank, min(top, weights.shape[1]))
    heavy = np.take_along_axis(weights, order, axis=1)
    return np.where(heavy == 0, -1, order), heavy
