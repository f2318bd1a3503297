"""Words that are numbers: digits, Roman numerals and English words."""

from __future__ import annotations

from functools import lru_cache

__all__ = ["is_digits", "is_english", "number_value"]

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


def is_digits(word: str) -> bool:
    """Return whether a word of a name without signs is written in digits."""
    return "0" <= word[:1] <= "9"


def is_english(word: str) -> bool:
    """Return whether a word is an English number word, such as two or second."""
    return word in _ENGLISH or word in _ORDINALS


@lru_cache(2**14)
def number_value(word: str) -> str:
    """Return the number that a word of a name is, in digits without zeros at the beginning, and "" for other words.

    Example:
        >>> [number_value(word) for word in ("007", "0.50", "xiv", "two", "third", "denver")]
        ['7', '0.50', '14', '2', '3', '']
    """
    if is_digits(word):
        digits = word.lstrip("0")
        return digits if "0" < digits[:1] <= "9" else f"0{digits}"
    return _VALUES.get(word, "")
