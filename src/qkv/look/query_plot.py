"""Plot the answer to one query together with the data of its table.

The plot depends on the key columns:

one column of numbers or dates     the rows, the estimate along the key, the query and its answer
two columns of numbers or dates    maps of the values and of the answers, and of the weights around the query
any other columns                  one bar per evidence row; its length is the weight of the row

Only rows that take part are drawn: rows with a missing cell, and rows that the predicate excludes, affect neither
points nor scales. Many rows are drawn as their density, and the estimate is interrupted where no key matches. Below
each plot are the number of rows, the effective rows of the answer, and the bandwidth.
"""

from __future__ import annotations

import os
import re
import textwrap
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np

from qkv.core.typing import Float
from qkv.errors import DataError
from qkv.look.figure import (
    ANSWER_COLOR,
    CURVE_COLOR,
    DATA_COLOR,
    INK,
    NEGATIVE_COLOR,
    add_color_bar,
    check_figure_path,
    draw_answer,
    draw_curve,
    draw_weighted_points,
    extension,
    new_figure,
    save_figure,
    style_figure,
)
from qkv.look.plot_axis import PlotAxis
from qkv.look.token_text import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    from qkv.database.answer import Answer
    from qkv.database.protocol import Queryable
    from qkv.encoders.columns import Column
    from qkv.normalizers import Normalizer
    from qkv.scores import Score


MOST_POINTS = 3000
"""More rows than this are drawn as their density."""

# Bright, as rows far from the query are mostly on dark colors or light ones.
_NEGATIVE_RING = (0.93, 0.45, 1.0)
_LINE_QUERIES, _KEY_QUERIES = 140, 60
_PAIRS, _LEAST_CELLS, _MOST_CELLS = 2 * 10**8, 150, 1500
_MAP_COLORS = "cividis"


class PlotArguments(TypedDict, total=False):
    """Arguments of `Database.ask` that `plot_query` passes on."""

    score: Score | str | None
    normalizer: Normalizer | str | None
    where: str | None
    min_similarity: float | None
    max_distance: float | None
    seed: int | None
    aggregate: str | None


def draw_one_key(figure: Figure, database: Queryable, answer: Answer, options: PlotArguments) -> None:
    """Draw rows, estimate and prediction interval along a key column, and the rows with weight in an answer."""
    axes = figure.add_subplot()
    key, value = map(PlotAxis, database.complete_columns(options.get("where")))
    x, y = key.coordinates(key.column.cells), value.coordinates(value.column.cells)
    if len(x) > MOST_POINTS:
        from matplotlib.colors import LinearSegmentedColormap

        greys = LinearSegmentedColormap.from_list("rows", ["#e9ebee", "#5d6570"])
        axes.hexbin(x, y, gridsize=(60, 34), bins="log", mincnt=1, cmap=greys, lw=0.2, zorder=1)
        axes.plot([], [], "h", color="#8d949e", ms=7, label="rows (darker: more)")
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
    draw_answer(axes, place, estimate, error, "answer" if np.isnan(error) else "answer ± standard error")
    key.format(axes.xaxis)
    value.format(axes.yaxis)
    axes.set(xlabel=key.label, ylabel=value.label)


def _draw_estimate(
    axes: Axes, database: Queryable, key: PlotAxis, value: PlotAxis, x: Float[np.ndarray, " n"], options: PlotArguments
) -> None:
    """Draw the answers and prediction intervals along the key, interrupted where no key matches."""
    keys = np.unique(x)
    some = keys[np.linspace(0, len(keys) - 1, min(len(keys), _KEY_QUERIES)).astype(int)]
    grid = np.union1d(np.linspace(keys[0], keys[-1], _LINE_QUERIES), some)
    curve = list(database.ask(key.keys(grid), **options, top=1))
    line = np.array([value.coordinate(one.value) for one in curve])
    ends = np.array([[value.coordinate(end) for end in one.prediction_interval or (None, None)] for one in curve]).T
    label = "local linear fit" if options.get("aggregate") == "local-linear" else "weighted mean"
    # A point without a match is NaN.
    draw_curve(axes, grid, line, (ends[0], ends[1]), (label, "90% prediction interval"))
    known = np.isfinite(np.concatenate([[np.nan], line, [np.nan]]))
    alone = known[1:-1] & ~known[:-2] & ~known[2:]
    axes.plot(grid[alone], line[alone], "_", color=CURVE_COLOR, ms=6, mew=1.8, zorder=3)


