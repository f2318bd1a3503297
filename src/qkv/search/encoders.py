"""Passages become keys, and queries become what is compared with them: three ways behind one contract.

    latent      weighted counts of words in the space of few dimensions (latent semantics)
    terms       weighted counts themselves: one dimension for each word
    sentences   a sentence model

Vectors have unit length, so an inner product is a cosine. Each is a sum over the words of its text, so a
cosine is a sum over pairs of words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.errors import OptionError
from qkv.search.texts import Progress
from qkv.search.words import Words

__all__ = ["ENCODERS", "Encoder", "Latent", "Sentences", "Terms", "encoder_of", "usual_rank"]

Parts = tuple[list[str], Any]

FEWEST_DIMENSIONS, MOST_DIMENSIONS = 30, 300
"""Of a latent space: about so many were best in the studies of Dumais (1991) and Bradford (2008)."""


class Encoder(ABC):
    """How texts become vectors.

    Fields:
        name: what it is called on the command line.
        dense: vectors are arrays `(texts, width)`; otherwise sparse ones.
        words: how it splits texts into words, if it does; `fit` then takes texts that are split so, too.
    """

    name: str
    dense = True
    words: Words | None = None

    @abstractmethod
    def fit(self, texts: Sequence[str], progress: Progress | None = None) -> Any:
        """Learn what the texts teach; their vectors, the keys."""

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> Any:
        """Vectors of other texts, the queries."""

    @abstractmethod
    def parts(self, text: str) -> Parts:
        """The words of a text, each once, and vectors which add up to its own."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What it was made with, of JSON's kinds."""

    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """What it learned."""

    @abstractmethod
    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take back what `arrays` gave."""


class _Counted(Encoder):
    """Counts of words, weighted; a child says what becomes of them."""

    words: Words

    def __init__(self, weighting: str | None, stem: str | None = None) -> None:
        from qkv.encoders.weighting import weighting_of

        self._weighting = weighting_of(weighting)
        self.weighting = weighting
        self.words = Words(stem)

    def parts(self, text: str) -> Parts:
        """One part for each word that counts."""
        rows = self._weighting.apply(self.words.counts([text]))
        known = self._known
        vectors = self._each(rows)
        return [known[column] for column in rows.indices], vectors

    def settings(self) -> dict[str, Any]:
        """Weighting and stemmer."""
        return {"weighting": self.weighting, "stem": self.words.stem}

    def arrays(self) -> dict[str, np.ndarray]:
        """The vocabulary, and what each word weighs."""
        held = {"known": np.array(self._known, dtype=np.str_)}
        return held if self._weighting.words is None else held | {"weights": self._weighting.words}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take back vocabulary and weights."""
        self._known = [str(word) for word in arrays["known"]]
        self.words = Words(self.words.stem, self._known)
        if "weights" in arrays:
            self._weighting = replace(self._weighting, words=arrays["weights"])

    def _learn(self, texts: Sequence[str | Sequence[str]]) -> Any:
        counts = self.words.fit(texts)
        self._known = self.words.known
        self._weighting = self._weighting.fit(counts)
        return counts

    @abstractmethod
    def _each(self, row: Any) -> Any:
        """Of a weighted row, the vector of each of its cells, as they add up to that of the text."""


class Terms(_Counted):
    """A dimension for each word: the cosine of weighted counts.

    Args:
        weighting: None for plain counts, `"tfidf"` or `"log-entropy"`.
        stem: see `Words`.
    """

    name = "terms"
    dense = False

    def __init__(self, weighting: str | None = "tfidf", stem: str | None = None) -> None:
        super().__init__(weighting, stem)

    def fit(self, texts: Sequence[str], progress: Progress | None = None) -> Any:
        """Learn vocabulary and weights."""
        return _sparse_unit(self._weighting_of(self._learn(texts)))

    def encode(self, texts: Sequence[str]) -> Any:
        """Sparse rows of unit length."""
        return _sparse_unit(self._weighting_of(self.words.counts(texts)))

    def _weighting_of(self, counts: Any) -> Any:
        return self._weighting.apply(counts)

    def _each(self, row: Any) -> Any:
        from scipy.sparse import csr_array

        row = _sparse_unit(row)
        cells = len(row.indices)
        return csr_array((row.data, row.indices, np.arange(cells + 1)), shape=(cells, row.shape[1]))


