"""Encoders by name or as objects, and their serialized form in stores: NumPy arrays, without executable code.

"latent", "latent:100"     latent semantics of texts, optionally of a given rank             `LatentEncoder`
"sentences", or a folder   a sentence model; the store keeps the path of its folder          `SentenceEncoder`
a file of word vectors     the mean of the vectors of the words; the store keeps a copy      `WordVectorEncoder`
"table"                    table rows with columns of any kind                               `TableEncoder`
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.core.progress import Progress
from qkv.encoders.encoder import Encoder, pack_words, read_arrays, unpack_words
from qkv.encoders.text_encoders import LatentEncoder, SentenceEncoder
from qkv.errors import DataError, KindError, OptionError

if TYPE_CHECKING:
    from qkv.encoders.table_cells import Table
    from qkv.encoders.table_vectors import TableVectors
    from qkv.encoders.word_vectors import WordVectors

__all__ = ["ENCODER_KINDS", "TableEncoder", "WordVectorEncoder", "as_encoder", "pack", "unpack"]


class WordVectorEncoder(Encoder):
    """Encodes a text as the mean of the vectors of its words.

    Args:
        vectors: the word vectors; None if `restore` will provide them.
    """

    name = "words"
    trainable = False

    def __init__(self, vectors: WordVectors | None = None) -> None:
        self._optional_vectors = vectors

    def fit_encode(self, things: Sequence[str], progress: Progress | None = None) -> np.ndarray:
        """Return the vectors of texts; nothing is learned."""
        return self._vectors.encode(things, progress=progress)

    def encode(self, things: Sequence[str]) -> np.ndarray:
        """Return the mean word vector of each text; zeros if it contains no known word."""
        return self._vectors.encode(things)

    def settings(self) -> dict[str, Any]:
        """Return no settings."""
        return {}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the words, their vectors and their weights."""
        arrays = {"words": pack_words(self._vectors.words), "vectors": self._vectors.vectors}
        return arrays if self._vectors.weights is None else arrays | {"weights": self._vectors.weights}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Restore words, vectors and weights."""
        from qkv.encoders.word_vectors import WordVectors

        vectors = WordVectors(tuple(unpack_words(arrays["words"])), arrays["vectors"])
        self._optional_vectors = replace(vectors, weights=arrays["weights"]) if "weights" in arrays else vectors

    @property
    def fitted(self) -> bool:
        """Whether word vectors are present."""
        return self._optional_vectors is not None

    @property
    def width(self) -> int:
        """Width of the word vectors."""
        return self._vectors.width

    @property
    def _vectors(self) -> WordVectors:
        assert self._optional_vectors is not None, "restore must be called first"
        return self._optional_vectors

    def __str__(self) -> str:
        return f"the mean of word vectors ({len(self._vectors):,} words), {self.width} numbers"


class TableEncoder(Encoder):
    """Encodes table rows with columns of any kind.

    Args:
        vectors: `TableVectors`, fitted or not; None for new ones.
    """

    name = "table"
    input_kind = "table"

    def __init__(self, vectors: TableVectors | None = None) -> None:
        from qkv.encoders.table_vectors import TableVectors

        self._vectors = TableVectors() if vectors is None else vectors

    def fit_encode(self, things: Table, progress: Progress | None = None) -> np.ndarray:
        """Learn means, scales, categories and words of a table, and return the vectors of its rows."""
        return self._vectors.fit(things).encode(things)

    def encode(self, things: Table) -> np.ndarray:
        """Return the vectors of rows: the encoded columns side by side."""
        return self._vectors.encode(things)

    def settings(self) -> dict[str, Any]:
        """Return no settings; they are part of the arrays."""
        return {}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the fitted columns."""
        return self._vectors.arrays()

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Restore the fitted columns."""
        self._vectors = type(self._vectors).from_arrays(arrays)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the fitted columns."""
        return tuple(column.name for column in self._vectors.fitted)

    @property
    def fitted(self) -> bool:
        """Whether columns have been fitted."""
        return bool(self._vectors.fitted)

    @property
    def width(self) -> int:
        """Total width of all columns."""
        return self._vectors.width

    def __str__(self) -> str:
        return f"table vectors of {', '.join(self.columns)}, {self.width} numbers"


