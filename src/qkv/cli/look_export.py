"""Write what `qkv look` shows to a file: a page as HTML, or figures as PDF, SVG or PNG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qkv.core.files import check_writable
from qkv.errors import OptionError

if TYPE_CHECKING:
    from qkv.look.page import Page
    from qkv.look.views import View

__all__ = ["check_export", "check_head", "save_export"]


def check_export(export: str, width: str, layer: int | None, head: int | None) -> float | str:
    """Check, before the model runs, that a page or a figure can be written, and return the width of the figure.

    Args:
        export: the file.
        width: `"single"`, `"double"` or a number of inches.
        layer: index of the layer of the head to plot; None: plot the grid of all heads.
        head: index of the head to plot.

    Raises:
        DataError: the suffix of the file is unknown, or its folder does not exist or is not writable.
        OptionError: the width is invalid, or only one of `layer` and `head` is given.
        MissingPackageError: matplotlib, which figures need, is not installed.
    """
    from qkv.look.figure import FORMATS, column_inches, new_figure
    from qkv.look.html_export import HTML_SUFFIXES

    target = Path(export)
    figure = target.suffix.lower() in FORMATS
    check_writable(target, "the figure" if figure else "the page", FORMATS if figure else (*HTML_SUFFIXES, *FORMATS))
    if not figure:
        return width
    if (layer is None) != (head is None):
        raise OptionError("--layer and --head must be given together. Omit both to write the grid of all heads.")
    try:
        inches = column_inches(width if width in ("single", "double") else float(width))
    except (ValueError, OptionError):
        raise OptionError(
            f"--width must be single, double, or a number of inches from 1 to 50, got {width!r}. "
            "single is 3.5 inches, the width of one of two columns, and double 7.2."
        ) from None
    new_figure((1, 1))
    return inches


def save_export(page: Page, export: str, layer: int | None, head: int | None, width: float | str) -> list[Path]:
    """Write a page to one file, or each of its views to a figure, and return the files.

    The figures of several views have numbers: `a-1.pdf`, `a-2.pdf` …

    Raises:
        DataError: a file cannot be written, or the page has tiled views.
        OptionError: the head does not exist.
    """
    from qkv.look.figure import FORMATS, save_figure
    from qkv.look.html_export import export_html
    from qkv.look.view_plot import plot_view
    from qkv.look.views import View

    target = Path(export)
    if target.suffix.lower() not in FORMATS:
        return [export_html(page, target)]
    many = len(page.views) > 1
    targets = [target.with_stem(f"{target.stem}-{i}") if many else target for i in range(1, len(page.views) + 1)]
    for view in page.views:
        if layer is not None and head is not None and isinstance(view, View):
            check_head(view, layer, head)
    for view, path in zip(page.views, targets, strict=True):
        save_figure(plot_view(view, layer, head, width=width), path)
    return targets


def check_head(view: View, layer: int, head: int) -> None:
    """Check that a view has the head that `--layer` and `--head` name.

    Raises:
        OptionError: it has not.
    """
    last = len(view.layers) - 1
    if not 0 <= layer <= last:
        raise OptionError(
            f"--layer must be between 0 and {last}, got {layer}. "
            f"For example, pass --layer {last} for {view.layers[last].name!r}."
        )
    heads = view.layers[layer].heads
    if not 0 <= head < len(heads):
        raise OptionError(
            f"--head must be between 0 and {len(heads) - 1} for --layer {layer}, got {head}. "
            f"For example, pass --head 0 for {heads[0]!r}."
        )
