"""Similarity of names: word by word, whatever their order, with initials, abbreviations, accents and typing errors.

    logit(q, k) = 1 if q = k, 0 if k lacks a number of q, else 0.99 max(Whole(q, k), Words(q, k))
    Whole(q, k) = 1 − (1 − Spelling(q, k)) · 1.5 if both have several words, else Spelling(q, k); at least 0
    Words(q, k) = Q (0.9 + 0.1 K)
    Q = Σ_a |a| max_b w(a, b) / Σ_a |a|         the share of the query that is found in the key
    K = Σ_b |b| max_a c(a, b) / Σ_b |b|         the share of the key that the query names, at most 0.94 if
                                                query and key have different words
    K = 0.95 + 0.05 |q| / |k|                   if k begins with q, which has several words
    K = max(K, 0.2 + 0.7 |q| / |k|)             if the first word of k begins with q

a and b are the words of query and key without accents and signs, and |a| is the number of letters. The
similarity w(a, b) of two words is the largest of

    1      equal words
    s      Spelling(a, b), if it is at least 0.8 and neither word is a number
    0.94   a is the beginning of b and has two letters or more
    0.9    a is the first letter of b
    0.75   b is the first letter of a
    0.8    abbreviation: three letters or more that occur in the other word in order, the first one first

and c(a, b) = w(a, b), except that a beginning counts |a| / |b|. Single letters alone are not compared. Words that are
numbers have similarity 1 if they are equal, 0.99 if their numbers are (not `1` and `first`), and otherwise 0; see
`qkv.scores.number_words`.

Thus a word of a long key finds it, and keys that contain the query differ in K alone: a key that begins with several
words of the query has the largest K after a key of the same words. Errors count more in whole texts
of several words, which often share a word such as "County". Compare Monge and Elkan (1996), The field matching
problem, which takes the mean of max_b w(a, b) without K.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from qkv.core.progress import checkpoint
from qkv.core.typing import Bool, Float, Int, Shaped
from qkv.scores.name_numbers import holds_numbers, query_numbers, query_values
from qkv.scores.name_words import NameWords, clean_name, reduce_words
from qkv.scores.number_words import INTERCHANGEABLE, is_digits, number_form
from qkv.scores.string_functions import compare_all, string_functions
from qkv.scores.text import TextScore

__all__ = ["Names", "QueryWords"]

_DIFFERENT = 0.99
_ERRORS_OF_SEVERAL_WORDS = 1.5
_LEAST_SPELLING = 0.8
_BEGINNING = 0.94
_INITIAL = 0.9
_INITIAL_OF_KEY = 0.75
_ABBREVIATION = 0.8
_SHARE_OF_KEY = 0.1
_EQUAL_NUMBER = 0.99
_MOST_OF_OTHER_WORDS = 0.94
# K of a key that begins with the query, and how much of it depends on the share of the letters.
_BEGINS = (0.95, 0.05)
_BEGINS_WITHIN_WORD = (0.2, 0.7)
# A word of a key counts as found if it is at least as similar as this to a word of the query.
_FOUND = 0.75
_ROUNDING = 1e-9
_PAIRS_OF_WORDS = 2**17
"""The most pairs of words that are compared at once."""


@dataclass(frozen=True, eq=False)
class QueryWords:
    """The different words of a query, so that the time of a comparison does not depend on how often each occurs.

    Attributes:
        words: the words.
        values: the number of each word, see `qkv.scores.name_numbers.query_values`.
        letters: number of letters of each word, times how often it occurs.
        compared: whether the words of the query are not only single letters.
    """

    words: tuple[str, ...]
    values: tuple[str, ...]
    letters: Float[np.ndarray, " q"]
    compared: bool

    @classmethod
    def of(cls, text: str) -> QueryWords:
        """Return the words of a query without accents and signs.

        Example:
            >>> own = QueryWords.of("new york new york")
            >>> own.words, own.letters.tolist()
            (('new', 'york'), [6.0, 8.0])
        """
        own = text.split()
        values = query_values(own)
        if len(set(own)) == len(own):
            letters = np.array(list(map(len, own)), np.float64)
            return cls(tuple(own), tuple(values), letters, _are_compared(own))
        # The number of a word depends on its place.
        counts = Counter(zip(own, values, strict=True))
        letters = np.array([len(word) * count for (word, _), count in counts.items()], np.float64)
        return cls(tuple(word for word, _ in counts), tuple(value for _, value in counts), letters, _are_compared(own))

    def part(self, start: int, stop: int) -> QueryWords:
        """Return some of the words."""
        return QueryWords(self.words[start:stop], self.values[start:stop], self.letters[start:stop], self.compared)


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
        array([[0.95, 0.47, 0.25],
               [0.  , 0.  , 0.98]])
    """

    least_spelling: ClassVar[float] = _LEAST_SPELLING
    """The least similarity by spelling of two words that counts."""
    same_words: ClassVar[float] = _DIFFERENT
    """The similarity of a key that has the words of the query in another order, or with other accents and signs."""
    scorers = ("distance.JaroWinkler.normalized_similarity", "distance.OSA.normalized_similarity")

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        return 3000

    def coverage(self, query: str, keys: Sequence[str]) -> tuple[Float[np.ndarray, " k"], Bool[np.ndarray, " k"]]:
        """Return the share Q of a query that is found in each key, and whether each word of the key is found.

        Keys with the same Q contain the query equally well. Q is the similarity of the whole texts where this is
        larger. A key with more words than the query is not complete.

        Example:
            >>> share, complete = Names().coverage("san", ["san jose", "san diego", "san"])
            >>> share.tolist(), complete.tolist()
            ([1.0, 1.0, 1.0], [False, False, True])
        """
        words = NameWords(keys)
        text = clean_name(query)
        share, _, covered = self._shares_of_all(QueryWords.of(text), words)
        complete = (words.minima(covered) >= _FOUND) & (words.letters > 0) & (words.counts <= len(text.split()))
        return np.maximum(share, self.compare_whole([text], words.texts)[0]), complete

    def begins(self, text: str, keys: Sequence[str | None]) -> Float[np.ndarray, " k"]:
        """Return for each key the share of its letters that the query is, if it begins with the query, otherwise 0.

        The share is negative if the query is one word. A key does not begin with a part of one of its numbers, nor with
        single letters, nor with a query that is its first word: other keys hold this word, too.

        Args:
            text: the query without accents and signs.
            keys: the keys without accents and signs.

        Example:
            >>> Names().begins("san j", ["san jose", "new san jose"]).tolist()
            [0.625, 0.0]
            >>> Names().begins("san", ["san jose", "santiago", "west santiago"]).tolist()
            [0.0, -0.375, 0.0]
        """
        out, size, own = np.zeros(len(keys)), len(text), text.split()
        if not _are_compared(own):
            return out
        for at, key in enumerate(keys):
            if key is not None and key.startswith(text) and len(key) > size:
                within = key[size] != " "
                if within if len(own) == 1 else not (within and is_digits(own[-1])):
                    out[at] = -size / len(key) if len(own) == 1 else size / len(key)
        return out

    def combine(
        self,
        whole: Float[np.ndarray, " #k"],
        share: Float[np.ndarray, " #k"],
        of_key: Float[np.ndarray, " #k"],
        begins: Float[np.ndarray, " #k"],
    ) -> Float[np.ndarray, " #k"]:
        """Return the logits of keys that differ from the query and hold its numbers.

        Args:
            whole: Whole.
            share: Q, from `shares`.
            of_key: K, from `shares`.
            begins: the result of `begins`.
        """
        same = (share > 1 - _ROUNDING) & (of_key > 1 - _ROUNDING)
        named = np.where(same, of_key, np.minimum(of_key, _MOST_OF_OTHER_WORDS))
        within = _BEGINS_WITHIN_WORD[0] - _BEGINS_WITHIN_WORD[1] * begins
        named = np.where(begins < 0, np.maximum(named, within), named)
        named = np.where(begins > 0, _BEGINS[0] + _BEGINS[1] * begins, named)
        by_words = share * (1 - _SHARE_OF_KEY + _SHARE_OF_KEY * named)
        return np.asarray(_DIFFERENT * np.maximum(whole, by_words))

    def compare_whole(self, query: Sequence[str | None], key: Sequence[str | None]) -> Float[np.ndarray, "q k"]:
        """Return Whole for each pair of texts without accents and signs."""
        spelling = self.similarity(query, key)
        several = [np.array([text is not None and " " in text for text in side], bool) for side in (query, key)]
        return self.whole(spelling, several[0][:, None] & several[1])

    def whole(
        self, spelling: Float[np.ndarray, "*pairs"], several: Bool[np.ndarray, "*pairs"]
    ) -> Float[np.ndarray, "*pairs"]:
        """Return Whole for similarities by spelling and whether query and key have several words."""
        return np.where(several, np.maximum(1 - (1 - spelling) * _ERRORS_OF_SEVERAL_WORDS, 0), spelling)

    def least_whole(self, logit: float, several: bool) -> float:
        """Return the similarity by spelling below which a pair of whole texts has less than a logit.

        Example:
            >>> Names().least_whole(0.495, several=False)
            0.5
        """
        whole = logit / _DIFFERENT
        return 1 - (1 - whole) / _ERRORS_OF_SEVERAL_WORDS if several else whole

    def compare_words(
        self, query: QueryWords, words: NameWords
    ) -> tuple[Float[np.ndarray, "q words"], Float[np.ndarray, " words"]]:
        """Return w for the words of a query and a vocabulary, and max_a c for the vocabulary.

        Both are 0 if the query has single letters alone.
        """
        own, vocabulary, lengths = query.words, words.vocabulary, words.lengths
        if not vocabulary or not query.compared:
            return np.zeros((len(own), len(vocabulary))), np.zeros(len(vocabulary))
        distance = string_functions().distance
        spelling = self.similarity(own, vocabulary)
        begin = compare_all(own, vocabulary, scorer=distance.Prefix.similarity, dtype="int32")
        order = compare_all(own, vocabulary, scorer=distance.LCSseq.similarity, dtype="int32")
        size = np.array([len(word) for word in own])[:, None]
        shorter = np.minimum(size, lengths)
        value = np.array([words.value_index.get(each, -2) if each else -1 for each in query.values])[:, None]
        number = np.array([is_digits(word) for word in own])[:, None] | words.digits
        number |= (value != -1) & (words.values != -1)
        similar = np.where((spelling >= _LEAST_SPELLING) & (~number | (spelling == 1)), spelling, 0.0)
        forms = np.array([number_form(word) for word in own])[:, None]
        equal = number & (value == words.values) & (value >= 0) & (spelling < 1)
        similar[equal] = np.where(INTERCHANGEABLE[forms, words.forms], _EQUAL_NUMBER, 0.0)[equal]
        first = (begin > 0) & ~number
        short = np.where(first & (order == shorter) & (shorter >= 3), _ABBREVIATION, 0.0)
        short[first & (lengths == 1)] = _INITIAL_OF_KEY
        short[first & (size == 1)] = _INITIAL
        np.maximum(similar, short, out=similar)
        beginning = (begin == size) & (size > 1) & (begin < lengths) & ~number
        covered = np.where(beginning & (similar < _BEGINNING), size / lengths, similar)
        return np.where(beginning, np.maximum(similar, _BEGINNING), similar), covered.max(axis=0)

    def _shares_of_all(
        self, query: QueryWords, words: NameWords
    ) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"], Float[np.ndarray, " words"]]:
        """Return Q, K and max_a c for all names of a vocabulary, in parts of the words of the query."""
        step = max(1, _PAIRS_OF_WORDS // max(1, len(words.vocabulary)))
        if step >= len(query.words):
            similar, covered = self.compare_words(query, words)
            return *self.shares(query, similar, covered, words, words.codes, words.counts), covered
        share, covered = np.zeros(len(words.counts)), np.zeros(len(words.vocabulary))
        for start in range(0, len(query.words), step):
            checkpoint()
            part = query.part(start, start + step)
            similar, own = self.compare_words(part, words)
            np.maximum(covered, own, out=covered)
            share += self._found_letters(part, similar, words.codes, words.counts)
        return share / max(query.letters.sum(), 1), self._named(covered, words, words.codes, words.counts), covered

    def shares(
        self,
        query: QueryWords,
        similar: Float[np.ndarray, "q words"],
        covered: Float[np.ndarray, " words"],
        words: NameWords,
        codes: Int[np.ndarray, " n"],
        counts: Int[np.ndarray, " k"],
    ) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
        """Return Q and K for keys.

        Args:
            query: the words of the query.
            similar: w for these words and the vocabulary, from `compare_words`.
            covered: the largest c for each word of the vocabulary, from `compare_words`.
            words: the vocabulary.
            codes: indices of the words of the keys, one key after the other.
            counts: number of words of each key.
        """
        share = self._found_letters(query, similar, codes, counts) / max(query.letters.sum(), 1)
        return share, self._named(covered, words, codes, counts)

    def _found_letters(
        self,
        query: QueryWords,
        similar: Float[np.ndarray, "q words"],
        codes: Int[np.ndarray, " n"],
        counts: Int[np.ndarray, " k"],
    ) -> Float[np.ndarray, " k"]:
        found = np.zeros(len(counts))
        for letters, row in zip(query.letters, similar, strict=True):
            found += letters * reduce_words(np.maximum, row[codes], counts)
        return found

    def _named(
        self,
        covered: Float[np.ndarray, " words"],
        words: NameWords,
        codes: Int[np.ndarray, " n"],
        counts: Int[np.ndarray, " k"],
    ) -> Float[np.ndarray, " k"]:
        letters = reduce_words(np.add, words.lengths[codes], counts)
        return np.asarray(reduce_words(np.add, (covered * words.lengths)[codes], counts) / np.maximum(letters, 1))

    def _similarities(self, query: Shaped[np.ndarray, " q"], key: Shaped[np.ndarray, " k"]) -> Float[np.ndarray, "q k"]:
        words = NameWords(key.tolist())
        cleaned = [None if text is None else clean_name(text) for text in query.tolist()]
        out = self.compare_whole(cleaned, words.texts)
        for row, text, asked in zip(out, cleaned, query.tolist(), strict=True):
            if text is not None:
                shares = self._shares_of_all(QueryWords.of(text), words)[:2]
                has_numbers = holds_numbers(query_numbers(asked), words, words.codes, words.counts)
                row[:] = np.where(has_numbers, self.combine(row, *shares, self.begins(text, words.texts)), 0.0)
        none = np.array(None, dtype=object)
        equal = np.equal.outer(query, key) & np.not_equal(query, none)[:, None]
        return np.where(equal, 1.0, out)

    def similarity(
        self, query: Sequence[str | None], key: Sequence[str | None], least: float = 0.0
    ) -> Float[np.ndarray, "q k"]:
        """Return the similarity by spelling of each pair of texts, and any lower number where it is below `least`."""
        distance = string_functions().distance
        winkler = compare_all(query, key, scorer=distance.JaroWinkler.normalized_similarity, dtype="float64")
        alignment, cutoff = distance.OSA.normalized_similarity, None
        if least > 0 and winkler.size:
            cutoff = min(max(2 * least - float(winkler.max()), 0.0), 1.0)
        edits = compare_all(query, key, scorer=alignment, cutoff=cutoff, dtype="float64")
        return np.asarray((winkler + edits) / 2)


def _are_compared(words: Sequence[str]) -> bool:
    """Return whether the words of a query are not only single letters."""
    return any(len(word) > 1 or is_digits(word) for word in words)
