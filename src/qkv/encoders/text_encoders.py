"""Encode texts by their weighted word counts, optionally projected into a latent space.

Vectors have unit length, so an inner product is a cosine. Each vector is a sum over the words of its text, so a cosine
is a sum over pairs of words.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np

from qkv.core.checks import check_integers
from qkv.core.progress import Progress, report
from qkv.core.typing import Float, Shaped
from qkv.encoders.encoder import Settings, TextEncoder, WordContributions, pack_words, unpack_words
from qkv.encoders.vocabulary import Vocabulary

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from qkv.encoders.encoder import Vectors


_MIN_DIMENSIONS, _MAX_DIMENSIONS = 30, 300
"""Limits of the default number of components; Dumais (1991) and Bradford (2008) found numbers of this order best."""
_MAX_EXACT_CELLS = 500 * 2000
"""Up to this number of cells, an exact decomposition takes less than about half a second."""


class BagOfWordsEncoder(TextEncoder):
    """Base class of text encoders that compute vectors from weighted word counts."""

    vocabulary: Vocabulary

    def __init__(self, weighting: str | None = "tfidf", stem: str | None = None) -> None:
        from qkv.encoders.weighting import get_weighting

        self._weighting = get_weighting(weighting)
        self.weighting = weighting
        self.vocabulary = Vocabulary(stem)
        self._terms: list[str] = []

    def word_contributions(self, text: str) -> WordContributions:
        rows: csr_array = self._weighting.apply(self.vocabulary.transform([text]))
        vectors = self._word_vectors(rows)
        return [self._terms[column] for column in rows.indices], vectors

    def settings(self) -> dict[str, object]:
        """Return the arguments `weighting` and `stem` of the constructor."""
        return {"weighting": self.weighting, "stem": self.vocabulary.stem}

    def arrays(self) -> dict[str, Shaped[np.ndarray, "*_"]]:
        """Return the vocabulary, and the global weight of each word unless `weighting` is None, as arrays."""
        arrays = {"known": pack_words(self._terms)}
        return arrays if self._weighting.words is None else arrays | {"weights": self._weighting.words}

    @classmethod
    def from_state(cls, settings: Settings, arrays: Mapping[str, Shaped[np.ndarray, "*_"]]) -> Self:
        encoder = cls(**settings)
        encoder._terms = unpack_words(arrays["known"])
        encoder.vocabulary = Vocabulary(encoder.vocabulary.stem, encoder._terms)
        encoder._weighting = replace(encoder._weighting, words=arrays.get("weights"))
        return encoder

    def check_state(self) -> None:
        """Raise a `ValueError` if the arrays are not those of the words of the vocabulary."""
        weights = self._weighting.words
        if len(set(self._terms)) < len(self._terms) or (weights is not None and weights.shape != (len(self._terms),)):
            raise ValueError(f"{len(self._terms):,} words must be distinct and have a weight each")

    def encode(self, inputs: Sequence[str], *, progress: Progress | None = None) -> Vectors:
        """Return the vectors of texts, `(texts, width)`. A text without words of the vocabulary is encoded as zeros."""
        return self._unit_vectors(self.vocabulary.transform(inputs))

    @property
    def fitted(self) -> bool:
        """Whether the vocabulary has been learned."""
        return bool(self._terms)

    @property
    def width(self) -> int:
        """Number of elements of each vector: the number of words in the vocabulary."""
        return len(self._terms)

    def _learn(self, texts: Sequence[str | Sequence[str]]) -> csr_array:
        counts = self.vocabulary.fit_transform(texts)
        self._terms = self.vocabulary.terms
        self._weighting = self._weighting.fit(counts)
        return counts

    @abstractmethod
    def _unit_vectors(self, counts: csr_array) -> Vectors:
        """Return the vectors of texts, `(texts, width)`, computed from their word counts `(texts, words)`."""

    @abstractmethod
    def _word_vectors(self, row: csr_array) -> Vectors:
        """Return the vector that each word with a non-zero weight contributes to the vector of a text.

        `row` holds the word weights of the text, `(1, words)`. The sum of the vectors is the vector of the text.
        """


class LatentEncoder(BagOfWordsEncoder):
    """Text encoder that projects weighted word counts into a latent space and normalizes them to unit length.

    Args:
        n_components: number of dimensions; None for the value of `default_components`.
        weighting: `"log-entropy"`, `"tfidf"` or None.
        stem: stemmer, as in `Vocabulary`.

    Raises:
        OptionError: `n_components` is less than 1, or the weighting is unknown.

    Example:
        >>> texts = ["a golden ring", "the ring of gold", "a dark den", "shadows in the den"]
        >>> latent = LatentEncoder(2)
        >>> keys = latent.fit_encode(texts)
        >>> int((latent.encode(["golden"]) @ keys.T).argmax()), float(latent.encode(["of the"]).max())
        (0, 0.0)
    """

    name = "latent"

    def __init__(
        self, n_components: int | None = None, weighting: str | None = "log-entropy", stem: str | None = None
    ) -> None:
        super().__init__(weighting, stem)
        check_integers(n_components=n_components)
        self.n_components = n_components
        self._components = np.zeros((0, 0), np.float32)

    def fit_encode(
        self, inputs: Sequence[str | Sequence[str]], progress: Progress | None = None
    ) -> Float[np.ndarray, "texts width"]:
        """Learn the vocabulary, the word weights and the latent space from texts, and return the texts' vectors."""
        from qkv.encoders.latent_semantics import LatentSemantics

        counts = self._learn(inputs)
        count = default_components(len(inputs)) if self.n_components is None else self.n_components
        report(progress, "latent semantics", 0, 1)
        solver = "exact" if counts.shape[0] * counts.shape[1] <= _MAX_EXACT_CELLS else "randomized"
        space = LatentSemantics(count, weighting=self.weighting, solver=solver, random_state=0)
        self._components = space.fit(counts).components_.astype(np.float32)
        report(progress, "latent semantics", 1, 1)
        return self._unit_vectors(counts)

    def fit_projections(
        self, inputs: Sequence[str | Sequence[str]], queries: Sequence[str | Sequence[str]]
    ) -> tuple[Float[np.ndarray, "texts width"], Float[np.ndarray, "queries width"]]:
        """Fit the encoder to texts, and return the projections of the texts and of queries before normalization.

        The first k columns are the projections of an encoder with k components, up to the solver's random error.
        """
        self.fit_encode(inputs)
        rows = (self._weighting.apply(self.vocabulary.transform(texts)) for texts in (inputs, queries))
        texts, asked = (np.asarray(row @ self._components.T, np.float32) for row in rows)
        return texts, asked

    def settings(self) -> dict[str, object]:
        return {"n_components": self.n_components, **super().settings()}

    def arrays(self) -> dict[str, Shaped[np.ndarray, "*_"]]:
        """Return the vocabulary, the global weights of words and the components V_kᵀ `(width, words)` as arrays."""
        return {**super().arrays(), "components": self._components}

    @classmethod
    def from_state(cls, settings: Settings, arrays: Mapping[str, Shaped[np.ndarray, "*_"]]) -> Self:
        if "rank" in settings:  # as older versions saved it
            settings["n_components"] = settings.pop("rank")
        encoder = super().from_state(settings, arrays)
        encoder._components = arrays["components"]
        return encoder

    def check_state(self) -> None:
        super().check_state()
        if self._components.ndim != 2 or self._components.shape[1] != len(self._terms):
            raise ValueError(f"components must have shape (width, {len(self._terms)}), got {self._components.shape}")

    @property
    def width(self) -> int:
        """Number of dimensions of the latent space."""
        return len(self._components)

    def __str__(self) -> str:
        return f"latent semantics ({self.weighting or 'counts'}), {self.width} numbers"

    def _unit_vectors(self, counts: csr_array) -> Float[np.ndarray, "texts width"]:
        weighted: csr_array = self._weighting.apply(counts)
        folded = np.asarray(weighted @ self._components.T, np.float32)
        norms = np.linalg.norm(folded, axis=1, keepdims=True)
        # The vector of a text orthogonal to the latent space consists of rounding errors. Scaled to unit length, it
        # would match texts at random, so it is set to zero; as a query, it has no match.
        rounding = 1e-6 * np.sqrt(np.reshape(weighted.multiply(weighted).sum(axis=1), (-1, 1)))
        return np.asarray(np.where(norms > rounding, folded / np.maximum(norms, 1e-12), 0.0), np.float32)

    def _word_vectors(self, row: csr_array) -> Float[np.ndarray, "words width"]:
        folded = row.data[:, None] * self._components.T[row.indices].astype(np.float64)
        return np.asarray(folded / max(float(np.linalg.norm(folded.sum(axis=0))), 1e-12))


