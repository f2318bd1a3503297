"""The class `Page`, which holds the attention views that a server, an exported file or a notebook widget shows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import TypeVar

import numpy as np

from qkv.core.typing import Num
from qkv.errors import OptionError, QkvError
from qkv.look.difference import align_views, rank_differences
from qkv.look.quantize import THUMBNAIL_SIZE, jsonable
from qkv.look.rollout import flow
from qkv.look.tiled_map import TiledView
from qkv.look.token_groups import group_tokens
from qkv.look.views import BaseView, View

T = TypeVar("T")

_MOST_SENTENCES = 2000
"""Number of sentences from which on the page (`web/heads.js`) has no map of them, which would take 16 MB."""
_TOP = 8
"""Number of tokens and of queries of which a change is listed."""


def _known(part: T | None) -> T:
    """Return a part of a view, which may lack it."""
    if part is None:
        raise IndexError
    return part


def _codes(codes: Num[np.ndarray, "*shape"]) -> bytes:
    """Return codes of weights in row-major order, two bytes each, the lower byte first."""
    return codes.astype("<u2").tobytes()


def _rows(view: View, start: int, stop: int) -> bytes:
    """Return the codes of the queries from `start` to `stop` of all heads, head by head."""
    if not 0 <= start < stop <= len(view.queries.tokens):
        raise IndexError
    return b"".join(_codes(layer.codes[:, start:stop]) for layer in view.layers)


def _flow(view: View, query: int, key: int) -> bytes:
    means = _known(view.layer_means)
    if max(query, key) >= means.shape[-1]:
        raise IndexError
    return json.dumps(float(flow(means[:, None], queries=[query], keys=[key])[0, 0])).encode()


def _sentences(view: TiledView, layer: int, head: int) -> bytes:
    """Return the weights between sentences of one head, four bytes per weight; −∞ for masked pairs."""
    rows, columns = (group_tokens(axis, "sentences") for axis in (view.queries, view.columns))
    if (most := max(len(rows), len(columns))) >= _MOST_SENTENCES:
        raise OptionError(f"text must have fewer than {_MOST_SENTENCES:,} sentences, got {most:,}. Read a part of it.")
    weights, allowed = view.head(layer, head).merged(rows, columns)
    return np.where(allowed, weights, -np.inf).astype("<f4").tobytes()


def _weight(view: View | TiledView, layer: int, head: int, query: int, key: int) -> bytes:
    """Return one weight as JSON, the shortest text that names this number and no other one of float32."""
    weight = view.weight(layer, head, query, key)
    if 0 < abs(weight) < 1e-4:
        return _json(np.format_float_scientific(weight, trim="-", exp_digits=1))
    return _json(np.format_float_positional(weight, trim="-"))


def _effect(view: View, query: int, *heads: int) -> bytes:
    """Return the effect of scaled heads as JSON; `heads` are triples of layer, head and percent.

    These are the change of the distribution at one query, or of its vector, the loss before and after, and the queries
    that changed most.
    """
    if view.live is None or not heads or len(heads) % 3:
        raise IndexError
    factors = {(heads[i], heads[i + 1]): heads[i + 2] / 100 for i in range(0, len(heads), 3)}
    found = view.live.effect(factors)
    change = found.divergence
    if not 0 <= query < len(change):
        raise IndexError
    most = [(int(i), change[i]) for i in np.argsort(-change, kind="stable")[:_TOP]]
    answer = {"kind": None, "loss": None, "divergence": change[query], "mean": change.mean(), "most": most}
    if found.predictions is not None and found.loss is not None:
        before, after = (one.rows()[query] for one in found.predictions)
        answer |= {
            "kind": found.predictions[0].kind,
            "loss": found.loss if np.isfinite(found.loss).all() else None,
            "tokens": found.tokens(query, _TOP),
            "target": [before["target"], before["probability"], after["probability"]],
        }
    return _json(answer, 4)


def _aligned(first: View | TiledView, second: View | TiledView) -> bytes:
    """Return for the queries and the keys of two views the pair of groups to which each token belongs, as JSON."""
    counts = [[len(axis.tokens) for axis in (view.queries, view.columns)] for view in (first, second)]
    found = []
    for axis, alignment in enumerate(align_views(first, second)):
        owners = [{i: number for number, pair in enumerate(alignment.pairs) for i in pair[side]} for side in (0, 1)]
        found.append([[owners[side].get(i, -1) for i in range(counts[side][axis])] for side in (0, 1)])
    return _json(found)


def _json(answer: object, digits: int = 6) -> bytes:
    return json.dumps(jsonable(answer, digits), ensure_ascii=False).encode()


QUESTIONS: dict[str, tuple[type[BaseView], Callable[..., bytes]]] = {
    "thumbnails": (BaseView, lambda view: _codes(view.thumbnails())),
    "pair": (BaseView, lambda view, layer, head, query, key: _json(view.pair(layer, head, query, key))),
    "weight": (BaseView, _weight),
    "aligned": (BaseView, _aligned),
    "map": (View, lambda view, layer, head: _codes(view.layers[layer].codes[head])),
    "rows": (View, _rows),
    "value_norms": (View, lambda view, layer: _json(_known(view.layers[layer].value_norms))),
    "predictions": (View, lambda view: _json({"kind": _known(view.predictions).kind, "rows": view.predictions.rows()})),
    "pixels": (View, lambda view: _known(view.image).tobytes()),
    "flow": (View, _flow),
    "effect": (View, _effect),
    "differences": (View, lambda a, b: _json([list(map(list, one)) for one in rank_differences(a, b, _TOP)], 4)),
    "tile": (TiledView, lambda view, layer, head, level, y, x: _codes(view.head(layer, head).tile(level, y, x))),
    "row": (TiledView, lambda view, layer, head, query: json.dumps(view.head(layer, head).row(query)).encode()),
    "key_counts": (TiledView, lambda view, layer, head: view.head(layer, head).key_counts.astype("<u4").tobytes()),
    "sentences": (TiledView, _sentences),
}
"""For each request the views that can answer it, and its function of one or two views and integers."""
_OF_TWO_VIEWS = ("aligned", "differences")


@dataclass(frozen=True, eq=False)
class Page:
    """One or more attention views with a common title, which are shown together on one page."""

    views: tuple[View | TiledView, ...]
    title: str = "attention"

    @classmethod
    def from_views(cls, views: View | TiledView | Sequence[View | TiledView], title: str | None = None) -> Page:
        """Create a page from one or more views."""
        all_views = (views,) if isinstance(views, View | TiledView) else tuple(views)
        if not all_views:
            raise OptionError("views must not be empty. Pass at least one view.")
        models = list(dict.fromkeys(view.model for view in all_views if view.model))
        return cls(all_views, title or (", ".join(models) if models else "attention"))

    def meta(self) -> dict[str, object]:
        """Return the metadata of the page as a JSON-serializable dictionary."""
        return {
            "title": self.title,
            "models": len({view.model for view in self.views}),
            "thumbnail_size": THUMBNAIL_SIZE,
            "views": [view.meta() for view in self.views],
        }

    def read(self, request: str, indices: Sequence[str | int]) -> bytes:
        """Return the bytes of an attention map, tile or row, or of the thumbnails of a view, for the browser.

        Args:
            request: one of `QUESTIONS`.
            indices: index of the view, and the arguments of its function, such as the indices of layer and head.

        Returns:
            The codes of weights; for `key_counts`, four bytes per query; for the other requests JSON.

        Raises:
            LookupError: `request` is not one of `QUESTIONS`, an index is invalid, or the model cannot answer.
        """
        try:
            return self._answer(request, indices)
        except IndexError:
            raise LookupError(
                f"request must be one of {', '.join(QUESTIONS)} with indices that exist on this page, got {request!r} "
                f"with indices {indices!r}. The indices of a map, tile or row start with those of view, layer and head."
            ) from None
        except QkvError as error:
            raise LookupError(str(error)) from error

    def _answer(self, request: str, indices: Sequence[str | int]) -> bytes:
        """Return the answer to a request, or raise an `IndexError` if there is none."""
        try:
            kind, function = QUESTIONS[request]
            numbers = [int(index) for index in indices]
            count = 2 if request in _OF_TWO_VIEWS else 1
            arguments = [*(self.views[number] for number in numbers[:count]), *numbers[count:]]
            signature(function).bind(*arguments)
        except (KeyError, TypeError, ValueError):
            raise IndexError from None
        if min(numbers) < 0 or not all(isinstance(view, kind) for view in arguments[:count]):
            raise IndexError
        return function(*arguments)
