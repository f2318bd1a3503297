"""Plots of an answer among the rows of its table, for one or two key columns of numbers or dates.

Only rows that take part are drawn: rows with a missing cell, and rows that the predicate excludes, affect neither
points nor scales. Many rows are drawn as their density, and the estimate is interrupted where no key matches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.core.typing import Float
from qkv.look.figure import (
    ANSWER_COLOR,
    CURVE_COLOR,
    DATA_COLOR,
    INK,
    draw_weighted_points,
    label_axes,
)
from qkv.look.plot_axis import PlotAxis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure

    from qkv.database.answer import Answer
    from qkv.database.protocol import Queryable
    from qkv.encoders.columns import Column

__all__ = ["MOST_POINTS", "draw_map", "draw_one_key"]

MOST_POINTS = 3000
"""More rows than this are drawn as their density."""

_RING = (0.78, 0.20, 0.12)
# Bright, as rows far from the query are mostly on dark colors or light ones.
_NEGATIVE_RING = (0.93, 0.45, 1.0)
_LINE_QUERIES, _KEY_QUERIES = 140, 60
_PAIRS, _LEAST_CELLS, _MOST_CELLS = 2 * 10**8, 150, 1500
_MAP_COLORS = "cividis"


def draw_one_key(figure: Figure, database: Queryable, answer: Answer, options: Mapping[str, Any]) -> list[Axes]:
    """Draw rows, estimate and prediction interval along a key column, and the rows with weight in an answer."""
    axes = figure.add_subplot()
    key, value = map(PlotAxis, database.complete_columns(options.get("where")))
    x, y = key.coordinates(key.column.cells), value.coordinates(value.column.cells)
    if len(x) > MOST_POINTS:
        _draw_density(axes, x, y)
    else:
        opacity = float(np.clip(30 / np.sqrt(len(x)), 0.25, 0.9))
        axes.plot(x, y, "o", ms=3.5, color=DATA_COLOR, alpha=opacity, mew=0, zorder=1, label="rows")
    _draw_estimate(axes, database, key, value, x, options)
    records = [row.record for row in answer.rows]
    points = [[side.coordinate(record[side.column.name]) for record in records] for side in (key, value)]
    weights = np.array([row.weight for row in answer.rows])
    # Several hundred rows would hide each other.
    size = min(1.0, 200 / len(weights))
    draw_weighted_points(figure, axes, points[0], points[1], weights, size=size)
    (place,) = _query_coordinates(answer.query, key)
    estimate, error = value.coordinate(answer.value), value.length(answer.standard_error)
    axes.axvline(place, color=ANSWER_COLOR, lw=1, ls=(0, (4, 3)), zorder=4)
    bar, label = (None, "answer") if np.isnan(error) else ([error], "answer ± standard error")
    axes.errorbar(
        [place], [estimate], yerr=bar, fmt="o", ms=7, color=ANSWER_COLOR, mec="white", capsize=4, zorder=6, label=label
    )
    key.format(axes.xaxis)
    value.format(axes.yaxis)
    label_axes(axes, key.label, value.label)
    return [axes]


def _draw_density(axes: Axes, x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    greys = LinearSegmentedColormap.from_list("rows", ["#e9ebee", "#5d6570"])
    axes.hexbin(x, y, gridsize=(60, 34), bins="log", mincnt=1, cmap=greys, lw=0.2, zorder=1)
    axes.plot([], [], "h", color="#8d949e", ms=7, label="rows (darker: more)")


def _draw_estimate(
    axes: Axes,
    database: Queryable,
    key: PlotAxis,
    value: PlotAxis,
    x: Float[np.ndarray, " n"],
    options: Mapping[str, Any],
) -> None:
    """Draw the answers and prediction intervals along the key, interrupted where no key matches."""
    keys = np.unique(x)
    some = keys[np.linspace(0, len(keys) - 1, min(len(keys), _KEY_QUERIES)).astype(int)]
    grid = np.union1d(np.linspace(keys[0], keys[-1], _LINE_QUERIES), some)
    curve = list(database.ask(key.keys(grid), **options, top=1))
    # A point without a match is NaN, at which matplotlib interrupts lines and areas.
    line = np.array([value.coordinate(one.value) for one in curve])
    label = "local linear fit" if options.get("fit") == "local-linear" else "weighted mean"
    axes.plot(grid, line, color=CURVE_COLOR, lw=1.8, zorder=3, label=label)
    known = np.isfinite(np.concatenate([[np.nan], line, [np.nan]]))
    alone = known[1:-1] & ~known[:-2] & ~known[2:]
    axes.plot(grid[alone], line[alone], "_", color=CURVE_COLOR, ms=6, mew=1.8, zorder=3)
    ends = [one.prediction_interval or (None, None) for one in curve]
    lower, upper = (np.array([value.coordinate(end[side]) for end in ends]) for side in (0, 1))
    if np.isfinite(lower).any():
        band = axes.fill_between(grid, lower, upper, where=np.isfinite(lower + upper), color=CURVE_COLOR, alpha=0.13)
        band.set(lw=0, zorder=2, label="90% prediction interval")


def draw_map(figure: Figure, database: Queryable, answer: Answer, options: Mapping[str, Any]) -> list[Axes]:
    """Draw three maps: the values of all rows, the answers in the same area, and the part around the query enlarged.

    The colors of all maps have one scale, which leaves out the smallest and the largest percent of the values. The
    third map shows the weights of the rows; a frame in the others is its area.
    """
    from matplotlib.colors import Normalize
    from matplotlib.patches import Rectangle

    whole, field, near = figure.subplots(1, 3, width_ratios=(1, 1, 1.2))
    across, up, value = map(PlotAxis, database.complete_columns(options.get("where")))
    x, y = across.coordinates(across.column.cells), up.coordinates(up.column.cells)
    z = value.coordinates(value.column.cells)
    least, most = np.quantile(z, (0.01, 0.99))
    norm = Normalize(least, most)
    center = _query_coordinates(answer.query, across, up)
    if len(x) > MOST_POINTS:
        whole.hexbin(x, y, C=z, reduce_C_function=np.mean, gridsize=60, mincnt=1, lw=0.2, cmap=_MAP_COLORS, norm=norm)
    else:
        size = float(np.clip(4000 / len(x), 4, 30))
        whole.scatter(x, y, c=z, s=size, lw=0, cmap=_MAP_COLORS, norm=norm)
    records = [row.record for row in answer.rows]
    weights = np.array([row.weight for row in answer.rows])
    share = np.abs(weights) / np.abs(weights).max()
    rings = [np.array([side.coordinate(record[side.column.name]) for record in records]) for side in (across, up)]
    part = [_window(*each) for each in zip((x, y), rings, center, (share, share), strict=True)]
    drawn = [
        _draw_field(axes, database, (across, up, value), limits, options, {"cmap": _MAP_COLORS, "norm": norm})
        for axes, limits in ((field, [_extent(x, center[0]), _extent(y, center[1])]), (near, part))
    ]
    whole.set_xlim(field.get_xlim())
    whole.set_ylim(field.get_ylim())
    inside = (x >= part[0][0]) & (x <= part[0][1]) & (y >= part[1][0]) & (y <= part[1][1])
    near.plot(x[inside], y[inside], "o", ms=2.2, mfc=INK, mec="white", mew=0.35)
    title = "weights near the query"
    for some, color, style in (
        (weights > 0, _RING, "-"),
        (weights < 0, _NEGATIVE_RING, (0, (2, 1))),
    ):
        heavy = some & (share > 0.02)
        if not heavy.any():
            continue
        edges_of = [(*color, max(0.35, each)) for each in share[heavy]]
        points = [ring[heavy] for ring in rings]
        near.scatter(*points, s=12 + 130 * share[heavy], lw=1.2, fc="none", ec=edges_of, ls=style)
        if style != "-":
            title += "\n(dashed: negative)"
    for axes, text in ((whole, "values"), (field, "answers"), (near, title)):
        axes.set_title(text, loc="left", fontsize=9, color=INK)
        axes.set_xlabel(across.label, color=INK)
        across.format(axes.xaxis, max(2, int(0.4 * figure.get_figwidth())))
        up.format(axes.yaxis, 5)
        if axes is not near:
            width, height = (float(np.ptp(limits)) for limits in part)
            frame = Rectangle((part[0][0], part[1][0]), width, height, fc="none", ec=ANSWER_COLOR, lw=1, zorder=4)
            axes.add_patch(frame)
        size = 12 if axes is near else 7
        axes.plot([center[0]], [center[1]], "*", ms=size, color=ANSWER_COLOR, mec="white", mew=0.6, zorder=5)
    whole.set_ylabel(up.label, color=INK)
    field.set_yticklabels([])
    beyond = (z.min() < least, z.max() > most)
    extend = {(True, True): "both", (True, False): "min", (False, True): "max"}.get(beyond, "neither")
    bar = figure.colorbar(drawn[1], ax=near, label=value.label, shrink=0.9, extend=extend)
    value.format(bar.ax.yaxis)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=INK, labelsize=8)
    return [whole, field, near]


def _draw_field(
    axes: Axes,
    database: Queryable,
    sides: tuple[PlotAxis, PlotAxis, PlotAxis],
    limits: list[tuple[float, float]],
    options: Mapping[str, Any],
    style: Mapping[str, Any],
) -> QuadMesh:
    """Draw the answers to a grid of queries within limits; cells without a match are empty."""
    across, up, value = sides
    axes.set_xlim(*limits[0])
    axes.set_ylim(*limits[1])
    cells = int(np.sqrt(np.clip(_PAIRS / max(1, len(database)), _LEAST_CELLS, _MOST_CELLS)))
    edges = [np.linspace(*each, cells + 1) for each in limits]
    middles = [0.5 * (each[1:] + each[:-1]) for each in edges]
    columns = [side.keys(each.ravel()) for side, each in zip((across, up), np.meshgrid(*middles), strict=True)]
    answers = database.ask(list(zip(*columns, strict=True)), **options, top=1)
    field = np.array([value.coordinate(one.value) for one in answers]).reshape(cells, cells)
    return axes.pcolormesh(*edges, np.ma.masked_invalid(field), **style)


def _extent(cells: Float[np.ndarray, " n"], center: float) -> tuple[float, float]:
    """Return limits that contain all rows and the query, with a margin."""
    least, most = min(float(cells.min()), center), max(float(cells.max()), center)
    margin = 0.04 * (most - least) or 0.5
    return least - margin, most + margin


def _window(
    cells: Float[np.ndarray, " n"], rows: Float[np.ndarray, " m"], middle: float, share: Float[np.ndarray, " m"]
) -> tuple[float, float]:
    """Return limits around a query that contain the rows with more than 2 % of the largest weight."""
    distance = float(np.abs(rows[share > 0.02] - middle).max())
    # Rows whose keys equal the query have no extent, for which a twentieth of all rows' extent is shown.
    half = 1.3 * distance or 0.05 * float(np.ptp(cells)) or 0.5
    return middle - half, middle + half


def _query_coordinates(query: object, *axes: PlotAxis) -> list[float]:
    """Return the coordinates of a query, one for each key column."""
    from qkv.database.keys.queries import Queries

    columns: list[Column] = [axis.column for axis in axes]
    parsed = Queries.parse([query], columns).columns
    return [float(axis.coordinates(cells.cells)[0]) for axis, cells in zip(axes, parsed, strict=True)]
