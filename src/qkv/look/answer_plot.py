"""A picture of an answer without its table: the rows and their weights, and where their values lie.

left     a bar for each row that the answer rests on
right    numbers and moments: each value and the weight on it, the estimate and its band;
         texts, categories and booleans: the share of each
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np

from qkv.database.answer import Answer
from qkv.database.io.formatting import format_value
from qkv.errors import DataError
from qkv.look.figure import DARK, INK, PAPER, new_figure
from qkv.look.query_plot import answer_title, bars

__all__ = ["answer"]

_ANSWER = "#c8321e"
_CURVE = "#3b6ea8"
_MOST_SHARES = 10


def answer(answer: Answer, *, dark: bool = False) -> Any:
    """A matplotlib figure of the answer to one query.

    `draw` shows an answer within its whole table; this needs the answer alone.

    Args:
        answer: what `Database.ask` gave; for more rows in the picture, ask with a larger `top`.
        dark: light ink on dark paper.

    Raises:
        DataError: the answer is to several queries.
        MissingPackageError: matplotlib is not installed.

    Example:
        >>> from qkv.database import Database
        >>> people = Database.open({"age": [30, 40, 60], "income": [10, 20, 50]}, key="age", value="income")
        >>> answer(people.ask(35, top=3)).axes[0].get_xlabel()
        'weight of the row; beside it, its income'
    """
    if not answer.single:
        raise DataError(f"a picture shows the answer to one query, and there are {len(answer)}. Index one: answer[0].")
    ink, paper = (DARK["ink"], DARK["paper"]) if dark else (INK, PAPER)
    figure = new_figure((8.4, 4.0), paper=paper)
    if answer.rows:
        # The values beside the bars of the one keep away from the names of the other.
        figure.get_layout_engine().set(wspace=0.08)
        rows, cells = figure.subplots(1, 2, width_ratios=(1.25, 1))
    else:
        rows = cells = figure.add_subplot()
    bars(rows, answer, ink)
    if answer.rows and answer.probabilities:
        _shares(cells, answer, ink)
    elif answer.rows and all(_is_point(row.record[answer.value_name]) for row in answer.rows):
        _points(cells, answer, ink)
    elif answer.rows:
        cells.set_axis_off()
    for axes in (rows, cells):
        axes.set_facecolor(paper)
        axes.tick_params(colors=ink, labelsize=9)
        for side in axes.spines.values():
            side.set_visible(side.spine_type in ("left", "bottom"))
            side.set_color(ink)
    figure.suptitle(answer_title(answer), x=0.02, ha="left", fontsize=12, color=ink, fontweight="bold")
    return figure


def _is_point(value: Any) -> bool:
    return isinstance(value, int | float | dt.date) and not isinstance(value, bool)


def _points(axes: Any, answer: Answer, ink: str) -> None:
    values = [row.record[answer.value_name] for row in answer.rows]
    weights = np.array([row.weight for row in answer.rows])
    axes.vlines(values, 0, weights, color=_ANSWER, lw=1.2, alpha=0.5, zorder=3)
    axes.plot(values, weights, "o", ms=5, color=_ANSWER, alpha=0.85, mew=0, zorder=4, label="rows")
    axes.axvline(answer.value, color=_CURVE, lw=1.8, zorder=5, label="answer")
    if answer.spread is not None:
        axes.axvspan(
            answer.value - answer.spread,
            answer.value + answer.spread,
            color=_CURVE,
            alpha=0.13,
            lw=0,
            label="± spread",
        )
    axes.set_ylim(bottom=min(0.0, 1.1 * weights.min()))
    axes.set_xlabel(answer.value_name, color=ink)
    axes.set_ylabel("weight", color=ink)
    axes.legend(frameon=False, fontsize=8, labelcolor=ink)


def _shares(axes: Any, answer: Answer, ink: str) -> None:
    some = list(answer.probabilities.items())[:_MOST_SHARES]
    places = np.arange(len(some))
    axes.barh(places, [share for _, share in some], color=_CURVE, alpha=0.85, height=0.66)
    axes.set_yticks(places, [format_value(value)[:28] for value, _ in some])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel(f"share of the vote for {answer.value_name}", color=ink)
