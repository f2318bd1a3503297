"""Notebook widget that shows an attention page and requests its maps from Python when they are needed."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.core.extras import require_packages
from qkv.core.typing import Float
from qkv.errors import MissingPackageError
from qkv.look.bundle import bundle, read_web_file
from qkv.look.page import Page
from qkv.look.tiled_map import TiledView
from qkv.look.view_plot import plot_view
from qkv.look.views import View

if TYPE_CHECKING:
    from anywidget import AnyWidget
    from matplotlib.figure import Figure


__all__ = ["page_widget", "widget"]


PICTURE_SCALE = 1.5
"""Pixels of the picture per pixel of the notebook, for sharp text on screens of high resolution."""
_INCHES = 4.6
"""Width of each half of the picture."""
_DPI = round(96 * PICTURE_SCALE)


def static_picture(view: View | TiledView) -> tuple[bytes, int]:
    """Return a picture of the grid of all heads and of the head that the page shows first, and its width.

    A view with a single head, or in tiles, has one of the two halves.

    Returns:
        A PNG file, and the width in pixels at which a notebook shows it.

    Raises:
        MissingPackageError: matplotlib is not installed.

    Example:
        >>> png, width = static_picture(View.from_weights(np.eye(3)[None, None], ["a", "b", "c"]))
        >>> png[1:4], 400 < width < 500
        (b'PNG', True)
    """
    heads = sum(len(layer.heads) for layer in view.layers)
    halves = [_pixels(plot_view(view, width=_INCHES))] if heads > 1 or not isinstance(view, View) else []
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


_TAIL = 64
"""Characters of the picture by which the page finds it; its last bytes are the checksum of its pixels and its end."""


def widget(page: Page | View | TiledView | Sequence[View | TiledView]) -> AnyWidget:
    """Create a notebook widget that shows a page or views.

    A static picture of the first view is displayed with the widget, and hidden while a kernel answers the widget. Saved
    notebooks show it where they are opened without a kernel: in Jupyter, in nbconvert and on GitHub.

    Args:
        page: a page, a view or several views.

    Raises:
        MissingPackageError: anywidget is not installed.
        OptionError: there are no views.

    Example:
        >>> import numpy as np
        >>> from qkv import look
        >>> view = look.View.from_weights(np.eye(3)[None, None], ["a", "b", "c"])
        >>> shown = look.widget(view)  # doctest: +SKIP
    """
    shown = page if isinstance(page, Page) else Page.from_views(page)
    return page_widget(
        "heads.js", ("style.css",), shown.meta(), lambda message: respond(shown, message), lambda: _image(shown)
    )


def page_widget(
    script: str,
    styles: tuple[str, ...],
    meta: dict[str, object],
    respond: Callable[[object], tuple[dict[str, object], list[bytes]]],
    image: Callable[[], tuple[dict[str, str], dict[str, object]] | None],
) -> AnyWidget:
    """Create a notebook widget that shows a page.

    Args:
        script: the JavaScript module of the page.
        styles: its style sheets.
        meta: its metadata.
        respond: returns the response to a message of the browser.
        image: returns the static picture that is displayed with the widget.
    """
    require_packages("the widget needs", "look", "anywidget")
    return _widget_class(script, styles)(meta, respond, image)


@cache
def _widget_class(script: str, styles: tuple[str, ...]) -> Callable[..., AnyWidget]:
    import anywidget
    import traitlets

    class PageWidget(anywidget.AnyWidget):
        """A notebook widget that answers the browser on request."""

        _esm = bundle(script)
        _css = "".join(map(read_web_file, styles))
        meta = traitlets.Dict().tag(sync=True)
        # The end of the static picture in base64, by which the page finds and hides it.
        picture = traitlets.Unicode().tag(sync=True)

        def __init__(self, meta: dict[str, object], respond: Callable[..., Any], image: Callable[..., Any]) -> None:
            super().__init__(meta=meta)
            self._image = image
            self.on_msg(lambda _, message, buffers: self.send(*respond(message)))

        def _ipython_display_(self) -> None:
            display_with_picture(self, self._image())

    return PageWidget


def display_with_picture(widget: AnyWidget, image: tuple[dict[str, str], dict[str, object]] | None) -> None:
    """Display a widget and a static picture, which the widget hides, and which saved notebooks keep.

    Args:
        widget: the widget, whose field `picture` becomes the end of the picture.
        image: a MIME bundle with metadata; None: no picture.
    """
    from IPython import display

    if image is not None:
        widget.picture = image[0]["image/png"][-_TAIL:]
    bundles = widget._repr_mimebundle_()
    # ipywidgets returns the data, anywidget the data and the metadata.
    data, metadata = bundles if isinstance(bundles, tuple) else (bundles, {})
    display.display(data, metadata=metadata, raw=True)  # type: ignore[no-untyped-call]
    if image is not None:
        display.display(image[0], metadata=image[1], raw=True)  # type: ignore[no-untyped-call]


def _image(page: Page) -> tuple[dict[str, str], dict[str, object]] | None:
    """Return the static picture of the first view as a MIME bundle with metadata; None without matplotlib."""
    view = page.views[0]
    try:
        png, width = static_picture(view)
    except MissingPackageError:
        return None
    data = {"image/png": base64.b64encode(png).decode(), "text/plain": f"attention maps of {view.name!r}"}
    return data, {"image/png": {"width": width}}


def respond(page: Page, message: object) -> tuple[dict[str, object], list[bytes]]:
    """Return the response to a request from the browser, as a dictionary and a list of binary buffers."""
    request = message if isinstance(message, dict) else {}
    number = request.get("id")
    try:
        return {"id": number}, [page.read(request.get("what", ""), request.get("place", ()))]
    except LookupError as error:
        return {"id": number, "error": str(error)}, []
