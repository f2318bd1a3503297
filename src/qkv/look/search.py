"""Search for the attention heads that attend from one word to another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from qkv.core.typing import Float
from qkv.errors import DataError
from qkv.look.quantize import dequantize
from qkv.look.tiled_map import TiledView
from qkv.look.views import ALL_HEADS, TokenAxis, View

__all__ = ["find_phrase", "HeadMatch", "MatchPlace", "search"]


def word_ranges(axis: TokenAxis) -> list[tuple[int, int]]:
    """Return the tokens of each word as ranges (start, stop). Tokens that belong to no word are ranges of their own.

    Example:
        >>> word_ranges(TokenAxis(("[CLS]", "un", "##do"), ("[CLS]", "un", "do"), (-1, 0, 0), (True, False, False)))
        [(0, 1), (1, 3)]
    """
    ranges: list[tuple[int, int]] = []
    for word, tokens in groupby(range(len(axis.tokens)), lambda i: axis.words[i]):
        group = list(tokens)
        ranges += [(group[0], group[-1] + 1)] if word >= 0 else [(i, i + 1) for i in group]
    return ranges


def find_phrase(axis: TokenAxis, phrase: str) -> list[tuple[int, int]]:
    """Return the ranges of tokens (start, stop) at which a phrase occurs as whole words, ignoring case.

    If the words of the phrase occur nowhere, single tokens with this text are found, such as `##ness`.

    Example:
        >>> find_phrase(TokenAxis.from_words("the cat saw The Cat there".split()), "the cat")
        [(0, 2), (3, 5)]
    """
    phrase_words = phrase.casefold().split()
    if not phrase_words:
        return []
    ranges = word_ranges(axis)
    words = ["".join(axis.pieces[start:stop]).strip().casefold() for start, stop in ranges]
    found: list[tuple[int, int]] = []
    at = 0
    while at + len(phrase_words) <= len(words):
        if words[at : at + len(phrase_words)] == phrase_words:
            found.append((ranges[at][0], ranges[at + len(phrase_words) - 1][1]))
            at += len(phrase_words)
        else:
            at += 1
    text = phrase.strip().casefold()
    return found or [(i, i + 1) for i, token in enumerate(axis.tokens) if token.casefold() == text]


class MatchPlace(NamedTuple):
    """The attention of a head from one occurrence of the query to the key.

    Attributes:
        view: index of the view.
        query: the tokens of the query, (start, stop).
        key: the tokens of the occurrence of the key with the largest weight, (start, stop).
        weight: sum of the weights of all occurrences of the key, mean over the tokens of the query.
        rank: 1 + the number of other words with a larger weight.
    """

    view: int
    query: tuple[int, int]
    key: tuple[int, int]
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
    views: View | TiledView | Sequence[View | TiledView], query: str, key: str, *, count: int | None = None
) -> list[HeadMatch]:
    """Rank the heads of a model by their attention from one word to another, over all texts that contain both.

        weight of an occurrence of the query = mean over its tokens of Σ weights of the tokens of all occurrences of key

    Words are compared as a whole and ignoring case. Weights are those of the views, of three significant digits.

    Args:
        views: views of texts with tokens; heads of the same model and kind of attention are combined. Tiled views are
            left out.
        query: the word or phrase that attends.
        key: the word or phrase that is attended to.
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
        keys = view.keys or view.queries
        found = find_phrase(keys, key)
        if not found:
            continue
        for start, stop in find_phrase(view.queries, query):
            for layer, head, row in _rows(view, start, stop):
                place = _place(i, (start, stop), found, row, word_ranges(keys))
                places.setdefault((view.model, view.kind, layer, head), []).append(place)
    if not places:
        raise DataError(
            f"query and key must occur as words in the same text, got {query!r} and {key!r}, which no text with "
            "dense maps contains both. Write the words as in the text."
        )
    matches = [
        HeadMatch(
            model,
            layer,
            head,
            float(np.mean([place.weight for place in of_head])),
            tuple(sorted(of_head, key=lambda place: -place.weight)),
        )
        for (model, _, layer, head), of_head in places.items()
    ]
    # Weights that are not numbers come last.
    return sorted(matches, key=lambda match: -match.weight if match.weight == match.weight else np.inf)[:count]


def _rows(view: View, start: int, stop: int) -> list[tuple[int, int, Float[np.ndarray, " k"]]]:
    """Return layer, head and mean weights over the queries from `start` to `stop` of each head."""
    return [
        (i, j, dequantize(maps.codes[j, start:stop], maps.ranges[j].exponent).mean(axis=0, dtype=np.float64))
        for i, maps in enumerate(view.layers)
        if maps.name != ALL_HEADS
        for j in range(len(maps.heads))
    ]


def _place(
    view: int,
    query: tuple[int, int],
    found: Sequence[tuple[int, int]],
    row: Float[np.ndarray, " k"],
    words: Sequence[tuple[int, int]],
) -> MatchPlace:
    sums = [float(row[start:stop].sum()) for start, stop in found]
    weight = sum(sums)
    others = [row[start:stop].sum() for start, stop in words if not any(first <= start < last for first, last in found)]
    rank = 1 + sum(bool(other > weight) for other in others)
    return MatchPlace(view, query, found[int(np.argmax(sums))], weight, rank)