def draw_map(figure: Figure, database: Queryable, answer: Answer, options: PlotArguments) -> None:
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
        _draw_field(axes, database, (across, up, value), limits, options, norm)
        for axes, limits in ((field, [_extent(x, center[0]), _extent(y, center[1])]), (near, part))
    ]
    whole.set(xlim=field.get_xlim(), ylim=field.get_ylim())
    inside = (x >= part[0][0]) & (x <= part[0][1]) & (y >= part[1][0]) & (y <= part[1][1])
    near.plot(x[inside], y[inside], "o", ms=2.2, mfc=INK, mec="white", mew=0.35)
    title = "weights near the query"
    for some, color, style in ((weights > 0, _RING, "-"), (weights < 0, _NEGATIVE_RING, (0, (2, 1)))):
        heavy = some & (share > 0.02)
        if not heavy.any():
            continue
        edges_of = [(*color, max(0.35, each)) for each in share[heavy]]
        points = [ring[heavy] for ring in rings]
        near.scatter(*points, s=12 + 130 * share[heavy], lw=1.2, fc="none", ec=edges_of, ls=style)
        if style != "-":
            title += "\n(dashed: negative)"
    for axes, text in ((whole, "values"), (field, "answers"), (near, title)):
        axes.set_title(text, loc="left", fontsize=9)
        axes.set_xlabel(across.label)
        across.format(axes.xaxis, max(2, int(0.4 * figure.get_figwidth())))
        up.format(axes.yaxis, 5)
        if axes is not near:
            width, height = (float(np.ptp(limits)) for limits in part)
            frame = Rectangle((part[0][0], part[1][0]), width, height, fc="none", ec=ANSWER_COLOR, lw=1, zorder=4)
            axes.add_patch(frame)
        size = 12 if axes is near else 7
        axes.plot([center[0]], [center[1]], "*", ms=size, color=ANSWER_COLOR, mec="white", mew=0.6, zorder=5)
    whole.set_ylabel(up.label)
    field.set_yticklabels([])
    extend = extension(z.min() < least, z.max() > most)
    bar = add_color_bar(figure, drawn[1], near, label=value.label, shrink=0.9, extend=extend)
    value.format(bar.ax.yaxis)


def _draw_field(
    axes: Axes,
    database: Queryable,
    sides: tuple[PlotAxis, PlotAxis, PlotAxis],
    limits: list[tuple[float, float]],
    options: PlotArguments,
    norm: Normalize,
) -> QuadMesh:
    """Draw the answers to a grid of queries within limits; cells without a match are empty."""
    across, up, value = sides
    axes.set(xlim=limits[0], ylim=limits[1])
    cells = int(np.sqrt(np.clip(_PAIRS / max(1, len(database)), _LEAST_CELLS, _MOST_CELLS)))
    edges = [np.linspace(*each, cells + 1) for each in limits]
    middles = [0.5 * (each[1:] + each[:-1]) for each in edges]
    columns = [side.keys(each.ravel()) for side, each in zip((across, up), np.meshgrid(*middles), strict=True)]
    answers = database.ask(list(zip(*columns, strict=True)), **options, top=1)
    field = np.array([value.coordinate(one.value) for one in answers]).reshape(cells, cells)
    return axes.pcolormesh(*edges, np.ma.masked_invalid(field), cmap=_MAP_COLORS, norm=norm)


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


_RING = (0.78, 0.20, 0.12)
_SIZE, _MAP_SIZE = (7.2, 4.6), (10.8, 4.6)
_MAX_ROWS = 1000
_MAX_BARS = 12


def plot_query(
    database: Queryable, answer: Answer, *, size: tuple[float, float] | None = None, **options: Unpack[PlotArguments]
) -> Figure:
    """Plot the answer to one query with the data of its table, or with one bar per evidence row.

    The data are drawn if the keys are one or two columns of numbers or dates, and the values are numbers or dates.

    Args:
        database: the database that gave the answer.
        answer: result of `Database.ask` for one query.
        size: width and height in inches; None: 7.2 by 4.6, and 10.8 by 4.6 for two key columns.
        options: the arguments `score`, `normalizer`, `where`, `min_similarity`, `max_distance`, `seed` and
            `aggregate` of the original query. The database is queried again with them for the
            weights of more rows and the estimate along the key.

    Raises:
        DataError: the answer is for several queries.
        MissingPackageError: matplotlib is not installed.

    Example:
        >>> from qkv import Database, look
        >>> pay = Database.open({"years": [1, 2, 3, 4], "pay": [10, 12, 14, 16]}, key="years", value="pay")
        >>> figure = look.plot_query(pay, pay.ask(2.5))
        >>> figure.axes[0].get_xlabel()
        'years'
    """
    check_single(answer)
    columns = [database.column(name) for name in database.key]
    continuous = all(column.kind in ("number", "timestamp", "cyclic") for column in columns)
    averaged = database.column(database.value).kind in ("number", "timestamp", "cyclic")
    drawn = answer.found and continuous and averaged and not answer.votes and len(columns) <= 2
    size = size or (_MAP_SIZE if drawn and len(columns) == 2 else _SIZE)
    figure = new_figure(size)
    if drawn:
        detailed = database.ask([answer.query], **options, top=min(database.table.num_rows, _MAX_ROWS))[0]
        draw = draw_one_key if len(columns) == 1 else draw_map
        draw(figure, database, detailed, options)
    else:
        draw_weight_bars(figure.add_subplot(), answer)
    set_footer(figure, answer)
    style_figure(figure, textwrap.fill(answer_title(answer), int(10 * size[0])))
    return figure


