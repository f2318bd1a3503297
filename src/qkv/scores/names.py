"""Similarity of names: word by word, whatever their order, with initials, abbreviations, accents and typing errors.

    logit(q, k) = 1 if q = k, else 0.99 max(Spelling(q, k), Words(q, k))
    Words(q, k) = Q (0.9 + 0.1 K)
    Q = Σ_a |a| max_b w(a, b) / Σ_a |a|         the share of the query that is found in the key
    K = Σ_b |b| max_a c(a, b) / Σ_b |b|         the share of the key that the query names

a and b are the words of query and key without accents and punctuation, and |a| is the number of letters. The
similarity w(a, b) of two words is the largest of

    1      equal words
    s      Spelling(a, b), if it is at least 0.7 and neither word is a number
    0.92   a is the beginning of b and has two letters or more
    0.9    a is the first letter of b
    0.75   b is the first letter of a
    0.8    abbreviation: three letters or more that occur in the other word in order, the first one first

and c(a, b) = w(a, b), except that a beginning counts |a| / |b|. Single letters alone are not compared.

Thus a word of a long key finds it, and keys that contain the query differ in K alone. Compare Monge and Elkan (1996),
The field matching problem, which takes the mean of max_b w(a, b) without K.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np

from qkv.core.typing import Bool, Float, Int, Shaped
from qkv.scores.text import TextScore

__all__ = ["Names"]

_DIFFERENT = 0.99
_LEAST_SPELLING = 0.7
_BEGINNING = 0.92
_INITIAL = 0.9
_INITIAL_OF_KEY = 0.75
_ABBREVIATION = 0.8
_SHARE_OF_KEY = 0.1
# A word of a key counts as found if it is at least as similar as this to a word of the query.
_FOUND = 0.75
_LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i", "ħ": "h"})
# Apostrophes, accents and dots join the letters of a word (O'Hare, U.S.A.); other signs separate words.
_JOINED = re.compile(r"['’‘`.´]")
_SIGNS = re.compile(r"[^\w]+|_")


@dataclass(frozen=True, eq=False)
class Names(TextScore):
    """Similarity of names by words and spelling, the default score for text keys of a database.

    Shapes:
        query `(*batch, q)`, key `(*batch, k)`, arrays of strings -> logits `(*batch, q, k)` in [0, 1]

    Raises:
        KindError: query and key are numbers.

    Example:
        >>> import numpy as np
        >>> keys = np.array(["denver intl", "dover afb", "john f. smith"], object)
        >>> Names()(np.array(["denver", "smith, john"], object), keys).round(2)
        array([[0.95, 0.53, 0.  ],
               [0.4 , 0.17, 0.98]])
    """

    scorers = ("distance.JaroWinkler.normalized_similarity", "distance.OSA.normalized_similarity")

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        """Return an estimate of 3000 operations."""
        return 3000

    def coverage(self, query: str, keys: Sequence[str]) -> tuple[Float[np.ndarray, " k"], Bool[np.ndarray, " k"]]:
        """Return the share Q of a query that is found in each key, and whether each word of the key is found.

        Keys with the same Q contain the query equally well. Q is that of `Spelling` where this is larger.

        Example:
            >>> share, complete = Names().coverage("san", ["san jose", "san diego", "san"])
            >>> share.tolist(), complete.tolist()
            ([1.0, 1.0, 1.0], [False, False, True])
        """
        words = _Words(keys)
        share, _, complete = self._by_words(_clean(query), words)
        return np.maximum(share, self._spelling([_clean(query)], words.texts)[0]), complete

    def _similarities(self, query: Shaped[np.ndarray, " q"], key: Shaped[np.ndarray, " k"]) -> Float[np.ndarray, "q k"]:
        words = _Words(key.tolist())
        cleaned = [None if text is None else _clean(text) for text in query.tolist()]
        out = self._spelling(cleaned, words.texts)
        for row, text in zip(out, cleaned, strict=True):
            if text is not None:
                share, of_key, _ = self._by_words(text, words)
                np.maximum(row, share * (1 - _SHARE_OF_KEY + _SHARE_OF_KEY * of_key), out=row)
        none = np.array(None, dtype=object)
        equal = np.equal.outer(query, key) & np.not_equal(query, none)[:, None]
        return np.where(equal, 1.0, _DIFFERENT * out)

    def _spelling(self, query: Sequence[str | None], key: Sequence[str | None]) -> Float[np.ndarray, "q k"]:
        from rapidfuzz import distance, process

        winkler = process.cdist(query, key, scorer=distance.JaroWinkler.normalized_similarity, dtype="float64")
        edits = process.cdist(query, key, scorer=distance.OSA.normalized_similarity, dtype="float64")
        return np.asarray((winkler + edits) / 2)

    def _by_words(
        self, text: str, words: _Words
    ) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"], Bool[np.ndarray, " k"]]:
        """Return Q and K of a cleaned query for each key, and whether all words of the key are found."""
        own = text.split()
        if not words.vocabulary or max(map(len, own), default=0) < 2:
            nothing = np.zeros(len(words.texts))
            return nothing, nothing, nothing > 0
        similar, covered = self._compare_words(own, words)
        lengths = np.array([len(word) for word in own], np.float64)
        share = np.zeros(len(words.texts))
        for length, row in zip(lengths, similar, strict=True):
            share += length * words.maxima(row)
        best = covered.max(axis=0)
        of_key = words.sums(best * words.lengths) / np.maximum(words.letters, 1)
        complete = (words.minima(best) >= _FOUND) & (words.letters > 0)
        return share / lengths.sum(), of_key, complete

    def _compare_words(
        self, own: Sequence[str], words: _Words
    ) -> tuple[Float[np.ndarray, "q words"], Float[np.ndarray, "q words"]]:
        """Return w and c for the words of a query and the vocabulary of the keys."""
        from rapidfuzz import distance, process

        vocabulary, lengths = words.vocabulary, words.lengths
        spelling = self._spelling(own, vocabulary)
        begin = process.cdist(own, vocabulary, scorer=distance.Prefix.similarity, dtype="int32")
        order = process.cdist(own, vocabulary, scorer=distance.LCSseq.similarity, dtype="int32")
        size = np.array([len(word) for word in own])[:, None]
        shorter = np.minimum(size, lengths)
        number = np.array([word.isdigit() for word in own])[:, None] | words.numbers
        similar = np.where((spelling >= _LEAST_SPELLING) & (~number | (spelling == 1)), spelling, 0.0)
        first = (begin > 0) & ~number
        short = np.where(first & (order == shorter) & (shorter >= 3), _ABBREVIATION, 0.0)
        short[first & (lengths == 1)] = _INITIAL_OF_KEY
        short[first & (size == 1)] = _INITIAL
        np.maximum(similar, short, out=similar)
        beginning = (begin == size) & (size > 1) & (begin < lengths)
        covered = np.where(beginning & (similar < _BEGINNING), size / lengths, similar)
        return np.where(beginning, np.maximum(similar, _BEGINNING), similar), covered


class _Words:
    """The words of an array of keys: a vocabulary, and for each key the indices of its words.

    Attributes:
        texts: the cleaned keys; None where a key is None.
        vocabulary: the different words.
        lengths: number of letters of each word of the vocabulary.
        numbers: whether each word of the vocabulary is a number.
        letters: number of letters of the words of each key.
    """

    def __init__(self, keys: Sequence[str | None]) -> None:
        self.texts = [None if key is None else _clean(key) for key in keys]
        split = [(text or "").split() for text in self.texts]
        codes: dict[str, int] = {}
        flat = [codes.setdefault(word, len(codes)) for word in chain.from_iterable(split)]
        self.vocabulary = list(codes)
        self.lengths = np.array([len(word) for word in codes], np.float64)
        self.numbers = np.array([word.isdigit() for word in codes], bool)
        self._codes: Int[np.ndarray, " n"] = np.array(flat, np.int64)
        counts = np.array([len(words) for words in split], np.int64)
        self._some = counts > 0
        self._starts = (np.cumsum(counts) - counts)[self._some]
        self.letters = self.sums(self.lengths)

    def maxima(self, values: Float[np.ndarray, " words"]) -> Float[np.ndarray, " k"]:
        """Return for each key the largest value of its words, 0 for a key without words."""
        return self._reduce(np.maximum, values)

    def minima(self, values: Float[np.ndarray, " words"]) -> Float[np.ndarray, " k"]:
        """Return for each key the smallest value of its words, 0 for a key without words."""
        return self._reduce(np.minimum, values)

    def sums(self, values: Float[np.ndarray, " words"]) -> Float[np.ndarray, " k"]:
        """Return for each key the sum of the values of its words."""
        return self._reduce(np.add, values)

    def _reduce(self, function: np.ufunc, values: Float[np.ndarray, " words"]) -> Float[np.ndarray, " k"]:
        out = np.zeros(len(self._some))
        if len(self._starts):
            out[self._some] = function.reduceat(values[self._codes], self._starts)
        return out


@lru_cache(2**18)
def _clean(text: str) -> str:
    """Return a text without accents and punctuation, in lower case, or the text itself if nothing is left."""
    out = text.casefold()
    if not out.isascii():
        parts = unicodedata.normalize("NFKD", out.translate(_LETTERS))
        out = "".join(letter for letter in parts if not unicodedata.combining(letter))
    return " ".join(_SIGNS.sub(" ", _JOINED.sub("", out)).split()) or text
