"""Figures of the results in benchmarks/results, on the pages that `benchmarks.page` writes."""

from __future__ import annotations

import functools
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
    """Draw the figures, and write them into the pages of the claims, of the verdicts and of the estimators."""
    from benchmarks._claim import CLAIMS
    from benchmarks._record import latest

    results = latest(root / "benchmarks" / "results")
    claims = {name: [row for entry in entries for row in entry["rows"]] for name, entries in results.items()}
    pages, drawn = source / "performance", source / "drawn"
    for name in claims:
        ratios = functools.partial(_draw_ratios, results[name][0]["rows"])
        figures = [(alt, functools.partial(draw, claims)) for alt, draw in _FIGURES.get(name, ())]
        for number, (alt, draw) in enumerate(figures or [(f"Ratios to the other side: {CLAIMS[name]}", ratios)]):
            stem = f"claim-{name}{number or ''}"
            if _draw(drawn / stem, draw):
                _insert(pages / f"{name}.md", "\n[Every case]", _image(f"../drawn/{stem}", alt))
    if _draw(drawn / "verdicts", functools.partial(_draw_verdicts, results)):
        figure = _image("../drawn/verdicts", "Median and range of each comparison")
        _insert(pages / "index.md", "\n| what", figure.replace("wide-figure", "whole-figure"))
    tables = root / "benchmarks" / "results" / "tables.csv"
    if _draw(drawn / "tables", functools.partial(draw_tables, tables)):
        figure = _image("../drawn/tables", "Time of a fit by the rows of the table, and error by the time of a fit")
        _insert(source / "evidence" / "tables.md", "\n## Comparison", figure)
    below = [*CLAIMS, "../benchmarks", "../gpu", "../gpu/additive", "../gpu/own-scores", "../peers"]
    with (pages / "index.md").open("a") as page:
        page.write("\n".join(["", *hidden_toctree(below)]))


def _insert(page: Path, before: str, text: str) -> None:
    """Insert text into a page before the first place of some words."""
    head, words, rest = page.read_text().partition(before)
    page.write_text(f"{head}\n{text}{words}{rest}")


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
    from benchmarks.page import ratios

    found = ratios(rows)[:_MOST_ROWS]
    if len(found) < 2:
        return None
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
    every = (0.01, 0.1, 0.3, 1, 3, 10) if highest > 100 * lowest else ()
    marks = [mark for mark in every or (0.001, 0.01, 0.03, 0.1, 0.2, 0.5, 1, 2, 4, 8, 16) if lowest <= mark <= highest]
    axes.set_xticks(marks, [f"{mark:g} ×" for mark in marks], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(names)), names, fontsize=8, linespacing=0.95)
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.grid(axis="x")
    axes.set_xlabel("time of qkv / time of the other")


def _draw_verdicts(results: dict[str, list[dict[str, Any]]]) -> Any:
    import matplotlib.pyplot as plt
    from benchmarks.page import verdicts

    found = [(f"{verdict.what} · {verdict.against}", numbers) for verdict, numbers in verdicts(results)]
    figure, axes = plt.subplots(figsize=(5.4, 1.0 + 0.36 * len(found)))
    for place, (words, numbers) in enumerate(reversed(found)):
        axes.plot([numbers[0], numbers[-1]], [place, place], color="C0", alpha=0.4, linewidth=4, solid_capstyle="round")
        axes.plot(statistics.median(numbers), place, "o", color="C0", markersize=5)
        axes.text(0.0, place + 0.28, words, transform=axes.get_yaxis_transform(), fontsize=8)
    _ratio_axis(axes, [""] * len(found))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
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


_FIGURES: dict[str, list[tuple[str, Any]]] = {
    "scaling": [
        ("Growth of time and memory with tokens and rows", draw_growth),
        ("Time by length, with the peers of each claim", _draw_scaling),
    ],
    "linear_memory": [("Memory at 16,384 keys, where all weights would take 1,074 MB", _draw_memory)],
}
"""Claims whose page has other figures than their ratios."""
