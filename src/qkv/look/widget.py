"""Notebook widget that shows an attention page and requests its maps from Python when they are needed."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.extras import require_packages
from qkv.errors import MissingPackageError
from qkv.look.bundle import bundle, read_web_file
from qkv.look.figure import figure_png
from qkv.look.page import Page
from qkv.look.tiled_map import TiledView
from qkv.look.view_plot import plot_view
from qkv.look.views import Opening, View

if TYPE_CHECKING:
    from anywidget import AnyWidget


PICTURE_SCALE = 1.5
"""Pixels of the picture per pixel of the notebook, for sharp text on screens of high resolution."""
_INCHES = 4.6
"""Width of each half of the picture."""
_DPI = round(96 * PICTURE_SCALE)


Picture = tuple[dict[str, str], dict[str, object]]
Responder = Callable[[object], tuple[dict[str, object], list[bytes]]]


def static_picture(view: View | TiledView) -> Picture | None:
    """Return the picture that a notebook saves for a widget: all heads, and the first one; None without matplotlib.

    A view with a single head, or in tiles, has one of the two halves.

    Returns:
        A MIME bundle, and its metadata with the width in pixels at which a notebook shows the picture.

    Example:
        >>> data, metadata = static_picture(View.from_weights(np.eye(3)[None, None], ["a", "b", "c"]))
        >>> list(data), 400 < metadata["image/png"]["width"] < 500
        (['image/png', 'text/plain'], True)
    """
    dense, opening = isinstance(view, View), view.opening or Opening()
    places = [(None, None)] * (not dense or sum(len(layer.heads) for layer in view.layers) > 1)
    try:
        figures = [plot_view(view, *at, width=_INCHES) for at in [*places, *[(opening.layer, opening.head)] * dense]]
    except MissingPackageError:
        return None
    from matplotlib.image import imread, imsave

    halves = [np.asarray(imread(io.BytesIO(figure_png(figure, _DPI))), np.float64) for figure in figures]
    height = max(len(half) for half in halves)
    padded = [np.pad(half, ((0, height - len(half)), (0, 0), (0, 0)), constant_values=1.0) for half in halves]
    picture = np.concatenate(padded, axis=1)
    stream = io.BytesIO()
    imsave(stream, picture, format="png")
    png = base64.b64encode(stream.getvalue()).decode()
    width = round(picture.shape[1] / PICTURE_SCALE)
    return {"image/png": png, "text/plain": f"attention maps of {view.name!r}"}, {"image/png": {"width": width}}


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
    picture = partial(static_picture, shown.views[0])
    return page_widget("heads.js", "style.css")(shown.meta(), partial(respond, shown), picture)


@cache
def page_widget(script: str, *styles: str) -> Callable[..., AnyWidget]:
    """Return the class of notebook widgets that show a page of a JavaScript module and style sheets.

    Its arguments are the metadata of the page, a function that returns the response to a message of the browser, and
    one that returns the static picture that is displayed with the widget.
    """
    require_packages("the widget needs", "look", "anywidget")
    import anywidget
    import traitlets

    class PageWidget(anywidget.AnyWidget):
        """A notebook widget that answers the browser on request."""

        _esm = bundle(script)
        _css = "".join(map(read_web_file, styles))
        meta = traitlets.Dict().tag(sync=True)
        # The end of the static picture in base64, by which the page finds and hides it.
        picture = traitlets.Unicode().tag(sync=True)

        def __init__(self, meta: dict[str, object], respond: Responder, image: Callable[[], Picture | None]) -> None:
            super().__init__(meta=meta)
            self._image = image
            self.on_msg(lambda _, message, buffers: self.send(*respond(message)))

        def _ipython_display_(self) -> None:
            """Display the widget, and the picture that it hides but that saved notebooks show."""
            from IPython import display

            picture = self._image()
            if picture is not None:
                self.picture = picture[0]["image/png"][-_TAIL:]
            bundles = self._repr_mimebundle_()
            # ipywidgets returns the data, anywidget the data and the metadata.
            data, metadata = bundles if isinstance(bundles, tuple) else (bundles, {})
            for shown, more in [(data, metadata), *([] if picture is None else [picture])]:
                display.display(shown, metadata=more, raw=True)  # type: ignore[no-untyped-call]

    return PageWidget


def respond(page: Page, message: object) -> tuple[dict[str, object], list[bytes]]:
    """Return the response to a request from the browser, as a dictionary and a list of binary buffers."""
    request = message if isinstance(message, dict) else {}
    number = request.get("id")
    try:
        return {"id": number}, [page.read(request.get("what", ""), request.get("place", ()))]
    except LookupError as error:
        return {"id": number, "error": str(error)}, []
