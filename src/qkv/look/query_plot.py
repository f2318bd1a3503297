"""Plot the answer to one query together with the data of its table.

The plot depends on the key columns:

one column of numbers or dates     the data points, the estimate along the key, the query and its answer
two columns of numbers or dates    the data points colored by value, with rings near the query sized by weight
any other columns                  one bar per evidence row; its length is the weight of the row
"""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.errors import DataError
from qkv.look.figure import (
    ANSWER_COLOR,
    CURVE_COLOR,
    DATA_COLOR,
    INK,
    check_figure_path,
    draw_weighted_points,
    label_axes,
    new_figure,
    save_figure,
    set_title,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from qkv.core.typing import Float
    from qkv.database.answer import Answer
    from qkv.database.keys.columns import Column
    from qkv.database.protocol import Queryable

__all__ = ["answer_title", "draw_weight_bars", "plot_query", "save_query_plot"]

_RING = (0.78, 0.20, 0.12)
_MAX_ROWS = 1000
_MAX_BARS = 12


def plot_query(database: Queryable, answer: Answer, **options: Any) -> Figure:
    """Plot the answer to one query with the data of its table, or with one bar per evidence row.

    The data are drawn if the keys are one or two columns of numbers or dates, and the values are numbers or dates.

    Args:
        database: the database that gave the answer.
        answer: result of `Database.ask` for one query.
        options: the arguments `score`, `normalizer` and `where` of the original query. The database is queried
            again with them for the weights of more rows and for the estimate along the key.

    Raises:
        DataError: the answer is for several queries.
        MissingPackageError: matplotlib is not installed.
    """
    if not answer.single:
        raise DataError(
            f"answer must be the answer to one query, got {len(answer)} answers. "
            "Select one by index, for example answer[0]."
        )
    figure = new_figure((7.2, 4.4))
    columns = [database.column(name) for name in database.key]
    continuous = all(column.kind in ("number", "timestamp") for column in columns)
    averaged = database.column(database.value).kind in ("number", "timestamp")
    if answer.found and continuous and averaged and len(columns) <= 2:
        detailed = database.ask([answer.query], **options, top=min(database.table.num_rows, _MAX_ROWS))[0]
        if len(columns) == 1:
            axes = _plot_one_key(figure, database, detailed, options)
        else:
            axes = _plot_two_keys(figure, database, detailed)
    else:
        axes = [figure.add_subplot()]
        draw_weight_bars(axes[0], answer)
    set_title(figure, answer_title(answer))
    for each in axes:
        style_axes(each)
    return figure


def save_query_plot(database: Queryable, answer: Answer, path: str | os.PathLike[str], **options: Any) -> None:
    """Draw the same figure as `plot_query`, and save it to a file atomically.

    Args:
        database: the database that gave the answer.
        answer: result of `Database.ask` for one query.
        path: a .png, .svg or .pdf file.
        options: as in `plot_query`.

    Raises:
        DataError: the path has another suffix, or the file cannot be written.
    """
    target = check_figure_path(path)
    save_figure(plot_query(database, answer, **options), target)


def answer_title(answer: Answer) -> str:
    """Return a figure title with a query, its answer, and the standard error or the share of the vote, if any."""
    from qkv.database.io.formatting import format_estimate, format_query

    query = _truncated(format_query(answer.query), 40)
    if not answer.found:
        return f"{query}  →  no match"
    return f"{query}  →  {_truncated(format_estimate(answer), 60)}"


def draw_weight_bars(axes: Axes, answer: Answer, ink: str = INK) -> None:
    """Draw the weights of the first evidence rows, at most 12, as horizontal bars with the value of each row.

    If the answer has no rows, the reason for "no match" is written instead.
    """
    from qkv.database.io.formatting import format_value

    rows = answer.rows[:_MAX_BARS]
    if not rows:
        text = textwrap.fill(answer.reason or "no row", 60)
        axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color=ink)
        axes.set_axis_off()
        return
    names = [_truncated(", ".join(format_value(row.record[name]) for name in answer.keys), 32) for row in rows]
    values = [_truncated(format_value(row.record[answer.value_name]), 28) for row in rows]
    weights = np.array([row.weight for row in rows])
    maximum = max(np.abs(weights).max(), 1e-300)
    places = np.arange(len(rows))
    colors = [(*_RING, 0.25 + 0.75 * share) for share in np.abs(weights) / maximum]
    axes.barh(places, weights, color=colors, height=0.66)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    # Leave space after the longest bar for its label.
    axes.set_xlim(min(0.0, 1.1 * weights.min()), 1.25 * maximum)
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= 1.02 * maximum])
    for place, weight, text in zip(places, weights, values, strict=True):
        end = (max(weight, 0), place)
        axes.annotate(text, end, xytext=(5, 0), textcoords="offset points", va="center", fontsize=9, color=ink)
    axes.set_xlabel(f"weight of the row, labelled with its {answer.value_name}", color=ink)


