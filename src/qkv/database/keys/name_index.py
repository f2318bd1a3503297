"""Index of names, which finds the rows with the largest similarity `Names` to a query without comparing all of them.

The result is that of comparing all rows. The words of the vocabulary that resemble a word of the query are found
first, then the names that hold one of them, whose similarity by words is exact: the words of the query in ascending
order of the number of these names, until the rows found so far are more similar than a name can be that holds the
remaining words alone. The similarity of whole texts is bounded by the number of letters that query and name share, m:

    Jaro ≤ (m/|q| + m/|k| + 1) / 3      alignment ≤ m / max(|q|, |k|)      Winkler's bonus by the common prefix

Whole texts are compared only where the bound exceeds the similarity of the last of the rows found so far. This is the
idea of MaxScore: Turtle and Flood (1995), Query evaluation: strategies and optimizations.
"""

from __future__ import annotations

import numpy as np

from qkv.core.progress import checkpoint
from qkv.core.typing import Bool, Float, Int, Num
from qkv.scores.name_numbers import holds_numbers, matching_words, query_numbers
from qkv.scores.name_words import NameWords, clean_name
from qkv.scores.names import Names, QueryWords
from qkv.scores.number_words import is_digits, number_value

# Letters, digits, space, and eleven classes of other characters.
_CLASSES = 48
_FIRST_OTHER = 37
_PREFIX = 4
_LONGEST = 255
_ROUNDING = 1e-9
_SHARE_OF_BEGINNING = 0.89
# Number of texts whose letters are counted at once, in 1.5 MiB.
_TEXTS_AT_ONCE = 2**12
# Names are compared in descending order of their bounds, in groups of at least this many.
_FIRST_NAMES = 500
_MOST_NAMES = 3000
# As many names that hold the numbers of a query are compared at once.
_FEW_NAMES = 1000
# For a smaller share of all names, bounds for these alone take less time than for all.
_SHARE_OF_FEW = 1 / 8
_ALL = slice(None)


class _Letters:
    """The numbers of letters of each of many texts by class of letters, which bound their similarity to a query."""

    def __init__(self, texts: list[str]) -> None:
        sizes = np.array([len(text) for text in texts], np.intp)
        self.lengths = np.minimum(sizes, _LONGEST).astype(np.uint8)
        self.counts = np.zeros((_CLASSES, len(texts)), np.uint8)
        self.prefix = np.full((_PREFIX, len(texts)), _CLASSES, np.uint8)
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            some = slice(start, start + _TEXTS_AT_ONCE)
            size, flat = sizes[some], _classes("".join(texts[some]))
            places = flat * np.intp(len(size)) + np.repeat(np.arange(len(size)), size)
            found = np.bincount(places, minlength=_CLASSES * len(size)).reshape(_CLASSES, -1)
            self.counts[:, some] = np.minimum(found, _LONGEST)
            starts = np.cumsum(size, dtype=np.intp) - size
            for place in range(_PREFIX):
                long = size > place
                self.prefix[place, some][long] = flat[starts[long] + place]

    def shared(self, text: str, some: Int[np.ndarray, " n"] | slice = _ALL) -> Num[np.ndarray, " n"]:
        """Return a bound of the number of letters that each text shares with a query of at most 255 letters."""
        out = np.zeros(len(self.lengths[some]), np.uint8)
        for letter, count in zip(*np.unique(_classes(text), return_counts=True), strict=True):
            out += np.minimum(self.counts[letter][some], np.uint8(count))
        return out

    def common_prefix(self, text: str, some: Int[np.ndarray, " n"] | slice = _ALL) -> Num[np.ndarray, " n"]:
        """Return a bound of the length of the prefix, at most 4, that each text shares with a query."""
        out = np.zeros(len(self.lengths[some]), np.uint8)
        equal: np.ndarray | None = None
        for letter, row in zip(_classes(text[:_PREFIX]).tolist(), self.prefix, strict=False):
            equal = row[some] == letter if equal is None else equal & (row[some] == letter)
            out += equal
        return out

    def spelling(
        self, text: str, shared: Num[np.ndarray, " n"], some: Int[np.ndarray, " n"] | slice = _ALL
    ) -> Float[np.ndarray, " n"]:
        """Return a bound of the similarity `Spelling` of each text to a query."""
        m, length = np.ogrid[0 : len(text) + 1, 0 : _LONGEST + 1]
        length, own = np.maximum(length, 1), max(len(text), 1)
        jaro = np.where(m > 0, (m / own + m / length + 1) / 3, 0.0)
        edits = m / np.maximum(length, own)
        prefix = np.arange(_PREFIX + 1)[:, None, None]
        winkler = np.where(jaro > 0.7, jaro + 0.1 * prefix * np.maximum(1 - jaro, 0), jaro)
        table = np.minimum((winkler + edits) / 2 + _ROUNDING, 1.0).astype(np.float32).ravel()
        places = self.common_prefix(text, some).astype(np.uint32)
        places *= np.uint32(len(text) + 1)
        places += shared
        places *= np.uint32(_LONGEST + 1)
        places += self.lengths[some]
        return table[places] + np.float32(1e-6)


