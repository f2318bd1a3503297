"""Numbers in names: a number or code of a query has to be in the key, or the key is another entity.

`Rocky II` is not `Rocky III`, `Ibuprofen 800mg` is not `Ibuprofen 200mg`, and `AB-101` is not `AB-1001`, although their
spelling is similar. The words of a name are letters or a number (`name_words` separates `800mg` into `800 mg`). These
words are numbers:

    digits              800, 2.5, 10.0.0.1; zeros at the beginning have no meaning
    Roman numerals      of I, V and X, up to XXXIX; a single letter only after the first word of a query
    English words       zero to twenty, first to tenth

Words of equal number are equal: `2`, `2nd`, `II` and `two`, except `first` and `1`
(`qkv.scores.number_words`). A number in a query that is written without a space
together with one to three letters (`u1002`, `2024-Q1`, `800mg`) is a code: the key has to hold its words one after the
other. As Roman numerals and English words are also beginnings of other words, a key may instead hold a word that begins
with one and is no number (`Xi` finds `Xiaomi`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from qkv.core.typing import Bool, Int
from qkv.scores.name_words import NameWords, clean_name, reduce_words
from qkv.scores.number_words import (
    INTERCHANGEABLE,
    are_equal_numbers,
    cache_of_short,
    is_digits,
    number_form,
    number_value,
)

__all__ = ["QueryNumber", "holds_numbers", "matching_words", "query_numbers", "query_values"]

_LONGEST_LETTERS = 3
"""More letters beside a number are a word, which is compared like other words."""


@dataclass(frozen=True)
class QueryNumber:
    """A number or code in the name of a query.

    Attributes:
        words: the words that a key has to hold one after the other.
        text: the number as it is displayed.
    """

    words: tuple[str, ...]
    text: str


@cache_of_short(2**12)
def query_numbers(query: str) -> tuple[QueryNumber, ...]:
    """Return the numbers and codes of a query.

    Example:
        >>> [number.text for number in query_numbers("Rocky II, 12 Main Street, u1002, iPhone13")]
        ['II', '12', 'u1002', '13']
    """
    out: list[QueryNumber] = []
    before: list[str] = []  # the last word
    for token in query.split():
        words = clean_name(token).split()
        if any(map(is_digits, words)):
            out += _codes(token, words)
        else:
            values = query_values([*before, *words])[len(before) :]
            out += [
                QueryNumber((word,), word.upper() if set(word) <= set("ivx") else word)
                for word, value in zip(words, values, strict=True)
                if value
            ]
        before = words[-1:] or before
    return tuple(dict.fromkeys(out))


def query_values(words: list[str]) -> list[str]:
    """Return the number of each word of a query, "" for other words.

    A single letter at the beginning is an initial, and x after digits a multiplication sign.
    """
    return [
        number_value(word) if len(word) > 1 or is_digits(word) or (at and not is_digits(words[at - 1])) else ""
        for at, word in enumerate(words)
    ]


def _codes(token: str, words: list[str]) -> Iterator[QueryNumber]:
    digits = [is_digits(word) for word in words]
    in_code = [
        digits[at] or (len(word) <= _LONGEST_LETTERS and any(digits[max(at - 1, 0) : at + 2]))
        for at, word in enumerate(words)
    ]
    start = 0
    for stop in range(len(words) + 1):
        if stop < len(words) and in_code[stop]:
            continue
        if start < stop:
            text = " ".join(words[start:stop])
            if stop - start == len(words):
                text = token.lstrip("([{'\"").rstrip(".,;:!?)]}'\"")
            yield QueryNumber(tuple(words[start:stop]), text)
        start = stop + 1


def holds_numbers(
    numbers: tuple[QueryNumber, ...], words: NameWords, codes: Int[np.ndarray, " n"], counts: Int[np.ndarray, " k"]
) -> Bool[np.ndarray, " k"]:
    """Return which keys hold all numbers and codes of a query.

    Args:
        numbers: the numbers and codes, from `query_numbers`.
        words: the vocabulary.
        codes: indices of the words of the keys, one key after the other.
        counts: number of words of each key.

    Example:
        >>> words = NameWords(["Rocky 2", "Rocky III", "Rocky"])
        >>> holds_numbers(query_numbers("rocky ii"), words, words.codes, words.counts).tolist()
        [True, False, False]
    """
    out = np.ones(len(counts), bool)
    for number in numbers:
        if len(number.words) == 1:
            found = matching_words(number.words[0], words)[codes]
            out &= reduce_words(np.maximum, found.astype(np.float64), counts) > 0
        else:
            owner = np.repeat(np.arange(len(counts)), counts)
            has_words = np.zeros(len(counts), bool)
            has_words[_owners(number.words, words, codes, owner)] = True
            out &= has_words
    return out


def matching_words(word: str, words: NameWords) -> Bool[np.ndarray, " words"]:
    """Return which words of a vocabulary are the number `word` or begin with it and are no number."""
    value = words.value_index.get(number_value(word), -2)
    out = np.asarray((words.values == value) & INTERCHANGEABLE[number_form(word), words.forms])
    if not is_digits(word):
        begins = np.flatnonzero((words.first == ord(word[0])) & (words.values < 0))
        out[begins[[words.vocabulary[index].startswith(word) for index in begins.tolist()]]] = True
    return out


def _owners(
    code: tuple[str, ...], words: NameWords, codes: Int[np.ndarray, " n"], owner: Int[np.ndarray, " n"]
) -> Int[np.ndarray, " found"]:
    """Return the keys that hold the words of a code one after the other.

    Letters at the ends of a code may be several words of the key, where spaces are left out: `1080ptv`.
    """
    anchor = next(at for at, word in enumerate(code) if is_digits(word))
    at = np.flatnonzero(matching_words(code[anchor], words)[codes])
    places = [(place, word) for place, word in enumerate(code) if place != anchor]
    for place, word in places:
        other = at + (place - anchor)
        inside = (other >= 0) & (other < len(codes))
        at, other = at[inside], other[inside]
        same = owner[at] == owner[other]
        at, other = at[same], other[same]
        beside, which = np.unique(codes[other], return_inverse=True)
        step = 0 if 0 < place < len(code) - 1 else 1 if place else -1
        equal = np.array([_equal(word, words.vocabulary[index]) for index in beside.tolist()], bool)
        part = np.array([_begins(word, words.vocabulary[index], step) for index in beside.tolist()], bool)
        fits = equal[which.reshape(-1)] if len(beside) else np.zeros(0, bool)
        for index in np.flatnonzero(part[which.reshape(-1)] & ~fits).tolist() if len(beside) else ():
            fits[index] = _spelled_apart(word, words, codes, owner, int(other[index]), step)
        at = at[fits]
    return owner[at]


def _equal(word: str, other: str) -> bool:
    return are_equal_numbers(word, other) if is_digits(word) else word == other


def _begins(word: str, part: str, step: int) -> bool:
    """Return whether a word of a key is the beginning (step 1) or the end (step -1) of letters of a code."""
    if not step or is_digits(word) or len(part) >= len(word):
        return False
    return word.startswith(part) if step > 0 else word.endswith(part)


def _spelled_apart(
    word: str, words: NameWords, codes: Int[np.ndarray, " n"], owner: Int[np.ndarray, " n"], start: int, step: int
) -> bool:
    """Return whether some words of a key from `start` on, in steps of 1 or -1, are together the letters `word`."""
    text, at = "", start
    while len(text) < len(word) and 0 <= at < len(codes) and owner[at] == owner[start]:
        own = words.vocabulary[codes[at]]
        text, at = (text + own, at + step) if step > 0 else (own + text, at + step)
    return text == word
