"""Create, style and save matplotlib figures, with the colors that all plots share."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.core.extras import missing_package
from qkv.core.files import check_writable, write_atomic
from qkv.core.typing import ArrayLike, Float, Shaped
from qkv.errors import OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure


INK = "#2b303a"
INKS = {False: INK, True: "#e4e6ea"}
"""Colors of text and lines on a light and on a dark background."""
_PAPERS = {False: "#ffffff", True: "#15181d"}
DATA_COLOR = "#b8bec6"
CURVE_COLOR = "#3b6ea8"
ANSWER_COLOR = "#c8321e"
NEGATIVE_COLOR = "#7a3fb0"

FORMATS = (".png", ".svg", ".pdf")

PRINT_DPI = 300
"""Pixels per inch of figures for print."""
_COLUMN_INCHES = {"single": 3.5, "double": 7.2}
"""Width of one column and of the text of a page with two columns (IEEE, Nature, ACM: 3.3 to 3.5 and 7.0 to 7.2)."""
_TEXT_AS_TEXT = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none"}
"""Options of matplotlib for text as TrueType in PDF (not as Type 3, which publishers refuse), and as text in SVG."""


def new_figure(size: tuple[float, float], dpi: int = 150, dark: bool = False) -> Figure:
    """Create an empty matplotlib figure that notebooks display without `%matplotlib`."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_package(purpose="plots need", packages="matplotlib", extra="look") from None
    return _notebook_figure(Figure)(figsize=size, dpi=dpi, layout="constrained", facecolor=_PAPERS[dark])


def column_inches(width: float | str) -> float:
    """Return the width of a figure in inches.

    Raises:
        OptionError: the width is not a name or a number from 1 to 50.

    Example:
        >>> column_inches("single"), column_inches(5)
        (3.5, 5.0)
    """
    if isinstance(width, str) and width in _COLUMN_INCHES:
        return _COLUMN_INCHES[width]
    if isinstance(width, int | float) and 1 <= width <= 50:
        return float(width)
    raise OptionError(
        f"width must be 'single', 'double', or a number of inches from 1 to 50, got {width!r}. "
        "Pass 'single' for the width of one of two columns, 3.5 inches, or 'double' for 7.2 inches."
    )


def style_figure(figure: Figure, title: str = "", *, dark: bool = False) -> None:
    """Set the title, in bold at the left edge, and the spines and colors of a figure of points, bars or lines."""
    for axes in figure.axes:
        bar = axes.get_label() == "<colorbar>"
        axes.tick_params(labelsize=8 if bar else 9)
        for spine in () if bar else axes.spines.values():
            spine.set_visible(spine.spine_type in ("left", "bottom"))
        if axes.get_legend_handles_labels()[1]:
            # Within the axes of a narrow figure, the legend would cover the data.
            above = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 2, "handlelength": 1, "columnspacing": 1}
            axes.legend(frameon=False, fontsize=8, **(above if figure.get_figwidth() < 5 else {}))
    figure.suptitle(title, x=0.02, ha="left", fontsize=12, fontweight="bold", parse_math=False)
    color_figure(figure, dark)


def color_figure(figure: Figure, dark: bool = False) -> None:
    """Set the colors of the axes, ticks and spines of a figure, and of its texts that have the default color."""
    from matplotlib import rcParams
    from matplotlib.text import Text

    for axes in figure.axes:
        axes.set_facecolor(_PAPERS[dark])
        axes.tick_params(colors=INKS[dark])
        for spine in axes.spines.values():
            spine.set_color(INKS[dark])
    for text in figure.findobj(Text):
        if text.get_color() in (rcParams["text.color"], rcParams["axes.labelcolor"]):
            text.set_color(INKS[dark])


def add_color_bar(figure: Figure, mappable: ScalarMappable, axes: Any, **options: Any) -> Colorbar:
    """Add a color bar without a frame to axes, with the options of `Figure.colorbar`."""
    bar = figure.colorbar(mappable, ax=axes, **options)
    bar.outline.set_visible(False)
    return bar


def extension(below: bool, above: bool) -> str:
    """Return at which ends of a color bar an arrow marks values beyond it."""
    return {(True, True): "both", (True, False): "min", (False, True): "max"}.get((below, above), "neither")


def draw_curve(
    axes: Axes,
    grid: Shaped[np.ndarray, " n"],
    line: Float[np.ndarray, " n"],
    ends: tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]],
    labels: tuple[str, str],
    opacity: float = 0.13,
) -> None:
    """Draw estimates along an axis with a band around them; both are interrupted where a number is NaN."""
    axes.plot(grid, line, color=CURVE_COLOR, lw=1.8, zorder=3, label=labels[0])
    known = np.isfinite(ends[0] + ends[1])
    if known.any():
        band = axes.fill_between(grid, *ends, where=known, color=CURVE_COLOR, alpha=opacity)
        band.set(lw=0, zorder=2, label=labels[1])


def draw_answer(
    axes: Axes, place: float, value: float, error: float, label: str, marker: str = "o", size: float = 7
) -> None:
    """Draw a dashed line at a query, and its answer with an error bar if the error is finite."""
    axes.axvline(place, color=ANSWER_COLOR, lw=1, ls=(0, (4, 3)), zorder=4)
    bar = [error] if np.isfinite(error) else None
    axes.errorbar(
        [place], [value], bar, fmt=marker, ms=size, label=label, color=ANSWER_COLOR, mec="white", capsize=4, zorder=6
    )


