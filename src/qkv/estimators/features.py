"""Encoding of the columns of a table as features: standardized numbers, and integer codes of categories.

    number          z = (x − median) / spread, then z / √(1 + (z/3)²), which keeps outliers within ±3
    heavy tail      asinh z divided by its own spread, then the same, so that tens and thousands of spreads differ
    category        index among the most frequent levels of the fitted column; a missing cell is a level
    date            a number, microseconds since 1970, also of texts; `fit_encoding` warns where no cell decides
                    whether the day or the month is first
    missing number  the median, with a binary feature that marks missing cells
    repeated value  a numeric column with few distinct values is also a category of these values, so that a
                    network can separate 5178 from 5013 where a tree would split between them
    linear part     for a linear trend, (x − median) / standard deviation as well, in the range of the fitted column
                    and as far beyond it

The encoding is stored as plain arrays, lists and dictionaries, so that any library can pickle a fitted estimator.

Source of the two steps for numbers: Holzmüller, Grinsztajn and Steinwart (2024), Better by default,
https://arxiv.org/abs/2407.04491.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

import numpy as np

from qkv.core.typing import Float, Int, Shaped
from qkv.errors import DataError
from qkv.estimators.input_columns import MISSING, as_text, parse_dates

MAX_LEVELS, _MOST_LEVELS, _ALL_LEVELS = 64, 1024, 2048
"""Maximum number of levels of a category with separate codes, without and with a network, and of all categories beyond
the first 64 of each; rarer levels share one code. Beyond 64, a level has at least two rows.

Decision 0052 has the measurements.
"""
_MIN_REPEATS = 32
"""Minimum number of rows in which a repeated numeric value occurs."""
_OUTLIER = 3.0
_TAIL_QUANTILE, _TAIL, _TAIL_VALUES = 0.95, 10.0, 20
"""A column whose 95 % quantile of |z| exceeds this number has a heavy tail, if it has at least 20 distinct values.

