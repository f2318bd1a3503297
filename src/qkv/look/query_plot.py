"""A picture of one answer: the data, the weights that the query gives it, and the answer with its spread.

one number or moment as key    the points, the estimate along the key, the query and its answer
two of them                    a map of the keys coloured by value, the weights as rings around the query
any other key                  a bar for each row that the answer rests on
"""

import os
from typing import Any

import numpy as np

from qkv.database.answer import Answer
from qkv.database.database import Database
from qkv.database.io.formatting import format_spread, format_value
from qkv.database.keys.columns import Column
from qkv.errors import DataError
from qkv.look.figure import INK as _INK
from qkv.look.figure import check_figure_path, new_figure, save_figure

__all__ = ["bars", "draw", "save", "answer_title"]

_DATA = "#b8bec6"
_CURVE = "#3b6ea8"
_ANSWER = "#c8321e"
_RING = (0.78, 0.20, 0.12)
_MOST_ROWS = 1000
_MOST_BARS = 12


def draw(database: Database, answer: Answer, **options: Any) -> Any:
    """A matplotlib figure of the answer to one query.

    Args:
        database: that was asked.
        answer: to one query.
        options: score, normalizer and where of the question. The weights of more rows, and the estimate
            along the key, are asked with them.

    Raises:
        DataError: the answer is to several queries.
        MissingPackageError: matplotlib is not installed.
    """
    if not answer.single:
        count = len(answer)
        raise DataError(f"a picture shows the answer to one query, and there are {count}. Index one: answer[0].")
    figure = new_figure((7.2, 4.4))
    columns = [database.column(name) for name in database.key]
    points = all(column.kind in ("number", "timestamp") for column in columns)
    averaged = database.column(database.value).kind in ("number", "timestamp")
    if answer.found and points and averaged and len(columns) <= 2:
        wide = database.ask([answer.query], **options, top=min(database.table.num_rows, _MOST_ROWS))[0]
        axes = (_line if len(columns) == 1 else _map)(figure, database, wide, options)
    else:
        axes = [figure.add_subplot()]
        bars(axes[0], answer)
    figure.suptitle(answer_title(answer), x=0.02, ha="left", fontsize=12, color=_INK, fontweight="bold")
    for each in axes:
        for side in ("top", "right"):
            each.spines[side].set_visible(False)
        each.tick_params(colors=_INK, labelsize=9)
    return figure


def save(database: Database, answer: Answer, path: str | os.PathLike[str], **options: Any) -> None:
    """Write the picture of `draw` to a .png, .svg or .pdf file; it is there whole or not at all.

    Raises:
        DataError: the name ends otherwise, or the file cannot be written.
    """
    target = check_figure_path(path)
    save_figure(draw(database, answer, **options), target)


def answer_title(answer: Answer) -> str:
    """The query, and its answer with its spread, or with its share of the vote."""
    asked = (
        ", ".join(map(format_value, answer.query)) if isinstance(answer.query, tuple) else format_value(answer.query)
    )
    if not answer.found:
        return f"{_short(asked, 40)}  →  no match"
    share = answer.probabilities.get(answer.value)
    said = f" ({share:.0%})" if share is not None else format_spread(answer.spread)
    return f"{_short(asked, 40)}  →  {_short(format_value(answer.value, answer.spread), 40)}{said}"


def _line(figure: Any, database: Database, answer: Answer, options: dict[str, Any]) -> list[Any]:
    axes = figure.add_subplot()
    key, value = database.column(database.key[0]), database.column(database.value)
    present = ~(key.missing | value.missing)
    x, y = _axis(key, key.cells[present]), _axis(value, value.cells[present])
    axes.plot(x, y, "o", ms=3.5, color=_DATA, alpha=_alpha(present.sum()), mew=0, zorder=1)
    grid = np.linspace(key.cells[present].min(), key.cells[present].max(), 160)
    asked = [key.timestamp(cell) if key.kind == "timestamp" else cell for cell in grid]
    curve = [one for one in database.ask(asked, **options, top=1) if one.found]
    if len(curve) > 1:
        along = [one.query for one in curve]
        axes.plot(along, [one.value for one in curve], color=_CURVE, lw=1.8, zorder=3, label="weighted answer")
        if all(one.spread is not None for one in curve):
            under, over = [one.value - one.spread for one in curve], [one.value + one.spread for one in curve]
            axes.fill_between(along, under, over, color=_CURVE, alpha=0.13, lw=0, zorder=2, label="± spread")
    _weighted(figure, axes, answer, key.name, value.name)
    place = _cell(key, answer.query)
    axes.axvline(place, color=_ANSWER, lw=1, ls=(0, (4, 3)), zorder=4)
    bar = None if answer.spread is None else [answer.spread]
    axes.errorbar([place], [answer.value], yerr=bar, fmt="o", ms=8, color=_ANSWER, mec="white", capsize=4, zorder=6)
    axes.set_xlabel(key.name, color=_INK)
    axes.set_ylabel(value.name, color=_INK)
    axes.legend(frameon=False, fontsize=8, labelcolor=_INK)
    return [axes]


