"""Conversion of the cells of a column to coordinates of a plot, with an axis of numbers, dates, times or durations."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Float

if TYPE_CHECKING:
    from matplotlib.axis import Axis

    from qkv.encoders.columns import Column


_HOURS = 24.0


@dataclass(frozen=True)
class PlotAxis:
    """An axis for a column of numbers or timestamps.

    Numbers have themselves as coordinates, dates the days since 1970 (as in matplotlib), times of day the hours since
    midnight, and durations their days.

    Attributes:
        column: a column of numbers, cyclic numbers or timestamps.
    """

    column: Column

    @property
    def kind(self) -> str:
        """The kind of the cells: "number", "date", "time" or "duration"."""
        import pyarrow as pa

        type_ = self.column.type
        if self.column.kind != "timestamp":
            return "number"
        return "time" if pa.types.is_time(type_) else "duration" if pa.types.is_duration(type_) else "date"

    @property
    def label(self) -> str:
        """The name of the column, with the unit of its coordinates unless it is shown at the ticks."""
        units = {"duration": " (days)", "time": " (hours)"}
        zone = getattr(self.column.type, "tz", None)
        return self.column.name + (f" ({zone})" if zone else units.get(self.kind, ""))

    def coordinates(self, cells: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, " n"]:
        """Return the coordinates of cells as in `Column.cells`."""
        if self.kind == "number":
            return np.asarray(self.column.numbers(cells), float)
        # Origins are large, so that they are split into whole days and a rest before floats are added.
        days, rest = divmod(self.column.origin, round(self.column.units_per_day))
        scale = _HOURS if self.kind == "time" else 1.0
        return scale * (days + (np.asarray(cells, float) + rest) / self.column.units_per_day)

    def coordinate(self, value: object) -> float:
        """Return the coordinate of a value of an answer or of a cell; NaN for None."""
        if value is None:
            return float("nan")
        if self.kind == "number":
            return float(value)  # type: ignore[arg-type]
        from qkv.encoders import arrow_columns

        units = arrow_columns.to_units(value, self.column.type)
        return float(self.coordinates(np.array([float(units - self.column.origin)]))[0])

    def length(self, value: object) -> float:
        """Return the length on the axis of a standard error or spread; NaN for None."""
        if isinstance(value, dt.timedelta):
            return value / dt.timedelta(days=1) * (_HOURS if self.kind == "time" else 1.0)
        return float("nan") if value is None else float(value)  # type: ignore[arg-type]

    def keys(self, coordinates: Float[np.ndarray, " n"]) -> list[object]:
        """Return queries at coordinates on the axis."""
        if self.kind == "number":
            return [float(each) for each in coordinates]
        scale = _HOURS if self.kind == "time" else 1.0
        units = np.asarray(coordinates, float) / scale * self.column.units_per_day - self.column.origin
        return [self.column.timestamp(unit) for unit in units]

    def format(self, axis: Axis, ticks: int | None = None) -> None:
        """Set the locator and formatter of the ticks of a matplotlib axis."""
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
        from matplotlib.ticker import MaxNLocator, ScalarFormatter

        from qkv.encoders import arrow_columns

        if self.kind == "date":
            zone = arrow_columns.time_zone(self.column.type)
            locator = AutoDateLocator(tz=zone, minticks=2 if ticks else 3, maxticks=max(5, ticks or 7))
            axis.set_major_locator(locator)
            axis.set_major_formatter(ConciseDateFormatter(locator, tz=zone))
            return
        formatter = ScalarFormatter(useOffset=False)
        formatter.set_powerlimits((-5, 9))
        axis.set_major_formatter(formatter)
        if ticks is not None:
            axis.set_major_locator(MaxNLocator(ticks))