Few values far apart may be outliers or codes. On the 10 of 160 tables that have such columns (draws 4 to 7 of
`benchmarks.unseen_tables`, without a table that is learned exactly), asinh changed the error of standard effort by
factors of 0.78 to 1.00, and that of quick effort by 0.42 to 1.09.
"""


class _FeatureEncoding(TypedDict):
    """The fitted encoding of the columns of a table, which is stored with an estimator.

    Attributes:
        numbers: indices of the numeric columns.
        middles, spreads: median and spread of each numeric column; infinite if all cells were missing.
        tails: spread of asinh z of each numeric column with a heavy tail, otherwise 0. Older files lack it.
        ends: limits of each numeric column in the linear part. Only with a linear part.
        deviations: its standard deviation around the median. Only with a linear part.
        kinds: kind of each column, see `read_table`; that of dates as text is a kind of dates. Older files lack it.
        dates: indices of the numeric columns that held dates; in older files, dates as text. Still older files lack it.
        date_formats: the format of each of these columns as text, "" for ISO 8601. Older files lack it.
        gaps: indices of the numeric columns with missing cells.
        categories: indices of the categorical columns.
        levels: most frequent levels of each categorical column.
        repeated: indices of the numeric columns with repeated values.
        common: repeated values of each of these columns.
    """

    numbers: Int[np.ndarray, " numbers"]
    middles: Float[np.ndarray, " numbers"]
    spreads: Float[np.ndarray, " numbers"]
    tails: NotRequired[Float[np.ndarray, " numbers"]]
    ends: NotRequired[Float[np.ndarray, "numbers 2"]]
    deviations: NotRequired[Float[np.ndarray, " numbers"]]
    kinds: NotRequired[list[str]]
    dates: NotRequired[Int[np.ndarray, " dates"]]
    date_formats: NotRequired[Shaped[np.ndarray, " dates"]]
    gaps: Int[np.ndarray, " gaps"]
    categories: Int[np.ndarray, " categories"]
    levels: list[Shaped[np.ndarray, " levels"]]
    repeated: Int[np.ndarray, " repeated"]
    common: list[Float[np.ndarray, " values"]]


@dataclass(frozen=True)
class Features:
    """The features of the rows of a table, which consist of numbers and of integer codes of categories.

    Attributes:
        numbers: numeric features without missing values, followed by those of the linear part.
        codes: categorical features; all unknown levels of a feature share one code.
    """

    numbers: Float[np.ndarray, "rows columns"]
    codes: Int[np.ndarray, "rows categories"]

    def __len__(self) -> int:
        return len(self.numbers)


_Levels = tuple[Shaped[np.ndarray, " levels"], Int[np.ndarray, " levels"]]
"""Values of a column in ascending order, and their numbers of rows."""


@dataclass(frozen=True)
class FittedColumn:
    """Statistics of one column, by which its cells become features; see `_FeatureEncoding`.

    Attributes:
        kind: kind of the column.
        levels: the most frequent levels of a category; None if the column is numeric.
        has_gaps: whether a numeric column has missing cells.
        date_format: format of a column of dates, otherwise None.
    """

    kind: str
    levels: _Levels | None = None
    middle: float = 0.0
    spread: float = 1.0
    tail: float = 0.0
    ends: tuple[float, float] = (0.0, 0.0)
    deviation: float = 1.0
    has_gaps: bool = False
    repeated: Sequence[float] | Float[np.ndarray, " values"] = ()
    date_format: str | None = None


def fit_column(column: Shaped[np.ndarray, " rows"], index: int, network: bool, kind: str) -> FittedColumn:
    """Return the statistics of the column with an index; see `fit_encoding`."""
    form = {"date": "", "date with a time zone": "%z"}.get(kind)
    if column.dtype == object:
        parsed = parse_dates(column)
        if parsed is None or np.isnan(parsed.units).all():
            return FittedColumn(kind, _most_frequent(column.astype(str), _MOST_LEVELS if network else MAX_LEVELS))
        column, form, kind = parsed.units, parsed.form, f"date{' with a time zone' * ('%z' in parsed.form)}"
        if parsed.other:
            first = ["month", "day"][form.index("%d") < form.index("%m")]
            warnings.warn(
                f"column {index} is read in the format {form}, {first} first, as no cell decides. Convert the texts, "
                f"for example with pandas.to_datetime, if they have the format {parsed.other}.",
                UserWarning,
                stacklevel=3,
            )
    present = column[~np.isnan(column)]
    middle, spread = (float(np.quantile(present, 0.5)), _quartile_spread(present)) if len(present) else (0.0, 0.0)
    # The standard deviation of equal numbers is not exactly 0, because of rounding.
    spread = spread if spread > 1e-12 * abs(middle) else 1.0
    tail, (ends, deviation) = _tail_spread((present - middle) / spread), _linear_scale(present, middle)
    spread, repeated = spread if len(present) else math.inf, _repeated_values(present) if network else ()
    return FittedColumn(kind, None, middle, spread, tail, ends, deviation, len(present) < len(column), repeated, form)


def join_columns(columns: Sequence[FittedColumn], linear: bool) -> _FeatureEncoding:
    """Return the encoding of columns that were fitted one by one; see `fit_encoding`."""

    def indices(has: Callable[[FittedColumn], bool]) -> Int[np.ndarray, " n"]:
        return np.array([index for index, each in enumerate(columns) if has(each)], np.int64)

    numbers = [each for each in columns if each.levels is None]
    formats = [each.date_format for each in columns if each.date_format is not None]
    encoding: _FeatureEncoding = {
        "numbers": indices(lambda each: each.levels is None),
        "middles": np.array([each.middle for each in numbers], np.float64),
        "spreads": np.array([each.spread for each in numbers], np.float64),
        "tails": np.array([each.tail for each in numbers], np.float64),
        "gaps": indices(lambda each: each.has_gaps),
        "categories": indices(lambda each: each.levels is not None),
        "levels": _limit_levels([each.levels for each in columns if each.levels is not None]),
        "repeated": indices(lambda each: len(each.repeated) > 0),
        "common": [np.asarray(each.repeated) for each in columns if len(each.repeated)],
        "kinds": [each.kind for each in columns],
        "dates": indices(lambda each: each.date_format is not None),
        "date_formats": np.array(formats, object),
    }
    if linear:
        encoding["ends"] = np.array([each.ends for each in numbers], np.float64).reshape(-1, 2)
        encoding["deviations"] = np.array([each.deviation for each in numbers], np.float64)
    return encoding


def fit_encoding(
    columns: Sequence[Shaped[np.ndarray, " rows"]],
    network: bool = False,
    linear: bool = False,
    kinds: Sequence[str] = (),
) -> _FeatureEncoding:
    """Return an encoding fitted to columns, which are arrays in the form that `read_columns` returns.

    Args:
        columns: one array per column.
        network: whether a network reads the features: numeric columns with repeated values are also categories, and
            categories have more levels.
        linear: whether the features include the numbers for a linear part of a trend.
        kinds: the kinds of the columns that `read_table` returns; columns without one are not checked later.
    """
    known = zip(columns, kinds or [""] * len(columns), strict=True)
    return join_columns(
        [fit_column(column, index, network, kind) for index, (column, kind) in enumerate(known)], linear
    )


def _linear_scale(present: Float[np.ndarray, " rows"], middle: float) -> tuple[tuple[float, float], float]:
    """Return the limits of a column in the linear part, and its standard deviation around the median."""
    if not len(present):
        return (0.0, 0.0), 1.0
    low, high = float(present.min()), float(present.max())
    unit = max(high - middle, middle - low)  # squares of numbers such as 1e200 would overflow
    if not 1e-12 * abs(middle) < unit < math.inf:
        return (low, high), max(unit, 1.0)
    deviation = unit * math.sqrt(float(np.square((present - middle) / unit).mean()))
    return (low - (high - low), high + (high - low)), deviation


def _tail_spread(z: Float[np.ndarray, " rows"]) -> float:
    """Return the spread of asinh z if z, with median 0 and spread 1, has a heavy tail, otherwise 0."""
    if not len(z) or np.quantile(np.abs(z), _TAIL_QUANTILE) <= _TAIL or len(np.unique(z)) < _TAIL_VALUES:
        return 0.0
    return _quartile_spread(np.arcsinh(z))


def _quartile_spread(x: Float[np.ndarray, " rows"]) -> float:
    """Return the distance of the quartiles, 1 for a standard normal distribution, or the deviation if it is 0."""
    low, high = np.quantile(x, (0.25, 0.75))
    return float(high - low) / 1.349 or float(x.std())


def _tails(encoding: _FeatureEncoding) -> Float[np.ndarray, " numbers"]:
    return encoding.get("tails", np.zeros(len(encoding["numbers"])))


def require_kinds(encoding: _FeatureEncoding, kinds: Sequence[str]) -> None:
    """Raise a `DataError` if a column has another kind than in the call of fit.

    Texts are read later, as those of dates or of categories, whose texts may be whole numbers.
    """
    for index, (fitted, given) in enumerate(zip(encoding.get("kinds", ()), kinds, strict=False)):
        if fitted and given not in ("", "text", fitted) and (fitted, given) != ("text", "number"):
            was, now = (re.sub(r"^\w+", r"\g<0>s", kind) for kind in (fitted, given))
            raise DataError(
                f"column {index} must hold {was}, because it held {was} in the call of fit, got {now}. "
                f"Pass {was}, or fit the estimator again."
            )


def encode_columns(encoding: _FeatureEncoding, columns: Sequence[Shaped[np.ndarray, " rows"]]) -> Features:
    """Return the features of columns, which are arrays in the form that `read_columns` returns."""
    rows = len(columns[0])
    dates = encoding.get("dates", np.zeros(0, np.int64)).tolist()
    formats = dict(zip(dates, encoding.get("date_formats", [""] * len(dates)), strict=True))
    columns = [
        _require_dates(column, index, formats[index]) if index in formats else column
        for index, column in enumerate(columns)
    ]
    count, linear = len(encoding["numbers"]), has_linear_part(encoding)
    numbers = np.empty((rows, count * (1 + linear)), np.float32)
    scales = zip(encoding["numbers"], encoding["middles"], encoding["spreads"], _tails(encoding), strict=True)
    for feature, (index, middle, spread, tail) in enumerate(scales):
        column = _require_numbers(columns[index], index) if spread < math.inf else _nothing(rows)
        filled = np.where(np.isnan(column), middle, column)
        if linear:
            limited = np.clip(filled, *encoding["ends"][feature])
            numbers[:, count + feature] = (limited - middle) / encoding["deviations"][feature]
        z = (filled - middle) / spread
        if tail:
            z = np.arcsinh(z) / tail
        # hypot does not overflow where the square of a number such as 1e200 would.
        numbers[:, feature] = z / np.hypot(1.0, z / _OUTLIER)
    codes = [
        _encode_levels(as_text(columns[index]).astype(str), known)
        for index, known in zip(encoding["categories"], encoding["levels"], strict=True)
    ]
    empty = set(encoding["numbers"][np.isinf(encoding["spreads"])].tolist())
    gaps = ((index, _nothing(rows) if index in empty else columns[index]) for index in encoding["gaps"].tolist())
    codes += [np.isnan(_require_numbers(column, index)).astype(np.int16) for index, column in gaps]
    codes += [
        _encode_levels(_require_numbers(columns[index], index), known)
        for index, known in zip(encoding["repeated"], encoding["common"], strict=True)
    ]
    return Features(numbers, np.stack(codes, axis=1) if codes else np.zeros((rows, 0), np.int16))


def decode_columns(encoding: _FeatureEncoding, features: Features) -> list[Shaped[np.ndarray, " rows"]]:
    """Return columns that are reconstructed from their features in float32 precision. Rare levels become None."""
    count = len(encoding["numbers"]) + len(encoding["categories"])
    columns: list[np.ndarray] = [np.zeros(0)] * count
    for feature, (index, tail) in enumerate(zip(encoding["numbers"], _tails(encoding), strict=True)):
        z = np.clip(features.numbers[:, feature].astype(np.float64) / _OUTLIER, -1 + 1e-7, 1 - 1e-7)
        spread = encoding["spreads"][feature] if encoding["spreads"][feature] < math.inf else 0.0  # missing below
        z = _OUTLIER * z / np.sqrt(1 - z**2)
        columns[index] = encoding["middles"][feature] + spread * (np.sinh(np.minimum(z * tail, 700.0)) if tail else z)
    for feature, (index, known) in enumerate(zip(encoding["categories"], encoding["levels"], strict=True)):
        levels = np.array([None if level == MISSING else level for level in known.tolist()] + [None], object)
        columns[index] = levels[features.codes[:, feature]]
    first = len(encoding["categories"])
    for feature, index in enumerate(encoding["gaps"]):
        columns[index] = np.where(features.codes[:, first + feature] == 1, np.nan, columns[index])
    return columns


def has_linear_part(encoding: _FeatureEncoding) -> bool:
    """Return whether the features include the numbers for a linear part of a trend."""
    return "ends" in encoding


def encoding_sizes(encoding: _FeatureEncoding) -> tuple[int, list[int]]:
    """Return the number of numeric features, and the number of codes of each categorical feature.

    Numeric features of the linear part are not counted.
    """
    levels = [len(known) + 1 for known in encoding["levels"]]
    common = [len(known) + 1 for known in encoding["common"]]
    return len(encoding["numbers"]), levels + [3] * len(encoding["gaps"]) + common


def _nothing(rows: int) -> Float[np.ndarray, " rows"]:
    """Return a column of missing cells, which replaces a column that had no other cell in the call of fit."""
    return np.full(rows, np.nan)


def _require_numbers(column: Shaped[np.ndarray, " rows"], index: int) -> Shaped[np.ndarray, " rows"]:
    if column.dtype == object:
        raise DataError(
            f"column {index} must hold numbers, because it held numbers in the call of fit, got text. "
            "Pass numbers, or fit the estimator again."
        )
    return column


def _require_dates(column: Shaped[np.ndarray, " rows"], index: int, form: str) -> Float[np.ndarray, " rows"]:
    if column.dtype != object:
        return column
    parsed = parse_dates(column, form)
    if parsed is None:
        iso = {"": "such as 2026-11-28", "%z": "such as 2026-11-28 13:30+02:00"}
        raise DataError(
            f"column {index} must hold dates {iso.get(form, f'in the format {form}')}, because it held such dates in "
            "the call of fit, got other text. Pass dates, leave the cell empty, or fit again."
        )
    return parsed.units


def _most_frequent(cells: Shaped[np.ndarray, " rows"], most: int) -> _Levels:
    """Return the most frequent values of a column. Beyond the first 64, values that occur once are left out."""
    known, counts = np.unique(cells, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:most]
    common = np.sort(order[(np.arange(len(order)) < MAX_LEVELS) | (counts[order] > 1)])
    return known[common], counts[common]


def _limit_levels(levels: Sequence[_Levels]) -> list[Shaped[np.ndarray, " levels"]]:
    """Return the values of several columns, without the rarest ones beyond the first 64 of each if there are many."""
    ranks = [np.argsort(np.argsort(-counts, kind="stable"), kind="stable") for _, counts in levels]
    further = np.sort(
        np.concatenate([np.zeros(0, np.int64), *(c[r >= MAX_LEVELS] for (_, c), r in zip(levels, ranks, strict=True))])
    )
    least = further[-_ALL_LEVELS] if len(further) > _ALL_LEVELS else 0
    return [known[(r < MAX_LEVELS) | (counts > least)] for (known, counts), r in zip(levels, ranks, strict=True)]


def _repeated_values(present: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " values"]:
    """Return the values that occur in at least 32 rows, if most rows have such a value, otherwise an empty array.

    The values are in ascending order.
    """
    values, counts = _most_frequent(present, MAX_LEVELS)
    repeated = counts >= _MIN_REPEATS
    return values[repeated] if 2 * counts[repeated].sum() > len(present) else values[:0]


def _encode_levels(
    cells: Shaped[np.ndarray, " rows"], known: Shaped[np.ndarray, " levels"]
) -> Int[np.ndarray, " rows"]:
    if not len(known):
        return np.zeros(len(cells), np.int16)
    at = np.minimum(np.searchsorted(known, cells), len(known) - 1)
    return np.where(known[at] == cells, at, len(known)).astype(np.int16)
