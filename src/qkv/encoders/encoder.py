"""Define the interface of encoders, which map texts or table rows to vectors.

The fitted state of an encoder consists of settings, which are JSON values, and of arrays.
"""

from __future__ import annotations

import io
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import numpy as np

from qkv.core.container import is_container, read_container, write_container
from qkv.core.progress import Progress
from qkv.core.typing import Float, Num, Shaped
from qkv.core.untrusted_json import parse_json
from qkv.errors import DamagedError, DataError

if TYPE_CHECKING:
    from scipy.sparse import csr_array, csr_matrix

    from qkv.encoders.vocabulary import Vocabulary


_CONTENT = "an encoder"
_REMEDY = "Fit the encoder again, or restore the file from a copy."
_Kind = TypeVar("_Kind", bound="Encoder")


def save_encoder(encoder: Encoder, path: str | PathLike[str]) -> None:
    """Write a fitted encoder to a file atomically, with checksums. `load_encoder` reads the file.

    Raises:
        DataError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> from qkv.encoders import LatentEncoder
        >>> encoder = LatentEncoder(2)
        >>> _ = encoder.fit_encode(["a golden ring", "the ring of gold", "a dark den"])
        >>> file = Path(tempfile.mkdtemp()) / "encoder"
        >>> save_encoder(encoder, file)
        >>> load_encoder(LatentEncoder, file).width
        2
    """
    settings = {"name": encoder.name, "settings": encoder.settings()}
    write_container(Path(path), _CONTENT, settings, encoder.arrays(), "the encoder")


def load_encoder(kind: type[_Kind], path: str | PathLike[str]) -> _Kind:
    """Load an encoder of a given class from a file that `save_encoder`, or qkv before version 0.2, wrote.

    Raises:
        DataError: the file cannot be read, or the model of the encoder is missing.
        DamagedError: the file is damaged, or holds no encoder of this class.

    Example:
        >>> import pathlib, tempfile
        >>> from qkv.encoders import LatentEncoder, load_encoder, save_encoder
        >>> encoder, file = LatentEncoder(2), pathlib.Path(tempfile.mkdtemp(), "encoder")
        >>> _ = encoder.fit_encode(["a golden ring", "the ring of gold", "a dark den"])
        >>> save_encoder(encoder, file)
        >>> load_encoder(LatentEncoder, file).width
        2
    """
    file = Path(path)
    if is_container(file):
        container = read_container(file, _CONTENT, _REMEDY, "the encoder")
        fields = container.fields()
        fields.text("name", (kind.name,))
        arrays = {name: container.array(name).copy() for name in container}
        return restore_encoder(kind, fields.record("settings"), arrays)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise DataError(
            f"path must be a readable file, got {str(path)!r}, but reading it failed: {error.strerror or error}. "
            "Check the path."
        ) from None
    try:
        return restore_encoder(kind, {}, read_arrays(io.BytesIO(data)))
    except DamagedError:
        raise DamagedError(
            f"path must be a file that {kind.__name__}.save wrote, got {str(path)!r}. {_REMEDY}"
        ) from None


def restore_encoder(
    kind: type[_Kind], settings: Mapping[str, object], arrays: Mapping[str, Shaped[np.ndarray, "*_"]]
) -> _Kind:
    """Restore an encoder from settings and arrays of a file.

    Raises:
        DataError: a model that the encoder needs is missing.
        DamagedError: the settings or the arrays are not those of an encoder of this class.
    """
    try:
        encoder = kind.from_state(dict(settings), arrays)
        encoder.check_state()
    except DataError:
        raise
    except Exception as error:  # whatever the constructor raises for crafted settings
        raise DamagedError(
            f"the saved encoder {kind.name!r} must have intact settings and arrays, but {type(error).__name__}: "
            f"{str(error)[:200]}. {_REMEDY}"
        ) from None
    return encoder


Settings: TypeAlias = dict[str, Any]
"""The arguments of the constructor of an encoder, as JSON values."""
Vectors: TypeAlias = "Float[np.ndarray, 'rows width'] | csr_array | csr_matrix"
"""Vectors `(n, width)`, dense or sparse."""

WordContributions: TypeAlias = "tuple[list[str], Vectors]"
"""Words of a text, and the vectors that they contribute, whose sum is the vector of the text."""


