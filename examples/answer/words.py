"""Similarity of sentences by words: BM25 as a share of the question's weight."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv.errors import DataError, MissingPackageError

__all__ = ["Words", "stem", "words_of"]

_WORD = re.compile(r"\w+(?:['’]\w+)*")
_ASKING = {"did", "do", "does", "say", "says", "said", "tell", "told", "kind"}
"""Further stop words of questions that scikit-learn's list does not contain."""

_A, _B = 1.2, 0.75


def stem(word: str) -> str:
    """Remove a plural or third-person s, and 's.

    Source: Harman (1991), How effective is suffixing?, the "S" stemmer.

    Example:
        >>> [stem(word) for word in ("Cities", "kings", "prison's", "justice", "glass")]
        ['city', 'king', 'prison', 'justice', 'glass']
    """
    word = re.sub(r"['’]s?$", "", word.lower())
    if word.endswith("ies") and not word.endswith(("eies", "aies")):
        return word[:-3] + "y"
    if word.endswith("es") and not word.endswith(("aes", "ees", "oes")):
        return word[:-1]
    return word[:-1] if word.endswith("s") and not word.endswith(("us", "ss")) and len(word) > 2 else word


def words_of(text: str) -> list[tuple[str, str]]:
    """Return the words without stop words, as written and as compared."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    found = [(word, stem(word)) for word in _WORD.findall(text)]
    return [(word, stemmed) for word, stemmed in found if not {word.lower(), stemmed} & (ENGLISH_STOP_WORDS | _ASKING)]


class Words:
    """Words of all sentences with their inverse document frequencies.

        by_words(q, k) = Σ_w idf(w) s(w, k) / Σ_w idf(w)            over the words w of the question
        s(w, k) = (a + 1) count(w, k) / (count(w, k) + a (1 − b + b length(k) / mean length))
        idf(w) = ln(1 + (n − n(w) + ½) / (n(w) + ½))

    BM25 divided by the total weight of the question: 1 for a sentence of mean length that contains every word of
    the question once. A cosine would be highest for sentences of one word. A word that occurs in no sentence
    counts in the denominator only, so that all scores are low if the text does not mention it.

    Source: Robertson and Zaragoza (2009), The probabilistic relevance framework, section 3.4; a and b are
    their k1 = 1.2 and b = 0.75.

    Args:
        texts: the sentences.

    Raises:
        MissingPackageError: scikit-learn is not installed.
        DataError: the sentences contain only stop words.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        try:
            from sklearn.feature_extraction.text import CountVectorizer
        except ImportError:
            raise MissingPackageError(
                "scikit-learn must be installed to count words. Run: pip install scikit-learn"
            ) from None
        stems = [[stemmed for _, stemmed in words_of(text)] for text in texts]
        if not any(stems):
            raise DataError("text must contain words that are not stop words.")
        counter: Any = CountVectorizer(analyzer=lambda words: words)
        self._counts: Any = counter.fit_transform(stems).tocsc()
        self._known: dict[str, int] = counter.vocabulary_
        lengths = np.array([len(words) for words in stems], dtype=float)
        self._length = _A * (1 - _B + _B * lengths / lengths.mean())

    def compared(self, question: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Return vectors of the question and of all sentences whose inner product is the score `by_words`.

        Returns:
            query `(m,)`, keys `(sentences, m)`, and the m words; one column of zeros if there are no words.
        """
        asked = list(dict.fromkeys(stemmed for _, stemmed in words_of(question)))
        shared = [word for word in asked if word in self._known]
        if not shared:
            return np.zeros(1), np.zeros((len(self._length), 1)), []
        counts = self._counts[:, [self._known[word] for word in shared]].toarray().astype(float)
        idf = self._idf((counts > 0).sum(0))
        everything = idf.sum() + (len(asked) - len(shared)) * self._idf(0)
        return idf / everything, counts * (_A + 1) / (counts + self._length[:, None]), shared

    def _idf(self, having: Any) -> Any:
        return np.log1p((len(self._length) - having + 0.5) / (having + 0.5))