class TermEncoder(BagOfWordsEncoder):
    """Text encoder that normalizes weighted word counts to unit length, with one dimension per word."""

    name = "terms"
    dense = False

    def fit_encode(self, inputs: Sequence[str], progress: Progress | None = None) -> csr_array:
        """Learn the vocabulary and the weights, and return the vectors of the texts."""
        return self._unit_vectors(self._learn(inputs))

    def __str__(self) -> str:
        return f"word counts ({self.weighting or 'not weighted'}), {self.width:,} numbers"

    def _unit_vectors(self, counts: csr_array) -> csr_array:
        from sklearn.preprocessing import normalize

        return normalize(self._weighting.apply(counts))

    def _word_vectors(self, row: csr_array) -> csr_array:
        from scipy.sparse import csr_array
        from sklearn.preprocessing import normalize

        row = normalize(row)
        cells = len(row.indices)
        return csr_array((row.data, row.indices, np.arange(cells + 1)), shape=(cells, row.shape[1]))


def default_components(texts: int) -> int:
    """Return the default number of components: three fifths of the number of texts, at least 30, but at most 300.

    For fewer than 30 texts, it is the number of texts.

    Example:
        >>> default_components(12), default_components(100), default_components(100_000)
        (12, 60, 300)
    """
    return min(texts, max(_MIN_DIMENSIONS, min(_MAX_DIMENSIONS, -(-3 * texts // 5))))
