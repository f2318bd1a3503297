"""Words of a token axis, and the places at which a phrase occurs in it."""

from __future__ import annotations

from itertools import groupby

from qkv.look.views import TokenAxis

__all__ = ["find_phrase", "word_ranges"]


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

    Args:
        axis: the tokens.
        phrase: one or more words, separated by spaces.

    Example:
        >>> find_phrase(TokenAxis.from_words("the cat saw The Cat there".split()), "the cat")
        [(0, 2), (3, 5)]
    """
    wanted = phrase.casefold().split()
    if not wanted:
        return []
    ranges = word_ranges(axis)
    words = ["".join(axis.pieces[start:stop]).strip().casefold() for start, stop in ranges]
    found: list[tuple[int, int]] = []
    at = 0
    while at + len(wanted) <= len(words):
        if words[at : at + len(wanted)] == wanted:
            found.append((ranges[at][0], ranges[at + len(wanted) - 1][1]))
            at += len(wanted)
        else:
            at += 1
    text = phrase.strip().casefold()
    return found or [(i, i + 1) for i, token in enumerate(axis.tokens) if token.casefold() == text]
