"""Words that are numbers: digits, Roman numerals and English words, and which of them may stand for each other.

2       equals II, two and 2nd
2nd     equals II, second and 2
II      equals all others
two     equals II and 2, but not second and 2nd
second  equals II and 2nd, but not two and 2: "Murder in the First" is not "Murder 1"
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

import numpy as np

__all__ = ["INTERCHANGEABLE", "are_equal_numbers", "cache_of_short", "is_digits", "number_form", "number_value"]

_Result = TypeVar("_Result")
_LONGEST_CACHED = 255

_ONES = ("", "i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix")
_CARDINALS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_ENGLISH = (*_CARDINALS.split(), "seventeen", "eighteen", "nineteen", "twenty")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
# Larger Roman numerals consist of letters that are often initials or words: "mix", "li", "cd".
_VALUES = {
    **{"x" * tens + ones: str(10 * tens + one) for tens in range(4) for one, ones in enumerate(_ONES) if tens + one},
    **{word: str(number) for number, word in enumerate(_ENGLISH)},
    **{word: str(number) for number, word in enumerate(_ORDINALS, 1)},
}
_SUFFIX_LETTERS = "sthndr"

_DIGITS, _WITH_SUFFIX, _CARDINAL, _ORDINAL, _ROMAN = range(5)
INTERCHANGEABLE = np.ones((5, 5), bool)
"""Whether words of two forms, from `number_form`, may stand for each other if their numbers are equal."""
for _form, _other in ((_CARDINAL, _ORDINAL), (_CARDINAL, _WITH_SUFFIX), (_DIGITS, _ORDINAL)):
    INTERCHANGEABLE[_form, _other] = INTERCHANGEABLE[_other, _form] = False


def cache_of_short(count: int) -> Callable[[Callable[[str], _Result]], Callable[[str], _Result]]:
    """Cache the results of a function of a text, except for long texts, which would fill the memory."""

    def decorate(function: Callable[[str], _Result]) -> Callable[[str], _Result]:
        cached = lru_cache(count)(function)

        @wraps(function)
        def call(text: str) -> _Result:
            return cached(text) if len(text) <= _LONGEST_CACHED else function(text)

        return call

    return decorate


def is_digits(word: str) -> bool:
    """Return whether a word of a name without signs is written in digits, possibly with a suffix such as 2nd."""
    return "0" <= word[:1] <= "9"


def number_form(word: str) -> int:
    """Return how a number is written: an index of `INTERCHANGEABLE`. Words that are no numbers get any index.

    Example:
        >>> [number_form(word) for word in ("2", "2nd", "two", "second", "ii")]
        [0, 1, 2, 3, 4]
    """
    if is_digits(word):
        return _WITH_SUFFIX if word[-1] in _SUFFIX_LETTERS else _DIGITS
    return _CARDINAL if word in _ENGLISH else _ORDINAL if word in _ORDINALS else _ROMAN


def are_equal_numbers(one: str, other: str) -> bool:
    """Return whether two words are numbers that may stand for each other.

    Example:
        >>> [are_equal_numbers("2nd", word) for word in ("2", "02", "second", "two", "3rd")]
        [True, True, True, False, False]
    """
    value = number_value(one)
    return value != "" and value == number_value(other) and bool(INTERCHANGEABLE[number_form(one), number_form(other)])


@cache_of_short(2**14)
def number_value(word: str) -> str:
    """Return the number that a word of a name is, in digits without zeros at the beginning, and "" for other words.

    Example:
        >>> [number_value(word) for word in ("007", "0.50", "2nd", "xiv", "two", "third", "denver")]
        ['7', '0.50', '2', '14', '2', '3', '']
    """
    if is_digits(word):
        digits = word.rstrip(_SUFFIX_LETTERS).lstrip("0")
        return digits if "0" < digits[:1] <= "9" else f"0{digits}"
    return _VALUES.get(word, "")
