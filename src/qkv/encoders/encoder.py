"""The interface of encoders: they map texts or rows to vectors, and their fitted state is settings and arrays."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import IO, TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from qkv.core.progress import Progress

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from qkv.encoders.vocabulary import Vocabulary

    Vectors: TypeAlias = np.ndarray | csr_array
    """Vectors `(n, width)`, dense or sparse."""

__all__ = ["Encoder", "TextEncoder", "WordContributions", "pack_words", "read_arrays", "unpack_words"]

WordContributions: TypeAlias = "tuple[list[str], Vectors]"
"""The words of a text, and for each the vector that it contributes; they add up to the vector of the text."""


class Encoder(ABC):
    """Maps texts or table rows to vectors.

    Attributes:
        name: name in files and on the command line.
        input_kind: `"texts"` for a list of strings, or `"table"` for a table or dict of columns.
    """

    name: str
    input_kind = "texts"

    @property
    def fitted(self) -> bool:
        """Whether the encoder is ready to encode."""
        return True

    @property
    @abstractmethod
    def width(self) -> int:
        """Width of the vectors, once fitted."""

    @abstractmethod
    def fit_encode(self, inputs: Any, progress: Progress | None = None) -> Vectors:
        """Learn from texts or rows, and return their vectors, the keys."""

    @abstractmethod
    def encode(self, inputs: Any) -> Vectors:
        """Return the vectors of other texts or rows, the queries."""

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the constructor, as JSON values."""
        return {}

    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """Return the fitted state, or data that identifies it, as arrays without Python objects."""

    @classmethod
    @abstractmethod
    def from_state(cls, settings: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Self:
        """Restore an encoder from its `settings` and `arrays`.

        Raises:
            DataError: the arrays belong to another encoder.
        """

    @classmethod
    def missing_resources(cls, settings: dict[str, Any]) -> str:
        """Describe the files or packages that an encoder with these settings needs and that are missing; "" if none."""
        return ""


class TextEncoder(Encoder):
    """Maps texts to vectors of unit length, each a sum of contributions of its words.

    Attributes:
        dense: whether the vectors are dense arrays `(texts, width)`; otherwise they are sparse.
        vocabulary: splits texts into words, if the encoder does; `fit_encode` then also accepts lists of words.
    """

    dense = True
    vocabulary: Vocabulary | None = None

    @abstractmethod
    def word_contributions(self, text: str) -> WordContributions:
        """Return the distinct words of a text, and the vectors that add up to the vector of the text."""


def pack_words(words: Sequence[str]) -> np.ndarray:
    """Pack words into an array of bytes, which is smaller than an array of fixed-width strings.

    Example:
        >>> unpack_words(pack_words(["a", "große Straße"]))
        ['a', 'große Straße']
    """
    text = json.dumps(list(words), ensure_ascii=False)
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)


def read_arrays(file: str | PathLike[str] | IO[bytes]) -> dict[str, np.ndarray]:
    """Read the arrays that `numpy.savez` wrote; pickled objects are refused."""
    with np.load(file, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def unpack_words(packed: np.ndarray) -> list[str]:
    """Unpack the words that `pack_words` packed."""
    words: list[str] = json.loads(packed.tobytes())
    return words
