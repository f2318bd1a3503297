"""A page of attention views, with the data that the server, the exported file and the widget show."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from qkv.errors import OptionError
from qkv.look.tiled_map import TiledView
from qkv.look.views import View

__all__ = ["THUMBNAIL_SIZE", "Page"]

THUMBNAIL_SIZE = 32
"""Pixels along each side of a thumbnail; the thumbnails of 144 heads take 147 kB."""
_ViewKind = TypeVar("_ViewKind", View, TiledView)


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
        several = (views,) if isinstance(views, View | TiledView) else tuple(views)
        if not several:
            raise OptionError("views must not be empty. Pass at least one view.")
        models = list(dict.fromkeys(view.model for view in several if view.model))
        return cls(several, title or (", ".join(models) if models else "attention"))

    @property
    def tiled(self) -> bool:
        """Whether any view is tiled; such a page cannot be exported to a file."""
        return any(isinstance(view, TiledView) for view in self.views)

    def meta(self) -> dict[str, object]:
        """Return the metadata of the page as a JSON-serializable dictionary."""
        return {
            "title": self.title,
            "models": len({view.model for view in self.views}),
            "thumb": THUMBNAIL_SIZE,
            "views": [view.meta() for view in self.views],
        }

    def read(self, what: str, place: Sequence[str | int]) -> bytes:
        """Return the bytes that answer a request of the browser.

        Args:
            what: name of the method of this class to call: `thumbs`, `map`, `tile` or `row`.
            place: arguments of the method, such as the indices of view, layer and head.

        Returns:
            The quantized weights; for `row`, a JSON array.

        Raises:
            LookupError: `what` or `place` is invalid, or the array does not exist.
        """
        methods: dict[str, Callable[..., bytes]] = {
            "thumbs": self.thumbs,
            "map": self.map,
            "tile": self.tile,
            "row": lambda *query: json.dumps(self.row(*query)).encode(),
        }
        try:
            return methods[what](*map(int, place))
        except (KeyError, TypeError, ValueError, IndexError):
            raise LookupError(f"request must name a map of this page, got {what!r} with indices {place!r}.") from None

    def thumbs(self, view: int) -> bytes:
        """Return the thumbnails of all heads of a view as quantized weights.

        Raises:
            IndexError: the view does not exist.
        """
        return self.views[_checked(view, self.views)].thumbs(THUMBNAIL_SIZE)

    def map(self, view: int, layer: int, head: int) -> bytes:
        """Return the attention map of one head as quantized weights.

        Raises:
            IndexError: the view, layer or head does not exist, or the view is tiled.
        """
        one = self._view(View, view)
        return one.map(_checked(layer, one.layers), _checked(head, one.layers[layer].heads))

    def tile(self, view: int, layer: int, head: int, level: int, y: int, x: int) -> bytes:
        """Return one tile of a tiled view as quantized weights.

        The tile holds first the maximum and then the mean weight of each of its 256 × 256 cells.

        Raises:
            IndexError: the tile does not exist, or the view is not tiled.
        """
        return self._view(TiledView, view).tile(layer, head, level, y, x)

    def row(self, view: int, layer: int, head: int, query: int) -> list[tuple[int, float]]:
        """Return the keys with the largest weights for one query of a tiled view, as pairs (key index, weight).

        Raises:
            IndexError: the query does not exist, or the view is not tiled.
        """
        return self._view(TiledView, view).row(layer, head, query)

    def _view(self, kind: type[_ViewKind], view: int) -> _ViewKind:
        one = self.views[_checked(view, self.views)]
        if not isinstance(one, kind):
            raise IndexError(
                f"view must be the index of a {kind.__name__}, got {view}, which is a {type(one).__name__}."
            )
        return one


def _checked(index: int, items: Sequence[object]) -> int:
    if not 0 <= index < len(items):
        raise IndexError(f"index must be between 0 and {len(items) - 1}, got {index}.")
    return index
