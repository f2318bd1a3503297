"""Figures of how time, memory and error grow with the size of the data, with the libraries that do the same work."""

from __future__ import annotations

import csv
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Curves = dict[str, dict[int, float]]
_SIZE = re.compile(r"\b(\d+) (?:tokens|rows)")
_PANELS = (
    # words of the case, title, label of the sizes, field of the row
    ("additive", "additive scores, forward", "queries = keys", "seconds"),
    ("memory", "memory of a forward pass", "queries = keys", "megabytes"),
    ("kernel regression", "kernel regression, 500 queries", "rows", "seconds"),
    ("store, softmax", "store: softmax over all rows", "rows on disk", "seconds"),
    ("store, ten nearest", "store: ten nearest rows", "rows on disk", "seconds"),
)
_FIELDS = {"seconds": "seconds of CPU time", "megabytes": "peak above inputs, MB"}
_ENOUGH = 8
"""Least number of tables on which a method must have been run to be in the figure of tables."""


def growth(rows: Sequence[Row], words: str, field: str) -> Curves:
    """Return a field of the rows whose case begins with some words, by implementation and size."""
    curves: Curves = defaultdict(dict)
    for row in rows:
        size = _SIZE.search(row["case"])
        if size and row["case"].startswith(words):
            for who, number in row[field].items():
                curves[who][int(size[1])] = number
    return dict(curves)


def draw_growth(claims: Mapping[str, Sequence[Row]]) -> Any:
    """Draw one panel for each curve of the claim `scaling`, or return None before it is measured."""
    import matplotlib.pyplot as plt

    rows = claims.get("scaling", [])
    panels = [(title, axis, field, growth(rows, words, field)) for words, title, axis, field in _PANELS]
    panels = [panel for panel in panels if panel[-1]]
    if not panels:
        return None
    figure, grid = plt.subplots((len(panels) + 1) // 2, 2, figsize=(8, 9.6), squeeze=False)
    for axes, (title, axis, field, curves) in zip(grid.flat, panels, strict=False):
        peers = 0
        for who, points in curves.items():
            ours = who.startswith("qkv")
            peers += not ours
            line = {"color": "C0", "linestyle": "-" if who == "qkv" else ":"}
            if not ours:
                line = {"color": f"C{peers}", "linestyle": "--"}
            sizes = sorted(points)
            axes.loglog(sizes, [points[size] for size in sizes], marker="o" if ours else "s", ms=4, label=who, **line)
        sizes = sorted({size for points in curves.values() for size in points})
        shown = sizes[:: 2 if len(sizes) > 5 else 1]
        axes.set_xticks(shown, [_short(size) for size in shown])
        axes.set_xticks([], minor=True)
        axes.set(title=title, xlabel=axis, ylabel=_FIELDS[field])
        axes.yaxis.set_minor_formatter("")
        axes.grid(which="major")
        if len(curves) > 4:
            axes.set_ylim(top=40 * axes.get_ylim()[1])  # the legend is above the lines
        axes.legend(fontsize=9)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    return figure


def _short(size: int) -> str:
    if size % 1024 == 0:
        return f"{size // 1024}k"
    return next((f"{size // unit}{name}" for unit, name in ((10**6, "M"), (1000, "k")) if size % unit == 0), str(size))


def table_results(path: Path) -> dict[str, dict[str, tuple[int, float, float]]]:
    """Return (training rows, mean error, mean seconds of fit) of each method by table, with default settings."""
    cells: dict[tuple[str, str], list[tuple[int, float, float]]] = defaultdict(list)
    with path.open() as stream:
        for row in csv.DictReader(stream):
            if row["setting"] == "default" and row["error"] and row["fit_seconds"]:
                numbers = int(row["rows"]), float(row["error"]), float(row["fit_seconds"])
                cells[row["method"], row["table"]].append(numbers)
    found: dict[str, dict[str, tuple[int, float, float]]] = defaultdict(dict)
    for (method, table), some in cells.items():
        rows, errors, seconds = zip(*some, strict=True)
        found[method][table] = rows[0], statistics.mean(errors), statistics.mean(seconds)
    return {method: tables for method, tables in found.items() if len(tables) >= _ENOUGH}


def common_tables(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the tables on which every method was run."""
    return sorted(set.intersection(*(set(tables) for tables in results.values())))


def draw_tables(path: Path) -> Any:
    """Draw the time of a fit by the rows of the table, and the error of each method by its time, or return None."""
    import matplotlib.pyplot as plt

    results = table_results(path)
    if not results:
        return None
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 4.4))
    common = common_tables(results)
    best = {table: min(tables[table][1] for tables in results.values()) for table in common}
    marks = "osv^D<>ph*"
    for number, (method, tables) in enumerate(sorted(results.items())):
        ours = method.startswith("attention")
        colour = ("C0" if "quick" in method else "C1") if ours else "0.6" if number % 2 else "0.45"
        look = {"color": colour, "marker": marks[number % len(marks)], "ms": 5, "zorder": 3 if ours else 2}
        points = sorted((rows, seconds) for rows, _, seconds in tables.values())
        left.loglog(*zip(*points, strict=True), linewidth=1.5 if ours else 0.6, alpha=1 if ours else 0.7, **look)
        seconds = _geometric([tables[table][2] for table in common])
        error = _geometric([tables[table][1] / best[table] for table in common])
        right.semilogx(seconds, error, linestyle="", label=method, **look)
    left.set(xlabel="rows of the table", ylabel="seconds of a fit", title="time of a fit")
    right.set(xlabel="seconds of a fit", ylabel="error / the best method's error", title=f"error, {len(common)} tables")
    for axes in (left, right):
        axes.grid()
    right.set_ylim(top=1.35 * right.get_ylim()[1])
    right.legend(fontsize=8, ncols=2, loc="upper center", handletextpad=0.1, columnspacing=0.6)
    return figure


def _geometric(numbers: Sequence[float]) -> float:
    return math.exp(statistics.mean(map(math.log, numbers)))
