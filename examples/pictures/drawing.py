"""Draw the attention of each phrase, the weighted mean of the pictures, and the retrieved pictures."""

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from examples.pictures.learning import Album, Found
from qkv.look.figure import INK, check_figure_path, new_figure, save_figure

__all__ = ["check", "save"]

_LOOKED, _FOUND = 7, 6


def check(path: Path) -> None:
    """Check before any work that a picture can be written to the file.

    Raises:
        DataError: the name does not end in .png, .svg or .pdf, or the folder does not exist.
        MissingPackageError: matplotlib is not installed.
    """
    check_figure_path(path)
    _figure(1)


def save(path: Path, album: Album, found: Found) -> None:
    """Draw one row per phrase and write the file atomically.

    Raises:
        As `check`, and DataError where the file cannot be written.
    """
    check(path)
    figure = _figure(len(found.texts))
    cells = figure.subplots(len(found.texts), 1 + _LOOKED + _FOUND, squeeze=False)
    for row, text, weights, alike in zip(cells, found.texts, found.weights, found.alike, strict=True):
        mean = weights @ album.pictures.numpy()
        _image(row[0], mean, "weighted mean", frame="#3b6ea8")
        row[0].set_ylabel(text, rotation=0, ha="right", va="center", color=INK, fontsize=11, fontweight="bold")
        for axes, at in zip(row[1:], np.argsort(-weights)[:_LOOKED], strict=False):
            caption = album.wordings.texts[int(album.captions[at])]
            _image(axes, album.pictures[at].numpy(), f"{weights[at]:.3f}\n“{caption}”")
        for axes, at in zip(row[1 + _LOOKED :], np.argsort(-alike)[:_FOUND], strict=True):
            _image(axes, album.others[at].numpy(), f"cosine {alike[at]:.2f}", frame="#c8321e")
    for at, title in (
        (0, "answer"),
        (1, "largest weights: weight and caption"),
        (1 + _LOOKED, "retrieved, without caption"),
    ):
        cells[0, at].set_title(title, loc="left", fontsize=10, color=INK, fontweight="bold")
    save_figure(figure, path)


def _image(axes: Any, picture: np.ndarray, said: str, frame: str = "#b8bec6") -> None:
    axes.imshow(picture.reshape(8, 8), cmap="Greys", vmin=0, vmax=1)
    axes.set_xticks([])
    axes.set_yticks([])
    lines = [part for line in said.split("\n") for part in textwrap.wrap(line, 18)]
    axes.set_xlabel("\n".join(lines), fontsize=6, color=INK)
    for side in axes.spines.values():
        side.set_color(frame)


def _figure(rows: int) -> Any:
    return new_figure((2.2 + 1.15 * (1 + _LOOKED + _FOUND), 0.5 + 1.5 * rows), dpi=110)
