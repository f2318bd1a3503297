"""The axis along which a query is moved: queries as texts at its coordinates, and the coordinates of texts."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from qkv.core.formatting import format_key
from qkv.core.typing import Float, Int
from qkv.database.keys.queries import Queries
from qkv.errors import QueryError
from qkv.look.plot_axis import PlotAxis

_STEPS = 500
"""Queries differ by about this part of the axis, or less."""

_MARGIN = 0.06
_CODES = 65535
_UNITS = (86400, 3600, 60, 1)
"""Lengths in seconds to which dates and times are rounded."""


@dataclass(frozen=True, eq=False)
class QueryAxis(PlotAxis):
    """An axis of numbers or dates over the cells of a column, which are all present."""

    @cached_property
    def low(self) -> float:
        """The least coordinate of the cells."""
        return float(self.coordinates(self.column.cells).min())

    @cached_property
    def high(self) -> float:
        """The largest coordinate of the cells."""
        return float(self.coordinates(self.column.cells).max())

    @property
    def span(self) -> float:
        """The length of the axis without its margins; of a constant column, one that shows it."""
        return self.high - self.low or abs(self.low) * 0.1 or 1.0

    @cached_property
    def step(self) -> float:
        """The difference of neighbouring queries, as a coordinate."""
        least = self.span / _STEPS
        if self.kind in ("number", "duration"):
            return float(10.0 ** math.floor(math.log10(least)))
        return self._unit / self._seconds

    @cached_property
    def middle(self) -> float:
        """The coordinate of the median of the cells."""
        return float(np.median(self.coordinates(self.column.cells)))

    @property
    def ends(self) -> tuple[float, float]:
        """The coordinates of the ends of the axis, with its margins."""
        middle, half = 0.5 * (self.low + self.high), (0.5 + _MARGIN) * self.span
        return middle - half, middle + half

    @property
    def _seconds(self) -> float:
        """The number of seconds of one unit of the coordinates, which are hours for times and days for dates."""
        return 3600.0 if self.kind == "time" else 86400.0

    @cached_property
    def _unit(self) -> float:
        """The length in seconds to which dates and times are rounded."""
        least = self.span / _STEPS * self._seconds
        whole = (unit for unit in _UNITS if unit <= 2 * least)
        return float(86400 if self.column.units_per_day == 1 else next(whole, 10.0 ** math.floor(math.log10(least))))

    def text(self, coordinate: float) -> str:
        """Return the query at a coordinate as text, rounded to `step`.

        Example:
            >>> from qkv import Database
            >>> days = Database.open({"day": ["2024-01-01", "2024-12-01"], "rain": [1, 2]}, key="day", value="rain")
            >>> QueryAxis(days.column("day")).text(19_800.3)  # doctest: +SKIP
            '2024-03-18'
        """
        if self.kind in ("number", "duration"):
            return self._number(coordinate)
        seconds = round(coordinate * self._seconds / self._unit) * self._unit
        (moment,) = self.keys(np.array([seconds / self._seconds]))
        whole_days = self._unit >= _UNITS[0] and isinstance(moment, dt.datetime) and moment.tzinfo is None
        short = moment.date().isoformat() if whole_days and isinstance(moment, dt.datetime) else format_key(moment)
        for text in (short, format_key(moment)):
            found = self.parse(text)
            if found is not None and abs(found - seconds / self._seconds) <= 0.51 * self.step:
                return text
        return format_key(moment)

    def _number(self, coordinate: float) -> str:
        digits = -math.floor(math.log10(self.step) + 0.5)
        rounded = round(coordinate, digits)
        if not self.step >= 1e-5 or abs(rounded) >= 1e15:
            text = repr(float(rounded)).removesuffix(".0")
        else:
            text = f"{rounded + 0.0:.{max(0, digits)}f}"
            text = text.rstrip("0").rstrip(".") if "." in text else text
        # Where commas are decimal separators, 1.203 is a number of more than a thousand.
        written = self.column.number_format
        misread = written is not None and written.decimal == "," and self.parse(text) != float(text)
        return text.replace(".", ",") if misread else text

    def parse(self, query: object) -> float | None:
        """Return the coordinate of a query, or None if it is missing or cannot be read."""
        try:
            parsed = Queries.parse([query], [self.column])
        except QueryError:
            return None
        if parsed.missing[0]:
            return None
        return float(self.coordinates(parsed.columns[0].cells)[0])

    def codes(self, coordinates: Float[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return coordinates of rows as integers from 0 at `low` to 65,535 at `high`."""
        return np.clip(np.round((coordinates - self.low) / self.span * _CODES), 0, _CODES).astype(np.int64)

    def meta(self) -> dict[str, object]:
        """Return what the browser needs to draw the axis."""
        names = ("label", "kind", "low", "span", "ends", "step")
        return {"name": self.column.name, **{name: getattr(self, name) for name in names}}
