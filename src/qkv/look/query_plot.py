"""Plot the answer to one query together with the data of its table.

The plot depends on the key columns:

one column of numbers or dates     the rows, the estimate along the key, the query and its answer
two columns of numbers or dates    maps of the values and of the answers, and of the weights around the query
any other columns                  one bar per evidence row; its length is the weight of the row

Below each plot are the number of rows, the effective rows of the answer, and the bandwidth.
"""

from __future__ import annotations

import os
import re
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.errors import DataError
from qkv.look.figure import INK, NEGATIVE_COLOR, check_figure_path, new_figure, save_figure, set_title, style_axes
from qkv.look.key_plots import draw_map, draw_one_key

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from qkv.database.answer import Answer, Evidence
    from qkv.database.protocol import Queryable

__all__ = ["answer_title", "draw_weight_bars", "set_footer", "plot_query", "save_query_plot"]

_RING = (0.78, 0.20, 0.12)
_SIZE, _MAP_SIZE = (7.2, 4.6), (10.8, 4.6)
_MAX_ROWS = 1000
_MAX_BARS = 12


def plot_query(
    database: Queryable, answer: Answer, *, size: tuple[float, float] | None = None, **options: Any
) -> Figure:
    """Plot the answer to one query with the data of its table, or with one bar per evidence row.

    The data are drawn if the keys are one or two columns of numbers or dates, and the values are numbers or dates.

    Args:
        database: the database that gave the answer.
        answer: result of `Database.ask` for one query.
        size: width and height in inches; None: 7.2 by 4.6, and 10.8 by 4.6 for two key columns.
        options: the arguments `score`, `normalizer`, `where`, `threshold`, `seed` and `fit` of the original query. The
            database is queried again with them for the weights of more rows and for the estimate along the key.

    Raises:
        DataError: the answer is for several queries.
        MissingPackageError: matplotlib is not installed.
    """
    if not answer.single:
        raise DataError(
            f"answer must be the answer to one query, got {len(answer)} answers. "
            "Select one by index, for example answer[0]."
        )
    columns = [database.column(name) for name in database.key]
    continuous = all(column.kind in ("number", "timestamp", "cyclic") for column in columns)
    averaged = database.column(database.value).kind in ("number", "timestamp", "cyclic")
    drawn = answer.found and continuous and averaged and not answer.votes and len(columns) <= 2
    size = size or (_MAP_SIZE if drawn and len(columns) == 2 else _SIZE)
    figure = new_figure(size)
    if drawn:
        detailed = database.ask([answer.query], **options, top=min(database.table.num_rows, _MAX_ROWS))[0]
        if len(columns) == 1:
            axes = draw_one_key(figure, database, detailed, options)
        else:
            axes = draw_map(figure, database, detailed, options)
    else:
        axes = [figure.add_subplot()]
        draw_weight_bars(axes[0], answer)
    set_title(figure, textwrap.fill(answer_title(answer), int(10 * size[0])))
    set_footer(figure, answer)
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
    from qkv.core.formatting import format_query
    from qkv.database.answer import format_estimate, format_failure

    query = _truncated(format_query(answer.query, len(answer.keys)), 40)
    if not answer.found:
        return f"{query}  →  {format_failure(answer)}"
    return f"{query}  →  {_truncated(format_estimate(answer), 60)}"


def set_footer(figure: Figure, answer: Answer, ink: str = INK) -> None:
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
    figure.supxlabel(text, x=0.02, ha="left", fontsize=8, color=ink, linespacing=1.4)


def draw_weight_bars(axes: Axes, answer: Answer, ink: str = INK) -> None:
    """Draw the weights of the first evidence rows, at most 12, as horizontal bars with the value of each row.

    Bars of negative weights have another color; some are among the bars if the answer has such rows. If the answer has
    no rows, the reason for "no match" is written instead.
    """
    from matplotlib.colors import to_rgb

    from qkv.core.formatting import format_value

    rows = _bar_rows(answer)
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
    shares = weights / maximum
    colors = [(*(_RING if share >= 0 else to_rgb(NEGATIVE_COLOR)), 0.25 + 0.75 * abs(share)) for share in shares]
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


def _bar_rows(answer: Answer) -> list[Evidence]:
    """Return the rows that have a bar: the first 12, or the first 9 and three of negative weight if that shows more."""
    rows = list(answer.rows)
    first, negative = rows[:_MAX_BARS], [row for row in rows if row.weight < 0]
    if len(rows) <= _MAX_BARS or not negative or any(row.weight < 0 for row in first):
        return first
    return [*rows[: _MAX_BARS - len(negative[:3])], *negative[:3]]


def _truncated(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
