"""The page in a notebook: the same module as an anywidget; maps come from the kernel when asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from qkv.errors import MissingPackageError
from qkv.look.bundle import bundle, read_web_file
from qkv.look.page import Page
from qkv.look.tiled_map import TiledView
from qkv.look.views import View

__all__ = ["widget"]


def widget(page: Page | View | TiledView | Sequence[View | TiledView]) -> Any:
    """A notebook widget that shows a page, or some views.

    Raises:
        MissingPackageError: anywidget is not installed.
        OptionError: there is no view.

    Example:
        >>> import numpy as np
        >>> from qkv import look
        >>> shown = look.widget(look.View.of(np.eye(3)[None, None], ["a", "b", "c"]))  # doctest: +SKIP
    """
    return _widget_class()(page if isinstance(page, Page) else Page.of(page))


@cache
def _widget_class() -> Any:
    try:
        import anywidget
        import traitlets
    except ImportError:
        raise MissingPackageError(
            'the widget needs anywidget, which is not installed. Run: pip install "qkv[look]"'
        ) from None

    class Heads(anywidget.AnyWidget):
        """Answers the page's questions for maps."""

        _esm = bundle("heads.js")
        _css = read_web_file("style.css")
        meta = traitlets.Dict().tag(sync=True)

        def __init__(self, page: Page) -> None:
            super().__init__(meta=page.meta())
            self._page = page
            self.on_msg(self._asked)

        def _asked(self, _: Any, message: Any, buffers: Any) -> None:
            answer, data = respond(self._page, message)
            self.send(answer, data)

    return Heads


def respond(page: Page, message: Any) -> tuple[dict[str, Any], list[bytes]]:
    """What the kernel says to a question: `{"id": …, "what": "map", "place": [view, layer, head]}`."""
    known: dict[str, Callable[..., bytes]] = {"thumbs": page.thumbs, "map": page.map, "tile": page.tile}
    number = message.get("id") if isinstance(message, dict) else None
    try:
        if message["what"] == "row":
            return {"id": number, "row": page.row(*(int(each) for each in message["place"]))}, []
        data = known[message["what"]](*(int(each) for each in message["place"]))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        return {"id": number, "error": f"there is no such map: {error}"}, []
    return {"id": number}, [data]