def _plot_one_key(figure: Figure, database: Queryable, answer: Answer, options: dict[str, Any]) -> list[Axes]:
    axes = figure.add_subplot()
    key, value = database.column(database.key[0]), database.column(database.value)
    present = ~(key.missing | value.missing)
    x, y = _coordinates(key, key.cells[present]), _coordinates(value, value.cells[present])
    opacity = float(np.clip(30 / np.sqrt(max(present.sum(), 1)), 0.15, 0.9))
    axes.plot(x, y, "o", ms=3.5, color=DATA_COLOR, alpha=opacity, mew=0, zorder=1)
    grid = np.linspace(key.cells[present].min(), key.cells[present].max(), 160)
    queries = [key.timestamp(cell) if key.kind == "timestamp" else cell for cell in grid]
    curve = [one for one in database.ask(queries, **options, top=1) if one.found]
    if len(curve) > 1:
        along = [one.query for one in curve]
        axes.plot(along, [one.value for one in curve], color=CURVE_COLOR, lw=1.8, zorder=3, label="weighted answer")
        if all(one.spread is not None for one in curve):
            lower, upper = [one.value - one.spread for one in curve], [one.value + one.spread for one in curve]
            axes.fill_between(along, lower, upper, color=CURVE_COLOR, alpha=0.13, lw=0, zorder=2, label="± spread")
    keys, values = ([row.record[name] for row in answer.rows] for name in (key.name, value.name))
    draw_weighted_points(figure, axes, keys, values, np.array([row.weight for row in answer.rows]))
    (place,) = _query_coordinates(answer.query, key)
    axes.axvline(place, color=ANSWER_COLOR, lw=1, ls=(0, (4, 3)), zorder=4)
    bar = None if answer.spread is None else [answer.spread]
    axes.errorbar(
        [place], [answer.value], yerr=bar, fmt="o", ms=8, color=ANSWER_COLOR, mec="white", capsize=4, zorder=6
    )
    label_axes(axes, key.name, value.name)
    return [axes]


def _plot_two_keys(figure: Figure, database: Queryable, answer: Answer) -> list[Axes]:
    from matplotlib.ticker import MaxNLocator

    whole, near = figure.subplots(1, 2, width_ratios=(1.15, 1))
    across, up = (database.column(name) for name in database.key)
    value = database.column(database.value)
    present = ~(across.missing | up.missing | value.missing)
    x, y = _coordinates(across, across.cells[present]), _coordinates(up, up.cells[present])
    size = float(np.clip(4000 / max(1, present.sum()), 1.5, 20))
    center = _query_coordinates(answer.query, across, up)
    records = [row.record for row in answer.rows]
    share = np.array([row.weight for row in answer.rows]) / answer.rows[0].weight
    points = [record[across.name] for record in records], [record[up.name] for record in records]
    for axes, scale in ((whole, 1.0), (near, 12.0)):
        dots = axes.scatter(x, y, c=value.cells[present], s=size * scale, cmap="cividis", lw=0, rasterized=True)
        axes.plot([center[0]], [center[1]], "*", ms=13, color=ANSWER_COLOR, mec="white", zorder=5)
        axes.set_xlabel(across.name, color=INK)
    colors = [(*_RING, max(0.03, each)) for each in share]
    near.scatter(*points, s=20 + 160 * share, facecolors="none", edgecolors=colors, linewidths=1.3)
    # The right axes cover the rows with more than 2 % of the largest weight, and a margin of 30 %.
    heavy = share > 0.02
    for set_limits, along, middle in ((near.set_xlim, points[0], center[0]), (near.set_ylim, points[1], center[1])):
        distances = [abs(cell - middle) for cell, counts in zip(along, heavy, strict=True) if counts]
        if max(distances):
            set_limits(middle - 1.3 * max(distances), middle + 1.3 * max(distances))
    for axis, column in ((near.xaxis, across), (near.yaxis, up)):
        # Write full numbers at the ticks, because an offset in the corner is easily overlooked.
        if column.kind == "number":
            axis.get_major_formatter().set_useOffset(False)
            axis.set_major_locator(MaxNLocator(3))
    near.set_title("around the query, rings by weight", loc="left", fontsize=9, color=INK)
    whole.set_ylabel(up.name, color=INK)
    bar = figure.colorbar(dots, ax=near, label=value.name, shrink=0.9)
    bar.outline.set_visible(False)
    return [whole, near]


def _coordinates(column: Column, cells: Float[np.ndarray, " n"]) -> Any:
    return [column.timestamp(cell) for cell in cells] if column.kind == "timestamp" else cells


def _query_coordinates(query: object, *columns: Column) -> list[Any]:
    """Return the plot coordinates of a query, one coordinate for each key column."""
    from qkv.database.keys.queries import Queries

    cells = [column.cells for column in Queries.parse([query], columns).columns]
    return [_coordinates(column, parsed)[0] for column, parsed in zip(columns, cells, strict=True)]


def _truncated(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