def draw_weighted_points(
    figure: Figure,
    axes: Axes,
    x: ArrayLike,
    y: ArrayLike,
    weights: Float[np.ndarray, " n"],
    label: str = "weight",
    cmap: str = "Reds",
    size: float = 1.0,
) -> None:
    """Draw a scatter plot in which points of larger weight are darker and larger, and add a color bar.

    Points of negative weight are hollow triangles. Points with at most 1 % of the largest weight are not drawn.
    """
    x, y, maximum = np.asarray(x), np.asarray(y), np.abs(weights).max()
    share = weights / maximum
    # In order of increasing weight, so that the largest are on top; the smallest would hide the data below them.
    order = [i for i in np.argsort(share, kind="stable") if share[i] > 0.01]
    style = {"cmap": cmap, "vmin": -0.1 * maximum, "vmax": maximum, "lw": 0, "zorder": 5}
    dots = axes.scatter(x[order], y[order], c=weights[order], s=size * (8 + 42 * share[order]), **style)
    below = np.flatnonzero(share < -0.01)
    if len(below):
        hollow = axes.scatter(x[below], y[below], size * (8 - 42 * share[below]), marker="v", zorder=5)
        hollow.set(facecolors="none", edgecolors=NEGATIVE_COLOR, label=f"negative {label}")
    add_color_bar(figure, dots, axes, shrink=0.8, aspect=30, label=label).ax.set_ylim(0, maximum)


def trim_height(figure: Figure) -> None:
    """Set the height of a figure to that of its content, without a change of its width."""
    engine = figure.get_layout_engine()
    assert engine is not None
    with _chosen_fonts(figure):
        # The layout alone, because drawing would resample the images twice.
        engine.execute(figure)
        box = figure.get_tightbbox()
        figure.set_size_inches(figure.get_size_inches()[0], min(box.height + 0.08, figure.get_size_inches()[1]))
        engine.execute(figure)


def check_figure_path(path: str | os.PathLike[str]) -> Path:
    """Return `path` as a `Path`, after checking that a figure can be saved to it."""
    target = Path(path)
    check_writable(target, "the plot", FORMATS)
    return target


def save_figure(figure: Figure, target: Path) -> None:
    """Save a figure to a file atomically, so that a failure leaves no partial file."""
    write_atomic(target, lambda stream: figure.savefig(stream, format=target.suffix[1:].lower()), "the plot")


def figure_png(figure: Figure, dpi: float | str = "figure") -> bytes:
    """Return a figure as a PNG file."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=dpi)
    return stream.getvalue()


@contextmanager
def _chosen_fonts(figure: Figure) -> Iterator[None]:
    """Add installed fonts to the texts of a figure with characters that their font lacks, such as those of Chinese."""
    from matplotlib.font_manager import findfont, get_font
    from matplotlib.text import Text

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_ticklabels()  # updates the texts
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if not text.get_text().isascii():
            font = text.get_fontproperties()
            letters = {ord(letter) for letter in text.get_text() if letter.isprintable()}
            missing = letters - get_font(findfont(font)).get_charmap().keys()
            text.set_fontfamily([*font.get_family()[:1], *_fallback_fonts(frozenset(missing))])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)  # `_fallback_fonts` has warned
        yield


@cache
def _fallback_fonts(missing: frozenset[int]) -> tuple[str, ...]:
    """Return families of installed fonts that together have characters, and warn of those that no font has."""
    from matplotlib.font_manager import fontManager, get_font

    covered: dict[str, frozenset[int]] = {"": frozenset()}
    for name, path in {font.name: font.fname for font in fontManager.ttflist}.items() if missing else ():
        if name.startswith("Last Resort"):  # boxes for all characters
            continue
        with suppress(OSError, RuntimeError, ValueError):  # such as fonts that are only bitmaps
            covered[name] = missing & get_font(path).get_charmap().keys()
    chosen, rest = [], set(missing)
    while best := max(covered, key=lambda name: len(covered[name] & rest)):
        chosen.append(best)
        rest -= covered.pop(best)
        covered = {name: found for name, found in covered.items() if not name or found & rest}
    if rest:
        shown = "".join(map(chr, sorted(rest)[:10]))
        warnings.warn(
            f"no installed font has the characters {shown!r}, which the figure shows as boxes. Install a font of their "
            "script, such as Noto Sans CJK or Noto Emoji, or save the figure on the page of qkv look.",
            stacklevel=2,
        )
    return tuple(chosen)


@cache
def _notebook_figure(base: type[Figure]) -> type[Figure]:
    from matplotlib import rc_context

    # pyplot is avoided because it looks for a window system and keeps every figure in memory.
    class NotebookFigure(base):  # type: ignore[misc,valid-type]
        """A matplotlib figure that notebooks display as PNG without `%matplotlib`, and that saves text as text."""

        def draw(self, *arguments: object, **options: object) -> None:
            with _chosen_fonts(self):
                super().draw(*arguments, **options)

        def get_tightbbox(self, *arguments: object, **options: object) -> object:
            with _chosen_fonts(self):
                return super().get_tightbbox(*arguments, **options)

        def savefig(self, *arguments: object, **options: object) -> None:
            with rc_context(_TEXT_AS_TEXT):
                super().savefig(*arguments, **options)

        def _repr_png_(self) -> bytes:
            return figure_png(self)

        def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, bytes], dict[str, dict[str, int]]]:
            """Return the PNG, which has the width of the figure in CSS inches of 96 pixels if it is made for print."""
            width = round(96 * self.get_size_inches()[0])
            return {"image/png": self._repr_png_()}, {"image/png": {"width": width}} if self.dpi == PRINT_DPI else {}

    return NotebookFigure
