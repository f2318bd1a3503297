"""Encode the rows of a table as vectors, by concatenating the encodings of their cells.

Each kind of column is scaled such that distances in different columns are comparable:

    number      (x − mean) / deviation
    timestamp   days, encoded as a number, and the day of the year as a point on a circle
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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import numpy as np

from qkv.core.checks import check_integers
from qkv.core.extras import require_packages
from qkv.core.progress import Progress
from qkv.core.typing import Bool, Float, Shaped
from qkv.encoders.encoder import Encoder
from qkv.encoders.saved_encoder import load_encoder, save_encoder
from qkv.encoders.weighting import get_weighting
from qkv.errors import DataError, KindError, OptionError

if TYPE_CHECKING:
    import pyarrow as pa


__all__ = ["TableVectors"]


Kind = Literal["number", "timestamp", "category", "text", "vector"]

Table: TypeAlias = Any
"""A pyarrow table, a pandas or polars data frame, or a dict of columns."""


def read_columns(source: Table, names: tuple[str, ...] | None) -> dict[str, pa.ChunkedArray]:
    """Return the columns of a table by name: those in `names`, in the same order, or all if `names` is None.

    Raises:
        KindError: the source is not a table, data frame or dict.
        DataError: a column is missing, or the columns differ in length.
    """
    import pyarrow as pa

    try:
        if isinstance(source, pa.Table):
            table = source
        elif type(source).__module__.split(".")[0] == "pandas":
            table = pa.Table.from_pandas(source, preserve_index=False)
        elif isinstance(source, dict) or hasattr(source, "__arrow_c_stream__"):
            table = pa.table(source)
        else:
            raise KindError(
                f"table must be a pyarrow table, a data frame or a dict of columns, got a {type(source).__name__}."
            )
    except (pa.ArrowException, ValueError) as error:
        raise DataError(
            f"table must have columns of equal length, of types that pyarrow supports, got a {type(source).__name__}, "
            f"but reading it with pyarrow failed: {str(error).splitlines()[0]}."
        ) from None
    absent = [name for name in names or () if name not in table.column_names]
    if absent:
        raise DataError(
            f"table must have a column {absent[0]!r}, got the columns {', '.join(table.column_names)}. Add or rename a "
            "column."
        )
    return {name: table.column(name) for name in (table.column_names if names is None else names)}


def read_cells(name: str, column: pa.ChunkedArray) -> tuple[Kind, Shaped[np.ndarray, " rows"]]:
    """Return the kind of a column, such as `"number"`, and its cells as a NumPy array.

    Numbers and timestamps have dtype float64, with NaN for missing cells. Texts, categories and vectors have dtype
    object, with None for missing cells.

    Raises:
        DataError: the column has a type that cannot be encoded.
    """
    import pyarrow as pa
    from pyarrow import types

    type_ = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_):
        cells = np.array([np.nan if cell is None else float(cell) for cell in column.to_pylist()], float)
        return "number", np.where(np.isfinite(cells), cells, np.nan)
    if types.is_date(type_) or types.is_timestamp(type_):
        stamps = column.cast(pa.timestamp("us", getattr(type_, "tz", None)), safe=False).cast(pa.int64()).to_pylist()
        return "timestamp", np.array([np.nan if cell is None else cell / 86_400e6 for cell in stamps], float)
    values = column.to_pylist()
    cells = np.empty(len(values), object)
    if types.is_boolean(type_):
        cells[:] = [None if cell is None else str(cell) for cell in values]
        return "category", cells
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        cells[:] = [None if cell is None or None in cell else np.array(cell, float) for cell in values]
        return "vector", cells
    if types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_) or types.is_null(type_):
        cells[:] = [cell or None for cell in values]
        return "category" if types.is_dictionary(column.type) else "text", cells
    raise DataError(
        f"column {name!r} must hold numbers, timestamps, booleans, texts, categories or vectors, got {type_}. "
        "Leave this column out of the argument columns."
    )


def is_missing(cells: Shaped[np.ndarray, " rows"]) -> Bool[np.ndarray, " rows"]:
    """Return a boolean array that is True for missing cells, which are None or NaN in an array of `read_cells`."""
    if cells.dtype == object:
        return np.array([cell is None for cell in cells], bool)
    return np.asarray(np.isnan(cells))


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
        scale: standard deviation of numbers and timestamps, root mean square length of vectors.
        terms: categories, or words.
        weights: global weight of each word.
        components: components of the latent semantics of words.
        length: number of elements of a vector.
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

    @property
    def width(self) -> int:
        """Number of elements of an encoded cell, including the indicator of missing cells."""
        own = {
            "number": 1,
            "timestamp": 3,
            "category": len(self.terms),
            "text": 0 if self.components is None else len(self.components),
            "vector": self.length,
        }[self.kind]
        return own + self.missing

    def encode(self, cells: Shaped[np.ndarray, " rows"]) -> Float[np.ndarray, "rows width"]:
        """Encode cells that `read_cells` returned as vectors `(rows, width)`, in float32."""
        absent = is_missing(cells)
        parts = _ENCODE[self.kind](self, cells)
        parts = np.where(absent[:, None], 0.0, parts)
        if self.missing:
            parts = np.concatenate([parts, absent[:, None]], axis=1)
        return parts.astype(np.float32)

    def _number(self, cells: Float[np.ndarray, " rows"]) -> Float[np.ndarray, "rows 1"]:
        return np.asarray((np.nan_to_num(cells)[:, None] - self.mean) / self.scale)

    def _timestamp(self, cells: Float[np.ndarray, " rows"]) -> Float[np.ndarray, "rows 3"]:
        turn = 2 * np.pi * np.nan_to_num(cells)[:, None] / _DAYS_PER_YEAR
        return np.concatenate([self._number(cells), np.cos(turn) / 2, np.sin(turn) / 2], axis=1)

    def _category(self, cells: Shaped[np.ndarray, " rows"]) -> Float[np.ndarray, "rows categories"]:
        indices = {term: index for index, term in enumerate(self.terms)}
        found = np.array([indices.get(cell, -1) for cell in cells], int)
        return np.asarray(np.sqrt(0.5) * (found[:, None] == np.arange(len(self.terms))))

    def _text(self, cells: Shaped[np.ndarray, " rows"]) -> Float[np.ndarray, "rows k"]:
        from sklearn.feature_extraction.text import CountVectorizer

        assert self.components is not None
        if not len(self.components):
            return np.zeros((len(cells), 0))
        count = CountVectorizer(token_pattern=_TOKEN, vocabulary=list(self.terms), dtype=np.float64)
        counts = count.transform(["" if cell is None else cell for cell in cells])
        weighting = replace(get_weighting("tfidf"), words=self.weights)
        points = np.asarray(weighting.apply(counts.tocsr()) @ self.components.T)
        lengths = np.linalg.norm(points, axis=1, keepdims=True)
        return np.asarray(points / np.where(lengths > 0, lengths, 1.0))

    def _vector(self, cells: Shaped[np.ndarray, " rows"]) -> Float[np.ndarray, "rows length"]:
        parts = np.zeros((len(cells), self.length))
        for row, cell in enumerate(cells):
            if cell is not None and len(cell) != self.length:
                raise DataError(
                    f"column {self.name!r} must hold vectors of {self.length} elements, to which the encoder was "
                    f"fitted, got {len(cell)} elements in row {row}. Fit the encoder again."
                )
            parts[row] = 0.0 if cell is None else cell
        return parts / self.scale


_ENCODE = {
    "number": _FittedColumn._number,
    "timestamp": _FittedColumn._timestamp,
    "category": _FittedColumn._category,
    "text": _FittedColumn._text,
    "vector": _FittedColumn._vector,
}


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
        columns = read_columns(table, self.columns)
        if not columns or not len(next(iter(columns.values()))):
            raise DataError("table must have at least one row and one column, got an empty table.")
        self.fitted_columns = tuple(self._fit(name, *read_cells(name, column)) for name, column in columns.items())
        return self

    def fit_encode(self, inputs: Table, progress: Progress | None = None) -> Float[np.ndarray, "rows width"]:
        """Fit the encoder to a table, and return the vectors of its rows."""
        return self.fit(inputs).encode(inputs)

    def encode(self, inputs: Table, *, progress: Progress | None = None) -> Float[np.ndarray, "rows width"]:
        """Return the vectors of the rows of a table, `(rows, width)`, in float32.

        Raises:
            DataError: a fitted column is missing, or has another kind than in the fitted table.
            OptionError: `fit` has not been called.
        """
        if not self.fitted:
            raise OptionError("TableVectors must be fitted first, got an unfitted encoder. Call fit.")
        columns = read_columns(inputs, tuple(column.name for column in self.fitted_columns))
        parts = []
        for column in self.fitted_columns:
            kind, cells = read_cells(column.name, columns[column.name])
            # Texts with few values are fitted as categories.
            found, wanted = ("text" if each == "category" else each for each in (kind, column.kind))
            if found != wanted:
                # The kind of a column without any present cell is arbitrary.
                if not is_missing(cells).all():
                    raise DataError(
                        f"column {column.name!r} must hold {wanted}s, to which the encoder was fitted, got {found}s. "
                        "Convert the column, or fit the encoder again."
                    )
                number = wanted in ("number", "timestamp")
                cells = np.full(len(cells), np.nan) if number else np.full(len(cells), None, object)
            parts.append(column.encode(cells))
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
    def from_state(cls, settings: dict[str, Any], arrays: Mapping[str, Shaped[np.ndarray, "*_"]]) -> Self:
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
            numbers = all(isinstance(number, float) and np.isfinite(number) for number in (column.mean, column.scale))
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

    def _fit(self, name: str, kind: Kind, cells: Shaped[np.ndarray, " rows"]) -> _FittedColumn:
        from sklearn.preprocessing import StandardScaler

        absent = is_missing(cells)
        missing, present = bool(absent.any()), cells[~absent]
        if kind in ("number", "timestamp"):
            scaler = StandardScaler().fit(present[:, None] if len(present) else np.zeros((1, 1)))
            return _FittedColumn(name, kind, missing, float(scaler.mean_[0]), float(scaler.scale_[0]))
        if kind == "vector":
            widths = {len(cell) for cell in present}
            if len(widths) > 1:
                raise DataError(
                    f"column {name!r} must hold vectors of equal length, got lengths {min(widths)} to {max(widths)}. "
                    "Truncate or pad the vectors, or leave the column out."
                )
            stacked = np.array([*present], np.float64)
            scale = float(np.sqrt(np.square(stacked).sum(axis=-1).mean())) if len(present) else 1.0
            return _FittedColumn(name, kind, missing, scale=scale or 1.0, length=max(widths, default=0))
        values = set(present.tolist())
        if kind == "category" or len(values) <= min(self.max_categories, len(present) / 2):
            return _FittedColumn(name, "category", missing, terms=tuple(sorted(values)))
        return self._fit_text(name, missing, present)

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
