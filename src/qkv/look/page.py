"""Several views under one title: what the server, the exported file and the widget hand to the browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qkv.errors import OptionError
from qkv.look.tiled_map import TiledView
from qkv.look.views import View

__all__ = ["THUMB", "Page"]

THUMB = 32
"""Spots on a side of a small map: 144 heads take 147 kB."""


@dataclass(frozen=True, eq=False)
class Page:
    """Views to be looked at together."""

    views: tuple[View | TiledView, ...]
    title: str = "attention"

    @classmethod
    def of(cls, views: View | TiledView | Sequence[View | TiledView], title: str | None = None) -> Page:
        """One view or several; the title is the models' names if none is given.

        Raises:
            OptionError: there is no view.
        """
        several = (views,) if isinstance(views, View | TiledView) else tuple(views)
        if not several:
            raise OptionError("there is no view. Give at least one text.")
        models = list(dict.fromkeys(view.model for view in several if view.model))
        return cls(several, title or (", ".join(models) if models else "attention"))

    @property
    def long(self) -> bool:
        """Whether a map comes in tiles, which a file cannot hold."""
        return any(isinstance(view, TiledView) for view in self.views)

    def meta(self) -> dict[str, Any]:
        """What there is, without maps."""
        return {
            "title": self.title,
            "models": len({view.model for view in self.views}),
            "thumb": THUMB,
            "views": [view.meta() for view in self.views],
        }

    def thumbs(self, view: int) -> bytes:
        """Small maps of all heads of a view.

        Raises:
            IndexError: there is no such view.
        """
        return self.views[_known(view, self.views)].thumbs(THUMB)

    def map(self, view: int, layer: int, head: int) -> bytes:
        """All codes of a head.

        Raises:
            IndexError: there is no such view, layer or head.
        """
        one = self.views[_known(view, self.views)]
        if isinstance(one, TiledView):
            raise IndexError("a long map comes in tiles")
        heads = one.layers[_known(layer, one.layers)].heads
        return one.map(layer, _known(head, heads))

    def tile(self, view: int, layer: int, head: int, level: int, y: int, x: int) -> bytes:
        """The codes of a tile of a long map: the largest, then the mean, of 256 × 256 spots.

        Raises:
            IndexError: there is no such tile.
        """
        return self._long(view).tile(layer, head, level, y, x)

    def row(self, view: int, layer: int, head: int, query: int) -> list[tuple[int, float]]:
        """The strongest keys of a query of a long map.

        Raises:
            IndexError: there is no such query.
        """
        return self._long(view).row(layer, head, query)

    def _long(self, view: int) -> TiledView:
        one = self.views[_known(view, self.views)]
        if not isinstance(one, TiledView):
            raise IndexError("a short map comes whole")
        return one


def _known(index: int, things: Sequence[Any]) -> int:
    if not 0 <= index < len(things):
        raise IndexError(f"number {index} of {len(things)}")
    return index
