"""Search for the attention heads that attend from one word to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qkv.errors import DataError
from qkv.look.axis import Axis
from qkv.look.quantize import dequantize
from qkv.look.tiled_map import TiledView
from qkv.look.token_groups import Group, find_phrase, group_tokens, merge
from qkv.look.views import ALL_HEADS, View


class MatchPlace(NamedTuple):
    """The attention of a head from one occurrence of the query to the key.

    Attributes:
        view: index of the view.
        query: the tokens of the query.
        key: the tokens of the occurrence of the key with the largest weight.
        weight: sum of the weights of all occurrences of the key, mean over the tokens of the query.
        rank: 1 + the number of other words with a larger weight.
    """

    view: int
    query: Group
    key: Group
    weight: float
    rank: int


class HeadMatch(NamedTuple):
    """A head with its attention from the query to the key."""

    model: str
    layer: int
    head: int
    weight: float
    places: tuple[MatchPlace, ...]


def search(
    views: View | TiledView | Sequence[View | TiledView],
    query: str | Group,
    key: str | Group,
    *,
    count: int | None = None,
) -> list[HeadMatch]:
    """Rank the heads of a model by their attention from one word or passage to another, over all texts with both.

        weight of an occurrence of the query = mean over its tokens of Σ weights of the tokens of all occurrences of key

    Words are compared as a whole and ignoring case. Weights are those of the views, of three significant digits.

    Args:
        views: views of texts with tokens; heads of the same model and kind of attention are combined. Tiled views are
            left out.
        query: the word, phrase or sentence that attends; a region of an image, such as `"2,3–5,6"` for the patches
            between two corners; or the indices of tokens.
        key: the same for what is attended to.
        count: number of heads to return; None: all.

    Returns:
        The heads by decreasing mean weight.

    Raises:
        DataError: no text with dense maps contains both the query and the key.

    Example:
        >>> weights = np.array([[[[1, 0, 0], [0.2, 0.8, 0], [0.7, 0.2, 0.1]]]])
        >>> view = View.from_weights(weights, ["Hans", "said", "he"])
        >>> (match,) = search(view, "he", "Hans")
        >>> match.layer, match.head, round(match.weight, 3), match.places[0].rank
        (0, 0, 0.7, 1)
    """
    views = [views] if isinstance(views, View | TiledView) else list(views)
    places: dict[tuple[str, str, int, int], list[MatchPlace]] = {}
    for i, view in enumerate(views):
        if isinstance(view, TiledView):
            continue
        keys = view.columns
        found = _find(keys, key)
        if not found:
            continue
        inside = {token for group in found for token in group}
        others = [group for group in group_tokens(keys, "words") if inside.isdisjoint(group)]
        layers = [(i, one) for i, one in enumerate(view.layers) if one.name != ALL_HEADS]
        for group in _find(view.queries, query):
            rows = tuple(range(len(group)))
            for layer, maps, head in ((i, one, j) for i, one in layers for j in range(len(one.heads))):
                weights = dequantize(maps.codes[head, list(group)], maps.ranges[head].exponent)
                sums = merge(weights, [rows], [*found, *others])[0]
                of_key, of_others = sums[: len(found)], sums[len(found) :]
                weight, best = float(of_key.sum()), found[int(np.argmax(of_key))]
                place = MatchPlace(i, group, best, weight, 1 + int((of_others > weight).sum()))
                places.setdefault((view.model, view.kind, layer, head), []).append(place)
    if not places:
        raise DataError(
            f"query and key must occur as words in the same text, got {query!r} and {key!r}, which no text with "
            "dense maps contains both. Write the words as in the text."
        )
    matches = []
    for (model, _, layer, head), own in places.items():
        mean = float(np.mean([place.weight for place in own]))
        matches.append(HeadMatch(model, layer, head, mean, tuple(sorted(own, key=lambda place: -place.weight))))
    # Weights that are not numbers come last.
    return sorted(matches, key=lambda match: -match.weight if match.weight == match.weight else np.inf)[:count]


def _find(axis: Axis, span: str | Group) -> list[Group]:
    """Return the tokens of each place of a phrase, or those that were given, if the axis has them."""
    if isinstance(span, str):
        return find_phrase(axis, span)
    return [tuple(span)] if span and max(span) < len(axis.tokens) else []
