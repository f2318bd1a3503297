"""Encoders by name or as objects, and as bytes that a store keeps: NumPy arrays, nothing that runs when read.

"latent", "latent:100"     latent semantics of the texts, of that rank          `Latent`
"sentences", or a folder   a sentence model, kept by its folder                 `Sentences`
a file of word vectors     the mean of the vectors of the words, kept whole     `Worded`
"table"                    rows with columns of any kind                        `Tabled`
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
    from qkv.encoders.table_vectors import TableVectors
    from qkv.encoders.word_vectors import WordVectors

__all__ = ["ENCODER_KINDS", "TableEncoder", "WordVectorEncoder", "as_encoder", "pack", "unpack"]


class WordVectorEncoder(Encoder):
    """Word vectors: a text is the mean of those of its words.

    Args:
        vectors: `WordVectors`; None: `restore` brings them.
    """

    name = "words"
    trainable = False

    def __init__(self, vectors: WordVectors | None = None) -> None:
        self._vectors = vectors

    def fit_encode(self, things: Sequence[str], progress: Progress | None = None) -> np.ndarray:
        """Nothing is learned."""
        return self._held.encode(things, progress=progress)

    def encode(self, things: Sequence[str]) -> np.ndarray:
        """Means; zeros where no word is known."""
        return self._held.encode(things)

    def settings(self) -> dict[str, Any]:
        """None."""
        return {}

    def arrays(self) -> dict[str, np.ndarray]:
        """Words, vectors and weights."""
        held = {"words": pack_words(self._held.words), "vectors": self._held.vectors}
        return held if self._held.weights is None else held | {"weights": self._held.weights}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take back words, vectors and weights."""
        from qkv.encoders.word_vectors import WordVectors

        made = WordVectors(tuple(unpack_words(arrays["words"])), arrays["vectors"])
        self._vectors = replace(made, weights=arrays["weights"]) if "weights" in arrays else made

    @property
    def fitted(self) -> bool:
        """Whether there are vectors."""
        return self._vectors is not None

    @property
    def width(self) -> int:
        """Of the word vectors."""
        return self._held.width

    @property
    def _held(self) -> WordVectors:
        assert self._vectors is not None, "restore comes first"
        return self._vectors

    def __str__(self) -> str:
        return f"the mean of word vectors ({len(self._held):,} words), {self.width} numbers"


class TableEncoder(Encoder):
    """Rows with columns of any kind.

    Args:
        vectors: `TableVectors`, fitted or not; None: new ones.
    """

    name = "table"
    input_kind = "table"

    def __init__(self, vectors: TableVectors | None = None) -> None:
        from qkv.encoders.table_vectors import TableVectors

        self._vectors = TableVectors() if vectors is None else vectors

    def fit_encode(self, things: Any, progress: Progress | None = None) -> np.ndarray:
        """Learn places, scales, categories and words."""
        return self._vectors.fit(things).encode(things)

    def encode(self, things: Any) -> np.ndarray:
        """The columns side by side."""
        return self._vectors.encode(things)

    def settings(self) -> dict[str, Any]:
        """None: they are among the arrays."""
        return {}

    def arrays(self) -> dict[str, np.ndarray]:
        """What was fitted."""
        return self._vectors.arrays()

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take back what was fitted."""
        self._vectors = type(self._vectors).of_arrays(arrays)

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that were fitted."""
        return tuple(column.name for column in self._vectors.fitted)

    @property
    def fitted(self) -> bool:
        """Whether there are columns."""
        return bool(self._vectors.fitted)

    @property
    def width(self) -> int:
        """Of all columns together."""
        return self._vectors.width

    def __str__(self) -> str:
        return f"table vectors of {', '.join(self.columns)}, {self.width} numbers"


ENCODER_KINDS: dict[str, type[Encoder]] = {
    kind.name: kind for kind in (LatentEncoder, SentenceEncoder, WordVectorEncoder, TableEncoder)
}


def as_encoder(given: Any, progress: Progress | None = None) -> Encoder:
    """The encoder that a name, a path or an object means; see the module.

    Args:
        given: a name, the folder of a sentence model, a file of word vectors; or a `Latent`, a
            `SentenceModel`, `WordVectors`, `TableVectors`, or a `LatentSemantics` whose rank and weighting
            are meant. What is fitted already stays as it is.
        progress: called while a file is read.

    Raises:
        OptionError: there is none of that name, or the object has not learned from texts.
        KindError: the object is no encoder.
        DataError: the folder or the file does not hold what is wanted.

    Example:
        >>> encoder_of("latent:2").settings()
        {'rank': 2, 'weighting': 'log-entropy', 'stem': None}
    """
    if isinstance(given, str | os.PathLike):
        return _named(os.fspath(given), progress)
    if isinstance(given, Encoder) and type(given) in ENCODER_KINDS.values():
        return given
    kind = type(given).__name__ if type(given).__module__.startswith("qkv.encoders.") else ""
    if kind == "SentenceModel":
        return SentenceEncoder(model=given)
    if kind == "WordVectors":
        return WordVectorEncoder(given)
    if kind == "TableVectors":
        return TableEncoder(given)
    if kind == "LatentSemantics":
        if hasattr(given, "components_"):
            raise OptionError(
                "these latent semantics were fitted to counts, and do not know which word a column is. Give "
                f"'latent:{given.n_components}', or qkv.encoders.Latent fitted to texts."
            )
        return LatentEncoder(given.n_components, given.weighting)
    raise KindError(
        f"the encoder is a {type(given).__name__}. Give a name, a path, or a Latent, SentenceModel, "
        "WordVectors or TableVectors of qkv.encoders."
    )


def _named(text: str, progress: Progress | None) -> Encoder:
    name, _, number = text.partition(":")
    weightings = {"latent": "log-entropy", "latent-tfidf": "tfidf"}
    if name in weightings:
        if number and not (number.isdigit() and int(number)):
            raise OptionError(f"the encoder is {text!r}, and its rank a whole number from 1, as in latent:100.")
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
        f"the encoder is {text!r}. It is one of latent, latent:RANK, latent-tfidf, sentences, table, the "
        "folder of a sentence model, or a file of word vectors."
    )


def pack(encoder: Encoder) -> bytes:
    """The arrays of an encoder as one file."""
    stream = io.BytesIO()
    np.savez(stream, **encoder.arrays())  # type: ignore[arg-type]
    return stream.getvalue()


def unpack(name: str, settings: dict[str, Any], data: bytes) -> Encoder:
    """The encoder again.

    Raises:
        DataError: what it needs beside its arrays is not there, or is another.
    """
    if lacking := ENCODER_KINDS[name].missing_resources(settings):
        raise DataError(f"the vectors were made by {lacking}, which is not there. Put it back.")
    made = ENCODER_KINDS[name](**settings)
    made.restore(read_arrays(io.BytesIO(data)))
    return made
