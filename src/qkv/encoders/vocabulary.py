"""The words of texts: which count, and how they are counted."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qkv.errors import DataError, MissingPackageError, OptionError

__all__ = ["Vocabulary"]

_STEMS = (None, "english")


class Vocabulary:
    """A vocabulary: texts to words, and words to counts.

    Words are two or more letters or digits, in lower case, without scikit-learn's English stop words.

    Args:
        stem: None, or `"english"`: words are cut to their stems by PyStemmer (Porter 2).
        terms: the vocabulary, in order; None: it is learned by `fit`.

    Raises:
        MissingPackageError: scikit-learn, or PyStemmer where it is asked for, is not installed.
        OptionError: no such stemmer.

    Example:
        >>> Words()("The shepherd found a golden ring.")
        ['shepherd', 'golden', 'ring']
    """

    def __init__(self, stem: str | None = None, terms: Sequence[str] | None = None) -> None:
        try:
            from sklearn.feature_extraction.text import CountVectorizer
        except ImportError:
            raise MissingPackageError(
                'the words of texts are counted by scikit-learn, which is not installed. Run: pip install "qkv[search]"'
            ) from None
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
        self._counter: Any = CountVectorizer(analyzer=self, vocabulary=None if terms is None else list(terms))

    def __call__(self, text: str | Sequence[str]) -> Sequence[str]:
        """The words of a text that count, in order, as they are compared; what is split already stays so."""
        if not isinstance(text, str):
            return text
        words = self._split(text)
        return words if self._stem is None else list(self._stem.stemWords(words))

    def fit_transform(self, texts: Sequence[str | Sequence[str]]) -> Any:
        """Learn the vocabulary; the counts `(texts, words)`, sparse.

        Raises:
            DataError: no text has a word that counts.
        """
        try:
            return self._counter.fit_transform(texts).astype(np.float64).tocsr()
        except ValueError:
            raise DataError(
                "the texts have no words, or only such as “the” and “of”. Give texts in words of two letters or more."
            ) from None

    def transform(self, texts: Sequence[str]) -> Any:
        """The counts `(texts, words)`, sparse; words that are not known count nothing."""
        return self._counter.transform(texts).astype(np.float64).tocsr()

    @property
    def terms(self) -> list[str]:
        """The vocabulary, in the order of the columns."""
        return [str(word) for word in self._counter.get_feature_names_out()]

    def find_words(self, text: str) -> list[tuple[int, int, str]]:
        """Where words that count stand in a text: start, end, and the word as it is compared."""
        found = []
        for match in re.finditer(r"\w\w+", text):
            for word in self(match[0]):
                found.append((match.start(), match.end(), word))
        return found
