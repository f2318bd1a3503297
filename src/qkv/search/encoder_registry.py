"""Create the text encoder of a search index by name.

    latent      latent semantic analysis of weighted word counts
    terms       weighted word counts, one dimension per word
    sentences   a sentence model

Vectors have unit length, so an inner product is a cosine. Each vector is a sum over the words of its text, so a
cosine is a sum over pairs of words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.progress import Progress
from qkv.encoders.encoder import TextEncoder as Encoder
from qkv.encoders.sentence_model import SentenceModel
from qkv.encoders.text_encoders import BagOfWordsEncoder, LatentEncoder
from qkv.errors import OptionError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["ENCODERS", "Encoder", "LatentEncoder", "SentenceModel", "TermEncoder", "build_encoder"]


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


ENCODERS: dict[str, type[Encoder]] = {kind.name: kind for kind in (LatentEncoder, TermEncoder, SentenceModel)}


def build_encoder(name: str, *, n_components: int | None = None, stem: str | None = None) -> Encoder:
    """Return a new text encoder for a name, such as `"latent"`, or for the folder of a sentence model.

    Args:
        name: `latent` (log-entropy weights) or `latent-tfidf`; `tfidf`, `log-entropy` or `counts` for word counts
            without a latent space; `sentences`, or the folder of a sentence model.
        n_components: number of dimensions of the latent space.
        stem: see `Vocabulary`.

    Raises:
        OptionError: the name is unknown, or `n_components` is not None for an encoder without a latent space.
    """
    weighted: dict[str, str | None] = {"tfidf": "tfidf", "log-entropy": "log-entropy", "counts": None}
    if n_components is not None and not name.startswith("latent"):
        raise OptionError(
            f"n_components must be None for encoder={name!r}, got {n_components}. Omit it, or use encoder='latent' or "
            "encoder='latent-tfidf'."
        )
    if name in ("latent", "latent-tfidf"):
        return LatentEncoder(n_components, "log-entropy" if name == "latent" else "tfidf", stem)
    if name in weighted:
        return TermEncoder(weighted[name], stem)
    if name == "sentences":
        return SentenceModel()
    from pathlib import Path

    if not Path(name).is_dir():
        known = ", ".join(("latent", "latent-tfidf", *weighted, "sentences"))
        raise OptionError(f"encoder must be one of {known}, or the folder of a sentence model, got {name!r}.")
    return SentenceModel(name)
