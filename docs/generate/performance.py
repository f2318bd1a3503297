"""Figures of the results in benchmarks/results, and the pages that show them."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .pictures import style
from .scaling import draw_growth, draw_tables
from .toctree import hidden_toctree

Row = dict[str, Any]
Claims = dict[str, list[Row]]
_MOST_ROWS = 40


def write_performance(root: Path, source: Path) -> None:
    """Draw the figures, and write the page of the overview and the figures into the page of the benchmarks."""
    from benchmarks._record import latest

    claims = {
        name: [row for entry in entries for row in entry["rows"]]
        for name, entries in latest(root / "benchmarks" / "results").items()
    }
    drawn = source / "drawn"
    page = source / "benchmarks.md"
    text = page.read_text()
    for name, rows in claims.items():
        if len(ratios(rows)) > 1 and _draw(drawn / f"claim-{name}", lambda rows=rows: _draw_ratios(rows)):
            figure = _image(f"drawn/claim-{name}", f"Ratios of {name} with their spread")
            text = re.sub(rf"(^## {name}\n.*?^Goal: [^\n]*\n)", rf"\1\n{figure}\n", text, count=1, flags=re.M | re.S)
    page.write_text(text)
    overview = []
    for stem, draw, alt, words in _OVERVIEW:
        if _draw(drawn / stem, lambda draw=draw: draw(claims)):
            overview += [f"## {alt}", "", words, "", _image(f"../drawn/{stem}", alt), ""]
    (source / "performance").mkdir(exist_ok=True)
    (source / "performance" / "index.md").write_text("\n".join([_HEAD, *overview, *hidden_toctree(_BELOW)]))


_HEAD = """# Performance

The figures on this page are drawn from the results in `benchmarks/results` when the site is built. Times are CPU times
on one thread unless a figure states otherwise. [Benchmarks](../benchmarks.md) lists every claim with its goal, its
peers and each measured case, also where qkv is slower. Nothing has been measured on a GPU.
"""
_BELOW = ("../benchmarks", "../gpu", "../peers")
"""The pages below the overview in the navigation."""


def ratios(rows: Sequence[Row]) -> list[tuple[str, float, float, float]]:
    """Return (case and peer, time of qkv over the peer's, lowest, highest) of each ratio with a spread."""
    found = []
    for row in rows:
        sides = re.match(r"(.+?) / (.+?)(?:,|$)", row["measure"])
        if row["unit"] != "×" or not row["spread"] or not sides or "memory" in row["measure"]:
            continue
        numbers = (row["number"], *row["spread"])
        if sides[2] == "qkv":
            numbers, peer = (1 / numbers[0], 1 / numbers[2], 1 / numbers[1]), sides[1]
        elif sides[1] == "qkv":
            peer = sides[2]
        else:
            continue
        found.append((f"{row['case']} · {peer}", *numbers))
    return found


def _draw(stem: Path, draw: Any) -> bool:
    """Draw a figure for both themes; return whether there is one."""
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    for theme in ("light", "dark"):
        with plt.rc_context(style(theme)):
            figure = draw()
            if figure is None:
                return False
            figure.savefig(stem.with_name(f"{stem.name}-{theme}.png"))
            plt.close(figure)
    return True


def _image(stem: str, alt: str) -> str:
    """Return the figure of both themes in a container that scrolls on narrow screens."""
    lines = ["````{container} wide-figure"]
    for theme in ("light", "dark"):
        lines += [f"```{{image}} {stem}-{theme}.png", f":alt: {alt}", f":class: only-{theme} drawn", "```", ""]
    return "\n".join([*lines, "````", ""])


def _draw_ratios(rows: Sequence[Row]) -> Any:
    import matplotlib.pyplot as plt

    found = ratios(rows)[:_MOST_ROWS]
    figure, axes = plt.subplots(figsize=(8, 1.1 + 0.26 * len(found)))
    for place, (_, ratio, lowest, highest) in enumerate(reversed(found)):
        axes.plot([lowest, highest], [place, place], color="C0", alpha=0.5, linewidth=2)
        axes.plot(ratio, place, "o", color="C0", markersize=5)
    _ratio_axis(axes, [words for words, *_ in reversed(found)])
    return figure


def _ratio_axis(axes: Any, names: Sequence[str]) -> None:
    axes.axvline(1, color="C1", linestyle="--", linewidth=1)
    axes.set_xscale("log")
    lowest, highest = axes.get_xlim()
    marks = [mark for mark in (0.001, 0.01, 0.03, 0.1, 0.2, 0.5, 1, 2, 4, 8, 16) if lowest <= mark <= highest]
    axes.set_xticks(marks, [f"{mark:g} ×" for mark in marks], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.grid(axis="x")
    axes.set_xlabel("time of qkv / time of the peer (less is faster)")


def _draw_all(claims: Claims) -> Any:
    import matplotlib.pyplot as plt

    names, places = [], []
    for name, rows in claims.items():
        numbers = [ratio for _, ratio, *_ in ratios(rows)]
        if numbers:
            names.append(f"{name} ({len(numbers)})")
            places.append((min(numbers), statistics.median(numbers), max(numbers)))
    order = sorted(range(len(names)), key=lambda each: -places[each][1])
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.3 * len(names)))
    for place, each in enumerate(order):
        lowest, middle, highest = places[each]
        axes.plot([lowest, highest], [place, place], color="C0", alpha=0.4, linewidth=4, solid_capstyle="round")
        axes.plot(middle, place, "o", color="C0")
    _ratio_axis(axes, [names[each] for each in order])
    return figure