ENCODER_KINDS: dict[str, type[Encoder]] = {
    kind.name: kind for kind in (LatentEncoder, SentenceEncoder, WordVectorEncoder, TableEncoder)
}
"""The classes of encoders that stores can keep, by name."""


def as_encoder(encoder: object, progress: Progress | None = None) -> Encoder:
    """Return the encoder given by a name, a path or an object.

    Args:
        encoder: a name, the folder of a sentence model, a file of word vectors, a `LatentEncoder`,
            `SentenceModel`, `WordVectors` or `TableVectors`, or a `LatentSemantics` whose rank and weighting
            are used. Fitted encoders stay fitted.
        progress: called while a file is read.

    Raises:
        OptionError: there is no encoder of that name, or the object was not fitted to texts.
        KindError: the object is not an encoder.
        DataError: the folder or file does not hold a model or word vectors.

    Example:
        >>> as_encoder("latent:2").settings()
        {'rank': 2, 'weighting': 'log-entropy', 'stem': None}
    """
    if isinstance(encoder, str | os.PathLike):
        return _encoder_by_name(os.fspath(encoder), progress)
    if isinstance(encoder, Encoder) and type(encoder) in ENCODER_KINDS.values():
        return encoder
    # By name, so that the optional packages of the other encoders are not imported.
    kind = type(encoder).__name__ if type(encoder).__module__.startswith("qkv.encoders.") else ""
    given: Any = encoder
    if kind == "SentenceModel":
        return SentenceEncoder(model=given)
    if kind == "WordVectors":
        return WordVectorEncoder(given)
    if kind == "TableVectors":
        return TableEncoder(given)
    if kind == "LatentSemantics":
        if hasattr(given, "components_"):
            raise OptionError(
                "encoder must be fitted to texts, got a LatentSemantics fitted to counts, whose columns have no "
                f"words. Pass 'latent:{given.n_components}', or a qkv.encoders.LatentEncoder fitted to texts."
            )
        return LatentEncoder(given.n_components, given.weighting)
    raise KindError(
        "encoder must be a name, a path, or a LatentEncoder, SentenceModel, WordVectors or TableVectors of "
        f"qkv.encoders, got a {type(encoder).__name__}."
    )


def _encoder_by_name(text: str, progress: Progress | None) -> Encoder:
    name, _, number = text.partition(":")
    weightings = {"latent": "log-entropy", "latent-tfidf": "tfidf"}
    if name in weightings:
        if number and not (number.isdigit() and int(number)):
            raise OptionError(f"the rank of a latent encoder must be an integer of at least 1, got {text!r}.")
        return LatentEncoder(int(number) if number else None, weightings[name])
    if text == "sentences":
        return SentenceEncoder()
    if text == "table":
        return TableEncoder()
    if Path(text).is_dir():
        return SentenceEncoder(text)
    if Path(text).is_file():
        from qkv.encoders.word_vectors import WordVectors

        return WordVectorEncoder(WordVectors.load(text, progress=progress))
    raise OptionError(
        "encoder must be one of latent, latent:RANK, latent-tfidf, sentences, table, the folder of a sentence model or "
        f"a file of word vectors, got {text!r}."
    )


def pack(encoder: Encoder) -> bytes:
    """Serialize the arrays of an encoder."""
    stream = io.BytesIO()
    np.savez(stream, **encoder.arrays())  # type: ignore[arg-type]
    return stream.getvalue()


def unpack(name: str, settings: dict[str, Any], data: bytes) -> Encoder:
    """Restore the encoder that `pack` serialized.

    Raises:
        DataError: a model that the encoder needs is missing, or was replaced by another.
    """
    if missing := ENCODER_KINDS[name].missing_resources(settings):
        raise DataError(f"{missing} must be present to read vectors that it encoded. Restore it.")
    encoder = ENCODER_KINDS[name](**settings)
    encoder.restore(read_arrays(io.BytesIO(data)))
    return encoder
