"""Columns become features: numbers near zero and of similar spread, categories and gaps as codes.

    number    z = (x − median) / spread, then z / √(1 + (z/3)²), which keeps far outliers within ±3
    category  its place among the commonest levels of the fitted column; a missing cell is a level
    gap       a number that is missing counts as the median, and a flag beside it says so
    repeat    a number whose column holds few values again and again is also a category of these values: a
              network can then tell 5178 from 5013 where trees would cut between them

Frames of pandas, polars and pyarrow are read by column: text, categories and booleans among numbers. What is
learned is held as plain arrays, lists and dictionaries, so that a fitted estimator is pickled by any library.

Source of the two steps for numbers: Holzmüller, Grinsztajn and Steinwart (2024), Better by default,
https://arxiv.org/abs/2407.04491.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from numbers import Number
from typing import Any

import numpy as np

from qkv.errors import DataError, KindError

__all__ = ["Features", "columns_from", "columns_of", "is_frame", "learn_features", "use_features"]

MOST_LEVELS = 64
"""Rarer levels of a category share one code."""
_REPEATED = 32
"""A value in so many rows is one that is repeated."""
_FAR = 3.0
_MISSING = "\0missing"

Plan = dict[str, Any]


@dataclass(frozen=True)
class Features:
    """What the metric sees.

    Fields:
        numbers: `(rows, columns)` float32, without gaps.
        codes: `(rows, categories)` int16; a code of its own for levels that were never seen.
    """

    numbers: np.ndarray
    codes: np.ndarray

    def __len__(self) -> int:
        return len(self.numbers)


def is_frame(X: Any) -> bool:
    """A table with named columns, of any library that gives them by name."""
    return not isinstance(X, np.ndarray) and (
        (hasattr(X, "columns") and hasattr(X, "__getitem__")) or hasattr(X, "column_names")
    )


def columns_of(X: Any) -> list[np.ndarray]:
    """One array for each column: floats, or objects where the cells are no numbers.

    Raises:
        KindError: a cell that is neither a number, a text, a boolean, a moment nor missing.
        DataError: infinite numbers.
    """
    if isinstance(X, np.ndarray):
        names: Sequence[Any] = [f"column {place}" for place in range(X.shape[1])]
        cells = [X[:, place] for place in range(X.shape[1])]
    else:
        names = list(X.column_names if hasattr(X, "column_names") else X.columns)
        cells = [_cells(X[name]) for name in names]
    return [_plain(column, name) for column, name in zip(cells, names, strict=True)]


def learn_features(columns: Sequence[np.ndarray], repeats: bool = False) -> Plan:
    """Middle and spread of numbers, levels of categories, and which numbers had gaps or are repeated."""
    numbers, middles, spreads, gaps, categories, levels = [], [], [], [], [], []
    repeated: list[int] = []
    common: list[np.ndarray] = []
    for place, column in enumerate(columns):
        if column.dtype == object:
            categories.append(place)
            levels.append(_levels(column))
            continue
        there = column[~np.isnan(column)]
        if len(there) < len(column):
            gaps.append(place)
        values = _repeats(there) if repeats else there[:0]
        if len(values):
            repeated.append(place)
            common.append(values)
        numbers.append(place)
        low, middle, high = np.quantile(there, (0.25, 0.5, 0.75)) if len(there) else (0.0, 0.0, 0.0)
        spread = (high - low) / 1.349 or (float(there.std()) if len(there) else 0.0)
        middles.append(float(middle))
        # Equal numbers still have a deviation of some rounding errors.
        spreads.append(spread if spread > 1e-12 * abs(middle) else 1.0)
    return {
        "numbers": np.array(numbers, np.int64),
        "middles": np.array(middles, np.float64),
        "spreads": np.array(spreads, np.float64),
        "gaps": np.array(gaps, np.int64),
        "categories": np.array(categories, np.int64),
        "levels": levels,
        "repeated": np.array(repeated, np.int64),
        "common": common,
    }


def use_features(plan: Plan, columns: Sequence[np.ndarray]) -> Features:
    """The features of rows, by what was learned."""
    rows = len(columns[0])
    numbers = np.empty((rows, len(plan["numbers"])), np.float32)
    for at, (place, middle, spread) in enumerate(zip(plan["numbers"], plan["middles"], plan["spreads"], strict=True)):
        column = _numbers(columns[place], place)
        z = (np.where(np.isnan(column), middle, column) - middle) / spread
        # hypot, not a square: numbers of 1e200 are far, and no overflow.
        numbers[:, at] = z / np.hypot(1.0, z / _FAR)
    codes = [
        _code(_texts(columns[place]).astype(str), known)
        for place, known in zip(plan["categories"], plan["levels"], strict=True)
    ]
    codes += [np.isnan(_numbers(columns[place], place)).astype(np.int16) for place in plan["gaps"]]
    codes += [
        _code(_numbers(columns[place], place), known)
        for place, known in zip(plan["repeated"], plan["common"], strict=True)
    ]
    together = np.stack(codes, axis=1) if codes else np.zeros((rows, 0), np.int16)
    return Features(numbers, together)


def columns_from(plan: Plan, features: Features) -> list[np.ndarray]:
    """The columns that features were made of: the way back, to float32; rare levels are None."""
    count = sum(len(plan[name]) for name in ("numbers", "categories"))
    columns: list[np.ndarray] = [np.zeros(0)] * count
    for at, place in enumerate(plan["numbers"]):
        z = np.clip(features.numbers[:, at].astype(np.float64) / _FAR, -1 + 1e-7, 1 - 1e-7)
        columns[place] = plan["middles"][at] + plan["spreads"][at] * _FAR * z / np.sqrt(1 - z**2)
    for at, (place, known) in enumerate(zip(plan["categories"], plan["levels"], strict=True)):
        named = np.array([None if level == _MISSING else level for level in known.tolist()] + [None], object)
        columns[place] = named[features.codes[:, at]]
    first = len(plan["categories"])
    for at, place in enumerate(plan["gaps"]):
        columns[place] = np.where(features.codes[:, first + at] == 1, np.nan, columns[place])
    return columns


def sizes_of(plan: Plan) -> tuple[int, list[int]]:
    """How many numbers, and how many codes each category has; the last is of what was never seen."""
    levels, common = ([len(known) + 1 for known in plan[name]] for name in ("levels", "common"))
    return len(plan["numbers"]), levels + [3] * len(plan["gaps"]) + common


def _cells(column: Any) -> np.ndarray:
    """A column of a frame as an array, missing cells as NaN, NaT or None."""
    if hasattr(column, "combine_chunks"):  # pyarrow
        return np.asarray(column.to_numpy(zero_copy_only=False))
    nullable = hasattr(column, "isna") and str(column.dtype)[:1] in ("I", "U", "F")
    return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan) if nullable else column.to_numpy())


def _plain(column: np.ndarray, name: Any) -> np.ndarray:
    if column.dtype.kind not in "biufmM":
        column = _guess(column, name)
        if column.dtype == object:
            return column
    if column.dtype.kind in "mM":
        unit = "datetime64[us]" if column.dtype.kind == "M" else "timedelta64[us]"
        column = np.where(np.isnat(column), np.nan, column.astype(unit).astype(np.float64))
    numbers = column.astype(np.float64, copy=False)
    if np.isinf(numbers).any():
        raise DataError(
            f"Input X contains infinity or a value too large for dtype('float64'): see {name}. "
            f"Replace it, or leave it empty: missing cells are allowed."
        )
    return numbers


def _guess(column: np.ndarray, name: Any) -> np.ndarray:
    """Objects: numbers or moments where all are, or missing; otherwise texts."""
    there = [cell for cell in column.astype(object) if not _gone(cell)]
    for cell in there:
        if not isinstance(cell, str | Number | np.bool_ | date):
            raise KindError(
                f"a cell of {name} is a {type(cell).__name__}; the argument must be a string or a number, "
                f"a moment, or missing."
            )
    if there and all(isinstance(cell, date) for cell in there):
        return np.array([None if _gone(cell) else cell for cell in column], "datetime64[us]")
    if any(isinstance(cell, str | date) for cell in there):
        return _texts(column)
    return np.array([np.nan if _gone(cell) else float(cell) for cell in column], np.float64)


def _gone(cell: Any) -> bool:
    return cell is None or (
        not isinstance(cell, str) and (type(cell).__name__ in ("NAType", "NaTType") or cell != cell)
    )


def _texts(column: np.ndarray) -> np.ndarray:
    return np.array([_MISSING if _gone(cell) else str(cell) for cell in column], object)


def _numbers(column: np.ndarray, place: int) -> np.ndarray:
    if column.dtype == object:
        raise DataError(
            f"column {place} held numbers when it was fitted, and holds text now. Give numbers, or fit again."
        )
    return column


def _levels(column: np.ndarray) -> np.ndarray:
    known, counts = np.unique(column.astype(str), return_counts=True)
    common = np.argsort(-counts, kind="stable")[:MOST_LEVELS]
    return np.asarray(np.sort(known[common]))


def _repeats(there: np.ndarray) -> np.ndarray:
    """The commonest values of a column, sorted, where they make up most of it; else none."""
    known, counts = np.unique(there, return_counts=True)
    common = np.argsort(-counts, kind="stable")[:MOST_LEVELS]
    common = common[counts[common] >= _REPEATED]
    return np.asarray(np.sort(known[common]) if 2 * counts[common].sum() > len(there) else known[:0])


def _code(cells: np.ndarray, known: np.ndarray) -> np.ndarray:
    at = np.minimum(np.searchsorted(known, cells), len(known) - 1)
    return np.where(known[at] == cells, at, len(known)).astype(np.int16)