class NameIndex:
    """Index of the different names of a column.

    Args:
        numbers: the different names with their numbers, which count from 0.
        rows: the number of the name of each row; -1 for a missing name.
    """

    def __init__(self, numbers: dict[str, int], rows: Int[np.ndarray, " rows"]) -> None:
        self.numbers, self.rows, self.names = numbers, rows, np.array(list(numbers), dtype=object)
        self.words = NameWords(list(numbers))
        texts = [text or "" for text in self.words.texts]
        self.texts = np.array(texts, dtype=object)
        self.several = np.array([" " in text for text in texts], bool)
        self.letters, self.word_letters = _Letters(texts), _Letters(self.words.vocabulary)
        # The names that hold each word, and the rows that hold each name.
        owner = np.repeat(np.arange(len(self.texts)), self.words.counts)
        self._names = owner[np.argsort(self.words.codes, kind="stable")]
        self.ends = np.cumsum(np.bincount(self.words.codes, minlength=len(self.words.vocabulary)))
        self._row_order = np.argsort(self.rows, kind="stable")
        self._row_ends = np.cumsum(np.bincount(self.rows + 1, minlength=len(numbers) + 1))

    def rows_of(self, names: Int[np.ndarray, " n"]) -> Int[np.ndarray, " rows"]:
        """Return the rows that hold some names, in ascending order."""
        spans = [self._row_order[self._row_ends[name] : self._row_ends[name + 1]] for name in names.tolist()]
        return np.sort(np.concatenate(spans)) if spans else np.zeros(0, np.int64)

    def compare_words(
        self, score: Names, query: QueryWords
    ) -> tuple[Float[np.ndarray, "q words"], Float[np.ndarray, " words"]]:
        """Return the results of `Names.compare_words` for the whole vocabulary."""
        own, words, letters = query.words, self.words, self.word_letters
        similar, covered = np.zeros((len(own), len(words.vocabulary))), np.zeros(len(words.vocabulary))
        near = np.zeros(len(words.vocabulary), bool)
        for word in set(own):
            checkpoint()
            shared = letters.shared(word)
            begins = letters.prefix[0] == _classes(word[0])[0]
            near |= letters.spelling(word, shared) >= score.least_spelling
            near |= begins & (shared == np.minimum(letters.lengths, min(len(word), _LONGEST)))
            near |= words.values == words.value_index.get(number_value(word) or " ", -2)
        some = np.flatnonzero(near)
        similar[:, some], covered[some] = score.compare_words(query, words.select_words(some))
        return similar, covered

    def holding(self, query: str) -> Bool[np.ndarray, " names"] | None:
        """Return the names that hold all numbers of a query; None if it has no number."""
        numbers = query_numbers(query)
        if not numbers:
            return None
        words, some = self.words, np.zeros(0, np.int64)
        for place, number in enumerate(numbers):
            word = next((word for word in number.words if is_digits(word)), number.words[0])
            own = self.holders(np.flatnonzero(matching_words(word, words)))
            some = np.intersect1d(some, own, assume_unique=True) if place else own
        out = np.zeros(len(self.texts), bool)
        out[some[holds_numbers(numbers, words, *words.codes_of(some))]] = True
        return out

    def holders(self, words: Int[np.ndarray, " words"]) -> Int[np.ndarray, " n"]:
        """Return the names that hold one of some words, in ascending order."""
        starts = np.concatenate([[0], self.ends])
        mark = np.zeros(len(self.texts), bool)
        for word in words.tolist():
            mark[self._names[starts[word] : starts[word + 1]]] = True
        return np.flatnonzero(mark)


