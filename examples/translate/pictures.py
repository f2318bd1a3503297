"""Draw an alignment: a row for each generated subword, a column for each source subword."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qkv.look.figure import INK, check_figure_path, new_figure, save_figure

__all__ = ["save"]


def check(path: Path) -> None:
    """Check before any work that a picture can be written to the file.

    Raises:
        DataError: the name does not end in .png, .svg or .pdf, or the folder does not exist.
        MissingPackageError: matplotlib is not installed.
    """
    check_figure_path(path)
    new_figure((1.0, 1.0))


def save(path: Path, read: Sequence[str], said: Sequence[str], weights: Any, title: str = "") -> None:
    """Draw weights `(said, read)` between 0 (white) and 1 (black), and write the picture.

    Raises:
        As `check`.
    """
    check(path)
    figure = new_figure((1.6 + 0.36 * len(read), 1.4 + 0.3 * len(said)))
    axes = figure.add_subplot()
    axes.imshow(weights, cmap="Greys", vmin=0.0, vmax=1.0, aspect="auto")
    axes.set_xticks(range(len(read)), read, rotation=60, ha="left", rotation_mode="anchor", fontsize=9)
    axes.set_yticks(range(len(said)), said, fontsize=9)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, colors=INK)
    # Lines between the cells, so that pale columns can be followed.
    axes.set_xticks([n - 0.5 for n in range(1, len(read))], minor=True)
    axes.set_yticks([n - 0.5 for n in range(1, len(said))], minor=True)
    axes.grid(which="minor", color="#e6e8ec", lw=0.6)
    axes.tick_params(which="minor", length=0)
    for side in axes.spines.values():
        side.set_color("#b8bec6")
    if title:
        axes.set_xlabel(title, color=INK, fontsize=8)
    save_figure(figure, path)
