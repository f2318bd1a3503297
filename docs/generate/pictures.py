"""Figures of a page, drawn by running the examples of the page up to each figure.

A figure is written as a fenced block, whose examples assign a matplotlib figure to `figure`:

    ```{picture} What the figure shows, for readers who cannot see it
    >>> figure, axes = plt.subplots()
    >>> _ = axes.plot(grid, prediction)

    ```

The examples of the page run in order, and the build fails where one prints something else than the page shows. Each
figure is drawn twice, for the light and the dark theme.
"""

from __future__ import annotations

import doctest
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```\{picture\} (?P<words>[^\n]+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_WIDE = 5.5
"""Width in inches from which a figure scrolls on narrow screens, where its text would be smaller than 8 pixels."""
_FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
_SHARED = {
    "figure.figsize": (6.4, 3.4),
    "figure.dpi": 100,
    "savefig.dpi": 170,
    "figure.constrained_layout.use": True,
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "legend.frameon": False,
    "image.cmap": "viridis",
    "savefig.transparent": True,
}
_COLOURS = {
    "light": ("#24292f", "#0b62a4", "#c2410c", "#15803d", "#7c3aed", "#a16207", "#be185d"),
    "dark": ("#e6edf3", "#6cb6ff", "#ff9e64", "#6ee7a0", "#c4a7ff", "#f2cc60", "#ff8fc0"),
}


def style(theme: str) -> dict[str, Any]:
    """Return the settings of matplotlib for the light or the dark theme."""
    from matplotlib import cycler

    ink, *lines = _COLOURS[theme]
    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "axes.titlecolor")
    grid = {"grid.color": ink, "grid.alpha": 0.2, "figure.facecolor": "none", "axes.facecolor": "none"}
    return _SHARED | grid | dict.fromkeys(names, ink) | {"axes.prop_cycle": cycler(color=lines)}


def draw_pictures(page: Path, root: Path, folder: Path) -> tuple[str, list[str]]:
    """Run a page up to its last figure, and return its text with the figures, and the names of their files.

    Raises:
        RuntimeError: an example raises an error or prints something else than the page shows.
    """
    text = page.read_text()
    blocks = list(BLOCK.finditer(text))
    if not blocks:
        return text, []
    examples = doctest.DocTestParser().get_examples(text, str(page))
    starts = [match.start() for match in re.finditer(r"^", text, re.MULTILINE)]
    namespace: dict[str, Any] = {"__name__": "__main__"}
    parts, names, done, end = [], [], 0, 0
    with _conditions_of_tests(root):
        for number, block in enumerate(blocks, 1):
            before = [e for e in examples[done:] if starts[e.lineno] < block.start()]
            inside = [e for e in examples[done:] if block.start() <= starts[e.lineno] < block.end()]
            _run(before, namespace, page)
            done += len(before) + len(inside)
            stem = f"{page.relative_to(root / 'docs').with_suffix('')}-{number}".replace("/", "-")
            for theme in ("light", "dark"):
                width = _draw(inside, namespace, page, theme, folder / f"{stem}-{theme}.png")
            names.append(stem)
            depth = len(page.relative_to(root / "docs").parts) - 1
            parts += [text[end : block.start()], _markdown(block, stem, "../" * depth, scrolls=width >= _WIDE)]
            end = block.end()
    return "".join([*parts, text[end:]]), names


def _draw(examples: list[doctest.Example], namespace: dict[str, Any], page: Path, theme: str, path: Path) -> float:
    """Save the figure that the examples draw, and return its width in inches."""
    import matplotlib.pyplot as plt

    with plt.rc_context(style(theme)):
        namespace.setdefault("plt", plt)
        _run(examples, namespace, page)
        if "figure" not in namespace:
            raise RuntimeError(f"{page.name}: a picture must assign a matplotlib figure to the name figure.")
        if theme == "dark":
            _lighten(namespace["figure"], _COLOURS[theme][0])
        namespace["figure"].savefig(path)
        plt.close("all")
        return float(namespace["figure"].get_figwidth())


def _lighten(figure: Any, ink: str) -> None:
    """Give dark text, spines and ticks outside of images a light colour, which figures of `qkv.look` set themselves."""
    from matplotlib.spines import Spine
    from matplotlib.text import Text

    on_images = {text for axes in figure.axes if axes.images or axes.collections for text in axes.texts}
    for text in figure.findobj(Text):
        if text not in on_images and _is_dark(text.get_color()):
            text.set_color(ink)
    for spine in figure.findobj(Spine):
        if _is_dark(spine.get_edgecolor()):
            spine.set_edgecolor(ink)
    for axes in figure.axes:
        axes.tick_params(which="both", colors=ink)


def _is_dark(colour: Any) -> bool:
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(colour)
    return 0.3 * red + 0.59 * green + 0.11 * blue < 0.4


def _run(examples: list[doctest.Example], namespace: dict[str, Any], page: Path) -> None:
    test = doctest.DocTest(examples, namespace, page.name, str(page), 0, None)
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=_FLAGS).run(test, out=failures.append, clear_globs=False)
    namespace.update(test.globs)
    if failures:
        raise RuntimeError("".join(failures))


def _markdown(block: re.Match[str], stem: str, up: str, *, scrolls: bool) -> str:
    """Return the code of a figure and its two files, which scroll on narrow screens if the figure is wide."""
    lines = ["```pycon", block["body"].strip("\n"), "```", ""]
    lines += ["````{container} wide-figure"] if scrolls else []
    for theme in ("light", "dark"):
        words = block["words"].replace('"', "'")
        lines += [
            f"```{{image}} {up}drawn/{stem}-{theme}.png",
            f":alt: {words}",
            f":class: only-{theme} drawn",
            "```",
            "",
        ]
    return "\n".join([*lines, "````", ""] if scrolls else lines)


@contextmanager
def _conditions_of_tests(root: Path) -> Iterator[None]:
    """Use the folder, the random numbers and the memory budget with which the tests run the pages."""
    import matplotlib as mpl

    import qkv.plan.budget

    mpl.use("agg")
    folder, memory = Path.cwd(), qkv.plan.budget.machine_memory
    os.chdir(root)
    qkv.plan.budget.machine_memory = lambda: 2**32
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(0)
    try:
        yield
    finally:
        os.chdir(folder)
        qkv.plan.budget.machine_memory = memory
