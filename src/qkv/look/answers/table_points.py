"""The rows of a table as points for the browser: their keys, their values, and their weights in an answer."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Float, Int
from qkv.database.keys.columns import Column
from qkv.look.answers.query_axis import QueryAxis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qkv.database.answer import Answer
    from qkv.database.protocol import Queryable

__all__ = ["TablePoints"]

_MOST_POINTS = 100_000
_MOST_LABELS = 8
_LEAST_SHARE = 0.002
"""Rows of a smaller share of the largest weight are not drawn."""
_MOST_SLICES = 200
"""Number of rows whose weights are drawn if the rows are read one by one from a store."""


@dataclass(frozen=True, eq=False)
class TablePoints:
    """The rows of a database as points.

    Attributes:
        database: the database.
        axes: the axes of the key; empty if queries are typed.
        value: the axis of values that are numbers or dates, or None.
        labels: the most common of other values, and "other values" if there are more; empty for numbers and dates.
        codes: the index of each label by the cell of the value column.
    """

    database: Queryable
    axes: tuple[QueryAxis, ...]
    value: QueryAxis | None
    labels: tuple[str, ...]
    codes: dict[object, int]

    @classmethod
    def of(cls, database: Queryable, columns: Sequence[Column], axes: tuple[QueryAxis, ...]) -> TablePoints:
        """Return the points of a database.

        Args:
            database: the database.
            columns: the key columns and the value column of the complete rows, or of a sample of them.
            axes: the axes of the key.
        """
        value = columns[-1]
        if value.kind in ("number", "timestamp"):
            return cls(database, axes, QueryAxis.over(value), (), {})
        if value.kind == "vector":
            return cls(database, axes, None, ("vectors",), {})
        cells, first, counts = np.unique(value.cells, return_index=True, return_counts=True)
        common = np.argsort(-counts, kind="stable")
        shown = common if len(common) <= _MOST_LABELS else common[: _MOST_LABELS - 1]
        labels = [value.text(int(first[i])) for i in shown]
        if value.kind == "boolean":
            labels = ["true" if cells[i] else "false" for i in shown]
        more = len(common) > len(shown)
        codes = {
            cells[place].item() if hasattr(cells[place], "item") else cells[place]: i for i, place in enumerate(shown)
        }
        return cls(database, axes, None, (*labels, *["other values"] * more), codes)

    def value_meta(self) -> dict[str, object]:
        """Return what the browser needs to draw the axis of the values."""
        if self.value is not None:
            return self.value.meta()
        return {"name": self.database.value, "label": self.database.value, "labels": list(self.labels)}

    def read(self, where: str | None) -> dict[str, object]:
        """Return the rows that satisfy a predicate as points, in two bytes per coordinate.

        Of more than 100,000 rows, a random sample is returned.

        Raises:
            QueryError: the predicate fails.
        """
        columns = self.database.complete_columns(where)
        count = len(columns[0].cells)
        if count > _MOST_POINTS:
            rows = np.sort(np.random.default_rng(0).permutation(count)[:_MOST_POINTS])
            columns = tuple(column.take(rows) for column in columns)
        keys = [
            axis.codes(axis.axis.coordinates(column.cells)) for axis, column in zip(self.axes, columns, strict=False)
        ]
        out = {"count": count, "shown": len(columns[0].cells)}
        return out | {"keys": [_packed(key) for key in keys], "values": _packed(self._value_codes(columns[-1].cells))}

    def weighted(self, answer: Answer) -> dict[str, object]:
        """Return the rows with at least 0.2 % of the largest weight as points, with their share of it."""
        (entry,) = answer.entries
        names = (*answer.keys, answer.value_name)
        columns = [self.database.column(name) for name in names]
        # Far rows have weights of 1e-200, which are drawn as nothing.
        visible = np.abs(entry.weights) > _LEAST_SHARE * np.abs(entry.weights).max(initial=0.0)
        rows, weights = entry.rows[visible], entry.weights[visible]
        if len(columns[0].cells) == self.database.table.num_rows:
            parts = [column.cells[rows] for column in columns]
        else:
            # The columns are a sample of the rows of a store.
            rows, weights = rows[:_MOST_SLICES], weights[:_MOST_SLICES]
            taken = [
                Column.from_table(self.database.table.slice(int(row), 1), name, True, column)
                for row in rows
                for name, column in zip(names, columns, strict=True)
            ]
            parts = [np.array([each.cells[0] for each in taken[i :: len(names)]]) for i in range(len(names))]
        keys = [axis.codes(axis.axis.coordinates(part)) for axis, part in zip(self.axes, parts, strict=False)]
        largest = float(np.abs(weights).max(initial=0.0)) or 1.0
        return {
            "keys": [key.tolist() for key in keys],
            "values": self._value_codes(parts[-1]).tolist(),
            "weights": np.round(weights / largest, 3).tolist(),
            "largest": largest,
        }

    def place(self, value: object) -> float | None:
        """Return the coordinate of a value of an answer; None if values have labels."""
        return None if self.value is None or value is None else _finite(self.value.axis.coordinate(value))

    def length(self, value: object) -> float | None:
        """Return the length of a standard error on the axis of the values."""
        return None if self.value is None or value is None else _finite(self.value.axis.length(value))

    def curve(self, answers: Sequence[Answer]) -> dict[str, object]:
        """Return the coordinates of answers and of their intervals, None where there is no match."""
        intervals = [one.prediction_interval or (None, None) for one in answers]
        labels = list(self.labels)
        names = [str(one.value).lower() if isinstance(one.value, bool) else str(one.value) for one in answers]
        return {
            "values": [self.place(one.value) for one in answers],
            "low": [self.place(low) for low, _ in intervals],
            "high": [self.place(high) for _, high in intervals],
            "labels": [
                None if not one.found or not labels else labels.index(name) if name in labels else len(labels) - 1
                for one, name in zip(answers, names, strict=True)
            ],
        }

    def _value_codes(self, cells: Float[np.ndarray, "n ..."] | np.ndarray) -> Int[np.ndarray, " n"]:
        if self.value is not None:
            return self.value.codes(self.value.axis.coordinates(cells))
        other = max(0, len(self.labels) - 1)
        given = cells.tolist() if self.codes else [None] * len(cells)
        return np.array([self.codes.get(cell, other) for cell in given], np.int64)


def _finite(number: float) -> float | None:
    return number if np.isfinite(number) else None


def _packed(codes: Int[np.ndarray, " n"]) -> str:
    return base64.b64encode(codes.astype("<u2").tobytes()).decode()
