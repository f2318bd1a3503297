"""Notebook widget that shows an attention page and requests its maps from Python when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from qkv.core.extras import require_packages
from qkv.look.bundle import bundle, read_web_file
from qkv.look.page import Page
from qkv.look.tiled_map import TiledView
from qkv.look.views import View

if TYPE_CHECKING:
    from anywidget import AnyWidget

__all__ = ["widget"]


def widget(page: Page | View | TiledView | Sequence[View | TiledView]) -> AnyWidget:
    """Create a notebook widget that shows a page or views.

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
    return _widget_class()(page if isinstance(page, Page) else Page.from_views(page))


@cache
def _widget_class() -> Callable[[Page], AnyWidget]:
    require_packages("the widget needs", "look", "anywidget")
    import anywidget
    import traitlets

    class HeadsWidget(anywidget.AnyWidget):
        """A notebook widget that sends attention maps to the browser on request."""

        _esm = bundle("heads.js")
        _css = read_web_file("style.css")
        meta = traitlets.Dict().tag(sync=True)

        def __init__(self, page: Page) -> None:
            super().__init__(meta=page.meta())
            self._page = page
            self.on_msg(self._respond)

        def _respond(self, _: object, message: object, buffers: object) -> None:
            answer, data = respond(self._page, message)
            self.send(answer, data)

    return HeadsWidget


def respond(page: Page, message: object) -> tuple[dict[str, object], list[bytes]]:
    """Return the response to a request from the browser, as a dictionary and a list of binary buffers.

    Args:
        page: the page.
        message: a request `{"id": …, "what": "map", "place": [view, layer, head]}`, where `what` is `"thumbnails"`,
            `"map"`, `"tile"` or `"row"`; the response to any other message is an error.

    Returns:
        The JSON part of the response, and its binary buffers.
    """
    request = message if isinstance(message, dict) else {}
    number = request.get("id")
    try:
        return {"id": number}, [page.read(request.get("what", ""), request.get("place", ()))]
    except LookupError as error:
        return {"id": number, "error": str(error)}, []
