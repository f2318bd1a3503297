"""What an encoder is: it makes vectors, and what it learned is settings and arrays that a file can keep."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.core.progress import Progress

if TYPE_CHECKING:
    from qkv.encoders.vocabulary import Vocabulary

__all__ = ["Encoder", "WordContributions", "TextEncoder", "pack_words", "read_arrays", "unpack_words"]

WordContributions = tuple[list[str], Any]


class Encoder(ABC):
    """How things become vectors.

    Fields:
        name: what it is called in files and on the command line.
        takes: `"texts"`, a list of strings, or `"table"`, a dict of columns.
        learns: whether `fit` teaches it anything; where not, `encode` does without.
    """

    name: str
    input_kind = "texts"
    trainable = True

    @abstractmethod
    def fit_encode(self, things: Any, progress: Progress | None = None) -> Any:
        """Learn what these things teach; their vectors, the keys."""

    @abstractmethod
    def encode(self, things: Any) -> Any:
        """Vectors of other things, the queries."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What it was made with, of JSON's kinds."""

    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """What it learned, or what tells that it is the same; no Python objects."""

    @abstractmethod
    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take back what `arrays` gave.

        Raises:
            DataError: these are of another encoder.
        """

    @property
    @abstractmethod
    def fitted(self) -> bool:
        """Whether it can encode."""

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers a vector has, once fitted."""

    @classmethod
    def missing_resources(cls, settings: dict[str, Any]) -> str:
        """What it needs beside its arrays and is not there, in words; "" where nothing is."""
        return ""


class TextEncoder(Encoder):
    """How texts become vectors of unit length, each a sum over the words of its text.

    Fields:
        dense: vectors are arrays `(texts, width)`; otherwise sparse ones.
        words: how it splits texts into words, if it does; `fit` then takes texts that are split so, too.
    """

    dense = True
    vocabulary: Vocabulary | None = None

    @abstractmethod
    def fit_encode(self, things: Sequence[str], progress: Progress | None = None) -> Any:
        """Learn what the texts teach; their vectors, the keys."""

    @abstractmethod
    def encode(self, things: Sequence[str]) -> Any:
        """Vectors of other texts, the queries."""

    @abstractmethod
    def word_contributions(self, text: str) -> WordContributions:
        """The words of a text, each once, and vectors which add up to its own."""


def pack_words(words: Sequence[str]) -> np.ndarray:
    """Words as bytes: an array of strings would give each the room of the longest.

    Example:
        >>> unpack_words(pack_words(["a", "große Straße"]))
        ['a', 'große Straße']
    """
    said = json.dumps(list(words), ensure_ascii=False)
    return np.frombuffer(said.encode("utf-8", "surrogatepass"), np.uint8)


def read_arrays(file: Any) -> dict[str, np.ndarray]:
    """The arrays that `numpy.savez` wrote to a path or a stream; nothing of them is run."""
    with np.load(file, allow_pickle=False) as held:
        return {name: held[name] for name in held.files}


def unpack_words(packed: np.ndarray) -> list[str]:
    """The words again."""
    found: list[str] = json.loads(packed.tobytes())
    return found
