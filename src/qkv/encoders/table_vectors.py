"""Rows of a table as key vectors: each column by its kind, side by side, so that distances mean something.

    number      (x − mean) / deviation
    moment      days, as a number; and the place in the year on a circle
    category    one place for each category, 1/√2 in it, so that two categories are at distance 1; truth
                values and texts of few values too
    text        tf-idf of words, by latent semantics to few dimensions, of length 1
    vector      as it is, divided so that rows have length 1 in the root mean square

A missing cell is 0 in its places, as is a category or a word that was not there in fitting; where cells
were missing in fitting, one place more says so. Fitted once: `save` writes arrays and JSON, nothing that
runs when it is read.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from qkv.core.files import write_atomic
from qkv.encoders.encoder import read_arrays
from qkv.encoders.latent_semantics import LatentSemantics
from qkv.encoders.table_cells import is_missing, read_cells, read_columns
from qkv.encoders.weighting import get_weighting
from qkv.errors import DataError, MissingPackageError, OptionError

try:
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
except ImportError:
    raise MissingPackageError(
        'table vectors need scikit-learn, which is not installed. Run: pip install "qkv[sklearn]"'
    ) from None

__all__ = ["TableVectors"]

_FORMAT = "qkv table vectors 1"
_TOKEN = r"(?u)\b\w+\b"
_MOST_WORDS = 50_000
_YEAR = 365.2425


@dataclass(frozen=True, eq=False)
class FittedColumn:
    """What was learned of one column; which fields are used depends on the kind.

    Fields:
        name, kind: of the column.
        missing: whether a place says that a cell is missing.
        place, scale: of numbers, moments and vectors.
        terms: categories, or words.
        weights, axes: of words: their global weight, and the directions of latent semantics.
    """

    name: str
    kind: str
    missing: bool
    place: float = 0.0
    scale: float = 1.0
    terms: tuple[str, ...] = ()
    weights: np.ndarray | None = None
    axes: np.ndarray | None = None
    length: int = 0

    @property
    def width(self) -> int:
        """How many places the column has."""
        own = {
            "number": 1,
            "moment": 3,
            "category": len(self.terms),
            "text": 0 if self.axes is None else len(self.axes),
            "vector": self.length,
        }[self.kind]
        return own + self.missing

    def encode(self, cells: Any) -> np.ndarray:
        """Cells as `cells_of` reads them, `(rows, width)` float32."""
        absent = is_missing(cells)
        parts = _ENCODE[self.kind](self, cells)
        parts = np.where(absent[:, None], 0.0, parts)
        if self.missing:
            parts = np.concatenate([parts, absent[:, None]], axis=1)
        return parts.astype(np.float32)

    def _number(self, cells: np.ndarray) -> np.ndarray:
        return np.asarray((np.nan_to_num(cells)[:, None] - self.place) / self.scale)

    def _moment(self, cells: np.ndarray) -> np.ndarray:
        turn = 2 * np.pi * np.nan_to_num(cells)[:, None] / _YEAR
        return np.concatenate([self._number(cells), np.cos(turn) / 2, np.sin(turn) / 2], axis=1)

    def _category(self, cells: np.ndarray) -> np.ndarray:
        places = {term: place for place, term in enumerate(self.terms)}
        found = np.array([places.get(cell, -1) for cell in cells], int)
        parts = np.zeros((len(cells), len(self.terms)))
        known = np.flatnonzero(found >= 0)
        parts[known, found[known]] = np.sqrt(0.5)
        return parts

    def _text(self, cells: np.ndarray) -> np.ndarray:
        assert self.axes is not None
        if not len(self.axes):
            return np.zeros((len(cells), 0))
        count = CountVectorizer(token_pattern=_TOKEN, vocabulary=list(self.terms), dtype=np.float64)
        counts = count.transform(["" if cell is None else cell for cell in cells])
        weighting = type(get_weighting("tfidf"))(words=self.weights)
        points = np.asarray(weighting.apply(counts.tocsr()) @ self.axes.T)
        lengths = np.linalg.norm(points, axis=1, keepdims=True)
        return np.asarray(points / np.where(lengths > 0, lengths, 1.0))

    def _vector(self, cells: np.ndarray) -> np.ndarray:
        parts = np.zeros((len(cells), self.length))
        for place, cell in enumerate(cells):
            if cell is None:
                continue
            if len(cell) != self.length:
                raise DataError(
                    f"column {self.name!r} has a vector of {len(cell)} numbers in row {place}, and "
                    f"{self.length} are wanted."
                )
            parts[place] = cell
        return parts / self.scale


_ENCODE = {
    "number": FittedColumn._number,
    "moment": FittedColumn._moment,
    "category": FittedColumn._category,
    "text": FittedColumn._text,
    "vector": FittedColumn._vector,
}


class TableVectors:
    """Vectors of the rows of a table with columns of any kind.

    Args:
        columns: which; None for all.
        text_width: how many dimensions a column of texts gets at most.
        few: a column of texts with at most so many values, each twice on the mean, is one of categories.

    Raises:
        OptionError: a number that is not positive.

    Example:
        >>> people = {"age": [30, 50, None, 40], "city": ["Oslo", "Rome", "Oslo", "Rome"]}
        >>> vectors = TableVectors().fit(people)
        >>> vectors.encode(people).shape, vectors.names[:3]
        ((4, 4), ('age', 'age missing', 'city=Oslo'))
        >>> vectors.encode({"age": [40], "city": ["Bern"]}).tolist()
        [[0.0, 0.0, 0.0, 0.0]]
    """

    def __init__(self, columns: tuple[str, ...] | None = None, *, text_width: int = 30, few: int = 40) -> None:
        for name, number in (("text_width", text_width), ("few", few)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise OptionError(f"{name} is {number!r}, and a whole number from 1 is wanted.")
        self.columns = columns
        self.text_width = text_width
        self.few = few
        self.fitted: tuple[FittedColumn, ...] = ()

    def fit(self, table: Any) -> Self:
        """Learn places, scales, categories and words from a table.

        Args:
            table: a pyarrow table, a pandas or polars frame, a dict of columns.

        Raises:
            DataError: there are no rows, a column is absent, or holds what makes no vector.
        """
        columns = read_columns(table, self.columns)
        if not columns or not len(next(iter(columns.values()))):
            raise DataError("the table has no rows or no columns. Fit to a table that has some.")
        self.fitted = tuple(self._fit(name, *read_cells(name, column)) for name, column in columns.items())
        return self

    def encode(self, table: Any) -> np.ndarray:
        """Vectors `(rows, width)` float32.

        Raises:
            DataError: a column that was fitted is absent, or holds another kind of cells.
            OptionError: nothing was fitted.
        """
        if not self.fitted:
            raise OptionError("these table vectors were not fitted. Call fit first.")
        columns = read_columns(table, tuple(column.name for column in self.fitted))
        parts = []
        for column in self.fitted:
            kind, cells = read_cells(column.name, columns[column.name])
            if _GIVEN[kind] != _GIVEN[column.kind] and not is_missing(cells).all():
                raise DataError(
                    f"column {column.name!r} holds {_GIVEN[kind]}s, and {_GIVEN[column.kind]}s were fitted."
                )
            if is_missing(cells).all() and _GIVEN[kind] != _GIVEN[column.kind]:
                # Nothing but missing cells has no kind of its own.
                empty = np.full(len(cells), None, object)
                cells = np.full(len(cells), np.nan) if column.kind in ("number", "moment") else empty
            parts.append(column.encode(cells))
        return np.concatenate(parts, axis=1)

    @property
    def width(self) -> int:
        """How many numbers a vector has."""
        return sum(column.width for column in self.fitted)

    @property
    def names(self) -> tuple[str, ...]:
        """What each number of a vector is."""
        names: list[str] = []
        for column in self.fitted:
            own = column.width - column.missing
            if column.kind == "category":
                names += [f"{column.name}={term}" for term in column.terms]
            else:
                names += [column.name] if own == 1 else [f"{column.name} {place}" for place in range(own)]
            names += [f"{column.name} missing"] * column.missing
        return tuple(names)

    def arrays(self) -> dict[str, np.ndarray]:
        """What was fitted: NumPy arrays, one of which is JSON.

        Raises:
            OptionError: nothing was fitted.
        """
        if not self.fitted:
            raise OptionError("these table vectors were not fitted. Call fit first.")
        arrays: dict[str, np.ndarray] = {}
        heads = []
        for place, column in enumerate(self.fitted):
            head = {key: value for key, value in vars(column).items() if key not in ("weights", "axes")}
            heads.append(head)
            for part in ("weights", "axes"):
                if getattr(column, part) is not None:
                    arrays[f"{part}{place}"] = getattr(column, part)
        content = {"format": _FORMAT, "text_width": self.text_width, "few": self.few, "columns": heads}
        arrays["head"] = np.frombuffer(json.dumps(content).encode(), np.uint8)
        return arrays

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Table vectors from what `arrays` gave; nothing in it is run.

        Raises:
            DataError: it is of another version.
        """
        content = json.loads(arrays["head"].tobytes())
        if content["format"] != _FORMAT:
            raise DataError("these table vectors were written by another version. Fit them again.")
        made = cls(text_width=content["text_width"], few=content["few"])
        made.fitted = tuple(
            FittedColumn(
                **{**head, "terms": tuple(head["terms"])},
                weights=arrays.get(f"weights{place}"),
                axes=arrays.get(f"axes{place}"),
            )
            for place, head in enumerate(content["columns"])
        )
        made.columns = tuple(column.name for column in made.fitted)
        return made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was fitted: one file of NumPy arrays and JSON.

        Raises:
            OptionError: nothing was fitted.
            DataError: it cannot be written.
        """
        arrays = self.arrays()
        write_atomic(Path(path), lambda stream: np.savez_compressed(stream, **arrays), "the table vectors")  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote; nothing in it is run.

        Raises:
            DataError: there is no such file, or it is something else.
        """
        name = str(path)
        try:
            return cls.of_arrays(read_arrays(io.BytesIO(Path(path).read_bytes())))
        except OSError as error:
            said = error.strerror or error
            raise DataError(f"the table vectors {name!r} cannot be read: {said}. Check the name.") from None
        except (KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{name!r} holds no table vectors. Give what save wrote.") from None

    # -- within -----------------------------------------------------------------------------------------

    def _fit(self, name: str, kind: str, cells: np.ndarray) -> FittedColumn:
        absent = is_missing(cells)
        missing, present = bool(absent.any()), cells[~absent]
        if kind in ("number", "moment"):
            scaler = StandardScaler().fit(present[:, None] if len(present) else np.zeros((1, 1)))
            return FittedColumn(name, kind, missing, float(scaler.mean_[0]), float(scaler.scale_[0]))
        if kind == "vector":
            widths = {len(cell) for cell in present}
            if len(widths) > 1:
                raise DataError(f"column {name!r} holds vectors of {min(widths)} to {max(widths)} numbers.")
            stacked = np.array([*present], np.float64)
            scale = float(np.sqrt(np.square(stacked).sum(axis=-1).mean())) if len(present) else 1.0
            return FittedColumn(name, kind, missing, scale=scale or 1.0, length=max(widths, default=0))
        values = set(present.tolist())
        if kind == "category" or len(values) <= min(self.few, len(present) / 2):
            encoder = OneHotEncoder(sparse_output=False).fit(present[:, None]) if len(present) else None
            terms = () if encoder is None else tuple(map(str, encoder.categories_[0]))
            return FittedColumn(name, "category", missing, terms=terms)
        return self._fit_text(name, missing, present)

    def _fit_text(self, name: str, missing: bool, present: np.ndarray) -> FittedColumn:
        count = CountVectorizer(token_pattern=_TOKEN, max_features=_MOST_WORDS, dtype=np.float64)
        try:
            counts = count.fit_transform(present).tocsr()
        except ValueError:  # there is not one word
            return FittedColumn(name, "text", missing, weights=np.zeros(0), axes=np.zeros((0, 0)))
        width = min(self.text_width, *counts.shape)
        latent = LatentSemantics(width, weighting="tfidf").fit(counts)
        weights = get_weighting("tfidf").fit(counts).words
        terms = tuple(count.get_feature_names_out().tolist())
        return FittedColumn(name, "text", missing, terms=terms, weights=weights, axes=latent.components_)


_GIVEN = {"number": "number", "moment": "moment", "category": "text", "text": "text", "vector": "vector"}
