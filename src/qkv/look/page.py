"""Several views under one title: the data that the server, the exported file and the widget send to the browser."""

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
"""Pixels along each side of a thumbnail: 144 heads take 147 kB."""
_ViewKind = TypeVar("_ViewKind", View, TiledView)


@dataclass(frozen=True, eq=False)
class Page:
    """Views shown on one page.

    Fields:
        views: the views.
        title: title of the page.
    """

    views: tuple[View | TiledView, ...]
    title: str = "attention"

    @classmethod
    def from_views(cls, views: View | TiledView | Sequence[View | TiledView], title: str | None = None) -> Page:
        """Create a page of one view or several.

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
        """Return everything but the maps as JSON for the page."""
        return {
            "title": self.title,
            "models": len({view.model for view in self.views}),
            "thumb": THUMBNAIL_SIZE,
            "views": [view.meta() for view in self.views],
        }

    def read(self, what: str, place: Sequence[str | int]) -> bytes:
        """Answer a request of the browser for one array.

        Args:
            what: the method that gives the array: `thumbs`, `map`, `tile` or `row`.
            place: its arguments.

        Returns:
            The codes; for a row, JSON.

        Raises:
            LookupError: the request has another name or other arguments, or the array does not exist.
        """
        methods: dict[str, Callable[..., bytes]] = {
            "thumbs": self.thumbs,
            "map": self.map,
            "tile": self.tile,
            "row": lambda *query: json.dumps(self.row(*query)).encode(),
        }
        try:
            return methods[what](*map(int, place))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise LookupError(f"there is no such map: {error}") from None

    def thumbs(self, view: int) -> bytes:
        """Return the codes of the thumbnails of all heads of a view.

        Raises:
            IndexError: the view does not exist.
        """
        return self.views[_checked(view, self.views)].thumbs(THUMBNAIL_SIZE)

    def map(self, view: int, layer: int, head: int) -> bytes:
        """Return all codes of one head.

        Raises:
            IndexError: the view, layer or head does not exist, or the view is tiled.
        """
        one = self._view(View, view)
        return one.map(_checked(layer, one.layers), _checked(head, one.layers[layer].heads))

    def tile(self, view: int, layer: int, head: int, level: int, y: int, x: int) -> bytes:
        """Return the codes of one tile: the maximum, then the mean of each of 256 × 256 cells.

        Raises:
            IndexError: the tile does not exist, or the view is not tiled.
        """
        return self._view(TiledView, view).tile(layer, head, level, y, x)

    def row(self, view: int, layer: int, head: int, query: int) -> list[tuple[int, float]]:
        """Return the keys of largest weight of a query of a tiled view, with their weights.

        Raises:
            IndexError: the query does not exist, or the view is not tiled.
        """
        return self._view(TiledView, view).row(layer, head, query)

    def _view(self, kind: type[_ViewKind], view: int) -> _ViewKind:
        one = self.views[_checked(view, self.views)]
        if not isinstance(one, kind):
            raise IndexError(f"view {view} must be a {kind.__name__}, got a {type(one).__name__}")
        return one


def _checked(index: int, items: Sequence[object]) -> int:
    if not 0 <= index < len(items):
        raise IndexError(f"index must be between 0 and {len(items) - 1}, got {index}")
    return index
