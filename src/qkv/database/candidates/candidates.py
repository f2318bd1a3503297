"""The class `Candidates`: queries are compared with the rows that an approximate index returns, not with all rows."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from qkv.core.checks import check_integers
from qkv.core.formatting import counted
from qkv.core.ordering import largest_elements
from qkv.core.progress import report
from qkv.core.typing import Bool, Int, Shaped
from qkv.database.answer import Entry
from qkv.database.candidates.recall import CandidatePlan, Recall
from qkv.database.candidates.vector_indexes import LanceIndex, VectorIndex, wrap_index
from qkv.database.execute.ask_options import AskOptions
from qkv.database.execute.base import Executor
from qkv.database.execute.in_memory import attend_to_some
from qkv.database.execute.row_reader import StoredRows
from qkv.database.keys.comparisons import Comparison
from qkv.database.keys.queries import Queries
from qkv.errors import DataError, OptionError
from qkv.masks import AllowedPairs
from qkv.normalizers.base import Normalizer
from qkv.plan.plan import Plan
from qkv.store import Store

# Rows whose logits are so close to the smallest needed one, relative to its size, are kept: attention rounds otherwise.
_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class RowPairs:
    """The pairs of a group of queries and the rows with which they are compared.

    Attributes:
        rows: the rows of all queries, in ascending order.
        place: `(q, n)`, the places in `rows` of the rows of each query.
        used: `(q, n)`, False where there is no row, or one that is excluded.
        shared: number of the last columns of `place` that are equal for all queries.
    """

    rows: Int[np.ndarray, " rows"]
    place: Int[np.ndarray, "q n"]
    used: Bool[np.ndarray, "q n"]
    shared: int

    @classmethod
    def of(
        cls,
        found: Int[np.ndarray, "q count"],
        unknown: Int[np.ndarray, " m"],
        selected: Bool[np.ndarray, " rows"] | None,
    ) -> RowPairs:
        """Return the pairs of each query with its candidates and with the rows that the index does not have.

        Args:
            found: the candidates of each query; −1 for none.
            unknown: the rows that the index does not have, in ascending order.
            selected: which rows of the table are selected; None for all.
        """
        used = found >= 0
        if selected is not None:
            used &= selected[found]
            unknown = unknown[selected[unknown]]
        rows = np.union1d(found[used], unknown).astype(np.int64)
        shared = np.broadcast_to(np.searchsorted(rows, unknown), (len(found), len(unknown)))
        place = np.concatenate([np.where(used, np.searchsorted(rows, found), 0), shared], axis=1)
        return cls(rows, place, np.concatenate([used, np.ones_like(shared, bool)], axis=1), len(unknown))

    def without(self, missing: Bool[np.ndarray, " rows"]) -> RowPairs:
        """Return the pairs with the rows that have all cells. The rows remain the same."""
        return replace(self, used=self.used & ~missing[self.place]) if missing.any() else self

    def best(self, comparison: Comparison, query: Shaped[np.ndarray, "q ..."], count: int) -> RowPairs:
        """Return the pairs whose logits are among the `count` largest of a query or close to these.

        Args:
            comparison: the comparison with `rows`.
            query: the engine's query array.
            count: the number of rows that can have weight.
        """
        if self.place.shape[1] <= count:
            return self
        own = self.place.shape[1] - self.shared
        logits = np.asarray(comparison.score(query[:, None], comparison.key[self.place[:, :own]]))[:, 0, :]
        if self.shared and len(query):
            others = comparison.score(query, comparison.key[self.place[0, own:]])
            logits = np.concatenate([logits, np.asarray(others)], axis=1)
        logits = np.where(self.used, logits, -np.inf)
        least = largest_elements(logits, count)[:, :1]
        slack = np.where(np.isfinite(least), _TOLERANCE * (1 + np.abs(least)), 0)
        return replace(self, used=self.used & ~(logits < least - slack))

    def allowed(self) -> Bool[np.ndarray, "q rows"]:
        """Return which rows each query is compared with."""
        out = np.zeros((len(self.place), len(self.rows)), bool)
        query, column = np.nonzero(self.used)
        out[query, self.place[query, column]] = True
        return out


MOST_UNKNOWN = 100_000
"""Maximum number of rows that the index does not have. Each group of queries compares all of them."""

# After these operations the rows of a version are still the first rows of the table, in the same order.
_KEEP_ORDER = ("create", "append", "compact", "createindex")


@dataclass(frozen=True, eq=False)
class LabelRows:
    """The rows that labels name.

    Attributes:
        labels: the labels in ascending order.
        rows: the row of each label; −1 if there is none any more.
        unknown: the rows that the index does not have, in ascending order.
    """

    labels: Int[np.ndarray, " n"]
    rows: Int[np.ndarray, " n"]
    unknown: Int[np.ndarray, " m"]

    def rows_of(self, labels: Int[np.ndarray, "q count"]) -> Int[np.ndarray, "q count"]:
        """Return the rows that labels name; −1 where there is none."""
        count = len(self.labels)
        if not count:
            return np.full(labels.shape, -1)
        if self.rows is self.labels and self.labels[-1] == count - 1:  # 0, 1, 2 …
            return np.where((labels >= 0) & (labels < count), labels, -1)
        place = np.minimum(np.searchsorted(self.labels, labels), count - 1)
        return np.where(self.labels[place] == labels, self.rows[place], -1)


def map_labels(
    labels: Int[np.ndarray, " n"], table: pa.Table | StoredRows, name: str, id: str | None, version: int | None
) -> LabelRows:
    """Return the rows that labels name, and those that the index does not have.

    Args:
        labels: all labels of the index.
        table: the rows.
        name: the name of the table in messages.
        id: the column of labels; None: labels are indices of rows.
        version: the version of the store whose rows the index has; None for a table in memory, or with `id`.

    Raises:
        OptionError: A store needs `version` or `id`.
        DataError: The labels do not fit the rows, rows were deleted, or too many rows are not in the index.
    """
    labels = np.sort(labels)
    repeated = labels[1:][labels[1:] == labels[:-1]]
    if len(repeated):
        raise DataError(f"labels of the index must be different, got {repeated[0]} twice. Rebuild the index.")
    if id is not None:
        mapped = _rows_by_id(labels, _read_ids(table, id), id)
    else:
        rows = table.num_rows
        if isinstance(table, StoredRows):
            rows = _unchanged_rows(table.store, version, name)
        if len(labels) and not 0 <= labels[0] <= labels[-1] < rows:
            raise DataError(
                f"labels of the index must be indices of the {rows:,} rows of {name}, got {labels[0]} to "
                f"{labels[-1]}. Name the column that holds them by id."
            )
        mapped = LabelRows(labels, labels, np.setdiff1d(np.arange(table.num_rows), labels, assume_unique=True))
    if len(mapped.unknown) > MOST_UNKNOWN:
        raise DataError(
            f"at most {MOST_UNKNOWN:,} rows of {name} may be missing from the index, got {len(mapped.unknown):,}. "
            "Add them to the index."
        )
    return mapped


def _read_ids(table: pa.Table | StoredRows, id: str) -> Int[np.ndarray, " rows"]:
    """Return the cells of a column of whole numbers; the smallest number in place of missing cells."""
    if id not in table.column_names:
        raise DataError(f"id must be a column of the table, got {id!r}. Its columns: {', '.join(table.column_names)}.")
    if isinstance(table, StoredRows):
        chunks = [tile.table.column(id) for tile in table.tiles((id,))]
        column = pa.chunked_array([chunk for each in chunks for chunk in each.chunks], chunks[0].type)
    else:
        column = table.column(id)
    if not pa.types.is_integer(column.type):
        raise DataError(
            f"id must be a column of whole numbers, got {id!r} of type {column.type}. "
            "Name the column that holds the labels of the index."
        )
    return np.asarray(column.fill_null(np.iinfo(np.int64).min) if column.null_count else column).astype(np.int64)


def _rows_by_id(labels: Int[np.ndarray, " n"], ids: Int[np.ndarray, " rows"], id: str) -> LabelRows:
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    twice = sorted_ids[1:][(sorted_ids[1:] == sorted_ids[:-1]) & (sorted_ids[1:] > np.iinfo(np.int64).min)]
    if len(twice):
        raise DataError(
            f"the cells of id {id!r} must be different, got {twice[0]} twice. Name a column without repetitions."
        )
    place = np.minimum(np.searchsorted(sorted_ids, labels), len(ids) - 1)
    rows = np.where(sorted_ids[place] == labels, order[place], -1)
    known = np.zeros(len(ids), bool)
    known[rows[rows >= 0]] = True
    return LabelRows(labels, rows, np.flatnonzero(~known))


def _unchanged_rows(store: Store, version: int | None, name: str) -> int:
    """Return the number of rows of an earlier version, which are the first rows of the store.

    Raises:
        OptionError: There is no version.
        DataError: The version does not exist, or rows were deleted since.
    """
    if version is None:
        raise OptionError(
            f"version must be the version of {name} whose rows the index has, got None. Pass version="
            f"{store.version} if it has those of the open version, or the column of labels by id."
        )
    if version == store.version:
        return len(store)
    since = {each.number: each for each in store.versions() if version <= each.number <= store.version}
    changed = [each for each in since.values() if each.number > version and each.operation not in _KEEP_ORDER]
    if version not in since or changed or len(since) != store.version - version + 1:
        reason = "a version in between cannot be read"
        if changed:
            reason = f"version {changed[0].number} is the result of {changed[0].operation}"
        raise DataError(
            f"version must be one since which rows were only appended to {name}, got {version}, but {reason}. Build "
            "the index from the open version, or name the column of labels by id."
        )
    return since[version].rows


_QUERIES_AT_ONCE = 64
# Pairs of a query and a row, or numbers of their vectors, that are compared at once: 32 MiB of float64.
_MOST_PAIRS = 4 * 2**20
# Of g queries with n candidates, g² n pairs are compared. A call of attention takes as long as 40,000 pairs: 2 ms.
_PAIRS_PER_CALL = 40_000
_NO_CANDIDATE = "the index returned no row that can be compared"


class Candidates:
    """Rows that an approximate index returns for each query, to which `Database.ask` confines the answer.

    The answer is attention over the `count` rows that the index returns for a query and the rows that the index does
    not have, such as those appended since it was built. For the first `sample` queries the answer is also computed
    from all rows, and `Answer.recall`, the notes and the plan state which share of the rows of largest weight was
    found. A predicate or a mask excludes rows after the index has returned them.

    Args:
        index: an index of FAISS or usearch, a dataset of Lance, or any object with an array `labels` and a method
            `search(vectors, count)` that returns labels `(q, count)`, −1 in unused places. It has the vectors of the
            key column, and each label is the index of a row, from 0, unless `id` is given.
        count: number of rows that the index returns for each query.
        version: the version of a store whose rows the index has. Rows may have been appended since, not deleted. Not
            needed for a dataset of Lance that is the store itself.
        id: the column of whole numbers that are the labels; rows may then be appended and deleted.
        column: the column of vectors of a dataset of Lance; None: the key column.
        sample: number of queries on which recall is measured.
        options: further arguments of the search of the index, such as `{"nprobes": 20}` for Lance.

    Raises:
        KindError: The index is of another kind.
        OptionError: `count` or `sample` is not a positive integer.

    Example:
        >>> import numpy as np
        >>> from qkv.database import Candidates, Database
        >>> class Scan:
        ...     def __init__(self, vectors):
        ...         self.vectors, self.labels = vectors, np.arange(len(vectors))
        ...     def search(self, queries, count):
        ...         return np.argsort(-(queries @ self.vectors.T), axis=1)[:, :count]
        >>> vectors = np.eye(4, dtype=np.float32) + 0.1
        >>> table = Database.open({"vector": vectors, "pay": [1.0, 2.0, 3.0, 4.0]}, key="vector", value="pay")
        >>> near = Candidates(Scan(vectors), 2)
        >>> answer = table.ask([[0, 0, 1, 0]], score="cosine", normalizer="hard", candidates=near)
        >>> answer[0].value, answer.recall
        (3.0, 1.0)
    """

    def __init__(
        self,
        index: object,
        count: int = 100,
        *,
        version: int | None = None,
        id: str | None = None,
        column: str | None = None,
        sample: int = 64,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        check_integers(count=count, sample=sample)
        self.index, self.count = wrap_index(index, options or {}, column, id), count
        self.version, self.id, self.column, self.sample = version, id, column, sample
        self._mapped: tuple[object, VectorIndex, LabelRows] | None = None
        self._recalls: WeakKeyDictionary[Executor, dict[object, Recall]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def run(
        self, executor: Executor, queries: Queries, comparison: Comparison, normalizer: Normalizer, options: AskOptions
    ) -> tuple[list[Entry], CandidatePlan]:
        """Return the entries that answer the queries from candidates, and the plan, which states the recall.

        Args:
            executor: the executor over all rows.
            queries: the parsed queries.
            comparison: the comparison, chosen from all rows.
            normalizer: the normalizer.
            options: the options of `ask`.

        Raises:
            OptionError: The key is not one column of vectors, or the normalizer or the aggregate needs all rows.
            DataError: The labels of the index do not fit the rows.
        """
        _check(executor, normalizer, options)
        index, mapped = self._mapped_labels(executor)
        rows = normalizer.top_k or options.top
        wide = replace(options, top=max(rows, options.top), progress=None, candidates=None)
        with self._lock:
            recalls = self._recalls.setdefault(executor, {})
            asked = (str(comparison.score), str(normalizer), options.limits, rows)
            recall = Recall() if options.mask is not None else recalls.setdefault(asked, Recall())
        entries, plan = self._answer(executor, index, mapped, queries, comparison, normalizer, wide, options)
        usable = np.flatnonzero(~queries.missing)
        lacking = min(len(usable), self.sample - recall.queries)
        if lacking > 0:
            chosen = usable[np.linspace(0, len(usable) - 1, lacking).astype(np.int64)]
            exact, _ = executor.run(queries.take(chosen), comparison, normalizer, wide)
            with self._lock:
                recall.add([_first(entries[place], rows) for place in chosen], [_first(each, rows) for each in exact])
        text = f"{self.count:,} rows for each query from {index.name}"
        if len(mapped.unknown):
            text += f", and {counted(len(mapped.unknown), 'row', 'rows')} that it does not have"
        text += f"; {recall.text(rows)}" if recall.queries else "; recall not measured yet"
        return [_first(entry, options.top) for entry in entries], CandidatePlan.of(plan, recall.value, text)

    def _mapped_labels(self, executor: Executor) -> tuple[VectorIndex, LabelRows]:
        """Return the index and the rows of its labels. Those of the last table are cached."""
        table = executor.table
        with self._lock:
            if self._mapped is None or self._mapped[0] is not table:
                index, version = self.index, self.version
                if isinstance(index, LanceIndex):
                    index.column = self.column or executor.key[0]
                    if isinstance(table, StoredRows) and _is_same(index.index.uri, table.store.path):
                        index, version = index.of_version(table.store.version), table.store.version
                self._mapped = table, index, map_labels(index.labels(), table, executor.name, self.id, version)
            return self._mapped[1:]

    def _answer(
        self,
        executor: Executor,
        index: VectorIndex,
        mapped: LabelRows,
        queries: Queries,
        comparison: Comparison,
        normalizer: Normalizer,
        wide: AskOptions,
        options: AskOptions,
    ) -> tuple[list[Entry], Plan]:
        selected, best = executor.selection(options), normalizer.top_k
        calibration = partial(executor.calibration, comparison, normalizer, options)
        entries: list[Entry] = []
        plans = []
        step = self._queries_at_once(best, len(mapped.unknown), executor.query_columns[0].cells.shape[-1])
        for start in range(0, max(1, len(queries)), step):
            group = queries.slice(start, start + step)
            pairs = RowPairs.of(self._find(index, mapped, group), mapped.unknown, selected)
            columns = executor.read_rows(pairs.rows)
            pairs = pairs.without(np.logical_or.reduce([column.missing for column in columns]))
            if best is not None and len(pairs.rows):
                pairs = pairs.best(comparison.with_rows(columns[:-1]), comparison.query_array(group.columns), best)
            allowed = pairs.allowed()
            some = np.flatnonzero(allowed.any(axis=0))
            rows, columns, allowed = pairs.rows[some], tuple(column.take(some) for column in columns), allowed[:, some]
            if not len(rows):
                # Attention needs a row, from which the mask takes the weight.
                rows, allowed = np.zeros(1, np.int64), np.zeros((len(group), 1), bool)
                columns = executor.read_rows(rows)
            masked = replace(wide, mask=AllowedPairs(allowed)), calibration
            found, plan = attend_to_some(group, comparison, normalizer, rows, columns, executor.votes, *masked)
            for place in np.flatnonzero(~allowed.any(axis=1) & ~group.missing).tolist():
                found[place] = Entry(found[place].query, False, reason=_NO_CANDIDATE)
            entries += found
            plans.append(plan)
            report(options.progress, "answering", len(entries), len(queries))
        return entries, plans[0]

    def _queries_at_once(self, best: int | None, unknown: int, width: int) -> int:
        """Return the number of queries that are compared at once with the candidates of all of them.

        If only the best rows can have weight, each query is first compared with its own candidates.
        """
        if best is not None:
            cells = width * self.count + unknown
            return max(1, min(_QUERIES_AT_ONCE, _MOST_PAIRS // cells))
        step = max(4, min(_QUERIES_AT_ONCE, math.isqrt(_PAIRS_PER_CALL // self.count)))
        while step > 1 and step * (step * self.count + unknown) > _MOST_PAIRS:
            step //= 2
        return step

    def _find(self, index: VectorIndex, mapped: LabelRows, queries: Queries) -> Int[np.ndarray, "q count"]:
        """Return the candidates of each query, −1 in unused places."""
        count = min(self.count, len(mapped.labels))
        if not count or not len(queries):
            return np.full((len(queries), 1), -1)
        vectors = np.asarray(queries.columns[0].cells, np.float32)
        finite = np.ascontiguousarray(np.where(np.isfinite(vectors), vectors, 0))
        return mapped.rows_of(index.search(finite, count))


def _check(executor: Executor, normalizer: Normalizer, options: AskOptions) -> None:
    kinds = [column.kind for column in executor.query_columns]
    if kinds != ["vector"]:
        raise OptionError(
            f"candidates must be None unless the key is one column of vectors, got a key of {', '.join(kinds)}. "
            "Omit candidates, or open the table with the column of vectors as its key."
        )
    whole = normalizer.constant or (normalizer.top_k is None and not normalizer.sums_to_one)
    if normalizer.stochastic or whole:
        raise OptionError(
            f"normalizer must give most weight to few rows and not sample if candidates are given, got {normalizer}. "
            "Use TopK, Hard or Softmax, or omit candidates."
        )
    if options.linear:
        raise OptionError("aggregate must not be 'local-linear' if candidates are given. Omit one of them.")
    if options.mask is not None and options.allowed_keys is None:
        raise OptionError(
            f"mask must be masks.AllowedKeys with one boolean per row if candidates are given, got {options.mask}. "
            "Pass the selection as where=…, or omit candidates."
        )


def _first(entry: Entry, count: int) -> Entry:
    """Return an entry with the `count` rows of largest weight."""
    near = None if entry.nearness is None else entry.nearness[:count]
    return replace(entry, rows=entry.rows[:count], weights=entry.weights[:count], nearness=near)


def _is_same(uri: str, path: object) -> bool:
    """Return whether a dataset of Lance is a store."""
    text = uri.removeprefix("file://").rstrip("/")
    return text in (str(path), str(getattr(path, "absolute", lambda: path)()))
