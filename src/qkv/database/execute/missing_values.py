"""Keys without a value: they take part where it is decided who a query means, and never give the value.

The rows that have a key and no value are compared with the queries like the other rows. Where such a row is the one
that is meant, the answer is that its value is missing:

    texts, categories, identifiers    the row with the best key among all rows is meant
    numbers, dates, vectors           neighbours give the value, and the answer says that the row itself has none; only
                                      where no row with a value is near enough, the value is missing

If other rows with the same key have a value, these give it, and `Answer.missing_rows` lists those without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.formatting import counted
from qkv.core.tile import Tile
from qkv.core.typing import Bool
from qkv.database.answer import Entry
from qkv.database.execute.ask_options import AskOptions
from qkv.database.execute.entries import ambiguous_reason
from qkv.database.keys.comparisons import Comparison, EqualityComparison, KeyCells
from qkv.database.keys.queries import Queries
from qkv.masks import AllowedPairs

if TYPE_CHECKING:
    from qkv.database.execute.base import Executor
    from qkv.database.execute.in_memory import RowsWithoutValue
    from qkv.normalizers.base import Normalizer


# Logits of equal vectors differ by less, as encoders and products round.
_SAME = 1e-6
_SHOWN = 5


class KeysWithoutValue:
    """The comparison of queries with some rows without a value."""

    def __init__(
        self,
        executor: Executor,
        rows: RowsWithoutValue,
        queries: Queries,
        comparison: Comparison,
        normalizer: Normalizer,
    ) -> None:
        self.executor, self.rows, self.queries, self.comparison = executor, rows, queries, comparison
        self.normalizer, self.value, self.query = normalizer, executor.value, comparison.query_array(queries.columns)
        self.any_mask = False
        self.asked = key_cells(comparison, queries.columns)
        self.every = tuple(range(len(self.asked[0])))
        whole = bool(executor.encoded) or isinstance(comparison, EqualityComparison)
        self.named = self.every if whole else comparison.named_columns

    def answer(self, options: AskOptions, entries: list[Entry]) -> list[Entry]:
        """Return the entries of all queries."""
        self.any_mask = options.mask is not None and not self.rows.masked
        nearest = np.array(sorted({entry.nearest for entry in entries if entry.nearest >= 0}), np.int64)
        cells = key_cells(self.comparison, self.executor.read_rows(nearest)[:-1]) if len(nearest) else []
        keys = dict(zip(nearest.tolist(), cells, strict=True))
        out, undecided = list(entries), []
        for index, (entry, missing) in enumerate(zip(entries, self.queries.missing.tolist(), strict=True)):
            key = keys.get(entry.nearest)
            if entry.found and key is not None and self._is_same(key, self.asked[index]):
                out[index] = self._with_remarks(entry, key, self.asked[index])
            elif not missing:
                undecided.append(index)
        if undecided:
            own = self.comparison.with_rows(self.rows.query_columns)
            wide = replace(options, candidates=None, progress=None, aggregate=None, top=max(2, options.top))
            wide = replace(wide, mask=self._mask(options, undecided))
            some = self.queries.take(np.array(undecided, np.int64))
            others, _ = self.rows.run(some, own, self.normalizer, wide)
            for index, other in zip(undecided, others, strict=True):
                out[index] = self._decide(index, entries[index], other.at(self.rows.places))
        return out

    def _mask(self, options: AskOptions, undecided: list[int]) -> AllowedPairs | None:
        """Return the mask of some queries over the rows, unless it has selected the rows already."""
        if options.mask is None or self.rows.masked:
            return None
        tile = Tile.whole(len(self.queries), self.executor.table.num_rows)
        allowed = np.asarray(options.mask.allowed(tile, np.zeros(())))[..., self.rows.places]
        return AllowedPairs(allowed[undecided] if len(allowed) > 1 else allowed)

    def _decide(self, index: int, entry: Entry, other: Entry) -> Entry:
        """Return the answer to a query from that of the rows with a value and that of the rows without."""
        if other.nearest < 0:
            return entry
        both = {row for each in (entry, other) for row in (each.nearest, *each.rows.tolist()) if row >= 0}
        rows = np.array(sorted(both), np.int64)  # np.unique imports numpy.ma
        columns = self.executor.read_rows(rows)[:-1]
        comparison = self.comparison.with_rows(columns)
        with ignore_numpy_warnings():
            logits = np.asarray(comparison.score(self.query[index : index + 1], comparison.key))[0]
        keys = dict(zip(rows.tolist(), zip(logits.tolist(), key_cells(comparison, columns), strict=True), strict=True))
        logit, key = keys.get(entry.nearest, (-np.inf, ()))
        other_logit, other_key = keys[other.nearest]
        better, calls = other_logit > logit + _SAME, (*entry.calls, *other.calls)
        entry = replace(entry, calls=(*other.calls, *entry.calls))
        matched = entry.found or bool(entry.candidates)
        if not (other.found or other.candidates):
            return replace(entry, reason=other.reason, nearest=other.nearest) if better and not matched else entry
        if matched:
            if self._is_same(key, other_key):
                return self._with_remarks(entry, key, self.asked[index]) if entry.found else entry
            default = self.normalizer is self.comparison.normalizer
            tied = comparison.candidates(self.query[index], np.argsort(-logits, kind="stable"), default)
            if self.executor.key_text(other.nearest) in tied:
                tied = tuple(dict.fromkeys((*tied, *entry.candidates, *other.candidates)))
                return Entry(entry.query, False, reason=ambiguous_reason(tied), candidates=tied, calls=calls)
            if not better:
                return entry
        if other.candidates:
            return replace(other, calls=calls)
        missing = self._rows_of(other_key, self.every) or (other.nearest,)
        label = self.executor.key_text(other.nearest)
        reason = f"{label} is in the table; its {self.value} is missing ({_numbers(missing)})"
        return Entry(entry.query, False, reason=reason, missing_rows=missing, calls=calls, nearest=other.nearest)

    def _with_remarks(self, entry: Entry, key: tuple[object, ...], asked: tuple[object, ...]) -> Entry:
        """Return an answer which says that the values of other rows of its key are missing."""
        exact = tuple(key[column] if column in self.named else cell for column, cell in enumerate(asked))
        missing, group = self._rows_of(exact, self.every), self._rows_of(key, self.named) if self.named else ()
        remarks = list(entry.remarks)
        if missing:
            rows, others = counted(len(missing), "row", "rows"), "" if key == exact else "; other keys give the value"
            label = self.executor.key_text(missing[0])
            remarks.append(f"{self.value} is missing in {rows} of {label} ({_numbers(missing)}){others}")
        if len(group) > len(missing):
            rows, label = counted(len(group), "row", "rows"), self.executor.key_text(group[0], self.named)
            remarks.append(f"{self.value} is missing in {rows} of {label}")
        return replace(entry, missing_rows=(*entry.missing_rows, *missing), remarks=tuple(remarks))

    def _is_same(self, key: tuple[object, ...], other: tuple[object, ...]) -> bool:
        """Return whether two keys mean the same entity."""
        return all(key[column] == other[column] for column in self.named)

    def _rows_of(self, key: tuple[object, ...], columns: tuple[int, ...]) -> tuple[int, ...]:
        """Return the rows with the cells of a key in some columns; none if a mask allows other rows for each query."""
        rows = {} if self.any_mask else self.rows.rows_by_key(self.comparison, columns)
        return tuple(rows.get(tuple(key[column] for column in columns), ()))


def key_cells(comparison: Comparison, columns: Sequence[KeyCells]) -> list[tuple[object, ...]]:
    """Return the key of each row or query in a form that is equal for keys that the comparison takes as equal."""
    if isinstance(comparison, EqualityComparison):
        array = comparison.query_array(columns)
        return [(tuple(cells) if isinstance(cells, list) else cells,) for cells in array.tolist()]
    return list(zip(*map(_cells, columns), strict=True))


def _cells(column: KeyCells) -> list[object]:
    """Return the cells of a column as texts, bytes of vectors, or integers, which are exact; None equals no cell."""
    if column.integers is None:
        return [row.tobytes() for row in column.cells] if column.cells.ndim == 2 else column.cells.tolist()
    unequal: Bool[np.ndarray, " n"] | None = getattr(column, "unequal", None)
    cells: list[object] = [tuple(words) for words in column.integers.tolist()]
    for index in [] if unequal is None else np.flatnonzero(unequal).tolist():
        cells[index] = None
    return cells


def _numbers(rows: tuple[int, ...]) -> str:
    shown = ", ".join(f"{row:,}" for row in rows[:_SHOWN]) + ", …" * (len(rows) > _SHOWN)
    return f"row{'s' * (len(rows) > 1)} {shown}"
