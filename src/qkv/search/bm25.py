"""Compute BM25 scores of passages for queries, both split into words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy.sparse import csc_array

from qkv.core.extras import require_packages
from qkv.core.typing import Float


class BM25:
    """BM25 index, which stores the score of each passage for each word and adds up the scores of the words of a query.

        bm25(q, p) = Σ_w idf(w) tf(w, p) / (tf(w, p) + a (1 − b + b length(p) / mean length))

    The sum runs over the words w of the query, including repetitions (Lucene's form; a = 1.2, b = 0.75). The scores
    are computed by `bm25s`.

    Source: Robertson and Zaragoza (2009), The probabilistic relevance framework, section 3.4.

    Example:
        >>> BM25.fit([["ring", "gold"], ["den"]]).score([["gold"], ["den", "den"]]).round(2)
        array([[0.28, 0.  ],
               [0.  , 0.73]], dtype=float32)
    """

    def __init__(self, scores: csc_array, vocabulary: Sequence[str]) -> None:
        self.scores = scores
        self.vocabulary = list(vocabulary)
        self._numbers = {word: number for number, word in enumerate(self.vocabulary)}

    @classmethod
    def fit(cls, texts: Sequence[Sequence[str]]) -> BM25:
        """Compute the BM25 index of passages, each a list of words."""
        require_packages("search needs", "search", "bm25s")
        import bm25s  # type: ignore[import-untyped]

        index = bm25s.BM25(k1=1.2, b=0.75, method="lucene")
        index.index([list(text) for text in texts], show_progress=False)
        numbers = {word: number for word, number in index.vocab_dict.items() if word}
        stored = index.scores
        vocabulary = sorted(numbers, key=numbers.__getitem__)
        # bm25s may have a column for the empty word, which occurs in no query.
        arrays = (np.asarray(stored["data"]), np.asarray(stored["indices"]), np.asarray(stored["indptr"]))
        scores = csc_array(arrays, shape=(len(texts), len(arrays[2]) - 1))
        return cls(scores[:, [numbers[word] for word in vocabulary]], vocabulary)

    def score(self, queries: Sequence[Sequence[str]]) -> Float[np.ndarray, "queries passages"]:
        """Return the BM25 scores `(queries, passages)` for queries split into words.

        Words that occur in no passage contribute 0.
        """
        found = np.zeros((len(queries), self.scores.shape[0]), np.float32)
        for at, words in enumerate(queries):
            counts = Counter(self._numbers[word] for word in words if word in self._numbers)
            if counts:
                found[at] = self.scores[:, list(counts)] @ np.array(list(counts.values()), np.float32)
        return found

    def contributions(self, words: Sequence[str], passage: int) -> dict[str, float]:
        """Return the contribution of each query word to the BM25 score of passage number `passage`.

        Contributions of repeated words are added up, and words that do not occur in the passage are left out.
        """
        found: dict[str, float] = {}
        for word, count in Counter(word for word in words if word in self._numbers).items():
            column = slice(*self.scores.indptr[[self._numbers[word], self._numbers[word] + 1]])
            share = self.scores.data[column][self.scores.indices[column] == passage]
            if share.any():
                found[word] = count * float(share[0])
        return found
