"""A page of attention views, with the data that the server, the exported file and the widget show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qkv.errors import OptionError
from qkv.look.quantize import THUMBNAIL_SIZE
from qkv.look.tiled_map import TiledView
from qkv.look.views import View

__all__ = ["REQUESTS", "Page"]

REQUESTS = ("thumbnails", "map", "tile", "row")
"""Names of the methods of `View` and `TiledView` that the browser may call."""


@dataclass(frozen=True, eq=False)
class Page:
    """A page that shows one or more attention views.

    Attributes:
        views: the views, dense or tiled.
        title: title of the page.
    """

    views: tuple[View | TiledView, ...]
    title: str = "attention"

    @classmethod
    def from_views(cls, views: View | TiledView | Sequence[View | TiledView], title: str | None = None) -> Page:
        """Create a page from one or more views.

        Args:
            views: at least one view.
            title: title of the page; None: the names of the models.

        Raises:
            OptionError: there are no views.
        """
        all_views = (views,) if isinstance(views, View | TiledView) else tuple(views)
        if not all_views:
            raise OptionError("views must not be empty. Pass at least one view.")
        models = list(dict.fromkeys(view.model for view in all_views if view.model))
        return cls(all_views, title or (", ".join(models) if models else "attention"))

    @property
    def tiled(self) -> bool:
        """Whether any view is tiled; such a page cannot be exported to a file."""
        return any(isinstance(view, TiledView) for view in self.views)

    def meta(self) -> dict[str, object]:
        """Return the metadata of the page as a JSON-serializable dictionary."""
        return {
            "title": self.title,
            "models": len({view.model for view in self.views}),
            "thumbnail_size": THUMBNAIL_SIZE,
            "views": [view.meta() for view in self.views],
        }

    def read(self, what: str, place: Sequence[str | int]) -> bytes:
        """Return the bytes that answer a request of the browser.

        Args:
            what: method of the view to call, one of `REQUESTS`.
            place: index of the view, and the arguments of the method, such as the indices of layer and head.

        Returns:
            The quantized weights; for `row`, a JSON array.

        Raises:
            LookupError: `what` or `place` is invalid, or the array does not exist.
        """
        try:
            view, *indices = map(int, place)
            if what not in REQUESTS or min(view, *indices, 0) < 0:
                raise IndexError
            answer: bytes = getattr(self.views[view], what)(*indices)
        except (AttributeError, IndexError, TypeError, ValueError):  # such as a tile of a view that is not tiled
            raise LookupError(f"request must name a map of this page, got {what!r} with indices {place!r}.") from None
        return answer
