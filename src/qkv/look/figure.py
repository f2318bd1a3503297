"""Figures that show themselves in a notebook and are saved whole or not at all."""

import io
import os
from functools import cache
from pathlib import Path
from typing import Any

from qkv.core.files import check_writable, write_atomic
from qkv.errors import DataError, MissingPackageError

__all__ = ["DARK", "FORMATS", "INK", "PAPER", "new_figure", "save_figure", "check_figure_path"]

INK = "#2b303a"
PAPER = "#ffffff"
DARK = {"ink": "#e4e6ea", "paper": "#15181d"}

FORMATS = (".png", ".svg", ".pdf")


def new_figure(size: tuple[float, float], dpi: int = 150, paper: str = PAPER) -> Any:
    """An empty matplotlib figure, `size` in inches.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackageError(
            'a picture needs matplotlib, which is not installed. Run: pip install "qkv[look]"'
        ) from None
    return _picture_class(Figure)(figsize=size, dpi=dpi, layout="constrained", facecolor=paper)


def check_figure_path(path: str | os.PathLike[str]) -> Path:
    """The file that a picture goes to, looked at before anything is drawn.

    Raises:
        DataError: its name ends in none of the formats, or its folder is not there or not to be written in.
    """
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise DataError(f"the picture {target.name!r} ends in none of {', '.join(FORMATS)}. Rename it.")
    check_writable(target, "the picture")
    return target


def save_figure(figure: Any, target: Path) -> None:
    """Write beside the target, then rename: a reader never sees half a picture, and a failure leaves none.

    Raises:
        DataError: the file cannot be written.
    """
    write_atomic(target, lambda stream: figure.savefig(stream, format=target.suffix[1:].lower()), "the picture")


@cache
def _picture_class(base: Any) -> Any:
    # Not pyplot: no window system is looked for, and no figure is kept alive.
    class Picture(base):  # type: ignore[misc]
        """A figure that a notebook shows without `%matplotlib`."""

        def _repr_png_(self) -> bytes:
            stream = io.BytesIO()
            self.savefig(stream, format="png")
            return stream.getvalue()

    return Picture