class Latent(_Counted):
    """Latent semantics of weighted counts, at unit length.

    Args:
        rank: dimensions; None: half as many as there are texts, from 30 to 300.
        weighting: `"log-entropy"`, `"tfidf"` or None.
        stem: see `Words`.
    """

    name = "latent"

    def __init__(
        self, rank: int | None = None, weighting: str | None = "log-entropy", stem: str | None = None
    ) -> None:
        super().__init__(weighting, stem)
        if rank is not None and rank < 1:
            raise OptionError(f"the rank is {rank}, and a whole number from 1 is wanted.")
        self.rank = rank

    def fit(self, texts: Sequence[str], progress: Progress | None = None) -> np.ndarray:
        """Learn vocabulary, weights and space."""
        from qkv.encoders.latent import LatentSemantics

        counts = self._learn(texts)
        rank = usual_rank(len(texts)) if self.rank is None else self.rank
        if progress is not None:
            progress("latent semantics", 0, 1)
        space = LatentSemantics(rank, weighting=self.weighting, solver="randomized", random_state=0)
        self._components = space.fit(counts).components_.astype(np.float32)
        if progress is not None:
            progress("latent semantics", 1, 1)
        return self._unit(counts)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Texts folded in, at unit length; zeros where no word is known."""
        return self._unit(self.words.counts(texts))

    def settings(self) -> dict[str, Any]:
        """Rank, weighting and stemmer."""
        return {"rank": self.rank, **super().settings()}

    def arrays(self) -> dict[str, np.ndarray]:
        """Vocabulary, weights and V_kᵀ."""
        return {**super().arrays(), "components": self._components}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take back vocabulary, weights and space."""
        super().restore(arrays)
        self._components = arrays["components"]

    def _unit(self, counts: Any) -> np.ndarray:
        folded = np.asarray(self._weighting.apply(counts) @ self._components.T, np.float32)
        return np.asarray(folded / np.maximum(np.linalg.norm(folded, axis=1, keepdims=True), 1e-12))

    def _each(self, row: Any) -> np.ndarray:
        folded = row.data[:, None] * self._components.T[row.indices].astype(np.float64)
        return np.asarray(folded / max(float(np.linalg.norm(folded.sum(axis=0))), 1e-12))


class Sentences(Encoder):
    """A sentence model.

    Args:
        path: its folder; None: all-MiniLM-L6-v2, from its package.
    """

    name = "sentences"

    def __init__(self, path: str | None = None) -> None:
        from qkv.encoders.sentences import SentenceModel

        self._model = SentenceModel(path)

    def fit(self, texts: Sequence[str], progress: Progress | None = None) -> np.ndarray:
        """Nothing is learned."""
        return self._model.encode(texts, progress)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of the model."""
        return self._model.encode(texts)

    def parts(self, text: str) -> Parts:
        """One part for each word, and one for the model's own tokens."""
        return self._model.parts(text)

    def settings(self) -> dict[str, Any]:
        """The folder."""
        return {"path": self._model.path}

    def arrays(self) -> dict[str, np.ndarray]:
        """Nothing."""
        return {}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Nothing."""


ENCODERS: dict[str, type[Encoder]] = {kind.name: kind for kind in (Latent, Terms, Sentences)}


def encoder_of(name: str, *, rank: int | None = None, stem: str | None = None) -> Encoder:
    """An encoder by its name on the command line.

    Args:
        name: `latent` (log-entropy) or `latent-tfidf`, `tfidf`, `log-entropy` or `counts` for words without a
            latent space, `sentences`, or the folder of a sentence model.
        rank: of the latent space.
        stem: see `Words`.

    Raises:
        OptionError: no such encoder, or a rank for one that has none.
    """
    weighted: dict[str, str | None] = {"tfidf": "tfidf", "log-entropy": "log-entropy", "counts": None}
    if rank is not None and not name.startswith("latent"):
        raise OptionError(f"the encoder {name!r} has no rank. Leave --rank out, or take latent.")
    if name in ("latent", "latent-tfidf"):
        return Latent(rank, "log-entropy" if name == "latent" else "tfidf", stem)
    if name in weighted:
        return Terms(weighted[name], stem)
    if name == "sentences":
        return Sentences()
    from pathlib import Path

    if not Path(name).is_dir():
        known = ", ".join(("latent", "latent-tfidf", *weighted, "sentences"))
        raise OptionError(
            f"the encoder is {name!r}. It is one of {known}, or the folder of a sentence model."
        )
    return Sentences(name)


def usual_rank(texts: int) -> int:
    """Dimensions of a latent space of so many texts: half as many, from 30 to 300.

    It looks at no query. Fewer than 30 texts keep a dimension each, so that they are all told apart.

    Example:
        >>> usual_rank(12), usual_rank(100), usual_rank(100_000)
        (12, 50, 300)
    """
    return min(texts, max(FEWEST_DIMENSIONS, min(MOST_DIMENSIONS, -(-texts // 2))))


def _sparse_unit(rows: Any) -> Any:
    from scipy.sparse import csr_array

    rows = csr_array(rows)
    lengths = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).reshape(-1))
    rows.data = rows.data / np.repeat(np.maximum(lengths, 1e-12), np.diff(rows.indptr))
    return rows