_LENGTH = re.compile(r"\b(\d+)(k?)\b(?: tokens)?(?=,|$)")


def _curves(rows: Sequence[Row], words: str, without: str = "") -> dict[str, dict[int, float]]:
    """Return the seconds of qkv and each peer by length, from the cases that contain some words."""
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        length = _LENGTH.search(row["case"])
        if length and row["case"].endswith(words) and not (without and without in row["case"]):
            for who, seconds in row["seconds"].items():
                curves[who][int(length[1]) * (1024 if length[2] else 1)] = seconds / _heads(row)
    return curves


def _heads(row: Row) -> int:
    """Return the number of heads of a case, which is smaller for longer sequences, from the first line of its plan."""
    axes = re.match(r"(?:asked|call)\s+(\d+(?:×\d+)*) × ", row["plan"])
    return math.prod(map(int, axes[1].split("×"))) if axes else 1


def _draw_scaling(claims: Claims) -> Any:
    import matplotlib.pyplot as plt

    panels = [
        ("scaled dot product, with backward", _curves(claims.get("scaled_dot", []), "forward + backward, 1 thread")),
        ("softcap, forward", _curves([r for r in claims.get("flex", []) if "softcap" in r["case"]], "k, forward")),
        ("sparsemax, forward", _curves([r for r in claims.get("sparse", []) if "sparsemax" in r["case"]], "")),
        ("top-k 32, forward", _curves(claims.get("top_k", []), "forward")),
    ]
    panels = [(title, curves) for title, curves in panels if curves]
    if not panels:
        return None
    figure, grid = plt.subplots(2, (len(panels) + 1) // 2, figsize=(8, 6.4), squeeze=False)
    for axes, (title, curves) in zip(grid.flat, panels, strict=False):
        for number, (who, points) in enumerate(curves.items()):
            lengths = sorted(points)
            axes.loglog(
                lengths,
                [points[each] for each in lengths],
                "o-" if who == "qkv" else "s--",
                label=who,
                color=f"C{number}",
            )
        lengths = sorted({length for points in curves.values() for length in points})
        axes.set_xticks(lengths, [f"{length // 1024}k" for length in lengths])
        axes.set_xticks([], minor=True)
        axes.set_title(title)
        axes.set_xlabel("queries = keys")
        axes.set_ylabel("seconds for each head")
        axes.grid(which="major")
        axes.legend()
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    return figure


def _draw_memory(claims: Claims) -> Any:
    import matplotlib.pyplot as plt

    rows = [row for row in claims.get("linear_memory", []) if row["unit"] == "MB"]
    if not rows:
        return None
    rows = sorted(rows, key=lambda row: -row["number"])
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.24 * len(rows)))
    axes.barh(range(len(rows)), [row["number"] for row in rows], color="C0")
    axes.axvline(64, color="C1", linestyle="--", label="limit: 64 MB")
    axes.set_yticks(range(len(rows)), [row["case"] for row in rows], fontsize=9)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.set_xlabel("peak memory above inputs and gradients, MB")
    axes.legend(loc="upper center")
    return figure


_OVERVIEW = (
    (
        "performance-all",
        _draw_all,
        "All claims against their peers",
        "Each line is one claim: the dot is the median of its cases, the bar reaches from the best case to the worst,\n"
        "and the number in brackets counts the cases. Left of the dashed line qkv is faster.",
    ),
    (
        "performance-scaling",
        _draw_scaling,
        "Time by length",
        "Time of a call divided by its heads, of width 64, for as many queries as keys, with the peers of each claim.",
    ),
    (
        "performance-growth",
        draw_growth,
        "Growth with tokens and rows",
        "The claim [scaling](../benchmarks.md#scaling) has the versions, the date and the command of the measurement.\n"
        "The panels of tokens have one head of width 64; a peer ends where it would store more than 1 GB. Rows on\n"
        "disk have 16 numbers. NumPy and DuckDB compute the value of a softmax; qkv also returns its spread and rows.",
    ),
    (
        "performance-tables",
        lambda _: draw_tables(Path(__file__).parents[2] / "benchmarks" / "results" / "tables.csv"),
        "Fits of tables",
        "Estimators of qkv (“attention”) and other methods, with default settings, from\n"
        "`benchmarks/results/tables.csv`.\n"
        "On the right, geometric means over the tables on which all methods were run.\n"
        "[Estimators](../estimators.md#comparison-with-other-methods) has each table.",
    ),
    (
        "performance-memory",
        _draw_memory,
        "Memory at 16,384 keys",
        "All weights would take 1,074 MB. Each bar is the growth of a fresh process above inputs and gradients.",
    ),
)
