"""Draw a picture of a view, which a saved notebook shows where no kernel answers the widget."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Float
from qkv.look.tiled_map import TiledView
from qkv.look.view_plot import plot_view
from qkv.look.views import View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PICTURE_SCALE", "static_picture"]

PICTURE_SCALE = 1.5
"""Pixels of the picture per pixel of the notebook, for sharp text on screens of high resolution."""
_INCHES = 4.6
"""Width of each half of the picture."""
_DPI = round(96 * PICTURE_SCALE)


def static_picture(view: View | TiledView) -> tuple[bytes, int]:
    """Return a picture of the grid of all heads and of the head that the page shows first, and its width.

    A view with a single head, or in tiles, has one of the two halves.

    Args:
        view: the view.

    Returns:
        A PNG file, and the width in pixels at which a notebook shows it.

    Raises:
        MissingPackageError: matplotlib is not installed.

    Example:
        >>> png, width = static_picture(View.from_weights(np.eye(3)[None, None], ["a", "b", "c"]))
        >>> png[1:4], 400 < width < 500
        (b'PNG', True)
    """
    heads = sum(len(layer.heads) for layer in view.layers) if isinstance(view, View) else 2
    halves = [_pixels(plot_view(view, width=_INCHES))] if heads > 1 else []
    if isinstance(view, View):
        opening = view.opening
        layer, head = (0, 0) if opening is None else (opening.layer, opening.head)
        halves.append(_pixels(plot_view(view, layer, head, width=_INCHES)))
    from matplotlib.image import imsave

    height = max(len(half) for half in halves)
    padded = [np.pad(half, ((0, height - len(half)), (0, 0), (0, 0)), constant_values=1.0) for half in halves]
    picture = np.concatenate(padded, axis=1)
    stream = io.BytesIO()
    imsave(stream, picture, format="png")
    return stream.getvalue(), round(picture.shape[1] / PICTURE_SCALE)


def _pixels(figure: Figure) -> Float[np.ndarray, "height width 4"]:
    from matplotlib.image import imread

    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_DPI)
    stream.seek(0)
    return np.asarray(imread(stream), np.float64)
