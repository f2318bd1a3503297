"""Choice of the score, the normalizer and the limit of a match by which a database compares queries with keys.

    key                    score                     normalizer                    no match where
    one text               Names                     the rows of the best key      similarity < 0.8, or ambiguous
    one category, boolean  Exact                     Sum                           nothing is equal
    one identifier         Exact                     Sum                           nothing is equal
    one vector             Cosine                    top 10, softmax of s/0.05     cosine < 0.5
    numbers, timestamps,   Gaussian, standardized    Softmax                       too far away
    cyclic numbers
    of several kinds       ByColumn of the above,    Softmax                       one part has no match
                           over one group of texts

In a key of several kinds, rows with equal texts, categories, booleans and identifiers are a group: the bandwidth of the
numbers is chosen such that each row is predicted from the other rows of its group. Texts are answered from the rows of
one group alone, see `qkv.database.keys.find_group`.

Numbers are too far away beyond the larger of three bandwidths (at most 1 standard deviation, 0.25 for local linear
regression) and the 99th percentile of the distances between a key and its nearest other key. If a text occurs in ten
rows or more, "top 10" grows to one more than that number, so that all equal keys and one other are included. Which
columns hold identifiers is stated in `qkv.database.io.identifiers`; a score that compares numbers compares them as
numbers. Categories and identifiers equal a query that differs in case, unless the score `Exact` is given. A given score
object compares unstandardized numbers (timestamps in days). A kernel given by name without a bandwidth compares
standardized columns with a chosen bandwidth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np

from qkv.core.formatting import counted
from qkv.core.ordering import row_groups
from qkv.core.progress import Progress
from qkv.core.typing import Bool, Float, Int
from qkv.database.choice_cache import NO_CACHE, ChoiceCache
from qkv.database.io.identifiers import TextForms, identifier_reason, is_whole_number, key_note
from qkv.database.keys.comparisons import (
    Comparison,
    DistanceComparison,
    EqualityComparison,
    GroupedDistanceComparison,
    MatchLimits,
    MixedComparison,
    ScoreComparison,
    SimilarityComparison,
    displayed_distances,
    in_units,
    side_by_side,
    structured,
)
from qkv.database.keys.name_comparison import NameComparison
from qkv.database.keys.part_registry import ParsedScore, parse_score
from qkv.database.keys.row_sample import sample_rows
from qkv.encoders.columns import Column
from qkv.errors import OptionError
from qkv.estimators.regression.bandwidth import (
    KERNEL_WIDTHS,
    Bandwidth,
    choose_bandwidth,
    column_means,
    method_text,
    scott,
    square_unit,
)
from qkv.estimators.regression.local_linear import choose_linear_bandwidth
from qkv.estimators.regression.neighbor_blocks import nearest_distance_quantile
from qkv.normalizers import Softmax, TopK
from qkv.scores import ByColumn, Cosine, Custom, Exact, Gaussian, Names, Spelling, TokenSetRatio
from qkv.scores.base import Score


def gaussian_of_keys(
    query: Float[np.ndarray, "q columns"], key: Float[np.ndarray, "k columns"], bandwidth: Float[np.ndarray, ""]
) -> Float[np.ndarray, "q k"]:
    """Return Gaussian logits with a bandwidth for each key, whose inverse factor is the last column of `key`."""
    squares = np.square(query[:, None, :-1] - key[None, :, :-1]).sum(axis=-1)
    return np.asarray(-0.5 * squares * np.square(key[:, -1] / bandwidth))


def with_group_bandwidths(
    numbers: DistanceComparison,
    chosen: Bandwidth | None,
    groups: Int[np.ndarray, " rows"] | None,
    columns: Sequence[Column],
    indices: tuple[int, ...],
) -> DistanceComparison:
    """Return a comparison with the bandwidth that was chosen for each group, or `numbers` if all are the same.

    Args:
        numbers: the comparison of the numbers among the keys.
        chosen: the chosen bandwidth.
        groups: the group of each row, numbered in the order in which they occur; None without groups.
        columns: the key columns.
        indices: the indices of the columns whose equal cells are a group.
    """
    score = numbers.score
    if chosen is None or groups is None or not chosen.factors or not isinstance(score, Gaussian):
        return numbers
    _, first = np.unique(groups, return_index=True)
    cells = {tuple(columns[index].cells[first[group]] for index in indices): factor for group, factor in chosen.factors}
    least, most = min(cells.values()), max(cells.values())
    note = f"bandwidth multiplied by {least:.3g} to {most:.3g} for {len(cells):,} groups with other errors"
    by_key = Custom(gaussian_of_keys, (np.asarray(score.bandwidth),), numbers.key.shape[1] + 2, "any")
    fields = {f.name: getattr(numbers, f.name) for f in dataclasses.fields(numbers)}
    fields.update(score=by_key, notes=(*numbers.notes, note), group_columns=indices, factors=cells)
    return GroupedDistanceComparison(**fields).with_rows(columns)


_TEXT_TEMPERATURE = 0.02
_TEXT_SIMILARITY = 0.8
_VECTOR_TEMPERATURE = 0.05
_VECTOR_SIMILARITY = 0.5
_TOP = 10
# A line is not extended beyond the keys by more standard deviations.
_LINE_REACH = 0.25
# Weight of equality of texts and categories: 1,400 bandwidths of a Gaussian count less. Rounding of logits of this
# size changes weights by 1e-10.
_EQUAL = 1e6
_SCORES = {"text": "Spelling", "category": "Exact", "vector": "Cosine"}


class ComparisonChooser:
    """Chooser of the score, the normalizer and the limit of a match by which queries are compared with key columns.

    Args:
        columns: the key columns, in the order in which the key was named.
        value: the value column.
        complete: `(rows,)`, True for the rows that determine bandwidths and distances, which have key and value.
        targets: returns the values to predict for the rows with the given indices, or the reason why there are none.
        cache: the cache of what is chosen from these rows.
        votes: whether the values vote.
    """

    def __init__(
        self,
        columns: tuple[Column, ...],
        value: Column,
        complete: Bool[np.ndarray, " rows"],
        targets: Callable[[Int[np.ndarray, " n"]], Float[np.ndarray, "n targets"] | str],
        cache: ChoiceCache = NO_CACHE,
        votes: bool = False,
    ) -> None:
        self.columns, self.value, self.complete, self.targets = columns, value, complete, targets
        self.error_unit = " days" * (value.kind == "timestamp" and not votes)
        self.linear, self.search = False, choose_bandwidth
        self._cache, self._bandwidths = cache, dict[object, Bandwidth]()
        self._groups: Int[np.ndarray, " rows"] | None = None

    def choose(
        self, score: Score | str | None, limits: MatchLimits, progress: Progress | None, linear: bool = False
    ) -> Comparison:
        """Return a comparison by the score `score`, or the default comparison if `score` is None.

        If `linear` is True, the bandwidth is that of local linear regression.

        Raises:
            OptionError: The name of the score is unknown, the score does not support the kinds of the key columns, or
                a limit of a match is not one of the comparison.
        """
        comparison = self._choose(score, limits, progress, linear)
        if not limits.defaults:
            self._check_limits(comparison, limits)
        return comparison

    def _check_limits(self, comparison: Comparison, limits: MatchLimits) -> None:
        names = {"similarity": "min_similarity", "distance": "max_distance"}
        own = names.get(comparison.measure, "min_similarity" * comparison.mixes_keys)
        for name in names.values():
            limit = getattr(limits, name)
            if limit is not None and name != own:
                keys = ", ".join(column.name for column in self.columns)
                how = own.partition("_")[2] or comparison.score
                raise OptionError(
                    f"{name} must be None for the key {keys}, which is compared by {how}, got {limit:g}. "
                    f"{f'Pass {own} instead' if own else 'Omit it'}."
                )

    def _choose(
        self, score: Score | str | None, limits: MatchLimits, progress: Progress | None, linear: bool
    ) -> Comparison:
        self.linear, self.search = linear, choose_linear_bandwidth if linear else choose_bandwidth
        named = parse_score(score) if isinstance(score, str) else None
        if named is not None and not named.needs_bandwidth:
            score, named = named.build(), None
        every = tuple(range(len(self.columns)))
        if isinstance(score, Exact):
            return self._equal(every, (f"compared by {score}",), folded=False)
        numeric = all(map(_is_numeric, self.columns))
        if len(self.columns) > 1 and not numeric and score is not None:
            self._check_accepts_records(score)
        if score is None and any(self._by_equality):
            return (
                self._single_column(0, limits.min_similarity)
                if len(every) == 1
                else self._mixed(limits.min_similarity, progress)
            )
        if isinstance(score, Score):
            return self._by_score(score, every, limits)
        if self._is_single_column("text", "category", "vector"):
            if named is not None:
                key = self.columns[0]
                remedy = "names, spelling, jaro-winkler, levenshtein, token-set-ratio or exact"
                if key.kind == "vector":
                    remedy = f"cosine, or append a bandwidth as in {score}:0.5"
                raise OptionError(
                    f"score must compare cells of kind {key.kind} for the key {key.name!r}, got {score!r}, "
                    f"which compares numbers. Choose {remedy}."
                )
            return self._single_column(0, limits.min_similarity)
        if numeric:
            return self._numeric(every, named, limits.max_distance, partial(self.bandwidth, progress=progress))
        return self._mixed(limits.min_similarity, progress)

    def _check_accepts_records(self, score: Score | str) -> None:
        if isinstance(score, Score) and score.accepts_records:
            return
        example = ", ".join(
            f"({column.name!r}, scores.{_SCORES.get(column.kind, 'Gaussian')}(), 1.0)" for column in self.columns
        )
        raise OptionError(
            "score must compare each column on its own if the key has several columns that are not all numbers, got "
            f"{score}. Omit score to compare each column by the default of its kind, or pass "
            f"scores.ByColumn(({example}))."
        )

    def _is_single_column(self, *kinds: str) -> bool:
        return len(self.columns) == 1 and self.columns[0].kind in kinds

    # -- comparisons by a given score -------------------------------------------------------------------

    def _by_score(self, score: Score, every: tuple[int, ...], limits: MatchLimits) -> Comparison:
        notes: tuple[str, ...] = (f"compared by {score}",)
        first, columns = self.columns[0], self.columns
        if isinstance(score, ByColumn) or (len(columns) > 1 and not all(map(_is_numeric, columns))):
            key = structured({c.name: in_units(c, c.cells) for c in columns})
            return ScoreComparison(every, columns, score, None, key, notes, structured=True)
        if self._is_single_column("text", "category") and score.accepts == "text" and score.default_normalizer == "sum":
            return self._texts(0, score, limits.min_similarity, notes)
        if self._is_single_column("vector") and isinstance(score, Cosine) and score.temperature == 1.0:
            return self._vectors(0, limits.min_similarity)
        points = first.cells if self._is_single_column("text", "category", "vector") else self._stacked(every)
        if points.dtype != object:
            points = self._with_excluded_at_mean(points)
        width = getattr(score, "bandwidth", None)
        limit = limits.max_distance
        if self._is_single_column("text", "category") or not isinstance(width, float | int):
            limit = None
        elif limit is None and not self._is_single_column("vector"):
            limit = max(3.0 * width, self.nearest_quantile(points, "own"))
            limit = float(displayed_distances(columns, np.array(limit)))
        if limit is None:
            return ScoreComparison(every, columns, score, None, points, notes)
        notes += (f"no match beyond a distance of {limit:.3g}",)
        zeros = np.zeros(points.shape[1])
        unit = _unit_name(columns)
        return DistanceComparison(every, columns, score, None, points, notes, zeros, zeros + 1, 1.0, unit, limit)

    def _single_column(self, index: int, min_similarity: float | None) -> Comparison:
        column = self.columns[index]
        if self._reasons[index]:
            return self._equal((index,), ("compared by equality",))
        if column.kind == "text":
            notes = ("compared by Names, the larger of similarity by words and by spelling",)
            return self._texts(index, Names(), min_similarity, notes)
        if column.kind == "vector":
            return self._vectors(index, min_similarity)
        return self._equal((index,), ("compared by equality",))

    def _equal(self, indices: tuple[int, ...], notes: tuple[str, ...], folded: bool = True) -> EqualityComparison:
        """Return a comparison by equality of the selected columns; if `folded` is True, of texts as they are folded."""
        columns = tuple(self.columns[index] for index in indices)
        uuids = tuple(self.form(column) for column in columns)
        reasons = {self.columns[index].name: self._reasons[index] for index in indices}
        readings = tuple(key_note(name, why) for name, why in reasons.items() if why)
        parts = indices, columns, Exact(), None, np.zeros(0), notes
        return EqualityComparison(*parts, uuids=uuids, folded=folded, readings=readings).with_rows(self.columns)

    @cached_property
    def _reasons(self) -> tuple[str, ...]:
        """For each key column the reason why it holds identifiers, or an empty text if it does not."""
        return tuple(
            identifier_reason(column, self.largest(column) if is_whole_number(column) else 0.0, self.form(column))
            for column in self.columns
        )

    @property
    def _by_equality(self) -> tuple[bool, ...]:
        """For each key column whether it holds identifiers or booleans, which are not near each other."""
        pairs = zip(self.columns, self._reasons, strict=True)
        return tuple(bool(reason) or column.kind == "boolean" for column, reason in pairs)

    @property
    def _group_columns(self) -> tuple[int, ...]:
        """The indices of the key columns that are not compared by distance, whose equal rows are a group."""
        return tuple(i for i, column in enumerate(self.columns) if column.traits.text or self._by_equality[i])

    def _texts(self, index: int, score: Score, min_similarity: float | None, notes: tuple[str, ...]) -> Comparison:
        column = self.columns[index]
        # One row more than the most common text, so that a second text with the same similarity is seen.
        top = max(_TOP, self.most_repeats(column) + 1)
        least = _TEXT_SIMILARITY if min_similarity is None else min_similarity
        spelling = isinstance(score, Spelling)
        limit = f"no match under a similarity of {least:g}" + ", unless the query begins the key" * spelling
        notes += (limit,)
        normalizer = TopK(top, normalizer=Softmax(temperature=_TEXT_TEMPERATURE))
        # Token sets can be equal where texts differ, so that their similarity does not tell which keys equal the query.
        own = not isinstance(score, TokenSetRatio)
        notes += ("no answer where several keys match about equally",) * isinstance(score, Names)
        parts = (index,), (column,), score, normalizer, column.cells, notes, least
        if isinstance(score, Names):
            one = "the answer comes from the rows of one key, the most similar one"
            return NameComparison(*parts, own_rows=True, normalizer_note=one, candidate_rows=top)
        return SimilarityComparison(*parts, spelling, own, normalizer_note=f"the {top} best keys take part")

    def _vectors(self, index: int, min_similarity: float | None) -> Comparison:
        column = self.columns[index]
        least = _VECTOR_SIMILARITY if min_similarity is None else min_similarity
        notes = ("compared by cosine", f"no match under a cosine of {least:g}")
        normalizer = TopK(_TOP, normalizer=Softmax(temperature=_VECTOR_TEMPERATURE))
        parts = (index,), (column,), Cosine(), normalizer, column.cells, notes, least
        return SimilarityComparison(*parts, normalizer_note=f"the {_TOP} best keys take part")

    def _numeric(
        self,
        indices: tuple[int, ...],
        named: ParsedScore | None,
        max_distance: float | None,
        choose: Callable[[Float[np.ndarray, "rows width"]], Bandwidth],
    ) -> DistanceComparison:
        columns = tuple(self.columns[index] for index in indices)
        stacked = self._stacked(indices)
        mean, scale = self.mean_and_deviation(indices, stacked)
        firsts = np.cumsum([0, *(column.width for column in columns)])[:-1]
        for first, column in zip(firsts, columns, strict=True):
            # Both coordinates of a point have one scale, so that the circle remains one.
            scale[first : first + column.width] = np.hypot.reduce(scale[first : first + column.width])
        # A constant column has no information; a scale of 1 avoids amplifying its rounding errors.
        scale = np.where(scale > 0, scale, 1.0)
        key = self._with_excluded_at_mean((stacked - mean) / scale)
        chosen = choose(key)
        kind = named.kind.__name__.lower() if named is not None else "gaussian"
        width = chosen.value * KERNEL_WIDTHS.get(kind, 1.0)
        score = named.build(width) if named is not None else Gaussian(width)
        alone = len(columns) == 1
        unit = float(scale[0]) if alone else 1.0
        reach = min(3.0 * width, _LINE_REACH if self.linear else 1.0)
        # All rows in the window of a boxcar weigh the same, so that the first one counts as the nearest.
        reach = max(reach, width) if kind == "boxcar" else reach
        distance = max(reach, self.nearest_quantile(key, "standard")) * unit
        limit = float(displayed_distances(columns, np.array(distance))) if max_distance is None else max_distance
        own = ", ".join(
            f"{width * s:.3g} {'days of ' * (c.kind == 'timestamp')}{c.name}"
            for c, s in zip(columns, scale[firsts], strict=True)
        )
        unit_name = _unit_name(columns) if alone else " standard deviations"
        text = f"{limit:.3g}{unit_name.removesuffix('s') if f'{limit:.3g}' == '1' else unit_name}"
        compared = f"compared by {type(score).__name__} of standardized columns, bandwidth {width:.3g} ({own})"
        copied = " of rows" in chosen.method
        notes = (
            compared,
            f"bandwidth {method_text(chosen, self.error_unit)}",
            *("copies of rows count in effective rows and standard errors as other rows do",) * copied,
            f"no match beyond a distance of {text}",
        )
        return DistanceComparison(indices, columns, score, None, key, notes, mean, scale, unit, unit_name, limit)

    def _mixed(self, min_similarity: float | None, progress: Progress | None) -> MixedComparison:
        parts: list[tuple[str, Comparison, float]] = []
        equal_cells = self._by_equality
        numeric = tuple(i for i, column in enumerate(self.columns) if _is_numeric(column) and not equal_cells[i])
        texts = sum(column.kind == "text" and not equal_cells[i] for i, column in enumerate(self.columns))
        if numeric:
            named = [self.columns[index].cells for index in self._group_columns]
            self._groups = row_groups(*named) if named else None

            def choose(points: Float[np.ndarray, "rows width"]) -> Bandwidth:
                if self._groups is not None:
                    return self.bandwidth(points, progress)
                return scott(self.total, points.shape[1], "the key has columns of several kinds")

            name = "+".join(self.columns[i].name for i in numeric)
            numbers = self._numeric(numeric, None, None, choose)
            chosen = self._bandwidths.get(self.search)
            grouped = with_group_bandwidths(numbers, chosen, self._groups, self.columns, self._group_columns)
            parts.append((name, grouped, 1.0))
        for index, column in enumerate(self.columns):
            if index in numeric:
                continue
            # A similarity has the same weight as in a key of one column; several texts share the weight of one.
            weight = 1.0 / (_VECTOR_TEMPERATURE if column.kind == "vector" else _TEXT_TEMPERATURE)
            own = self._single_column(index, min_similarity if column.kind == "text" else None)
            if column.kind == "category":
                own = SimilarityComparison((index,), (column,), Exact(), None, column.cells, own.notes, 1.0)
            shared = column.kind == "text" and not equal_cells[index]
            parts.append((column.name, own, weight / texts if shared else weight))
        equal = tuple((self.columns[index].name, Exact(), _EQUAL) for index in self._group_columns)
        score = ByColumn((*((name, part.score, weight) for name, part, weight in parts), *equal))
        key = structured({name: part.key for name, part, _ in parts})
        notes = tuple(f"{name}: {note}" for name, part, _ in parts for note in part.notes)
        named_parts = tuple((name, part) for name, part, _ in parts)
        one = "the answer comes from the rows with the most similar texts" * any(p.one_key for _, p in named_parts)
        readings = tuple(reading for _, part, _ in parts for reading in part.readings)
        return MixedComparison(
            (), (), score, Softmax(), key, notes, named_parts, normalizer_note=one, readings=readings
        )

    # -- statistics of the rows, which `SampledChooser` overrides ----------------------------------------

    def bandwidth(self, points: Float[np.ndarray, "rows width"], progress: Progress | None) -> Bandwidth:
        """Return the bandwidth for standardized points. It is chosen in the first call and cached."""
        if self.search not in self._bandwidths:
            choose = partial(self._choose_bandwidth, points, progress)
            item = f"{self.search.__name__} for {points.shape[1]} columns, groups: {self._groups is not None}"
            self._bandwidths[self.search] = self._cache.bandwidth(item, choose)
        return self._bandwidths[self.search]

    def _choose_bandwidth(self, points: Float[np.ndarray, "rows width"], progress: Progress | None) -> Bandwidth:
        rows = self.sample
        groups = None if self._groups is None else self._groups[rows]
        targets, total = self.targets(rows), self.total
        if isinstance(targets, str) or (kept := _without_copies(points[rows], targets)) is None:
            return self.search(points[rows], targets, progress, total, groups)
        own, total = rows[kept], total * len(kept) // len(rows)
        chosen = self.search(points[own], targets[kept], progress, total, None if groups is None else groups[kept])
        copies = counted(len(rows) - len(kept), "copy", "copies")
        return dataclasses.replace(chosen, method=f"{chosen.method} without {copies} of rows")

    @cached_property
    def sample(self) -> Int[np.ndarray, " sample"]:
        """The rows from which bandwidths and distances are chosen: all complete rows, or a sample of them."""
        return sample_rows(tuple({c.name: c for c in (*self.columns, self.value)}.values()), self.complete)

    @property
    def total(self) -> int:
        """The number of complete rows, of which `sample` holds all or some."""
        return int(self.complete.sum())

    def mean_and_deviation(
        self, indices: tuple[int, ...], stacked: Float[np.ndarray, "rows width"]
    ) -> tuple[Float[np.ndarray, " width"], Float[np.ndarray, " width"]]:
        """Return the mean and the standard deviation of each column of a matrix over its complete rows."""
        complete = stacked[self.complete]
        if not len(complete):
            return np.zeros(stacked.shape[1]), np.ones(stacked.shape[1])
        mean = column_means(complete)
        unit = square_unit(np.abs(complete - mean).max(axis=0))
        return mean, ((complete - mean) / unit).std(axis=0) * unit

    def most_repeats(self, column: Column) -> int:
        """Return the number of complete rows that hold the most common cell of a key column."""
        return int(np.bincount(column.distinct[1][self.complete]).max(initial=0))

    def largest(self, column: Column) -> float:
        """Return the largest magnitude of the numbers of a key column over its complete rows."""
        return float(np.abs(column.cells[self.complete]).max(initial=0.0))

    def form(self, column: Column) -> str:
        """Return the form of the texts of a key column in the complete rows, see `TextForms`."""
        return TextForms.count(column, self.complete).form(column.name)

    def nearest_quantile(self, key: Float[np.ndarray, "rows width"], unit: str) -> float:
        """Return the 99th percentile of the distances from each key to its nearest other key, estimated from a sample.

        Args:
            key: the keys as points.
            unit: "own", or "standard" for standardized columns.
        """
        item = f"distance in {unit} units for {key.shape[1]} columns, groups: {self._groups is not None}"
        return self._cache.number(item, partial(self._sampled_quantile, key))

    def _sampled_quantile(self, key: Float[np.ndarray, "rows width"]) -> float:
        rows = self.sample
        distance = nearest_distance_quantile(key[rows], None if self._groups is None else self._groups[rows])
        # Among all rows, neighbors are nearer than in the sample by a factor of ratio^(1 / width).
        ratio = max(1.0, self.total / max(1, len(rows)))
        return float(distance * ratio ** (-1.0 / key.shape[1]))

    def _stacked(self, indices: tuple[int, ...]) -> Float[np.ndarray, "rows width"]:
        return side_by_side([in_units(self.columns[i], self.columns[i].cells) for i in indices])

    def _with_excluded_at_mean(self, points: Float[np.ndarray, "rows width"]) -> Float[np.ndarray, "rows width"]:
        """Return points in which the excluded rows have the mean of the others.

        The engine subtracts a center from keys, which a large number in an excluded row would move far away from the
        others: differences would then lose their digits.
        """
        if self.complete.all() or not self.complete.any():
            return points
        return np.where(self.complete[:, None], points, points[self.complete].mean(axis=0))


def _is_numeric(column: Column) -> bool:
    return column.traits.compared == "distance"


def _unit_name(columns: tuple[Column, ...]) -> str:
    return " days" if len(columns) == 1 and columns[0].kind == "timestamp" else ""


def _without_copies(
    points: Float[np.ndarray, "rows width"], targets: Float[np.ndarray, "rows targets"]
) -> Int[np.ndarray, " kept"] | None:
    """Return one row of each point and target, or None if few rows are copies, or numbers so coarse that some repeat.

    Leave-one-out would keep the copy of the row that it leaves out, so that the smallest bandwidth seems best.
    """
    pair, distinct, rows = np.zeros(len(points), np.int64), 0, len(points)
    for each in (targets, points):
        axis = 0 if each.shape[1] > 1 else None  # an axis takes ten times as long
        different, number = np.unique(each, axis=axis, return_inverse=True)
        if 5 * len(different) >= 4 * rows:  # there are at least as many different pairs
            return None
        pair, distinct = pair * rows + number.reshape(-1), max(distinct, len(different))
    first = np.unique(pair, return_index=True)[1]
    return None if 5 * len(first) >= 4 * rows or distinct < 0.9 * len(first) else np.sort(first)
