"""Split texts into words without stop words, and count the words of each text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from qkv.core.checks import check_choice
from qkv.core.extras import import_optional, require_packages
from qkv.encoders.columns import compose
from qkv.encoders.word_spans import SINGLE_SIGNS, WORD_SIGNS
from qkv.errors import DataError

if TYPE_CHECKING:
    from scipy.sparse import csr_array
    from sklearn.feature_extraction.text import CountVectorizer


_TOKEN = re.compile(rf"[^\W{SINGLE_SIGNS}](?:[^\W{SINGLE_SIGNS}]+|[{WORD_SIGNS}]+)++|[{SINGLE_SIGNS}]")


def _normalized(text: str) -> str:
    return compose(text).lower()


class _Stemmer(Protocol):
    def stemWords(self, words: list[str]) -> list[str]: ...


class Vocabulary:
    """Vocabulary of known words, which splits texts into words and counts the known ones.

    Words consist of two or more letters or digits, or of one Chinese or Japanese character, in lower case and NFKC;
    scikit-learn's English stop words are left out.

    Args:
        stem: None, or `"english"` to reduce words to their stems with PyStemmer (Porter 2).
        terms: the words in the order of the columns; None if `fit_transform` will learn them.

    Raises:
        MissingPackageError: scikit-learn, or PyStemmer for stems, is not installed.
        OptionError: the stemmer is unknown.

    Example:
        >>> Vocabulary()("The shepherd found a golden ring.")
        ['shepherd', 'golden', 'ring']
        >>> Vocabulary()("İstanbul, ISTANBUL")
        ['istanbul', 'istanbul']
    """

    def __init__(self, stem: str | None = None, terms: Sequence[str] | None = None) -> None:
        require_packages("counting words requires", "search", "sklearn")
        from sklearn.feature_extraction.text import CountVectorizer

        check_choice("stem", stem, (None, "english"))
        self.stem = stem
        self._split: Callable[[str], list[str]] = CountVectorizer(
            stop_words="english", preprocessor=_normalized, token_pattern=_TOKEN.pattern
        ).build_analyzer()
        self._stem: _Stemmer | None = None
        if stem is not None:
            package = import_optional(
                "stem='english' requires PyStemmer, which is not installed. Run: pip install PyStemmer", "Stemmer"
            )
            self._stem = package.Stemmer(stem)
        self._counter: CountVectorizer = CountVectorizer(
            analyzer=self, vocabulary=None if terms is None else list(terms)
        )

    def __call__(self, text: str | Sequence[str]) -> Sequence[str]:
        """Split a text into lowercased words without stop words, reduced to stems if `stem` is set.

        A list of words is returned unchanged.
        """
        if not isinstance(text, str):
            return text
        words = self._split(text)
        return words if self._stem is None else list(self._stem.stemWords(words))

    def fit_transform(self, texts: Sequence[str | Sequence[str]]) -> csr_array:
        """Learn the vocabulary of texts, and return the word counts `(texts, words)`.

        Raises:
            DataError: the texts contain no words other than stop words.
        """
        try:
            return self._counter.fit_transform(texts).astype(np.float64).tocsr()
        except ValueError:
            raise DataError(
                "texts must contain at least one word of two or more letters or digits that is not a stop word such as "
                "'the', got none. "
                "Add texts, or use the encoder 'sentences'."
            ) from None

    def transform(self, texts: Sequence[str | Sequence[str]]) -> csr_array:
        """Return the counts of the words of the vocabulary in texts, `(texts, words)`. Other words are ignored."""
        return self._counter.transform(texts).astype(np.float64).tocsr()

    @property
    def terms(self) -> list[str]:
        """Words of the vocabulary, in the order of the columns of the word counts."""
        return [str(word) for word in self._counter.get_feature_names_out()]

    def find_words(self, text: str) -> list[tuple[int, int, str]]:
        """Return `(start, end, word)` for each word of a text: its range of characters and its normalized form."""
        return [(*match.span(), word) for match in _TOKEN.finditer(text) for word in self(match[0])]