def save_query_plot(
    database: Queryable, answer: Answer, path: str | os.PathLike[str], **options: Unpack[PlotArguments]
) -> None:
    """Draw the same figure as `plot_query`, and save it to a file atomically.

    Args:
        database: the database that gave the answer.
        answer: result of `Database.ask` for one query.
        path: a .png, .svg or .pdf file.
        options: as in `plot_query`.

    Raises:
        DataError: the path has another suffix, or the file cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> from qkv import Database, look
        >>> pay = Database.open({"years": [1, 2, 3, 4], "pay": [10, 12, 14, 16]}, key="years", value="pay")
        >>> file = pathlib.Path(tempfile.mkdtemp(), "answer.svg")
        >>> look.save_query_plot(pay, pay.ask(2.5), file)
        >>> file.exists()
        True
    """
    target = check_figure_path(path)
    save_figure(plot_query(database, answer, **options), target)


def check_single(answer: Answer) -> None:
    """Raise a `DataError` unless an answer is for one query."""
    if not answer.single:
        raise DataError(
            f"answer must be the answer to one query, got {len(answer)} answers. "
            "Select one by index, for example answer[0]."
        )


def answer_title(answer: Answer) -> str:
    """Return a figure title with a query, its answer, and the standard error or the share of the vote, if any."""
    from qkv.core.formatting import format_query
    from qkv.database.answer import format_estimate, format_failure

    query = shortened(format_query(answer.query, len(answer.keys)), 40)
    if not answer.found:
        return f"{query}  →  {format_failure(answer)}"
    return f"{query}  →  {shortened(format_estimate(answer), 60)}"


def set_footer(figure: Figure, answer: Answer) -> None:
    """Write the number of rows, the effective rows and the bandwidth of an answer below a figure."""
    parts = [answer.notes[0]]
    if answer.effective_rows:
        parts.append(f"effective rows: {answer.effective_rows:,.1f}")
    for note in answer.notes[1:]:
        bandwidth = re.search(r"compared by .*(bandwidth .*)", note)
        if bandwidth:
            parts.append(bandwidth[1])
    width = int(17 * figure.get_figwidth())
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 5 <= width:
            lines[-1] += f"  ·  {part}"
        else:
            lines.append(part)
    text = "\n".join(textwrap.fill(line, width) for line in lines)
    figure.supxlabel(text, x=0.02, ha="left", fontsize=8, linespacing=1.4, parse_math=False)


def draw_weight_bars(axes: Axes, answer: Answer) -> None:
    """Draw the weights of the first evidence rows, at most 12, as horizontal bars with the value of each row.

    Bars of negative weights have another color; some are among the bars if the answer has such rows. If the answer has
    no rows, the reason for "no match" is written instead.
    """
    from matplotlib.colors import to_rgb

    from qkv.core.formatting import format_value

    rows = list(answer.rows[:_MAX_BARS])
    if not any(row.weight < 0 for row in rows) and (below := [row for row in answer.rows if row.weight < 0][:3]):
        rows = [*rows[: _MAX_BARS - len(below)], *below]
    if not rows:
        text = textwrap.fill(answer.reason or "no row", 60)
        axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    names = [shortened(", ".join(format_value(row.record[name]) for name in answer.keys), 32) for row in rows]
    values = [shortened(format_value(row.record[answer.value_name]), 28) for row in rows]
    weights = np.array([row.weight for row in rows])
    maximum = max(np.abs(weights).max(), 1e-300)
    places = np.arange(len(rows))
    shares = weights / maximum
    colors = [(*(_RING if share >= 0 else to_rgb(NEGATIVE_COLOR)), 0.25 + 0.75 * abs(share)) for share in shares]
    axes.barh(places, weights, color=colors, height=0.66)
    axes.set_yticks(places, names, parse_math=False)
    axes.invert_yaxis()
    # Leave space after the longest bar for its label.
    axes.set_xlim(min(0.0, 1.1 * weights.min()), 1.25 * maximum)
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= 1.02 * maximum])
    for place, weight, text in zip(places, weights, values, strict=True):
        end = (max(weight, 0), place)
        label = axes.annotate(text, end, xytext=(5, 0), textcoords="offset points", va="center", fontsize=9)
        label.set_parse_math(False)
    axes.set_xlabel(f"weight of the row, labelled with its {answer.value_name}")
