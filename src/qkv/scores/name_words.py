"""Words of names without accents and signs: a vocabulary, and for each name the indices of its words.

A word consists of letters, or is a number in digits: "800mg" and "u1002" are two words each, and "2nd" is one.
The point of 2.5 and 10.0.0.1 is kept, and the comma of 1,000 removed, so that words of different numbers differ.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from typing import Self

import numpy as np

from qkv.core.progress import checkpoint
from qkv.core.typing import Float, Int
from qkv.scores.number_words import cache_of_short, is_digits, number_form, number_value

__all__ = ["NameWords", "clean_name", "reduce_words"]

_LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i", "ħ": "h"})
# Apostrophes, accents and dots join the letters of a word (O'Hare, U.S.A.); other signs separate words.
_JOINED = re.compile(r"['’‘`´]|\.(?![0-9])|(?<![0-9])\.")
_SIGNS = re.compile(r"[^\w\n.]+|_")
# The same for ASCII without digits, of which no dot is a decimal point.
_ASCII_SIGNS: dict[int, str | None] = {
    code: None if chr(code) in "'`." else " " for code in range(128) if not chr(code).isalnum() and chr(code) != "\n"
}
_NAMES_AT_ONCE = 2**11
_SPACES = re.compile(r" {2,}")
_DIGIT = re.compile("[0-9]")
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")
# In this order, for texts with digits before and after signs are removed.
_WRITTEN = (
    (re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))"), ""),
    (re.compile(r"(?<=[0-9]),(?=[0-9])"), "."),
    (re.compile(r"(?<![\w.])\.(?=[0-9])"), "0."),
)
_SEPARATED = ((re.compile(r"(?<=[0-9])(?=[^\W0-9_])(?!(?:st|nd|rd|th)\b)|(?<=[^\W0-9_])(?=[0-9])"), " "),)


@cache_of_short(2**14)
def clean_name(text: str) -> str:
    """Return a text without accents and signs, in lower case, or the text itself if nothing is left.

    Example:
        >>> clean_name("São  José-Lambert's, B.C.")
        'sao jose lamberts bc'
        >>> clean_name("The 2nd, 800mg: 1,000 x 2.5")
        'the 2nd 800 mg 1000 x 2.5'
    """
    return _clean(text.replace("\n", " ")).strip() or text


def _clean(text: str) -> str:
    out = text.casefold()
    if not out.isascii():
        parts = unicodedata.normalize("NFKD", out.translate(_LETTERS))
        out = "".join(letter for letter in parts if not unicodedata.combining(letter))
        out = _OTHER_DIGIT.sub(lambda found: str(unicodedata.decimal(found[0])), out)
    digits = _DIGIT.search(out) is not None
    if out.isascii() and not digits:
        out = out.translate(_ASCII_SIGNS)
        return _SPACES.sub(" ", out) if "  " in out else out
    for pattern, text in _WRITTEN if digits else ():
        out = pattern.sub(text, out)
    out = _SIGNS.sub(" ", _JOINED.sub("", out))
    for pattern, text in _SEPARATED if digits else ():
        out = pattern.sub(text, out)
    return _SPACES.sub(" ", out)


def _clean_all(texts: Sequence[str]) -> list[str]:
    """Return `clean_name` of each text. The texts are cleaned together, as lines, which is several times faster."""
    if not texts:
        return []
    lines = [text.replace("\n", " ") if "\n" in text else text for text in texts]
    kinds = [2 if not line.isascii() else _DIGIT.search(line) is not None for line in lines]
    cleaned = {
        kind: iter(_clean("\n".join([line for line, own in zip(lines, kinds, strict=True) if own == kind])).split("\n"))
        for kind in set(kinds)
    }
    return [next(cleaned[kind]).strip() or text for kind, text in zip(kinds, texts, strict=True)]


class NameWords:
    """The words of a sequence of names.

    Attributes:
        texts: the names without accents and signs; None where a name is None.
        vocabulary: the different words.
        lengths: number of letters of each word of the vocabulary.
        digits: whether each word of the vocabulary is a number in digits.
        values: the index of the number of each word of the vocabulary, equal for equal numbers; -1 for other words.
        value_index: the index of each number.
        forms: how each word of the vocabulary that is a number is written, from `number_form`.
        first: code point of the first letter of each word of the vocabulary.
        codes: the indices of the words of all names, one name after the other.
        counts: number of words of each name.
        letters: number of letters of the words of each name.

    Example:
        >>> words = NameWords(["San José", "San Diego"])
        >>> words.vocabulary, words.codes.tolist(), words.letters.tolist()
        (['san', 'jose', 'diego'], [0, 1, 0, 2], [7.0, 8.0])
    """

    def __init__(self, names: Sequence[str | None]) -> None:
        self.texts: list[str | None] = []
        codes: defaultdict[str, int] = defaultdict(count().__next__)
        flat, counts = array("q"), array("q")
        for start in range(0, len(names), _NAMES_AT_ONCE):
            checkpoint()
            part = names[start : start + _NAMES_AT_ONCE]
            cleaned = iter(_clean_all([name for name in part if name is not None]))
            texts = [None if name is None else next(cleaned) for name in part]
            flat.extend(map(codes.__getitem__, " ".join(filter(None, texts)).split()))
            counts.extend([len(text.split()) if text else 0 for text in texts])
            self.texts += texts
        self._set(list(codes), np.array(flat, np.intp), np.array(counts, np.intp))

    def _set(self, vocabulary: list[str], codes: Int[np.ndarray, " n"], counts: Int[np.ndarray, " k"]) -> None:
        self.vocabulary, self.codes, self.counts = vocabulary, codes, counts
        self.lengths = np.array([len(word) for word in vocabulary], np.float64)
        self.digits = np.array([is_digits(word) for word in vocabulary], bool)
        self.first = np.array([ord(word[0]) for word in vocabulary], np.uint32)
        checkpoint()
        numbers: dict[str, int] = {"": -1}
        values = [numbers.setdefault(number_value(word), len(numbers) - 1) for word in vocabulary]
        self.values, self.value_index = np.array(values, np.int64), numbers
        checkpoint()
        self.forms = np.array([number_form(word) for word in vocabulary], np.int8)
        self.starts = np.cumsum(counts, dtype=np.intp) - counts
        self.letters = self.sums(self.lengths)

    def select_words(self, indices: Int[np.ndarray, " words"]) -> Self:
        """Return a vocabulary of some words alone, without names."""
        out = object.__new__(type(self))
        out.texts, out.value_index = [], self.value_index
        out.vocabulary = [self.vocabulary[i] for i in indices.tolist()]
        out.codes = out.counts = out.starts = np.zeros(0, np.intp)
        out.letters = np.zeros(0)
        for name in ("lengths", "digits", "first", "values", "forms"):
            setattr(out, name, getattr(self, name)[indices])
        return out

    def codes_of(self, names: Int[np.ndarray, " k"]) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " k"]]:
        """Return the indices of the words of some names, one name after the other, and the number of words of each."""
        counts = self.counts[names]
        ends = np.cumsum(counts, dtype=np.intp)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self.starts[names] - (ends - counts), counts)
        return self.codes[places], counts

    def maxima(self, values: Float[np.ndarray, " words"]) -> Float[np.ndarray, " k"]:
        """Return for each name the largest value of its words, 0 for a name without words."""
        return reduce_words(np.maximum, values[self.codes], self.counts)

    def minima(self, values: Float[np.ndarray, " words"]) -> Float[np.ndarray, " k"]:
        """Return for each name the smallest value of its words, 0 for a name without words."""
        return reduce_words(np.minimum, values[self.codes], self.counts)

    def sums(self, values: Float[np.ndarray, " words"]) -> Float[np.ndarray, " k"]:
        """Return for each name the sum of the values of its words, 0 for a name without words."""
        return reduce_words(np.add, values[self.codes], self.counts)


def reduce_words(
    function: np.ufunc, values: Float[np.ndarray, " n"], counts: Int[np.ndarray, " k"]
) -> Float[np.ndarray, " k"]:
    """Reduce the values of the words of each name by a ufunc; the result is 0 for a name without words.

    Example:
        >>> reduce_words(np.add, np.array([1.0, 2.0, 4.0]), np.array([2, 0, 1])).tolist()
        [3.0, 0.0, 4.0]
    """
    out, some = np.zeros(len(counts)), counts > 0
    if some.any():
        out[some] = function.reduceat(values, (np.cumsum(counts, dtype=np.intp) - counts)[some])
    return out