class PresentNames:
    """The names of some rows of a table, in an index.

    Args:
        index: the index of the names of all rows.
        present: `(rows,)`, True for the rows that take part.
    """

    def __init__(self, index: NameIndex, present: Bool[np.ndarray, " rows"]) -> None:
        self.index, self.present = index, present & (index.rows >= 0)
        self.repeats = np.bincount(index.rows[self.present], minlength=len(index.texts))
        self.some = self.repeats > 0

    def best_rows(self, query: str, score: Names, count: int, min_similarity: float = 0.0) -> Int[np.ndarray, " n"]:
        """Return the `count` rows with the largest logits and all rows that equal the query, in ascending order.

        Ties go to the lowest row. If there are no more names than `count`, all rows are returned. If no logit reaches
        `min_similarity`, the row with the largest logit is returned alone.

        Example:
            >>> index = NameIndex({"denver intl": 0, "dover afb": 1, "denver": 2}, np.array([0, 1, 2, -1]))
            >>> present = PresentNames(index, np.array([True, True, False, True]))
            >>> present.best_rows("denver", Names(), 1)
            array([0])
        """
        index, text = self.index, clean_name(query)
        if self.some.sum() <= count or not text:
            return np.flatnonzero(self.present)
        with_words = index.holding(query)
        some = self.some if with_words is None else self.some & with_words
        own = index.numbers.get(query)
        if len(text) > _LONGEST or (with_words is not None and np.count_nonzero(some) <= _FEW_NAMES):
            few = np.flatnonzero(some)
            least = np.zeros(len(index.texts))
            least[few] = score(np.array([query], object), index.names[few])[0]
            count, limit = 1 if least.max() < min_similarity else count, 0.0
        else:
            least = self._by_words(text, score, some, count)
            if own is not None and self.some[own]:
                least[own] = 1.0
            logit = self._whole_bounds(text, score, some)
            if least.max() < min_similarity and self._compare_whole(text, score, least, logit, 1) < min_similarity:
                count = 1
            limit = self._compare_whole(text, score, least, logit, count)
        rows = index.rows_of(np.flatnonzero((least >= limit) & (least > 0) & self.some))
        rows = rows[self.present[rows]]
        if len(rows) < count:
            # Names without similarity, in the order of the rows.
            zero = self.present & (least[np.maximum(index.rows, 0)] == 0)
            rows = np.sort(np.concatenate([rows, np.flatnonzero(zero)[: count - len(rows)]]))
        order = np.argsort(-least[index.rows[rows]], kind="stable")
        repeats = 0 if own is None else int(self.repeats[own])
        return np.sort(rows[order[: max(count, repeats)]])

    def _by_words(
        self, text: str, score: Names, some: Bool[np.ndarray, " names"], count: int
    ) -> Float[np.ndarray, " names"]:
        """Return the logits by words of the names in `some` that can be among the best `count` rows, 0 for others."""
        index, query = self.index, QueryWords.of(text)
        similar, covered = index.compare_words(score, query)
        # No name that holds no word like some words of the query exceeds the sum of the weights of the others.
        weights = score.same_words * query.letters * similar.max(axis=1, initial=0.0) / max(query.letters.sum(), 1)
        spans = np.diff(index.ends, prepend=0)
        order = np.argsort([spans[row > 0].sum() for row in similar], kind="stable")
        least, limit, seen = np.zeros(len(index.texts)), 0.0, np.zeros(len(index.texts), bool)
        for place, word in enumerate(order.tolist()):
            if limit > weights[order[place:]].sum() + _ROUNDING:
                break
            checkpoint()
            touched = index.holders(np.flatnonzero(similar[word]))
            touched = touched[some[touched] & ~seen[touched]]
            seen[touched] = True
            share, of_key = score.shares(query, similar, covered, index.words, *index.words.codes_of(touched))
            begins = np.zeros(len(touched))
            # The words of a beginning are found, the last one at least as an initial.
            likely = np.flatnonzero(share > _SHARE_OF_BEGINNING)
            begins[likely] = score.begins(text, index.texts[touched[likely]].tolist())
            least[touched] = score.combine(np.zeros(len(touched)), share, of_key, begins)
            limit = self._last(least, np.flatnonzero(least > limit), count, limit)
        return least

    def _whole_bounds(self, text: str, score: Names, some: Bool[np.ndarray, " names"]) -> Float[np.ndarray, " names"]:
        """Return a bound of the logit by whole texts of each name, −1 for names that are not in `some`."""
        index = self.index
        few = np.count_nonzero(some) <= _SHARE_OF_FEW * len(some)
        names = np.flatnonzero(some) if few else _ALL
        bound = index.letters.spelling(text, index.letters.shared(text, names), names)
        if " " in text:
            bound = score.whole(bound, index.several[names])
        none = np.zeros(1, np.float32)
        bound = score.combine(bound + np.float32(1e-6), none, none, none)
        if few:
            logit = np.full(len(some), -1, bound.dtype)
            logit[names] = bound
            return logit
        bound[~some] = -1
        return bound

    def _compare_whole(
        self,
        text: str,
        score: Names,
        least: Float[np.ndarray, " names"],
        logit: Float[np.ndarray, " names"],
        count: int,
    ) -> float:
        """Raise the logits `least` of the names that whole texts can raise into the best `count` rows.

        The bound `logit` of a name that is compared becomes −1.

        Returns:
            The largest number that at least `count` rows reach.
        """
        index, none = self.index, np.zeros(1, np.float32)
        logit[logit <= least] = -1
        leaders = np.flatnonzero(least > 0)
        limit = self._last(least, leaders, count, 0.0)
        leaders = leaders[least[leaders] > limit]
        # At first the names with the largest bounds, which raise the limit for the others.
        for edge in (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.2, 0.0):
            ahead = np.flatnonzero(logit >= max(limit, edge))
            last = edge <= limit
            if len(ahead) < _FIRST_NAMES and not last:
                continue
            if len(ahead) > _MOST_NAMES:
                ahead = ahead[np.argsort(-logit[ahead], kind="stable")]
            for start in range(0, len(ahead), _MOST_NAMES):
                checkpoint()
                some = ahead[start : start + _MOST_NAMES]
                some = some[logit[some] >= limit]
                least_spelling = score.least_whole(limit, " " in text and bool(index.several[some].all()))
                whole = score.similarity([text], index.texts[some].tolist(), least_spelling - _ROUNDING)[0]
                if " " in text:
                    whole = score.whole(whole, index.several[some])
                least[some] = np.maximum(least[some], score.combine(whole, none, none, none))
                logit[some] = -1
                leaders = np.union1d(leaders, some[least[some] > limit])
                limit = self._last(least, leaders, count, limit)
                leaders = leaders[least[leaders] > limit]
            if last:
                break
        return limit

    def _last(self, least: Float[np.ndarray, " names"], some: Int[np.ndarray, " n"], count: int, floor: float) -> float:
        """Return the `count`-th largest number of `least` over the rows of some names; `floor` if there are fewer."""
        if len(some) > count:
            some = some[np.argpartition(-least[some], count - 1)[:count]]
        order = some[np.argsort(-least[some])]
        reached = np.searchsorted(np.cumsum(self.repeats[order]), count)
        return float(least[order[reached]]) if reached < len(order) else floor


def _classes(text: str) -> Num[np.ndarray, " n"]:
    """Return the class of each letter of a text."""
    if text.isascii():
        return _ASCII[np.frombuffer(text.encode(), np.uint8)]
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return np.where(points < 128, _ASCII[np.minimum(points, 127)], _FIRST_OTHER + points % 11).astype(np.uint8)


def _ascii_classes() -> Num[np.ndarray, " letters"]:
    out = (_FIRST_OTHER + np.arange(128) % 11).astype(np.uint8)
    out[ord("a") : ord("z") + 1] = np.arange(26)
    out[ord("0") : ord("9") + 1] = 26 + np.arange(10)
    out[ord(" ")] = 36
    return out


_ASCII = _ascii_classes()
