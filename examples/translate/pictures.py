"""An alignment as a picture: a row for each subword that was said, a column for each that was read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples.translate.files import write
from qkv.errors import DataError, MissingPackageError

__all__ = ["save"]

_INK = "#2b303a"
_FORMATS = (".png", ".svg", ".pdf")


def check(path: Path) -> None:
    """Refuse, before any work, a name that cannot become a picture.

    Raises:
        DataError: the name ends otherwise than in .png, .svg or .pdf, or the folder is not there.
        MissingPackageError: matplotlib is not installed.
    """
    if path.suffix.lower() not in _FORMATS:
        raise DataError(f"the picture {path.name!r} ends in none of {', '.join(_FORMATS)}. Rename it.")
    if not path.parent.is_dir():
        raise DataError(f"there is no folder {str(path.parent)!r} for the picture. Make it first.")
    _figure(1, 1)


def save(path: Path, read: Sequence[str], said: Sequence[str], weights: Any, title: str = "") -> None:
    """Draw weights `(said, read)` between 0 (white) and 1 (black), and write the picture.

    Raises:
        As `check`.
    """
    check(path)
    figure = _figure(1.6 + 0.36 * len(read), 1.4 + 0.3 * len(said))
    axes = figure.add_subplot()
    axes.imshow(weights, cmap="Greys", vmin=0.0, vmax=1.0, aspect="auto")
    axes.set_xticks(range(len(read)), read, rotation=60, ha="left", rotation_mode="anchor", fontsize=9)
    axes.set_yticks(range(len(said)), said, fontsize=9)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, colors=_INK)
    # Lines between the cells, so that pale columns can be followed.
    axes.set_xticks([n - 0.5 for n in range(1, len(read))], minor=True)
    axes.set_yticks([n - 0.5 for n in range(1, len(said))], minor=True)
    axes.grid(which="minor", color="#e6e8ec", lw=0.6)
    axes.tick_params(which="minor", length=0)
    for side in axes.spines.values():
        side.set_color("#b8bec6")
    if title:
        axes.set_xlabel(title, color=_INK, fontsize=8)
    write(path, lambda stream: figure.savefig(stream, format=path.suffix[1:].lower()))


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackageError(
            'a picture needs matplotlib, which is not installed. Run: pip install "qkv[look]"'
        ) from None
    # Not pyplot: no window system is looked for, and no figure is kept alive.
    return Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")
