"""The page as a notebook widget: the same JavaScript module under anywidget; the kernel sends maps on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from qkv.core.extras import missing_package
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
    try:
        import anywidget
        import traitlets
    except ImportError:
        raise missing_package("the widget needs", "anywidget", "look") from None

    class HeadsWidget(anywidget.AnyWidget):
        """Sends maps to the page on request."""

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
    """Answer a request of the page, `{"id": …, "what": "map", "place": [view, layer, head]}`.

    Args:
        page: the page.
        message: a request for `"thumbs"`, `"map"`, `"tile"` or `"row"`; anything else is answered by an error.

    Returns:
        The JSON part of the answer, and its binary buffers.
    """
    requests: dict[str, Callable[..., bytes]] = {"thumbs": page.thumbs, "map": page.map, "tile": page.tile}
    if not isinstance(message, dict):
        return {"id": None, "error": "there is no such map: the request must be an object"}, []
    number = message.get("id")
    try:
        place = [int(each) for each in message["place"]]
        if message["what"] == "row":
            return {"id": number, "row": page.row(*place)}, []
        return {"id": number}, [requests[message["what"]](*place)]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        return {"id": number, "error": f"there is no such map: {error}"}, []
