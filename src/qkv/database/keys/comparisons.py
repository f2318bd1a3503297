"""Comparisons of queries with keys, each of which defines a key array, a score and when a query has no match.

The module `choose` selects the comparison of a database.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol, Self

import numpy as np

from qkv.core.formatting import number
from qkv.core.ordering import first_equal_vectors
from qkv.core.typing import Bool, Float, Int, Num, Shaped
from qkv.encoders import exact_cells
from qkv.encoders.columns import Column, arc_lengths
from qkv.errors import QueryError
from qkv.estimators.regression.neighbor_blocks import squared_distances
from qkv.normalizers import Softmax, Sum
from qkv.normalizers.base import Normalizer
from qkv.plan.precise_call import selects_near_keys
from qkv.scores.base import Score
from qkv.scores.by_column import ByColumn
from qkv.scores.exact import Exact
from qkv.scores.gaussian import Gaussian


def from_differences(score: Score, normalizer: Normalizer, width: int) -> Score:
    """Return a score with the same logits that computes them from differences, where ties matter and it costs little.

    That is for one key column, and for up to 8 of them if the normalizer selects keys by their rank. A matrix product
    computes ‖q‖² − 2<q, k> + ‖k‖², which rounds differently for one query and for several, and decides by rounding
    which of two equally distant keys comes first. In tables such keys are common: 3.67 and 3.70 around 3.685.

    Args:
        score: any score; scores that compute no squared distances are returned as they are.
        normalizer: the normalizer of the call.
        width: number of key columns.
    """
    few = width == 1 or selects_near_keys(normalizer, (), width)
    return score.by_differences() if few else score


_NUMERIC = ("number", "timestamp", "boolean")
# Rows are left out if their logits are below the largest by this and the logarithm of the number of rows: their weights
# sum to less than 5e-18 of the others. The logit of the nearest row is at least −10.
_OMITTED, _NEAR = 40.0, 10.0
# Of fewer rows, finding those in reach takes longer than comparing all.
_FEWEST_ROWS = 1000
_ROWS_AT_ONCE = 2**16


@dataclass(frozen=True, eq=False)
class Coordinates:
    """The place of the numbers in the key and query arrays of a comparison.

    Attributes:
        columns: the key columns of numbers, timestamps and booleans.
        scale: the unit of each coordinate in the unit of its column, of days for timestamps.
        field: the field of a structured array that holds them; "" for an array without fields.
    """

    columns: tuple[Column, ...]
    scale: Float[np.ndarray, " width"]
    field: str = ""

    def of(self, array: Shaped[np.ndarray, "n ..."]) -> Float[np.ndarray, "n width"]:
        """Return the coordinates of the elements of a key array or of a query array."""
        part = array[self.field] if self.field else array
        return np.asarray(part[:, : len(self.columns)], np.float64)


def find_coordinates(comparison: Comparison) -> Coordinates | None:
    """Return where the numbers among the keys of a comparison are, or None if it compares none as numbers."""
    if isinstance(comparison, MixedComparison):
        for name, part in comparison.parts:
            found = find_coordinates(part)
            if found is not None:
                return replace(found, field=name)
        return None
    columns = comparison.key_columns
    if not all(column.kind in _NUMERIC for column in columns):
        return None
    if isinstance(comparison, DistanceComparison):
        return Coordinates(columns, comparison.scale)
    if isinstance(comparison, ScoreComparison) and not comparison.structured:
        return Coordinates(columns, np.ones(len(columns)))
    return None


class KeyCells(Protocol):
    """The cells of rows or of queries for one key column: a `Column`, or the `QueryCells` of `Queries`."""

    @property
    def original(self) -> Shaped[np.ndarray, " n"] | None:
        """Texts as given, not folded; None for other kinds."""

    @property
    def cells(self) -> Shaped[np.ndarray, "n ..."]:
        """The cells, see `Column.cells`."""

    @property
    def integers(self) -> Int[np.ndarray, "n words"] | None:
        """The cells as integers for exact comparison, see `Column.integers`."""


class MatchLimits(NamedTuple):
    """The limits of a match that a caller or a store sets; None for those that are chosen.

    Attributes:
        min_similarity: the least similarity of a match.
        max_distance: the largest distance of a match.
        defaults: whether a limit that the comparison does not have is ignored, as the defaults of stores are.
    """

    min_similarity: float | None = None
    max_distance: float | None = None
    defaults: bool = False


@dataclass(frozen=True, eq=False)
class Comparison:
    """The key array, score and normalizer with which the engine compares queries and keys.

    Attributes:
        columns: indices of the key columns that are compared.
        key_columns: the key columns that are compared, in the same order.
        score: the score.
        normalizer: the normalizer; None for the score's own.
        key: the key array of the engine.
        notes: sentences that explain the choice.
        normalizer_note: a sentence about `normalizer`, which does not hold for another normalizer; "" for none.
        candidate_rows: number of rows of largest weight that `candidates` compares.
        readings: sentences that say how key columns are read, such as identifiers.
    """

    columns: tuple[int, ...]
    key_columns: tuple[Column, ...]
    score: Score
    normalizer: Normalizer | None
    key: Shaped[np.ndarray, "rows ..."]
    notes: tuple[str, ...]
    normalizer_note: str = field(default="", kw_only=True)
    candidate_rows: int = field(default=0, kw_only=True)
    readings: tuple[str, ...] = field(default=(), kw_only=True)
    measure: ClassVar[str] = ""
    """The unit of `nearness`: "similarity", "distance", or "" where there is no single number."""

    def query_array(self, columns: Sequence[KeyCells]) -> Shaped[np.ndarray, "q ..."]:
        """Return the query array of the engine for the parsed cells of all key columns.

        It contains the compared columns side by side, with timestamps in days.
        """
        own = self._compared(columns)
        return own[0] if own[0].dtype == object else side_by_side(own)

    def with_rows(self, columns: Sequence[Column]) -> Self:
        """Return a copy of this comparison whose keys are taken from `columns`, the key columns of other rows."""
        own = tuple(columns[index] for index in self.columns)
        return replace(self, key=self.query_array(columns), key_columns=own)

    def nearness(
        self, query: Shaped[np.ndarray, "q ..."], rows: Int[np.ndarray, "q n"]
    ) -> Num[np.ndarray, "q n"] | None:
        """Return the similarity or distance of each query to its rows in `rows`, or None if `measure` is empty."""
        return None

    def mismatches(self, query: Shaped[np.ndarray, "q ..."], nearest: Int[np.ndarray, " q"]) -> list[str | None]:
        """Return for each query the reason why its nearest row does not match, or None if it matches."""
        return [None] * len(nearest)

    def candidates(self, query: object, rows: Int[np.ndarray, " n"], default: bool) -> tuple[str, ...]:
        """Return the different keys that match one query about equally well, or an empty tuple if one matches best.

        Args:
            query: one element of the engine's query array.
            rows: the rows with the largest weights, in descending order.
            default: whether the weights are those of the default normalizer.
        """
        return ()

    def lookup(self) -> Self | None:
        """Return a comparison by equality, which answers the queries that equal a key; None if there is none.

        The other queries are answered by this comparison.
        """
        return None

    @property
    def named_columns(self) -> tuple[int, ...]:
        """Indices of the key columns whose different cells mean different entities: texts, categories, identifiers."""
        pairs = zip(self.columns, self.key_columns, strict=True)
        return tuple(index for index, column in pairs if column.traits.text)

    @cached_property
    def first_equal(self) -> Int[np.ndarray, " rows"] | None:
        """See `first_equal_vectors`, of the keys."""
        return first_equal_vectors(self.key)

    def score_of(self, row: int) -> Score:
        """Return the score with which queries are compared with a row; −1: with no row in particular."""
        return self.score

    def bandwidths(self, row: int) -> dict[str, float]:
        """Return the bandwidth with which queries are compared with a row by key column, in the column's own unit.

        Those of groups are left out for −1, which is no row.
        """
        return {}

    @property
    def one_key(self) -> bool:
        """Whether the default answer comes from the rows with the most similar texts alone."""
        return False

    @property
    def mixes_keys(self) -> bool:
        """Whether one answer can come from the rows of different texts, which are often different entities."""
        return False

    def unsupported(self, error: Exception) -> QueryError:
        """Return the error for a score of the user that does not fit the cells of the key columns."""
        return QueryError(
            f"score must support the key columns, got {self.score}, but the comparison failed: {error} "
            "Choose another score, or omit score."
        )

    @property
    def no_weight_reason(self) -> str:
        """The text that an answer gives as the reason for "no match" when all weights are zero."""
        return "no key equals the query" if isinstance(self.score, Exact) else "all weights are zero"

    def _compared(self, columns: Sequence[KeyCells]) -> list[Shaped[np.ndarray, "q ..."]]:
        own = zip(self.columns, self.key_columns, strict=True)
        return [in_units(column, columns[index].cells) for index, column in own]


@dataclass(frozen=True, eq=False)
class ScoreComparison(Comparison):
    """Comparison by a score without a limit of a match, so that a query has no match only if all weights are zero.

    Attributes:
        structured: whether the key is a structured array with a field per column.
    """

    structured: bool = False

    def query_array(self, columns: Sequence[KeyCells]) -> Shaped[np.ndarray, "q ..."]:
        """Return the parsed cells of queries as one array, with a column or a field for each key column.

        Timestamps are in days.
        """
        if not self.structured:
            return super().query_array(columns)
        names = [column.name for column in self.key_columns]
        return structured(dict(zip(names, self._compared(columns), strict=True)))


@dataclass(frozen=True, eq=False)
class EqualityComparison(Comparison):
    """Comparison by equality of all key columns, which is exact for every type of cells.

    The key has a row of integers per row of the table, see `Column.integers`. Its last column is 0; that of a query
    is 1 if no cell of the column's type can equal it. If texts or vectors of floats are compared, the key is an array
    of texts or of tuples.

    Attributes:
        uuids: for each compared column "uuid" if its texts are compared as UUIDs, "mostly uuid" if those are that are
            UUIDs; other texts are compared as they are.
        folded: whether texts that differ only in case, width or white space are equal.
    """

    uuids: tuple[str, ...] = ()
    folded: bool = True

    def query_array(self, columns: Sequence[KeyCells]) -> Shaped[np.ndarray, "q ..."]:
        """Return the parsed cells of queries as rows of integers, or as texts or tuples if a column has no integers."""
        own = [columns[index] for index in self.columns]
        unequal = np.zeros(len(own[0].cells), bool)
        parts: list[np.ndarray] = []
        for column, as_uuid in zip(own, self.uuids or ("",) * len(own), strict=True):
            integers, others = column.integers, getattr(column, "unequal", None)
            if as_uuid == "uuid":
                integers, others = exact_cells.uuid_integers(column.cells.tolist())
            unequal |= others if others is not None else False
            texts = column.cells if self.folded or column.original is None else column.original
            if as_uuid == "mostly uuid":
                texts = np.array([exact_cells.uuid_text(text) for text in texts], dtype=object)
            parts.append(texts if integers is None else integers)
        if all(part.dtype == np.int64 for part in parts):
            return np.concatenate([*parts, unequal[:, None].astype(np.int64)], axis=1)
        return parts[0] if len(parts) == 1 else _tuples(parts, unequal)

    @property
    def named_columns(self) -> tuple[int, ...]:
        """Indices of all compared columns."""
        return self.columns

    def mismatches(self, query: Shaped[np.ndarray, "q ..."], nearest: Int[np.ndarray, " q"]) -> list[str | None]:
        """Return for each query the reason why its nearest row is not equal, or None if it is equal."""
        equal = np.asarray(self.score(query[:, None], self.key[nearest][:, None]))[:, 0, 0]
        return [None if one else self.no_weight_reason for one in equal]


def _tuples(parts: Sequence[Shaped[np.ndarray, "q ..."]], unequal: Bool[np.ndarray, " q"]) -> Shaped[np.ndarray, " q"]:
    """Return an array with a tuple of the cells of each row of several arrays."""
    lists = [map(tuple, part.tolist()) if part.ndim == 2 else part.tolist() for part in parts]
    return np.fromiter(zip(*lists, unequal.tolist(), strict=True), object, len(unequal))


@dataclass(frozen=True, eq=False)
class SimilarityComparison(Comparison):
    """Comparison by a similarity of at most 1, such as the spelling of texts or the cosine of vectors.

    Attributes:
        min_similarity: the least similarity of a match.
        accept_prefixes: whether a query that is a prefix of its nearest key always matches.
        own_rows: whether a query that equals a key is answered from the rows of this key alone.
    """

    min_similarity: float
    accept_prefixes: bool = False
    own_rows: bool = False
    measure: ClassVar[str] = "similarity"

    def nearness(self, query: Shaped[np.ndarray, "q ..."], rows: Int[np.ndarray, "q n"]) -> Num[np.ndarray, "q n"]:
        """Return the similarity `(q, n)` of each query to the n rows listed for it in `rows`."""
        return np.asarray(self.score(query[:, None], self.key[rows]))[:, 0, :]

    @property
    def mixes_keys(self) -> bool:
        """Whether the key is a column of texts."""
        return self.key_columns[0].kind == "text"

    def lookup(self) -> Self | None:
        """Return a comparison by equality if `own_rows` is set, otherwise None."""
        return replace(self, score=Exact(), normalizer=Sum(), own_rows=False) if self.own_rows else None

    def mismatches(self, query: Shaped[np.ndarray, "q ..."], nearest: Int[np.ndarray, " q"]) -> list[str | None]:
        """Return for each query the reason why its nearest row is not similar enough to match, or None if it matches.

        If `accept_prefixes` is set, a query that is a prefix of its nearest key matches.
        """
        labels = self.key_columns[0].original
        best = self.nearness(query, nearest[:, None])[:, 0]
        reasons: list[str | None] = []
        for text, row, similarity in zip(query, nearest, best, strict=True):
            # A key that is a prefix of the query is not accepted: any text that starts with a short key would match.
            prefix = self.accept_prefixes and len(text) > 1 and self.key[row].startswith(text)
            subject = "the nearest key" if labels is None else f"the nearest key, {labels[row]!r},"
            reason = f"{subject} has similarity {similarity:.2f}, under {self.min_similarity:g}"
            reasons.append(None if similarity >= self.min_similarity or prefix else reason)
        return reasons


@dataclass(frozen=True, eq=False)
class DistanceComparison(Comparison):
    """Comparison by distance, for columns of numbers, timestamps and booleans or for one column of vectors.

    Attributes:
        offset, scale: each column is standardized as `(cells - offset) / scale` before the score.
        unit: the factor from standardized to displayed distances.
        unit_name: the unit of displayed distances, such as " days".
        max_distance: the largest displayed distance of a match.
    """

    offset: Float[np.ndarray, " width"]
    scale: Float[np.ndarray, " width"]
    unit: float
    unit_name: str
    max_distance: float
    measure: ClassVar[str] = "distance"

    def query_array(self, columns: Sequence[KeyCells]) -> Shaped[np.ndarray, "q width"]:
        """Return the parsed cells of queries as a matrix with one column per key column, standardized like the keys."""
        return np.asarray((super().query_array(columns) - self.offset) / self.scale)

    def nearness(self, query: Shaped[np.ndarray, "q ..."], rows: Int[np.ndarray, "q n"]) -> Num[np.ndarray, "q n"]:
        """Return the Euclidean distance `(q, n)` of each query to the n rows listed for it in `rows`."""
        return self.distances(query, rows)

    def distances(self, query: Shaped[np.ndarray, "q ..."], rows: Int[np.ndarray, "q n"]) -> Num[np.ndarray, "q n"]:
        """Return displayed distances, computed from differences, so that equal points have distance 0."""
        squares = np.square(query[:, None, :] - self.key[rows])
        return displayed_distances(self.key_columns, np.sqrt(squares.sum(axis=-1)) * self.unit)

    def rows_in_reach(
        self,
        query: Float[np.ndarray, "q width"],
        normalizer: Normalizer,
        present: Bool[np.ndarray, " rows"],
        least: int,
        left_out: Int[np.ndarray, " q"] | None = None,
    ) -> Int[np.ndarray, " n"] | None:
        """Return the present rows near some queries if all others together have less than 1e-17 of the weight of each.

        Args:
            query: queries near one another.
            normalizer: the normalizer of the call.
            present: True for the rows that take part.
            least: number of rows that the reach of each query has to hold.
            left_out: the row of each query that does not take part.

        Returns:
            The rows in ascending order; None if they are more than half of all, a query has no row near it, or the
            score or the normalizer gives weight to all rows.
        """
        scale = normalizer.scale if type(normalizer) is Softmax and normalizer.sums_to_one else None
        if not scale or len(self.key) < _FEWEST_ROWS:
            return None
        near = self.score.radius(_NEAR / scale)
        reach = self.score.radius((_NEAR + _OMITTED + math.log(len(self.key))) / scale)
        if not math.isfinite(reach):
            return None
        low, high, inside = query.min(axis=0) - reach, query.max(axis=0) + reach, present.copy()
        for start in range(0, len(inside), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            for own, first, last in zip(self.key[part].T, low, high, strict=True):
                inside[part] &= (own >= first) & (own <= last)
        rows = np.flatnonzero(inside)
        if 2 * len(rows) > len(inside):
            return None
        squares = squared_distances(query, self.key[rows], *np.empty((2, len(query), len(rows))))
        if left_out is not None:
            squares[np.arange(len(query)), np.searchsorted(rows, left_out)] = np.inf
        found = squares.min(axis=1, initial=np.inf) <= near**2
        return rows if (found & ((squares <= reach**2).sum(axis=1) >= least)).all() else None

    def mismatches(self, query: Shaped[np.ndarray, "q ..."], nearest: Int[np.ndarray, " q"]) -> list[str | None]:
        """Return for each query the reason why its nearest row is too far away to match, or None if it matches."""
        limit = f"no match beyond a distance of {self.max_distance:.3g}"
        reasons: list[str | None] = []
        for row, distance in zip(nearest, self.nearness(query, nearest[:, None])[:, 0], strict=True):
            away = f"{number(distance, distance)}{self.unit_name} away"
            far = distance > self.max_distance
            reasons.append(f"the nearest key{self._key_text(row)} is {away}; {limit}" if far else None)
        return reasons

    def bandwidths(self, row: int) -> dict[str, float]:
        """Return the bandwidth of each column in its own unit, and in days for timestamps."""
        width = getattr(self.score_of(row), "bandwidth", None)
        if not isinstance(width, float | int):
            return {}
        firsts = np.cumsum([0, *(column.width for column in self.key_columns)])[:-1]
        return {c.name: float(width * scale) for c, scale in zip(self.key_columns, self.scale[firsts], strict=True)}

    def _key_text(self, row: int) -> str:
        if self.key_columns[0].kind == "vector":
            return ""
        return f", {', '.join(column.text(row) for column in self.key_columns)},"


@dataclass(frozen=True, eq=False)
class GroupedDistanceComparison(DistanceComparison):
    """Comparison by distance with a bandwidth for each group of rows, which have equal cells in some other columns.

    The last column of the key holds the inverse factor of the bandwidth of each row.

    Attributes:
        group_columns: indices of the key columns that define the groups.
        factors: factors of the bandwidth by the cells of a group; other groups have the factor 1.
    """

    group_columns: tuple[int, ...] = ()
    factors: Mapping[tuple[object, ...], float] = field(default_factory=dict)

    def query_array(self, columns: Sequence[KeyCells]) -> Shaped[np.ndarray, "q width"]:
        """Return the standardized cells, with a last column for the bandwidth, which only that of keys affects."""
        groups = zip(*(columns[index].cells.tolist() for index in self.group_columns), strict=True)
        inverse = [1.0 / self.factors.get(group, 1.0) for group in groups]
        return np.concatenate([super().query_array(columns), np.array(inverse).reshape(-1, 1)], axis=1)

    def nearness(self, query: Shaped[np.ndarray, "q ..."], rows: Int[np.ndarray, "q n"]) -> Num[np.ndarray, "q n"]:
        return replace(self, key=self.key[:, :-1]).distances(query[:, :-1], rows)

    def score_of(self, row: int) -> Score:
        """Return the Gaussian with the bandwidth of the group of a row."""
        if row < 0:
            return self.score
        (width,) = self.score.arrays()
        return Gaussian(float(np.asarray(width)) / float(self.key[row, -1]))


@dataclass(frozen=True, eq=False)
class MixedComparison(Comparison):
    """Comparison of key columns of several kinds in parts. A query has a match if every part matches."""

    parts: tuple[tuple[str, Comparison], ...]

    @property
    def one_key(self) -> bool:
        """Whether a part compares texts such that the default answer comes from the most similar ones alone."""
        return any(part.one_key for _, part in self.parts)

    @property
    def named_columns(self) -> tuple[int, ...]:
        return tuple(index for _, part in self.parts for index in part.named_columns)

    def score_of(self, row: int) -> Score:
        """Return the score of all columns with the bandwidth of the group of a row."""
        assert isinstance(self.score, ByColumn)
        grouped = {name: part.score_of(row) for name, part in self.parts if isinstance(part, GroupedDistanceComparison)}
        columns = tuple((name, grouped.get(name, score), weight) for name, score, weight in self.score.columns)
        return ByColumn(columns) if grouped and row >= 0 else self.score

    def bandwidths(self, row: int) -> dict[str, float]:
        """Return the bandwidths of all parts, with that of the group of a row."""
        return {name: width for _, part in self.parts for name, width in part.bandwidths(row).items()}

    @property
    def mixes_keys(self) -> bool:
        """Whether a part compares texts by similarity."""
        return any(part.mixes_keys for _, part in self.parts)

    def query_array(self, columns: Sequence[KeyCells]) -> Shaped[np.ndarray, " q"]:
        """Return the parsed cells of queries as a structured array with one field for each part."""
        return structured({name: part.query_array(columns) for name, part in self.parts})

    def with_rows(self, columns: Sequence[Column]) -> Self:
        parts = tuple((name, part.with_rows(columns)) for name, part in self.parts)
        return replace(super().with_rows(columns), parts=parts)

    def mismatches(self, query: Shaped[np.ndarray, "q ..."], nearest: Int[np.ndarray, " q"]) -> list[str | None]:
        """Return for each query the reason of the first part that does not match, or None if all parts match."""
        reasons: list[str | None] = [None] * len(nearest)
        equal = [name for name, part in self.parts if isinstance(part.score, Exact)]
        for name, part in self.parts:
            for index, reason in enumerate(part.mismatches(query[name], nearest)):
                if reason is not None and reasons[index] is None:
                    # Other rows may equal the query in this column.
                    together = len(equal) > 1 and name in equal
                    reasons[index] = (
                        f"no row equals the query in {' and '.join(equal)}" if together else f"{name}: {reason}"
                    )
        return reasons


def displayed_distances(columns: Sequence[Column], distances: Float[np.ndarray, " *n"]) -> Float[np.ndarray, " *n"]:
    """Return distances of keys as they are displayed: along the circle if the key is one cyclic column."""
    cyclic = len(columns) == 1 and columns[0].kind == "cyclic"
    return arc_lengths(distances, columns[0].period) if cyclic else np.asarray(distances)


def structured(fields: dict[str, Shaped[np.ndarray, "rows ..."]]) -> Shaped[np.ndarray, " rows"]:
    """Return key columns as a structured array with a field for each column. A matrix becomes a field of vectors."""
    dtype = [(name, cells.dtype, cells.shape[1:]) for name, cells in fields.items()]
    rows = np.empty(len(next(iter(fields.values()))), dtype=dtype)
    for name, cells in fields.items():
        rows[name] = cells
    return rows


def in_units(column: Column, cells: Shaped[np.ndarray, "rows ..."]) -> Shaped[np.ndarray, "rows ..."]:
    """Return the cells of a column, with timestamps converted to days after the column's origin."""
    return cells if column.unit == 1.0 else cells / column.unit


def side_by_side(cells: Sequence[Float[np.ndarray, "rows ..."]]) -> Float[np.ndarray, "rows width"]:
    """Return the cells of several columns as one matrix."""
    return np.concatenate([each if each.ndim == 2 else each[:, None] for each in cells], axis=1)
