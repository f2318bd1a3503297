"""Word vectors as they are published: word2vec and GloVe, text and binary, gzipped or not.

    word2vec text     "rows width", then a line for each word: the word and its numbers
    word2vec binary   "rows width", then for each word: its bytes, a space, float32, perhaps a new line
    GloVe text        the lines alone

A text becomes one vector, the mean of those of its words, or their mean weighted by inverse document
frequency.

Source: Mikolov, Chen, Corrado and Dean 2013, Efficient estimation of word representations in vector space;
Pennington, Socher and Manning 2014, GloVe: Global vectors for word representation; the weighting by
frequency: Arora, Liang and Ma 2017, A simple but tough-to-beat baseline for sentence embeddings (theirs is
smoother).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from qkv.core.progress import Progress
from qkv.encoders.word_vector_files import read_word_vectors, write_word_vectors
from qkv.errors import DataError, KindError

__all__ = ["WordVectors"]

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_BATCH = 10_000


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Words and their vectors.

    A word is looked up as it stands, then in lower case, then with a capital. What is not found is left out
    of a text's mean; a text of which nothing is found is the zero vector, whose cosine with everything is 0.

    Args:
        words: each once.
        vectors: `(words, width)`, float32 or what came.
        weights: of each word in the mean of a text; None for 1. `weighted_by` learns them.

    Raises:
        DataError: a word stands twice, or the lengths differ. (In a file the first of two counts.)

    Example:
        >>> vectors = WordVectors(("king", "queen", "apple"), np.array([[1.0, 0.1], [0.9, 0.2], [0.0, 1.0]]))
        >>> vectors.nearest("king", top=2)
        [('queen', 0.992...), ('apple', 0.099...)]
        >>> vectors.encode(["The King and the Queen", "nothing of it"]).round(2)
        array([[0.95, 0.15],
               [0.  , 0.  ]], dtype=float32)
        >>> "King" in vectors, "kings" in vectors
        (True, False)
    """

    words: tuple[str, ...]
    vectors: np.ndarray
    weights: np.ndarray | None = None
    _rows: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or len(self.vectors) != len(self.words):
            raise DataError(
                f"there are {len(self.words)} words and vectors of shape {self.vectors.shape}. "
                "Give a row for each word."
            )
        rows = dict(zip(self.words, range(len(self.words)), strict=True))
        if len(rows) < len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise DataError(f"the word {twice!r} stands more than once. Keep one vector for it.")
        object.__setattr__(self, "_rows", rows)

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        *,
        format: str | None = None,
        limit: int | None = None,
        progress: Progress | None = None,
    ) -> WordVectors:
        """Read a file.

        Args:
            path: `.bin` is word2vec's binary format, anything else text, each also with `.gz`.
            format: `"word2vec"`, `"glove"` or `"binary"`, where the name and the first line do not tell.
            limit: read so many words, which are the most frequent ones in the published files.
            progress: called with what is done, how much and of how much.

        Raises:
            DataError: the file is absent, cut off, or a line or byte of it is not what the format says.
            OptionError: there is no such format.
        """
        words, vectors = read_word_vectors(Path(path), format, limit, progress)
        return WordVectors(words, vectors)

    def save(self, path: str | os.PathLike[str], *, format: str = "word2vec") -> None:
        """Write a file, whole or not at all; the weights are not in it.

        Raises:
            OptionError: there is no such format.
            DataError: a word cannot stand in it, or the file cannot be written.
        """
        write_word_vectors(Path(path), self.words, self.vectors, format)

    @property
    def width(self) -> int:
        """How many numbers a vector has."""
        return int(self.vectors.shape[1])

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return self.row(word) is not None

    def __getitem__(self, word: str) -> np.ndarray:
        """The vector of a word.

        Raises:
            KeyError: it has none.
        """
        row = self.row(word)
        if row is None:
            raise KeyError(word)
        return np.asarray(self.vectors[row])

    def row(self, word: str) -> int | None:
        """Where a word stands: as it is, in lower case, or with a capital; None where it does not."""
        for form in (word, word.lower(), word.capitalize()):
            if form in self._rows:
                return self._rows[form]
        return None

    def similarity(self, word: str, other: str) -> float:
        """The cosine of two words.

        Raises:
            KeyError: one of them has no vector.
        """
        a, b = self[word].astype(np.float64), self[other].astype(np.float64)
        lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
        return float(a @ b) / lengths if lengths else 0.0

    def nearest(self, query: str | np.ndarray, top: int = 10) -> list[tuple[str, float]]:
        """The words of the largest cosine with a word (itself left out) or with a vector.

        Raises:
            KeyError: the word has no vector.
        """
        own = self.row(query) if isinstance(query, str) else None
        vector = np.asarray(self[query] if isinstance(query, str) else query, np.float32)
        lengths = np.linalg.norm(self.vectors.astype(np.float32, copy=False), axis=1) * np.linalg.norm(vector)
        cosines = (self.vectors @ vector) / np.where(lengths > 0, lengths, 1.0)
        if own is not None:
            cosines[own] = -np.inf
        most = min(top, len(cosines) - (own is not None))
        best = np.argsort(-cosines, kind="stable")[:most]
        return [(self.words[place], float(cosines[place])) for place in best]

    def weighted_by(self, texts: Iterable[str]) -> WordVectors:
        """The same vectors, with the inverse document frequencies of these texts as weights.

            weight = log((1 + texts) / (1 + texts with the word)) + 1

        A word that stands in no text has the largest weight.
        """
        seen, count = np.zeros(len(self.words)), 0
        for text in texts:
            seen[list(set(self._found(text)))] += 1
            count += 1
        return replace(self, weights=np.log((1.0 + count) / (1.0 + seen)) + 1.0)

    def encode(self, texts: Sequence[str], *, progress: Progress | None = None) -> np.ndarray:
        """Texts as vectors `(texts, width)` float32: the weighted mean of the words that are found.

        Args:
            texts: strings; None is a text without words.
            progress: called after each batch with what is done, how much and of how much.

        Raises:
            KindError: one string instead of several, or something that is no text.
        """
        if isinstance(texts, str):
            raise KindError(f"encode was given the text {texts[:40]!r}. Give a list of texts.")
        encoded = np.zeros((len(texts), self.width), np.float32)
        for place, text in enumerate(texts):
            rows = self._found(text)
            if rows:
                weights = np.ones(len(rows)) if self.weights is None else self.weights[rows]
                encoded[place] = weights @ self.vectors[rows].astype(np.float64) / weights.sum()
            if progress is not None and ((place + 1) % _BATCH == 0 or place + 1 == len(texts)):
                progress("encoding", place + 1, len(texts))
        return encoded

    def coverage(self, texts: Sequence[str]) -> float:
        """Which share of the words of some texts has a vector; 1 where there are no words.

        Example:
            >>> WordVectors(("a",), np.ones((1, 2))).coverage(["a b", "A c"])
            0.5
        """
        total = found = 0
        for text in texts:
            total += len(_WORD.findall(_text(text)))
            found += len(self._found(text))
        return found / total if total else 1.0

    def _found(self, text: Any) -> list[int]:
        rows = (self.row(word) for word in _WORD.findall(_text(text)))
        return [row for row in rows if row is not None]


def _text(text: Any) -> str:
    if text is None:
        return ""
    if not isinstance(text, str):
        raise KindError(f"{text!r} is among the texts, and it is a {type(text).__name__}. Give strings.")
    return text