def _map(figure: Any, database: Database, answer: Answer, options: dict[str, Any]) -> list[Any]:
    whole, near = figure.subplots(1, 2, width_ratios=(1.15, 1))
    across, up = (database.column(name) for name in database.key)
    value = database.column(database.value)
    present = ~(across.missing | up.missing | value.missing)
    x, y = _axis(across, across.cells[present]), _axis(up, up.cells[present])
    size = float(np.clip(4000 / max(1, present.sum()), 1.5, 20))
    place = _parts(answer.query, (across, up))
    rings = [row.record for row in answer.rows]
    share = np.array([row.weight for row in answer.rows]) / answer.rows[0].weight
    beside = [record[across.name] for record in rings], [record[up.name] for record in rings]
    for axes, scale in ((whole, 1.0), (near, 12.0)):
        dots = axes.scatter(x, y, c=value.cells[present], s=size * scale, cmap="cividis", lw=0, rasterized=True)
        axes.plot([place[0]], [place[1]], "*", ms=13, color=_ANSWER, mec="white", zorder=5)
        axes.set_xlabel(across.name, color=_INK)
    shade = [(*_RING, max(0.03, each)) for each in share]
    near.scatter(*beside, s=20 + 160 * share, facecolors="none", edgecolors=shade, linewidths=1.3)
    # The rows that matter, and a margin: the window is as wide as the weights reach.
    heavy = share > 0.02
    for limit, along, middle in ((near.set_xlim, beside[0], place[0]), (near.set_ylim, beside[1], place[1])):
        ends = [abs(cell - middle) for cell, kept in zip(along, heavy, strict=True) if kept]
        if max(ends):
            limit(middle - 1.3 * max(ends), middle + 1.3 * max(ends))
    for axis in (near.xaxis, near.yaxis):
        # Whole numbers at the ticks: an offset in the corner is easily overlooked.
        if hasattr(axis.get_major_formatter(), "set_useOffset"):
            axis.get_major_formatter().set_useOffset(False)
            axis.set_major_locator(_locator())
    near.set_title("around the query, rings by weight", loc="left", fontsize=9, color=_INK)
    whole.set_ylabel(up.name, color=_INK)
    bar = figure.colorbar(dots, ax=near, label=value.name, shrink=0.9)
    bar.outline.set_visible(False)
    return [whole, near]


def _locator() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(3)


def bars(axes: Any, answer: Answer, ink: str = _INK) -> None:
    """A bar for each row that the answer rests on, its value beside it; without rows, the reason."""
    rows = answer.rows[:_MOST_BARS]
    if not rows:
        text = _wrapped(answer.reason or "no row")
        axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color=ink)
        axes.set_axis_off()
        return
    names = [_short(", ".join(format_value(row.record[name]) for name in answer.keys), 32) for row in rows]
    values = [_short(format_value(row.record[answer.value_name]), 28) for row in rows]
    weights = np.array([row.weight for row in rows])
    heaviest = max(np.abs(weights).max(), 1e-300)
    places = np.arange(len(rows))
    shade = [(*_RING, 0.25 + 0.75 * share) for share in np.abs(weights) / heaviest]
    axes.barh(places, weights, color=shade, height=0.66)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    # Workspace at the end of the longest bar for its value.
    axes.set_xlim(min(0.0, 1.1 * weights.min()), 1.25 * heaviest)
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= 1.02 * heaviest])
    for place, weight, text in zip(places, weights, values, strict=True):
        end = (max(weight, 0), place)
        axes.annotate(text, end, xytext=(5, 0), textcoords="offset points", va="center", fontsize=9, color=ink)
    axes.set_xlabel(f"weight of the row; beside it, its {answer.value_name}", color=ink)


def _weighted(figure: Any, axes: Any, answer: Answer, key: str, value: str) -> None:
    """The rows that the answer rests on, redder and larger with their weight."""
    weights = np.array([row.weight for row in answer.rows])
    share = weights / weights.max()
    # White dots of no weight would hide the data under them.
    order = [i for i in np.argsort(share) if share[i] > 0.01]
    x, y = [answer.rows[i].record[key] for i in order], [answer.rows[i].record[value] for i in order]
    sizes = 8 + 42 * share[order]
    dots = axes.scatter(x, y, c=weights[order], s=sizes, cmap="Reds", vmin=-0.1 * weights.max(), lw=0, zorder=5)
    bar = figure.colorbar(dots, ax=axes, label="weight", shrink=0.8, aspect=30)
    bar.ax.set_ylim(0, weights.max())
    bar.outline.set_visible(False)


def _axis(column: Column, cells: np.ndarray) -> Any:
    return [column.timestamp(cell) for cell in cells] if column.kind == "timestamp" else cells


def _parts(query: Any, columns: tuple[Column, ...]) -> list[Any]:
    parts = query.split(",") if isinstance(query, str) else list(query)
    return [_cell(column, part) for column, part in zip(columns, parts, strict=True)]


def _cell(column: Column, part: Any) -> Any:
    """A query's part on the axis: as it was typed on the command line, or as the object it is."""
    from qkv.database.keys.queries import Queries

    parsed = Queries.parse([part], [column]).cells[0][0]
    return column.timestamp(parsed) if column.kind == "timestamp" else float(parsed)


def _alpha(count: int) -> float:
    return float(np.clip(30 / np.sqrt(max(count, 1)), 0.15, 0.9))


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _wrapped(text: str) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, 60))
