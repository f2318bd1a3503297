"""Groups of tokens, such as words, sentences and phrases, the weights between them, and groups that two texts share.

The weight from one group to another is the mean over the tokens of the query, and the sum over those of the key, so
that the weights of a row sum to the same number as before (Clark et al. 2019).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile
from typing import NamedTuple

import numpy as np

from qkv.core.typing import Bool, Num
from qkv.errors import OptionError
from qkv.look.axis import Axis, Patches

Group = tuple[int, ...]
"""The indices of some tokens in increasing order."""

_Place = tuple[int, tuple[float, float]]
"""A token with the beginning and the end of its place in a text."""
_MAX_CELLS = 2**30
"""Maximum size of the table of the alignment, which takes 128 MiB of bits."""
_REGION = re.compile(r"(\d+),(\d+)\s*[–-]\s*(\d+),(\d+)")
"""A rectangle of patches, from the row and column of one corner to those of the opposite one."""


def group_tokens(axis: Axis, unit: str) -> list[Group]:
    """Return the groups of an axis: tokens, or those of one of its units. Tokens that belong to none stay alone.

    Raises:
        OptionError: the axis has no such unit.

    Example:
        >>> axis = Axis(("[CLS]", "un", "##do"), ("[CLS]", "un", "do"), (-1, 0, 0), (True, False, False))
        >>> group_tokens(axis, "words")
        [(0,), (1, 2)]
    """
    units = {"tokens": range(len(axis.tokens)), **axis.units}
    if unit not in units:
        raise OptionError(f"unit must be one of {', '.join(units)}, got {unit!r}. Choose one of them.")
    groups: list[Group] = []
    for owner, tokens in groupby(range(len(axis.tokens)), units[unit].__getitem__):
        found = tuple(tokens)
        groups += [(i,) for i in found] if owner in (-1, "") else [found]
    return groups


def find_phrase(axis: Axis, phrase: str) -> list[Group]:
    """Return the tokens of each place at which a phrase occurs as whole words, ignoring case.

    If the words of the phrase occur nowhere, single tokens with this text are found, such as `##ness`. On the patches
    of an image, `2,3–5,6` is the region between these rows and columns.

    Example:
        >>> find_phrase(Axis.from_words("the cat saw The Cat there".split()), "the cat")
        [(0, 1), (3, 4)]
    """
    region = _REGION.fullmatch(phrase.strip())
    if region and axis.patches:
        return _find_region(axis.patches, *map(int, region.groups()))
    phrase_words = phrase.casefold().split()
    if not phrase_words:
        return []
    groups = group_tokens(axis, "words")
    words = [axis.name(group).strip().casefold() for group in groups]
    found: list[Group] = []
    at = 0
    while at + len(phrase_words) <= len(words):
        if words[at : at + len(phrase_words)] == phrase_words:
            found.append(sum(groups[at : at + len(phrase_words)], ()))
            at += len(phrase_words)
        else:
            at += 1
    text = phrase.strip().casefold()
    return found or [(i,) for i, token in enumerate(axis.tokens) if token.casefold() == text]


def _find_region(patches: Patches, top: int, left: int, bottom: int, right: int) -> list[Group]:
    """Return the tokens of the patches of a rectangle, as one group; none if it has no token."""
    (top, bottom), (left, right) = sorted((top, bottom)), sorted((left, right))
    rows, columns = np.divmod(patches.places, patches.grid[1])
    inside = (rows >= max(top, 0)) & (rows <= bottom) & (columns >= left) & (columns <= right)
    return [tuple(np.flatnonzero(inside).tolist())] if inside.any() else []


def merge(
    weights: Num[np.ndarray, "*heads q k"], rows: Sequence[Group], columns: Sequence[Group]
) -> Num[np.ndarray, "*heads rows columns"]:
    """Return the weights between groups of queries and groups of keys: mean over the queries, sum over the keys.

    Example:
        >>> merge(np.array([[0.5, 0.25, 0.25], [0.0, 0.5, 0.5]]), [(0, 1)], [(0,), (1, 2)]).tolist()
        [[0.25, 0.75]]
    """
    counts = np.array([len(row) for row in rows], weights.dtype)[:, None]
    return _reduce(np.add, _reduce(np.add, weights, rows, -2) / counts, columns, -1)


def merge_allowed(
    allowed: Bool[np.ndarray, "*heads q k"], rows: Sequence[Group], columns: Sequence[Group]
) -> Bool[np.ndarray, "*heads rows columns"]:
    """Return whether any query of a group may attend to any key of another group."""
    return _reduce(np.logical_or, _reduce(np.logical_or, allowed, rows, -2), columns, -1)


def _reduce(operation: np.ufunc, array: np.ndarray, groups: Sequence[Group], axis: int) -> np.ndarray:
    order = [i for group in groups for i in group]
    taken = array if order == list(range(array.shape[axis])) else np.take(array, order, axis)
    if len(order) == len(groups):
        return taken
    starts = np.cumsum([0, *(len(group) for group in groups[:-1])])
    return operation.reduceat(taken, starts, axis)


class Alignment(NamedTuple):
    """Groups of tokens that correspond to each other in two texts, and the tokens that correspond to none.

    Attributes:
        pairs: the tokens of the first and of the second text of each pair of groups, in increasing order.
        others: the other tokens of the first and of the second text.
    """

    pairs: tuple[tuple[Group, Group], ...]
    others: tuple[Group, Group]

    def groups(self, side: int) -> list[Group]:
        """Return the groups of the first (0) or second (1) text."""
        return [pair[side] for pair in self.pairs]


def align_axes(first: Axis, second: Axis, same_tokenizer: bool = True) -> Alignment:
    """Return the groups of tokens that correspond to each other on two axes.

    In one text, these are the smallest ranges of characters that both tokenizations divide in the same way: a token
    where the tokens are the same, and otherwise mostly a word. Special tokens that stand for no text correspond to
    those at the same place. In two texts, tokens are aligned by `align_tokens`, or words if the tokenizers differ, and
    words that are equal are divided further, as one text is.

    Example:
        >>> one = Axis(("un", "##do", "it"), ("un", "do", "it"), (0, 0, 1), (False,) * 3)
        >>> other = Axis(("und", "o", "␣it"), ("und", "o", "it"), (0, 0, 1), (False,) * 3)
        >>> align_axes(one, other).pairs
        (((0, 1), (0, 1)), ((2,), (2,)))
    """
    if first.text == second.text:
        places = tuple(list(_places(axis)) for axis in (first, second))
    else:
        places = _common_places(first, second, "tokens" if same_tokenizer else "words")
    # Tokens whose places overlap belong to one group.
    found = sorted((place, side, token) for side, side_places in enumerate(places) for token, place in side_places)
    groups: list[tuple[list[int], list[int]]] = []
    end = -math.inf
    for (start, stop), side, token in found:
        if start >= end:
            groups.append(([], []))
        groups[-1][side].append(token)
        end = max(end, stop)
    pairs = tuple((tuple(sorted(a)), tuple(sorted(b))) for a, b in groups if a and b)
    aligned = [{i for pair in pairs for i in pair[side]} for side in (0, 1)]
    counts = len(first.tokens), len(second.tokens)
    one, other = (tuple(i for i in range(counts[side]) if i not in aligned[side]) for side in (0, 1))
    return Alignment(pairs, (one, other))


def _places(axis: Axis) -> Iterator[_Place]:
    """Yield each token with its interval: four units per character, and tokens without text between characters."""
    order: dict[tuple[int, bool], int] = {}
    for i, (start, stop) in enumerate(axis.spans):
        if start < stop:
            yield i, (4 * start, 4 * stop - 3)
            continue
        kind = start, axis.special[i]
        order[kind] = order.get(kind, -1) + 1
        place = 4 * start - (2 if axis.special[i] else 1) + order[kind] * 2**-20
        yield i, (place, place + 2**-20)


def _common_places(first: Axis, second: Axis, unit: str) -> tuple[list[_Place], ...]:
    """Return the tokens of units that correspond to each other in two texts, with their characters in a common text."""
    both = first, second
    units = [group_tokens(axis, unit) for axis in both]
    texts = [
        [axis.tokens[group[0]] if unit == "tokens" else axis.name(group).lower() for group in groups]
        for axis, groups in zip(both, units, strict=True)
    ]
    places: tuple[list[_Place], ...] = ([], [])
    start = 0
    for pair in align_tokens(*texts):
        a, b = (texts[side][pair[side]] for side in (0, 1))
        length = max(len(a), 1)
        for side, axis in enumerate(both):
            group = units[side][pair[side]]
            offset = start - axis.spans[group[0]][0]
            for i in group:
                whole = a != b or len(group) == 1 or axis.spans[i][0] == axis.spans[i][1]
                own = (start, start + length) if whole else (axis.spans[i][0] + offset, axis.spans[i][1] + offset)
                places[side].append((i, own))
        start += length
    return places


def align_tokens(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """Return the pairs of indices of tokens that correspond to each other in two texts, in increasing order.

    These are the tokens of a longest common subsequence, and between them the tokens of passages of equal length. Texts
    of very different long passages are compared position by position if these have the same length.

    Example:
        >>> align_tokens("the dog was happy".split(), "the old dog was sad".split())
        [(0, 0), (1, 2), (2, 3), (3, 4)]
    """
    start = _shared(first, second)
    end = _shared(first[start:][::-1], second[start:][::-1])
    a, b = (list(side[start : len(side) - end]) for side in (first, second))
    common = _common(a, b) if len(a) * len(b) <= _MAX_CELLS else []
    pairs = [(i, i) for i in range(start)]
    last = start, start
    for i, j, size in [*((i, j, 1) for i, j in common), (len(a), len(b), end)]:
        place = start + i, start + j
        if place[0] - last[0] == place[1] - last[1]:
            pairs += zip(range(last[0], place[0]), range(last[1], place[1]), strict=True)
        pairs += ((place[0] + n, place[1] + n) for n in range(size))
        last = place[0] + size, place[1] + size
    return pairs


def _shared(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the number of tokens with which both sequences begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _common(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """Return the pairs of indices of a longest common subsequence, by the bits of Hyyrö 2004.

    A bit of row j, the lowest for the last token i, is 0 if that of first[i:] and second[j:] is longer than without i.
    """
    count, places = len(first), dict[str, int]()
    for i, token in enumerate(first):
        places[token] = places.get(token, 0) | 1 << (count - 1 - i)
    rows = [(1 << count) - 1]
    for token in reversed(second):
        matches = rows[0] & places.get(token, 0)
        rows.insert(0, (rows[0] + matches | rows[0] - matches) & ((1 << count) - 1))
    found: list[tuple[int, int]] = []
    i = j = 0
    while i < count and j < len(second):
        if first[i] == second[j]:
            found.append((i, j))
            i, j = i + 1, j + 1
        elif rows[j] >> (count - 1 - i) & 1:
            i += 1
        else:
            j += 1
    return found