class Encoder(ABC):
    """Base class of encoders, which map texts or table rows to vectors.

    Attributes:
        name: name of the encoder in files and on the command line.
        input_kind: `"texts"` for a list of strings, or `"table"` for a table or dict of columns.

    Example:
        >>> from qkv.encoders import Encoder, LatentEncoder
        >>> encoder = LatentEncoder(2)
        >>> vectors = encoder.fit_encode(["a golden ring", "the ring of gold", "a dark den"])
        >>> isinstance(encoder, Encoder), encoder.width, encoder.encode(["golden gold"]).shape
        (True, 2, (1, 2))
    """

    name: str
    input_kind = "texts"

    @property
    def fitted(self) -> bool:
        """Whether the encoder is fitted and can encode."""
        return True

    @property
    @abstractmethod
    def width(self) -> int:
        """Number of elements of each vector, which is known after fitting."""

    def fit_encode(self, inputs: Any, progress: Progress | None = None) -> Vectors:
        """Fit the encoder to texts or rows, unless it needs no fitting, and return their vectors."""
        return self.encode(inputs, progress=progress)

    @abstractmethod
    def encode(self, inputs: Any, *, progress: Progress | None = None) -> Vectors:
        """Return the vectors of texts or rows, without fitting."""

    def settings(self) -> dict[str, object]:
        """Return the arguments with which the constructor creates this encoder, as JSON values."""
        return {}

    @abstractmethod
    def arrays(self) -> dict[str, Shaped[np.ndarray, "*_"]]:
        """Return the fitted state as a dict of NumPy arrays that can be saved without pickle.

        An encoder whose state is stored elsewhere, such as a sentence model, returns arrays that identify the state.
        """

    @classmethod
    @abstractmethod
    def from_state(cls, settings: Settings, arrays: Mapping[str, Shaped[np.ndarray, "*_"]]) -> Self:
        """Restore an encoder from the results of its methods `settings` and `arrays`.

        Raises:
            DataError: the arrays were saved by a different encoder.
        """

    def check_state(self) -> None:  # noqa: B027 -- most encoders have arrays of one shape only
        """Raise a `ValueError` if the arrays of a restored encoder do not belong together."""

    @classmethod
    def missing_resources(cls, settings: Settings) -> str:
        """Return a description of the missing files or packages that an encoder with these settings needs.

        Return "" if none are missing.
        """
        return ""


class TextEncoder(Encoder):
    """Base class of encoders that represent a text by a vector of unit length, the sum of contributions of its words.

    Attributes:
        dense: whether the vectors are dense arrays `(texts, width)`; otherwise they are sparse.
        vocabulary: splits texts into words; `fit_encode` then also accepts lists of words. None if the encoder has
            its own tokenizer.
    """

    dense = True
    vocabulary: Vocabulary | None = None

    @abstractmethod
    def word_contributions(self, text: str) -> WordContributions:
        """Return the distinct words of a text, and the vector that each word contributes.

        The sum of these vectors is the vector of the text.
        """


def pack_words(words: Sequence[str]) -> Num[np.ndarray, " bytes"]:
    """Serialize a list of words as an array of UTF-8 bytes, from which `unpack_words` restores the list.

    The array is smaller than one of fixed-width strings.

    Example:
        >>> unpack_words(pack_words(["a", "große Straße"]))
        ['a', 'große Straße']
    """
    text = json.dumps(list(words), ensure_ascii=False)
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)


def read_arrays(file: str | PathLike[str] | IO[bytes]) -> dict[str, Shaped[np.ndarray, "*_"]]:
    """Read the arrays of a file that `numpy.savez` wrote.

    Raises:
        DamagedError: the file is damaged, or contains pickled objects.
        OSError: the file cannot be read.
    """
    try:
        # NumPy leaves a damaged file open.
        stream = io.BytesIO(Path(file).read_bytes()) if isinstance(file, (str, PathLike)) else file
        with np.load(stream, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile, zlib, tokenize and numpy raise many kinds
        name = repr(os.path.basename(file)) if isinstance(file, (str, PathLike)) else "the file of arrays"
        raise DamagedError(
            f"{name} must be an intact .npz file, but {str(error)[:200] or type(error).__name__}. "
            "Restore the file from a copy."
        ) from None


def unpack_words(packed: Num[np.ndarray, " bytes"]) -> list[str]:
    """Return the list of words in an array that `pack_words` returned."""
    words = parse_json(packed.tobytes(), "the list of words")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise DamagedError("the list of words must hold texts, got other values. Restore the file from a copy.")
    return [str(word) for word in words]
