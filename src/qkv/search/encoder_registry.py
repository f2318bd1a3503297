"""Passages become keys, and queries become what is compared with them: three ways behind one contract.

    latent      weighted counts of words in the space of few dimensions (latent semantics)
    terms       weighted counts themselves: one dimension for each word
    sentences   a sentence model

Vectors have unit length, so an inner product is a cosine. Each is a sum over the words of its text, so a
cosine is a sum over pairs of words. The first and the last are `qkv.encoders.text_encoders`, which stores share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv.core.progress import Progress
from qkv.encoders.encoder import TextEncoder as Encoder
from qkv.encoders.text_encoders import BagOfWordsEncoder, LatentEncoder, SentenceEncoder, default_rank
from qkv.errors import OptionError

__all__ = ["ENCODERS", "Encoder", "LatentEncoder", "SentenceEncoder", "Terms", "default_rank", "encoder_of"]


class Terms(BagOfWordsEncoder):
    """A dimension for each word: the cosine of weighted counts.

    Args:
        weighting: None for plain counts, `"tfidf"` or `"log-entropy"`.
        stem: see `Vocabulary`.
    """

    name = "terms"
    dense = False

    def __init__(self, weighting: str | None = "tfidf", stem: str | None = None) -> None:
        super().__init__(weighting, stem)

    def fit_encode(self, things: Sequence[str], progress: Progress | None = None) -> Any:
        """Learn vocabulary and weights."""
        return _sparse_unit(self._weighting_of(self._learn(things)))

    def encode(self, things: Sequence[str]) -> Any:
        """Sparse rows of unit length."""
        return _sparse_unit(self._weighting_of(self.vocabulary.transform(things)))

    def _weighting_of(self, counts: Any) -> Any:
        return self._weighting.apply(counts)

    def _each(self, row: Any) -> Any:
        from scipy.sparse import csr_array

        row = _sparse_unit(row)
        cells = len(row.indices)
        return csr_array((row.data, row.indices, np.arange(cells + 1)), shape=(cells, row.shape[1]))


ENCODERS: dict[str, type[Encoder]] = {kind.name: kind for kind in (LatentEncoder, Terms, SentenceEncoder)}


def encoder_of(name: str, *, rank: int | None = None, stem: str | None = None) -> Encoder:
    """An encoder by its name on the command line.

    Args:
        name: `latent` (log-entropy) or `latent-tfidf`, `tfidf`, `log-entropy` or `counts` for words without a
            latent space, `sentences`, or the folder of a sentence model.
        rank: of the latent space.
        stem: see `Vocabulary`.

    Raises:
        OptionError: no such encoder, or a rank for one that has none.
    """
    weighted: dict[str, str | None] = {"tfidf": "tfidf", "log-entropy": "log-entropy", "counts": None}
    if rank is not None and not name.startswith("latent"):
        raise OptionError(f"the encoder {name!r} has no rank. Leave --rank out, or take latent.")
    if name in ("latent", "latent-tfidf"):
        return LatentEncoder(rank, "log-entropy" if name == "latent" else "tfidf", stem)
    if name in weighted:
        return Terms(weighted[name], stem)
    if name == "sentences":
        return SentenceEncoder()
    from pathlib import Path

    if not Path(name).is_dir():
        known = ", ".join(("latent", "latent-tfidf", *weighted, "sentences"))
        raise OptionError(f"the encoder is {name!r}. It is one of {known}, or the folder of a sentence model.")
    return SentenceEncoder(name)


def _sparse_unit(rows: Any) -> Any:
    from scipy.sparse import csr_array

    rows = csr_array(rows)
    lengths = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).reshape(-1))
    rows.data = rows.data / np.repeat(np.maximum(lengths, 1e-12), np.diff(rows.indptr))
    return rows
