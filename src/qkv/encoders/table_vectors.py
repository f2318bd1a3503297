"""Encode the rows of a table as vectors, by concatenating the encodings of their cells.

Each kind of column is scaled such that distances in different columns are comparable:

    number      (x − mean) / deviation
    timestamp   days, encoded as a number, and the day of the year as a point on a circle
    cyclic      a point on a circle, divided by the deviation of the points
    category    one-hot vector with value 1/√2, so that two categories have distance 1; also used for
                booleans, and for texts with few distinct values
    text        tf-idf of words, projected by latent semantics and normalized to unit length
    vector      divided by the root mean square of the lengths of all vectors

A missing cell, an unknown category and a text of unknown words are encoded as zeros. A column with missing
cells in the fitted table gets an additional indicator element. `save` writes arrays and JSON, without executable code.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

import numpy as np
import pyarrow as pa

from qkv.core.cell_kinds import cell_kind
from qkv.core.checks import check_integers
from qkv.core.extras import require_packages
from qkv.core.printable import first_line
from qkv.core.progress import Progress
from qkv.core.typing import Float, Shaped
from qkv.encoders.arrow_columns import with_category_texts
from qkv.encoders.columns import Column, Kind, points_on_circle, with_periods
from qkv.encoders.encoder import Encoder, load_encoder, save_encoder
from qkv.encoders.weighting import get_weighting
from qkv.errors import DataError, KindError, OptionError

Table: TypeAlias = object
"""A pyarrow table, a pandas or polars data frame, or a dict of columns."""


def _as_table(source: Table, names: tuple[str, ...] | None) -> pa.Table:
    """Return a pyarrow table, data frame or dict as a table with the columns `names`, or all if `names` is None.

    Raises:
        KindError: the source is not a table, data frame or dict.
        DataError: a column is missing, or the columns differ in length.
    """
    try:
        if isinstance(source, pa.Table):
            table = source
        elif type(source).__module__.split(".")[0] == "pandas":
            table = pa.Table.from_pandas(source, preserve_index=False)
        elif isinstance(source, dict) or hasattr(source, "__arrow_c_stream__"):
            table = pa.table(source)
        else:
            raise KindError(
                f"table must be a pyarrow table, a data frame or a dict of columns, got a {type(source).__name__}. "
                "Convert it, for example with pyarrow.table."
            )
    except (pa.ArrowException, ValueError) as error:
        raise DataError(
            f"table must have columns of equal length, of types that pyarrow supports, got a {type(source).__name__}, "
            f"but reading it with pyarrow failed: {first_line(error)}."
        ) from None
    absent = [name for name in names or () if name not in table.column_names]
    if absent:
        raise DataError(
            f"table must have a column {absent[0]!r}, got the columns {', '.join(table.column_names)}. Add or rename a "
            "column."
        )
    return with_category_texts(table if names is None else table.select(list(names)))


def _read(table: pa.Table, name: str, like: _FittedColumn | None = None) -> Column:
    """Return a column of a table; booleans are categories.

    Raises:
        DataError: the column has a type that cannot be encoded.
    """
    from pyarrow import types

    if like is not None and like.kind == "cyclic" and Column.from_table(table, name).kind == "number":
        table = with_periods(table, {name: like.period})
    type_ = table.schema.field(name).type
    type_ = type_.value_type if types.is_dictionary(type_) else type_
    if types.is_time(type_) or types.is_duration(type_):
        raise DataError(
            f"column {name!r} must hold numbers, timestamps, booleans, texts, categories or vectors, got {type_}. "
            "Leave this column out of the argument columns."
        )
    column = Column.from_table(table, name, folded=False)
    if column.kind == "boolean":
        cells = np.where(column.missing, "", np.where(column.cells > 0, "True", "False")).astype(object)
        return replace(column, kind="category", cells=cells)
    return column


_FORMAT, _FORMAT_1 = "qkv table vectors 2", "qkv table vectors 1"
_OPTIONS = {"text_width": "text_width", "max_categories": "few"}
_FORMAT_1_NAMES = {"place": "mean", "moment": "timestamp"}
"""Names in files of format 1, which are still read."""

_ARRAYS = ("weights", "components")
"""Attributes of a `_FittedColumn` that are saved as arrays; the others are saved as JSON."""
_TOKEN = r"(?u)\b\w+\b"
_MAX_WORDS = 50_000
_DAYS_PER_YEAR = 365.2425


@dataclass(frozen=True, eq=False)
class _FittedColumn:
    """Encoder of one column of a table, fitted to its cells. Its kind determines which attributes are used.

    Attributes:
        name: name of the column.
        kind: kind of its cells.
        missing: whether the column has an indicator of missing cells.
        mean: mean of numbers and timestamps.
        scale: standard deviation of numbers, timestamps and points on a circle; root mean square length of vectors.
        terms: categories, or words.
        weights: global weight of each word.
        components: components of the latent semantics of words.
        length: number of elements of a vector.
        period: period of cyclic numbers.
        cells: what timestamps are, such as "date with a time zone"; "" in older files.
    """

    name: str
    kind: Kind
    missing: bool
    mean: float = 0.0
    scale: float = 1.0
    terms: tuple[str, ...] = ()
    weights: Float[np.ndarray, " terms"] | None = None
    components: Float[np.ndarray, "k terms"] | None = None
    length: int = 0
    period: float = 0.0
    cells: str = ""

    @property
    def width(self) -> int:
        """Number of elements of an encoded cell, including the indicator of missing cells."""
        own = {
            "number": 1,
            "timestamp": 3,
            "cyclic": 2,
            "category": len(self.terms),
            "text": 0 if self.components is None else len(self.components),
            "vector": self.length,
        }[self.kind]
        return own + self.missing

    def encode(self, column: Column) -> Float[np.ndarray, "rows width"]:
        """Encode the cells of a column as vectors `(rows, width)`, in float32."""
        parts = np.where(column.missing[:, None], 0.0, _ENCODE[self.kind](self, column))
        if self.missing:
            parts = np.concatenate([parts, column.missing[:, None]], axis=1)
        return parts.astype(np.float32)

    def _number(self, column: Column) -> Float[np.ndarray, "rows 1"]:
        return np.asarray((_numbers(column)[:, None] - self.mean) / self.scale)

    def _timestamp(self, column: Column) -> Float[np.ndarray, "rows 3"]:
        # A circle whose circumference is π has the radius ½.
        year = points_on_circle(np.pi / _DAYS_PER_YEAR * _numbers(column), np.pi)
        return np.concatenate([self._number(column), year], axis=1)

    def _cyclic(self, column: Column) -> Float[np.ndarray, "rows 2"]:
        return np.asarray(column.cells / self.scale)

    def _category(self, column: Column) -> Float[np.ndarray, "rows categories"]:
        indices = {term: index for index, term in enumerate(self.terms)}
        found = np.array([indices.get(cell, -1) for cell in column.cells], int)
        return np.asarray(np.sqrt(0.5) * (found[:, None] == np.arange(len(self.terms))))

    def _text(self, column: Column) -> Float[np.ndarray, "rows k"]:
        from sklearn.feature_extraction.text import CountVectorizer

        assert self.components is not None
        if not len(self.components):
            return np.zeros((len(column.cells), 0))
        count = CountVectorizer(token_pattern=_TOKEN, vocabulary=list(self.terms), dtype=np.float64)
        counts = count.transform(column.cells)
        weighting = replace(get_weighting("tfidf"), words=self.weights)
        points = np.asarray(weighting.apply(counts.tocsr()) @ self.components.T)
        lengths = np.linalg.norm(points, axis=1, keepdims=True)
        return np.asarray(points / np.where(lengths > 0, lengths, 1.0))

    def _vector(self, column: Column) -> Float[np.ndarray, "rows length"]:
        if column.width != self.length:
            raise DataError(
                f"column {self.name!r} must hold vectors of {self.length} elements, to which the encoder was fitted, "
                f"got {column.width} elements. Fit the encoder again."
            )
        return np.asarray(column.cells / self.scale)


_ENCODE = {
    "number": _FittedColumn._number,
    "timestamp": _FittedColumn._timestamp,
    "cyclic": _FittedColumn._cyclic,
    "category": _FittedColumn._category,
    "text": _FittedColumn._text,
    "vector": _FittedColumn._vector,
}


def _numbers(column: Column) -> Float[np.ndarray, " rows"]:
    """Return the cells of a column of numbers, or those of timestamps as days since 1970."""
    return (column.cells + column.origin) / column.unit


class TableVectors(Encoder):
    """Encoder of the rows of tables with columns of numbers, timestamps, categories, texts and vectors.

    Args:
        columns: names of the columns; None for all.
        text_width: maximum number of dimensions of a column of texts.
        max_categories: a column of texts is treated as categories if it has at most this many distinct values, and
            each occurs at least twice on average.

    Raises:
        OptionError: `text_width` or `max_categories` is less than 1.

    Example:
        >>> people = {"age": [30, 50, None, 40], "city": ["Oslo", "Rome", "Oslo", "Rome"]}
        >>> vectors = TableVectors().fit(people)
        >>> vectors.encode(people).shape, vectors.names[:3]
        ((4, 4), ('age', 'age missing', 'city=Oslo'))
        >>> vectors.encode({"age": [40], "city": ["Bern"]}).tolist()
        [[0.0, 0.0, 0.0, 0.0]]
    """

    name = "table"
    input_kind = "table"

    def __init__(
        self, columns: tuple[str, ...] | None = None, *, text_width: int = 30, max_categories: int = 40
    ) -> None:
        require_packages("TableVectors requires", "search", "sklearn")
        check_integers(text_width=text_width, max_categories=max_categories)
        self.columns = columns
        self.text_width, self.max_categories = int(text_width), int(max_categories)
        self.fitted_columns: tuple[_FittedColumn, ...] = ()

    def fit(self, table: Table) -> Self:
        """Fit the encoder to a table, from which it learns means, scales, categories and words.

        Args:
            table: a pyarrow table, a pandas or polars data frame, or a dict of columns.

        Raises:
            KindError: `table` is not a table.
            DataError: the table has no rows, or a column is missing or cannot be encoded.
        """
        rows = _as_table(table, self.columns)
        if not rows.num_rows or not rows.num_columns:
            raise DataError(
                "table must have at least one row and one column, got an empty table. Pass a table with rows."
            )
        self.fitted_columns = tuple(self._fit(_read(rows, name)) for name in rows.column_names)
        return self

    def fit_encode(self, inputs: Table, progress: Progress | None = None) -> Float[np.ndarray, "rows width"]:
        return self.fit(inputs).encode(inputs)

    def encode(self, inputs: Table, *, progress: Progress | None = None) -> Float[np.ndarray, "rows width"]:
        """Return the vectors of the rows of a table, `(rows, width)`, in float32.

        Raises:
            DataError: a fitted column is missing, or has another kind than in the fitted table.
            OptionError: `fit` has not been called.
        """
        if not self.fitted:
            raise OptionError("TableVectors must be fitted first, got an unfitted encoder. Call fit.")
        table = _as_table(inputs, tuple(column.name for column in self.fitted_columns))
        parts = []
        for fitted in self.fitted_columns:
            column = _read(table, fitted.name, fitted)
            # Texts with few values are fitted as categories.
            found: str
            expected: str
            found, expected = ("text" if each == "category" else each for each in (column.kind, fitted.kind))
            if found == expected == "timestamp" and fitted.cells:
                found, expected = cell_kind(column.type), fitted.cells
            if column.missing.all():
                # The kind of a column without any present cell is arbitrary.
                cell = np.zeros(fitted.width, np.float32)
                cell[fitted.width - fitted.missing :] = 1.0
                parts.append(np.tile(cell, (table.num_rows, 1)))
            elif found == expected:
                parts.append(fitted.encode(column))
            else:
                was, given = (re.sub(r"^\w+", r"\g<0>s", kind) for kind in (expected, found))
                raise DataError(
                    f"column {fitted.name!r} must hold {was}, to which the encoder was fitted, got {given}. "
                    "Convert the column, or fit the encoder again."
                )
        return np.concatenate(parts, axis=1)

    @property
    def fitted(self) -> bool:
        """Whether `fit` has been called."""
        return bool(self.fitted_columns)

    @property
    def width(self) -> int:
        """Number of elements of each vector, 0 before `fit`."""
        return sum(column.width for column in self.fitted_columns)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each element of the vectors, such as `"age"`, `"city=Oslo"` or `"age missing"`."""
        names: list[str] = []
        for column in self.fitted_columns:
            own = column.width - column.missing
            if column.kind == "category":
                names += [f"{column.name}={term}" for term in column.terms]
            else:
                names += [column.name] if own == 1 else [f"{column.name} {dimension}" for dimension in range(own)]
            names += [f"{column.name} missing"] * column.missing
        return tuple(names)

    def arrays(self) -> dict[str, Shaped[np.ndarray, "*_"]]:
        """Return the fitted state as a dict of NumPy arrays, one of which holds JSON as bytes.

        Raises:
            OptionError: `fit` has not been called.
        """
        if not self.fitted:
            raise OptionError("TableVectors must be fitted first, got an unfitted encoder. Call fit.")
        parts = {
            f"{part}{i}": getattr(column, part) for i, column in enumerate(self.fitted_columns) for part in _ARRAYS
        }
        arrays = {name: part for name, part in parts.items() if part is not None}
        heads = [{k: v for k, v in vars(column).items() if k not in _ARRAYS} for column in self.fitted_columns]
        options = {"text_width": self.text_width, "max_categories": self.max_categories}
        content = {"format": _FORMAT, **options, "columns": heads}
        arrays["head"] = np.frombuffer(json.dumps(content).encode(), np.uint8)
        return arrays

    @classmethod
    def from_state(cls, settings: dict[str, object], arrays: Mapping[str, Shaped[np.ndarray, "*_"]]) -> Self:
        """Restore an encoder from the arrays that `arrays` returned.

        Raises:
            DataError: the arrays were written by an incompatible version.
        """
        content = json.loads(arrays["head"].tobytes())
        if content["format"] not in (_FORMAT, _FORMAT_1):
            raise DataError(
                f"saved table vectors must have the format {_FORMAT!r} or {_FORMAT_1!r}, got {content['format']!r}. "
                "Fit the encoder again."
            )
        options = {name: content.get(name, content.get(old)) for name, old in _OPTIONS.items()}
        vectors = cls(**options)
        fitted = []
        for index, stored in enumerate(content["columns"]):
            head = {_FORMAT_1_NAMES.get(name, name): value for name, value in stored.items()}
            head["kind"] = _FORMAT_1_NAMES.get(head["kind"], head["kind"])
            head["terms"] = tuple(head["terms"])
            components = arrays.get(f"components{index}", arrays.get(f"axes{index}"))
            fitted.append(_FittedColumn(**head, weights=arrays.get(f"weights{index}"), components=components))
        vectors.fitted_columns = tuple(fitted)
        vectors.columns = tuple(column.name for column in fitted)
        return vectors

    def __str__(self) -> str:
        return f"table vectors of {', '.join(column.name for column in self.fitted_columns)}, {self.width} numbers"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted encoder to a file, which `load` reads.

        Raises:
            OptionError: `fit` has not been called.
            DataError: the file cannot be written.
        """
        save_encoder(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load an encoder from a file that `save` wrote.

        Raises:
            DataError: the file does not exist, or was not written by `save`.
        """
        return load_encoder(cls, path)

    def check_state(self) -> None:
        """Raise a `ValueError` if the arrays of a column are not those of its words."""
        for column in self.fitted_columns:
            words, weights, components = len(column.terms), column.weights, column.components
            given = column.mean, column.scale, column.period
            numbers = all(isinstance(number, float) and np.isfinite(number) for number in given)
            if column.kind == "cyclic" and not column.period > 0:
                raise ValueError(f"column {column.name!r} must have a positive period, got {column.period}")
            if weights is not None and weights.shape != (words,):
                raise ValueError(f"column {column.name!r} must have {words} weights, got shape {weights.shape}")
            if components is not None and (components.ndim != 2 or components.shape[1] != words):
                raise ValueError(f"column {column.name!r} must have components of {words} words")
            if column.kind == "text" and (weights is None or components is None):
                raise ValueError(f"column {column.name!r} of texts must have weights and components")
            if not numbers or type(column.length) is not int or not 0 <= column.length < 2**31:
                raise ValueError(f"column {column.name!r} must have a finite mean and scale, and a length")
            if column.kind not in _ENCODE or not isinstance(column.name, str) or not isinstance(column.missing, bool):
                raise ValueError(f"column {column.name!r} must have a kind of {', '.join(_ENCODE)}, and a name")

    def _fit(self, column: Column) -> _FittedColumn:
        from sklearn.preprocessing import StandardScaler

        name, kind, missing = column.name, column.kind, bool(column.missing.any())
        present = column.take(np.flatnonzero(~column.missing))
        rows = len(present.cells)
        if kind in ("number", "timestamp"):
            scaler = StandardScaler().fit(_numbers(present)[:, None] if rows else np.zeros((1, 1)))
            cells = cell_kind(column.type) if kind == "timestamp" else ""
            return _FittedColumn(name, kind, missing, float(scaler.mean_[0]), float(scaler.scale_[0]), cells=cells)
        if kind == "cyclic":
            scale = float(np.sqrt(present.cells.var(axis=0).sum())) if rows else 1.0
            return _FittedColumn(name, kind, missing, scale=scale or 1.0, period=column.period)
        if kind == "vector":
            scale = float(np.sqrt(np.square(present.cells).sum(axis=-1).mean())) if rows else 1.0
            return _FittedColumn(name, kind, missing, scale=scale or 1.0, length=column.width if rows else 0)
        values = set(present.cells.tolist())
        if kind == "category" or len(values) <= min(self.max_categories, rows / 2):
            return _FittedColumn(name, "category", missing, terms=tuple(sorted(values)))
        return self._fit_text(name, missing, present.cells)

    def _fit_text(self, name: str, missing: bool, present: Shaped[np.ndarray, " rows"]) -> _FittedColumn:
        from sklearn.feature_extraction.text import CountVectorizer

        from qkv.encoders.latent_semantics import LatentSemantics

        count = CountVectorizer(token_pattern=_TOKEN, max_features=_MAX_WORDS, dtype=np.float64)
        try:
            counts = count.fit_transform(present).tocsr()
        except ValueError:  # the texts contain no word
            return _FittedColumn(name, "text", missing, weights=np.zeros(0), components=np.zeros((0, 0)))
        width = min(self.text_width, *counts.shape)
        latent = LatentSemantics(width, weighting="tfidf").fit(counts)
        weights = get_weighting("tfidf").fit(counts).words
        terms = tuple(count.get_feature_names_out().tolist())
        return _FittedColumn(name, "text", missing, terms=terms, weights=weights, components=latent.components_)
