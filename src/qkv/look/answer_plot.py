"""Plot a database answer from its evidence rows alone, without access to the table.

The left panel has one bar per evidence row; its length is the weight of the row. The right panel depends on the
value column: numbers and dates are plotted against their weights, with the answer and its standard error; texts,
categories and booleans are shown with their probabilities. Rows of negative weight, which local linear regression has,
have another color and marker.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import numpy as np

from qkv.look.figure import ANSWER_COLOR, CURVE_COLOR, NEGATIVE_COLOR, new_figure, style_figure
from qkv.look.query_plot import answer_title, check_single, draw_weight_bars, set_footer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from qkv.database.answer import Answer


_MAX_PROBABILITIES = 10


def plot_answer(answer: Answer, *, dark: bool = False) -> Figure:
    """Plot the weights and values of the evidence rows of one answer.

    Unlike `plot_query`, which also draws the data of the table, this function needs only the answer.

    Args:
        answer: result of `Database.ask` for one query; it has at most as many rows as the argument `top` of `ask`.
        dark: draw light lines on a dark background.

    Raises:
        DataError: the answer is for several queries.
        MissingPackageError: matplotlib is not installed.

    Example:
        >>> from qkv.database import Database
        >>> people = Database.open({"age": [30, 40, 60], "income": [10, 20, 50]}, key="age", value="income")
        >>> plot_answer(people.ask(35, top=3)).axes[0].get_xlabel()
        'weight of the row, labelled with its income'
    """
    check_single(answer)
    figure = new_figure((8.4, 4.0), dark=dark)
    if answer.rows:
        # Keep the labels of the left bars from overlapping those of the right axes.
        figure.set_layout_engine("constrained", wspace=0.08)
        rows, cells = figure.subplots(1, 2, width_ratios=(1.25, 1))
    else:
        rows = cells = figure.add_subplot()
    draw_weight_bars(rows, answer)
    if answer.rows and answer.probabilities:
        _draw_probabilities(cells, answer)
    elif answer.rows:
        values = [row.record[answer.value_name] for row in answer.rows]
        if all(isinstance(value, int | float | dt.date) and not isinstance(value, bool) for value in values):
            _draw_values(cells, answer, values)
        else:
            cells.set_axis_off()
    set_footer(figure, answer)
    style_figure(figure, answer_title(answer), dark=dark)
    return figure


def _draw_values(axes: Axes, answer: Answer, values: list[float]) -> None:
    weights = np.array([row.weight for row in answer.rows])
    below = weights < 0
    for some, color, marker, name in (
        (~below, ANSWER_COLOR, {"marker": "o", "mew": 0}, "rows"),
        (below, NEGATIVE_COLOR, {"marker": "v", "mfc": "none"}, "rows of negative weight"),
    ):
        if some.any():
            chosen = [value for value, shown in zip(values, some, strict=True) if shown]
            axes.vlines(chosen, 0, weights[some], color=color, lw=1.2, alpha=0.5, zorder=3)
            axes.plot(chosen, weights[some], ls="", ms=5, color=color, alpha=0.85, zorder=4, label=name, **marker)
    if below.any():
        axes.axhline(0, color="grey", lw=0.8, zorder=2)
    axes.axvline(answer.value, color=CURVE_COLOR, lw=1.8, zorder=5, label="answer")
    deviation = answer.spread if answer.standard_error is None else answer.standard_error
    if deviation is not None:
        name = "spread of the values" if answer.standard_error is None else "± standard error"
        ends = (answer.value - deviation, answer.value + deviation)
        axes.axvspan(*ends, color=CURVE_COLOR, alpha=0.13, lw=0, label=name)
    axes.set_ylim(bottom=min(0.0, 1.1 * weights.min()))
    axes.set(xlabel=answer.value_name, ylabel="weight")


def _draw_probabilities(axes: Axes, answer: Answer) -> None:
    from qkv.core.formatting import format_value

    likeliest = list(answer.probabilities.items())[:_MAX_PROBABILITIES]
    places = np.arange(len(likeliest))
    axes.barh(places, [share for _, share in likeliest], color=CURVE_COLOR, alpha=0.85, height=0.66)
    axes.set_yticks(places, [format_value(value)[:28] for value, _ in likeliest])
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), xlabel=f"probability of {answer.value_name}")
