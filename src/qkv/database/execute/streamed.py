"""Asking rows that are not in memory: blocks are read one after another, each leaves its part of the sums.

    choose      the comparison, from what is known of all rows and from evenly spread ones
    pass        tile by tile: logits, then sums (Softmax, Sum, Mean …) or best rows (TopK, Hard, Sparsemax …)
    evidence    the rows of most weight are read again, and compared in float64

Where only the best rows get weight, they are asked as a small table in memory. The answers are those of the
same rows in memory.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.core.progress import Progress
from qkv.database.answer import Answer, Entry
from qkv.database.execute.aggregates import values_of
from qkv.database.execute.passes import Call
from qkv.database.execute.row_reader import Rows
from qkv.database.execute.sampled import SampledChooser
from qkv.database.execute.scan import VectorNorms
from qkv.database.execute.statistics import load_statistics
from qkv.database.keys.columns import Column
from qkv.database.keys.comparisons import Comparison
from qkv.database.keys.part_registry import parse_normalizer
from qkv.database.keys.queries import Queries
from qkv.engine import explain
from qkv.errors import DataError, KindError, OptionError, QueryError, RefusedError, ShapeError
from qkv.masks import Keys as KeysMask
from qkv.masks.base import Mask
from qkv.normalizers.base import Normalizer
from qkv.scores.base import Score
from qkv.store import Store

__all__ = ["Streamed"]


class Streamed:
    """A version of a store, asked block by block.

    Fields:
        table: the rows, read where they are needed.
        left_out: how many rows lack each of these columns.
    """

    def __init__(
        self,
        store: Store,
        key: Sequence[str],
        value: str,
        name: str,
        fold: bool = True,
        progress: Progress | None = None,
        hidden: Sequence[str] = (),
    ) -> None:
        self.table = Rows(store, hidden)
        self.key, self.value, self.name, self.fold = tuple(key), value, name, fold
        self.profile = load_statistics(self.table, key, value, fold, progress)
        if not self.profile.kept:
            raise DataError(
                f"no row of {name} has all of {', '.join(dict.fromkeys((*key, value)))}. "
                "Name columns that are filled together."
            )
        self.left_out = {n: facts.missing for n, facts in self.profile.columns.items() if facts.missing}
        self.few = self.columns_of(self.table.take(self.profile.examples))
        self.lengths = VectorNorms()
        self._sampled: tuple[Column, ...] | None = None
        self._comparisons: tuple[Any, Comparison] | None = None
        self._filter: tuple[str, np.ndarray] | None = None
        self._progress: Progress | None = None

    @property
    def votes(self) -> bool:
        """Whether values are put to the vote."""
        return self.few[-1].kind not in ("number", "timestamp", "vector")

    def column(self, name: str) -> Column:
        """A key column or the value column of evenly spread rows."""
        for column in self._sample():
            if column.name == name:
                return column
        raise DataError(f"{name!r} is neither key nor value of {self.name}.")

    def __len__(self) -> int:
        return self.profile.kept

    def ask(
        self,
        queries: Any,
        *,
        score: Score | str | None,
        normalizer: Normalizer | str | None,
        mask: Mask | None,
        where: str | None,
        top: int,
        threshold: float | None,
        progress: Progress | None,
    ) -> Answer:
        """As `Database.ask`."""
        if not isinstance(top, int) or top < 1:
            raise OptionError(f"top is {top!r}, and at least one row of evidence is shown. Give 1 or more.")
        given = isinstance(queries, Queries)
        parsed = queries if given else Queries.parse(queries, self.few[:-1], self.fold)
        self._progress = progress
        try:
            comparison = self._comparison(score, threshold)
        finally:
            self._progress = None
        named = parse_normalizer(normalizer) if isinstance(normalizer, str) else normalizer
        chosen = named or comparison.normalizer or parse_normalizer(comparison.score.default_normalizer)
        self._check(comparison, chosen, parsed)
        taking = self._taking(mask, where)
        call = Call(self, comparison, chosen, taking, top, parsed)
        entries: list[Entry] = []
        step = call.queries_at_once
        for start in range(0, len(parsed), step):
            entries += call.answer(parsed.part(start, min(start + step, len(parsed))), progress)
        plan = call.plan(len(parsed))
        notes = self._notes(comparison, taking, chosen)
        return Answer(
            tuple(entries),
            parsed.single,
            self.table,
            self.key,
            self.value,
            comparison.measure,
            plan,
            notes,
        )

    # -- within -----------------------------------------------------------------------------------------

    def columns_of(self, table: Any) -> tuple[Column, ...]:
        """The key columns and the value column of some rows."""
        names = (*self.key, self.value)
        return tuple(Column.from_table(table, name, self.fold, self._blank(name)) for name in names)

    def _blank(self, name: str) -> Column:
        """A column without rows that says where timestamps begin and how wide vectors are."""
        facts = self.profile.columns[name]
        empty = Column.from_table(self.table.store.empty([name]), name, self.fold)
        return replace(empty, cells=np.zeros((0, facts.width)), origin=facts.origin)

    def _sample(self) -> tuple[Column, ...]:
        if self._sampled is None:
            self._sampled = self.columns_of(self.table.take(self.profile.sample))
        return self._sampled

    def _targets(self) -> np.ndarray | str:
        """What leave-one-out should predict."""
        value = self._sample()[-1]
        return values_of(value).targets(np.ones(len(value.cells), bool))

    def _comparison(self, score: Score | str | None, threshold: float | None) -> Comparison:
        asked = (score, threshold)
        if self._comparisons is None or self._comparisons[0] != asked:
            points = any(column.kind in ("number", "timestamp", "boolean") for column in self.few[:-1])
            columns = self._sample() if points else self.few
            keys = SampledChooser(columns[:-1], self.profile, self._targets, self._progress)
            self._comparisons = (asked, keys.compare(score, threshold))
        return self._comparisons[1]

    def _check(self, comparison: Comparison, normalizer: Normalizer, queries: Queries) -> None:
        """Refuse what the engine would refuse, with its sentences, from a few rows."""
        if normalizer.stochastic:
            raise RefusedError(
                f"{normalizer} draws rows, and {self.name} is larger than the memory allowed, so its blocks "
                "are read one after another. Choose another normalizer, or open it with more memory."
            )
        query = comparison.query(queries.part(0, 1).cells)
        few = np.ones((len(comparison.key), 1))
        try:
            explain(query, comparison.key, few, score=comparison.score, normalizer=normalizer)
        except (KindError, ShapeError) as error:
            raise QueryError(f"{comparison.score} does not fit this key: {error}") from None

    def _taking(self, mask: Mask | None, where: str | None) -> np.ndarray | None:
        """Which rows may take part; None: all that have key and value."""
        taking = None
        if where is not None:
            if self._filter is None or self._filter[0] != where:
                self._filter = (where, self.table.satisfying(where))
            taking = self._filter[1]
        if mask is not None:
            if not isinstance(mask, KeysMask) or np.ndim(mask.array) != 1:
                raise OptionError(
                    f"the mask is {mask}, and {self.name} is read block by block, for which a mask of the "
                    "rows is wanted: masks.Keys with one boolean for each row. Or use where=."
                )
            mask.check(1, self.table.num_rows)
            array = np.broadcast_to(np.asarray(mask.array), self.table.num_rows)
            taking = array if taking is None else taking & array
        return taking

    def _notes(self, comparison: Comparison, taking: np.ndarray | None, chosen: Normalizer) -> tuple[str, ...]:
        rows = f"{len(self):,} rows of {self.name}, version {self.table.store.version}"
        if self.left_out:
            lacking = ", ".join(f"{name} missing in {count:,}" for name, count in self.left_out.items())
            rows += f"; {self.table.num_rows - len(self):,} left out ({lacking})"
        if taking is not None:
            rows += f"; {int(taking.sum()):,} rows satisfy the predicate"
        return (rows, *comparison.notes, f"weights by {chosen}")
