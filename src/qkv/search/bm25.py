"""BM25 over the words of texts; which words count, `qkv.encoders.vocabulary` says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv.encoders.vocabulary import Vocabulary
from qkv.errors import MissingPackageError

__all__ = ["BM25", "Vocabulary", "missing"]


def missing(package: str) -> MissingPackageError:
    """The error that names the extra."""
    return MissingPackageError(f'search needs {package}, which is not installed. Run: pip install "qkv[search]"')


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
