"""The words of texts: which count, how they are counted, and BM25 over them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qkv.errors import DataError, MissingPackageError, OptionError

__all__ = ["BM25", "Words", "missing"]

_STEMS = (None, "english")


def missing(package: str) -> MissingPackageError:
    """The error that names the extra."""
    return MissingPackageError(
        f'search needs {package}, which is not installed. Run: pip install "qkv[search]"'
    )


class Words:
    """A vocabulary: texts to words, and words to counts.

    Words are two or more letters or digits, in lower case, without scikit-learn's English stop words.

    Args:
        stem: None, or `"english"`: words are cut to their stems by PyStemmer (Porter 2).
        known: the vocabulary, in order; None: it is learned by `fit`.

    Raises:
        MissingPackageError: scikit-learn, or PyStemmer where it is asked for, is not installed.
        OptionError: no such stemmer.

    Example:
        >>> Words()("The shepherd found a golden ring.")
        ['shepherd', 'golden', 'ring']
    """

    def __init__(self, stem: str | None = None, known: Sequence[str] | None = None) -> None:
        try:
            from sklearn.feature_extraction.text import CountVectorizer
        except ImportError:
            raise missing("scikit-learn") from None
        if stem not in _STEMS:
            raise OptionError(f"the stemmer is {stem!r}, and 'english' is the one there is.")
        self.stem = stem
        self._split: Callable[[str], list[str]] = CountVectorizer(stop_words="english").build_analyzer()
        self._stem: Any = None
        if stem is not None:
            try:
                import Stemmer  # type: ignore[import-not-found]
            except ImportError:
                raise MissingPackageError(
                    "stems need PyStemmer, which is not installed. Run: pip install PyStemmer"
                ) from None
            self._stem = Stemmer.Stemmer(stem)
        self._counter: Any = CountVectorizer(analyzer=self, vocabulary=None if known is None else list(known))

    def __call__(self, text: str | Sequence[str]) -> Sequence[str]:
        """The words of a text that count, in order, as they are compared; what is split already stays so."""
        if not isinstance(text, str):
            return text
        words = self._split(text)
        return words if self._stem is None else list(self._stem.stemWords(words))

    def fit(self, texts: Sequence[str | Sequence[str]]) -> Any:
        """Learn the vocabulary; the counts `(texts, words)`, sparse.

        Raises:
            DataError: no text has a word that counts.
        """
        try:
            return self._counter.fit_transform(texts).astype(np.float64).tocsr()
        except ValueError:
            raise DataError(
                "the texts have no words, or only such as “the” and “of”. Give texts in words of two letters "
                "or more."
            ) from None

    def counts(self, texts: Sequence[str]) -> Any:
        """The counts `(texts, words)`, sparse; words that are not known count nothing."""
        return self._counter.transform(texts).astype(np.float64).tocsr()

    @property
    def known(self) -> list[str]:
        """The vocabulary, in the order of the columns."""
        return [str(word) for word in self._counter.get_feature_names_out()]

    def places(self, text: str) -> list[tuple[int, int, str]]:
        """Where words that count stand in a text: start, end, and the word as it is compared."""
        found = []
        for match in re.finditer(r"\w\w+", text):
            for word in self(match[0]):
                found.append((match.start(), match.end(), word))
        return found


class BM25:
    """Best match by words: what every passage scores for every word, computed once by `bm25s`.

        bm25(q, p) = Σ_w idf(w) tf(w, p) / (tf(w, p) + a (1 − b + b length(p) / mean length))

    over the words w of the query, each as often as it stands there (Lucene's form; a = 1.2, b = 0.75).

    Source: Robertson and Zaragoza (2009), The probabilistic relevance framework, section 3.4.

    Args:
        scores: `(passages, words)`, sparse by columns.
        known: the words.

    Example:
        >>> BM25.fit([["ring", "gold"], ["den"]]).score([["gold"], ["den", "den"]]).round(2)
        array([[0.28, 0.  ],
               [0.  , 0.73]], dtype=float32)
    """

    def __init__(self, scores: Any, known: Sequence[str]) -> None:
        self.scores = scores
        self.known = list(known)
        self._numbers = {word: number for number, word in enumerate(self.known)}

    @classmethod
    def fit(cls, texts: Sequence[Sequence[str]]) -> BM25:
        """Index texts that are split into words.

        Raises:
            MissingPackageError: bm25s is not installed.
        """
        try:
            import bm25s  # type: ignore[import-untyped]
        except ImportError:
            raise missing("bm25s") from None
        from scipy.sparse import csc_array

        index = bm25s.BM25(k1=1.2, b=0.75, method="lucene")
        index.index([list(text) for text in texts], show_progress=False)
        numbers = {word: number for word, number in index.vocab_dict.items() if word}
        held = index.scores
        known = sorted(numbers, key=numbers.__getitem__)
        # bm25s may keep a column for the empty word; it stands in no query.
        arrays = (np.asarray(held["data"]), np.asarray(held["indices"]), np.asarray(held["indptr"]))
        scores = csc_array(arrays, shape=(len(texts), len(arrays[2]) - 1))
        return cls(scores[:, [numbers[word] for word in known]], known)

    def score(self, queries: Sequence[Sequence[str]]) -> np.ndarray:
        """Scores `(queries, passages)` of queries in words; those not known count nothing."""
        found = np.zeros((len(queries), self.scores.shape[0]), np.float32)
        for at, words in enumerate(queries):
            numbers = [self._numbers[word] for word in words if word in self._numbers]
            if numbers:
                found[at] = np.asarray(self.scores[:, numbers].sum(axis=1)).reshape(-1)
        return found

    def parts(self, words: Sequence[str], passage: int) -> dict[str, float]:
        """What each word of a query adds to the score of one passage; words that add nothing are left out."""
        found: dict[str, float] = {}
        for word in words:
            if word in self._numbers:
                column = self._numbers[word]
                start, end = self.scores.indptr[column : column + 2]
                at = np.nonzero(self.scores.indices[start:end] == passage)[0]
                if len(at):
                    found[word] = found.get(word, 0.0) + float(self.scores.data[start + at[0]])
        return found
