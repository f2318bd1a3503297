"""Load word vectors of word2vec and GloVe, and encode texts as the means of the vectors of their words.

    word2vec text     "rows width", then a line for each word: the word and its numbers
    word2vec binary   "rows width", then for each word: its bytes, a space, float32 numbers, optionally a newline
    GloVe text        word2vec text without the first line

A text is encoded as the mean of the vectors of its words, optionally weighted by inverse document frequency.

Source: Mikolov, Chen, Corrado and Dean 2013, Efficient estimation of word representations in vector space;
Pennington, Socher and Manning 2014, GloVe: Global vectors for word representation; the weighting by
frequency: Arora, Liang and Ma 2017, A simple but tough-to-beat baseline for sentence embeddings, with a
smoother weight.
"""

from __future__ import annotations

import gzip
import os
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import IO, Self, cast

import numpy as np

from qkv.core.checks import check_choice, check_integers
from qkv.core.files import write_atomic
from qkv.core.progress import Progress
from qkv.core.typing import Float, Num, Shaped
from qkv.encoders.encoder import Encoder, pack_words, unpack_words
from qkv.encoders.word_spans import WORD_SIGNS
from qkv.errors import DataError, KindError, ShapeError

FORMATS = ("word2vec", "glove", "binary")
_PROGRESS_INTERVAL = 10_000
_MAX_WORD_BYTES = 10_000
_MAX_WIDTH = 10**6


def read_word_vectors(
    path: Path, format: str | None, limit: int | None, progress: Progress | None
) -> tuple[tuple[str, ...], Float[np.ndarray, "words width"]]:
    """Read a file of word vectors, and return the words and their vectors, `(words, width)`.

    The arguments are those of `WordVectors.load`.
    """
    check_choice("format", format, (None, *FORMATS))
    check_integers(limit=limit)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if format is None and ".bin" in suffixes[-2:]:
        format = "binary"
    try:
        with gzip.open(path, "rb") if suffixes[-1:] == [".gz"] else path.open("rb") as stream:
            return _read(cast("IO[bytes]", stream), path.name, format, limit, progress)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path.name} must be a complete gzip file, but reading it failed: {error}. Download the file again."
        ) from None
    except OSError as error:
        raise DataError(
            f"path must be a readable file, got {str(path)!r}, but reading it failed: {error.strerror or error}. Check "
            "the path and its permissions."
        ) from None


def _read(
    stream: IO[bytes], name: str, format: str | None, limit: int | None, progress: Progress | None
) -> tuple[tuple[str, ...], Float[np.ndarray, "words width"]]:
    binary = format == "binary"
    first = stream.readline(64 if binary else -1)
    sizes = _parse_header(first) if format != "glove" else None
    if binary and sizes is None:
        raise DataError(
            f"the first line of {name} must be the number of words and the width of vectors, got {_quote(first)}. Pass "
            "another format if the file is not binary."
        )
    if not first.strip():
        raise DataError(f"the first line of {name} must hold a word and numbers, got an empty line. Check the file.")
    if format == "word2vec" and sizes is None:
        raise DataError(
            f"the first line of {name} must be the number of words and the width of vectors, got {_quote(first)}. Pass "
            "format='glove' for a GloVe file."
        )
    second = stream.readline() if format == "glove" and first.strip() else b""
    counted = _parse_header(first) if second else None
    if counted is not None and counted[1] > 1 and len(second.split()) == counted[1] + 1:
        raise DataError(
            f"the first line of {name} must be a word and its vector, got the number of words and the width of "
            f"vectors, {_quote(first)}. Pass format='word2vec'."
        )
    stated, width = sizes or (None, None)
    expected = min((number for number in (stated, limit) if number is not None), default=None)
    if binary and sizes is not None:
        rows = _binary_rows(stream, name, len(first), *sizes)
    else:
        lines = enumerate(chain([b"" if sizes else first], [second] * bool(second), stream), start=1)
        rows = _text_rows(lines, name, width)
    words: dict[str, int] = {}
    # Grown while reading, so that a damaged first line cannot allocate too much.
    vectors = np.zeros((0, width or 0), np.float32)
    count = 0
    for count, (word, vector, where) in enumerate(islice(rows, expected), start=1):
        if not np.isfinite(vector).all():
            raise DataError(
                f"the vector of {word!r} {where} must be finite, got {vector[~np.isfinite(vector)][0]}. Remove the "
                "word from the file."
            )
        if word not in words:  # of repeated words, the first vector is kept
            row = words[word] = len(words)
            if row == len(vectors):
                # Resized in place, so that a large file is in memory only once.
                vectors.resize((max(2 * row, 1024), len(vector)), refcheck=False)
            vectors[row] = vector
        if progress is not None and (count % _PROGRESS_INTERVAL == 0 or count == expected):
            progress("reading", count, expected or count)
    if stated is not None and count < (expected or 0):
        raise DataError(
            f"{name} must hold {stated:,} words, as its first line states, got only {count:,}. Download the file again."
        )
    vectors.resize((len(words), vectors.shape[1]), refcheck=False)
    return tuple(words), vectors


def _text_rows(
    lines: Iterable[tuple[int, bytes]], name: str, width: int | None
) -> Iterator[tuple[str, Float[np.ndarray, " width"], str]]:
    """Yield `(word, vector, location)` for each non-blank line of a text file, in which words may contain spaces."""
    for number, line in lines:
        if not line.strip():
            continue
        where = f"in line {number} of {name}"
        cells = line.rstrip(b"\r\n ").split(b" ")
        width = len(cells) - 1 if width is None else width
        if width < 1 or len(cells) < width + 1:
            expected = "at least one number" if width < 1 else f"a vector of width {width}, like the other lines"
            raise DataError(f"the row {where} must hold a word and {expected}, got width {len(cells) - 1}. Correct it.")
        word = _decode(b" ".join(cells[:-width]), where)
        try:
            vector = np.array(cells[-width:]).astype(np.float32)
        except ValueError:
            raise DataError(
                f"the row {where} must hold a word and a vector of width {width}, got {_quote(line)}. Correct it."
            ) from None
        yield word, vector, where


def _binary_rows(
    stream: IO[bytes], name: str, position: int, count: int, width: int
) -> Iterator[tuple[str, Float[np.ndarray, " width"], str]]:
    """Yield `(word, vector, location)` for each of the `count` words of a binary file, starting at byte `position`."""
    for number in range(count):
        word, position = _read_binary_word(stream, name, position, number, count)
        content = stream.read(4 * width)
        if len(content) < 4 * width:
            raise DataError(
                f"{name} must hold {count:,} words, as its first line states, but ends at byte "
                f"{position + len(content)}, within the vector of word {number + 1:,}. Download the file again."
            )
        yield word, np.frombuffer(content, "<f4"), f"at byte {position} of {name}"
        position += 4 * width


def _read_binary_word(stream: IO[bytes], name: str, position: int, number: int, count: int) -> tuple[str, int]:
    """Read a word up to the next space, and return it with the position of the byte after the space.

    A newline before the word, which some programs write after each vector, is skipped.
    """
    start, letters = position, bytearray()
    while (letter := stream.read(1)) != b" ":
        if not letter:
            raise DataError(
                f"{name} must hold {count:,} words, as its first line states, but ends after {number:,} words, at byte "
                f"{position}. Download the file again."
            )
        position += 1
        if letter != b"\n" or letters:
            letters += letter
        if len(letters) > _MAX_WORD_BYTES:
            raise DataError(
                f"the word at byte {start} of {name} must have at most {_MAX_WORD_BYTES:,} bytes, got more. Pass "
                "another format if the file is not binary."
            )
    return _decode(bytes(letters), f"at byte {start} of {name}"), position + 1


def _decode(word: bytes, where: str) -> str:
    try:
        return word.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(
            f"the word {where} must be valid UTF-8, got {word[:40]!r}. Convert the file to UTF-8."
        ) from None


def _parse_header(line: bytes) -> tuple[int, int] | None:
    """Return the number of words and the width of vectors if a line consists of both, otherwise None."""
    cells = line.split()
    if len(cells) != 2 or not all(cell.isdigit() for cell in cells):
        return None
    rows, width = map(int, cells)
    return (rows, width) if 0 < width <= _MAX_WIDTH else None


def _quote(line: bytes) -> str:
    text = line[:40].decode("utf-8", errors="replace").strip()
    return repr(text + "…" if len(line) > 40 else text)


def write_word_vectors(
    path: Path, words: tuple[str, ...], vectors: Float[np.ndarray, "words width"], format: str
) -> None:
    """Write words and their vectors to a file, as described in `WordVectors.save`."""
    check_choice("format", format, FORMATS)
    for word in words:
        if not word or "\n" in word or (format == "binary" and " " in word):
            raise DataError(
                "words must not be empty or contain a newline, nor a space if format='binary', got "
                f"{word!r}. Remove the word."
            )
    rows = np.asarray(vectors, np.float32)

    def write(stream: IO[bytes]) -> None:
        zipped = path.suffix.lower() == ".gz"
        with gzip.open(stream, "wb") if zipped else nullcontext(stream) as target:
            if format != "glove":
                target.write(f"{len(words)} {rows.shape[1]}\n".encode())
            for word, row in zip(words, rows, strict=True):
                # Nine significant digits represent a float32 exactly.
                numbers = (
                    row.astype("<f4").tobytes() if format == "binary" else " ".join(f"{x:.9g}" for x in row).encode()
                )
                target.write(word.encode() + b" " + numbers + b"\n")

    write_atomic(path, write, "the word vectors")


_WORD = re.compile(rf"(?:[^\W_]|[{WORD_SIGNS}])+(?:['’](?:[^\W_]|[{WORD_SIGNS}])+)*")
_BATCH = 10_000


@dataclass(frozen=True, eq=False)
class WordVectors(Encoder):
    """Text encoder that represents a text by the mean of the vectors of its words.

    A word is looked up as written, then in lower case, then capitalized; then so in composed Unicode (NFC). Unknown
    words are left out of the mean of a text; a text without known words is encoded as zeros, whose cosine with every
    vector is 0.

    Args:
        words: distinct words.
        vectors: `(words, width)`, floating-point.
        weights: weight of each word in the mean of a text; None for equal weights. `weighted_by` computes them.

    Raises:
        DataError: a word is repeated, or the numbers of words and vectors differ.
        KindError: `vectors` is not an array of numbers.

    Example:
        >>> vectors = WordVectors(("king", "queen", "apple"), np.array([[1.0, 0.1], [0.9, 0.2], [0.0, 1.0]]))
        >>> vectors.nearest("king", top=2)
        [('queen', 0.992...), ('apple', 0.099...)]
        >>> vectors.encode(["The King and the Queen", "nothing of it"]).round(2)
        array([[0.95, 0.15],
               [0.  , 0.  ]], dtype=float32)
        >>> "King" in vectors, "kings" in vectors
        (True, False)
    """

    name = "words"
    words: tuple[str, ...]
    vectors: Float[np.ndarray, "words width"]
    weights: Float[np.ndarray, " words"] | None = None
    _rows: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        try:
            vectors = np.asarray(self.vectors)
        except ValueError:  # rows of several widths
            vectors = np.empty(0, object)
        if vectors.dtype.kind not in "fiu":
            raise KindError(
                f"vectors must be an array of numbers with rows of one width, got {type(self.vectors).__name__}. Pass "
                "np.array of the rows."
            )
        object.__setattr__(self, "words", tuple(self.words))
        object.__setattr__(self, "vectors", vectors if vectors.dtype.kind == "f" else vectors.astype(np.float64))
        if self.vectors.ndim != 2 or len(self.vectors) != len(self.words):
            raise DataError(
                f"vectors must have shape ({len(self.words)}, width), with one row for each word, got shape "
                f"{self.vectors.shape}. "
                "Leave out the words without a vector."
            )
        if self.weights is not None and np.shape(self.weights) != (len(self.words),):
            raise DataError(
                f"weights must have shape ({len(self.words)},), one for each word, got shape {np.shape(self.weights)}. "
                "Omit weights to weigh all words equally."
            )
        rows = dict(zip(self.words, range(len(self.words)), strict=True))
        if len(rows) < len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise DataError(f"words must be distinct, got {twice!r} more than once. Keep one vector per word.")
        object.__setattr__(self, "_rows", rows)

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        *,
        format: str | None = None,
        limit: int | None = None,
        progress: Progress | None = None,
    ) -> WordVectors:
        """Load word vectors from a file. If a word is repeated, its first vector is kept.

        Args:
            path: path of the file; `.bin` is the binary format of word2vec, other suffixes are text, and `.gz` may
                follow.
            format: `"word2vec"`, `"glove"` or `"binary"`; None to infer it from the suffix and the first line.
            limit: maximum number of words; published files start with the most frequent ones.
            progress: called while reading.

        Raises:
            DataError: the file does not exist, is truncated, or does not follow the format.
            OptionError: the format is unknown, or the limit is less than 1.
        """
        return WordVectors(*read_word_vectors(Path(path), format, limit, progress))

    def save(self, path: str | os.PathLike[str], *, format: str = "word2vec") -> None:
        """Write words and vectors, but not the weights of words, to a file atomically.

        Args:
            path: path of the file; `.gz` compresses it.
            format: `"word2vec"`, `"glove"` or `"binary"`.

        Raises:
            OptionError: the format is unknown.
            DataError: a word contains a separator of the format, or the file cannot be written.
        """
        write_word_vectors(Path(path), self.words, self.vectors, format)

    @property
    def width(self) -> int:
        return int(self.vectors.shape[1])

    def arrays(self) -> dict[str, Shaped[np.ndarray, "*_"]]:
        """Return the words, their vectors and, unless it is None, `weights` as a dict of arrays."""
        arrays = {"words": pack_words(self.words), "vectors": self.vectors}
        return arrays if self.weights is None else arrays | {"weights": self.weights}

    @classmethod
    def from_state(cls, settings: dict[str, object], arrays: Mapping[str, Shaped[np.ndarray, "*_"]]) -> Self:
        """Restore word vectors from the arrays that `arrays` returned."""
        return cls(tuple(unpack_words(arrays["words"])), arrays["vectors"], arrays.get("weights"))

    def __str__(self) -> str:
        return f"the mean of word vectors ({len(self):,} words), {self.width} numbers"

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return self.row(word) is not None

    def __getitem__(self, word: str) -> Float[np.ndarray, " width"]:
        """Return the vector of a word, `(width,)`.

        Raises:
            KeyError: the word is unknown.
        """
        row = self.row(word)
        if row is None:
            raise KeyError(word)
        return np.asarray(self.vectors[row])

    def row(self, word: str) -> int | None:
        """Return the row of `vectors` for a word, or None if the word is unknown.

        The word is looked up as written, then in lower case, then capitalized; then so in composed Unicode (NFC).
        """
        for form in (word, word.lower(), word.capitalize()):
            if form in self._rows:
                return self._rows[form]
        composed = unicodedata.normalize("NFC", word)
        return None if composed == word else self.row(composed)

    def similarity(self, word: str, other: str) -> float:
        """Return the cosine similarity of the vectors of two words, or 0 if one is a zero vector.

        Raises:
            KeyError: a word is unknown.
        """
        a, b = self[word].astype(np.float64), self[other].astype(np.float64)
        lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
        return float(a @ b) / lengths if lengths else 0.0

    def nearest(self, query: str | Num[np.ndarray, " width"], top: int = 10) -> list[tuple[str, float]]:
        """Return the words with the largest cosine similarity to a word or vector, excluding the word itself.

        Args:
            query: a word, or a vector.
            top: number of words.

        Returns:
            Words and their similarities, in descending order.

        Raises:
            KeyError: the word is unknown.
            ShapeError: the vector does not have the width of the word vectors.
            OptionError: `top` is negative.
        """
        check_integers(0, top=top)
        own = self.row(query) if isinstance(query, str) else None
        vector = np.asarray(self[query] if isinstance(query, str) else query, np.float32)
        if vector.shape != (self.width,):
            raise ShapeError(
                f"query must be a word or a vector of shape ({self.width},), got shape {vector.shape}. "
                "Pass a word, or a row of vectors."
            )
        lengths = np.linalg.norm(self.vectors.astype(np.float32, copy=False), axis=1) * np.linalg.norm(vector)
        cosines = (self.vectors @ vector) / np.where(lengths > 0, lengths, 1.0)
        if own is not None:
            cosines[own] = -np.inf
        count = min(top, len(cosines) - (own is not None))
        best = np.argsort(-cosines, kind="stable")[:count]
        return [(self.words[row], float(cosines[row])) for row in best]

    def weighted_by(self, texts: Iterable[str]) -> WordVectors:
        """Return a copy of these word vectors with the inverse document frequencies of the words in `texts` as weights.

            weight = log((1 + texts) / (1 + texts with the word)) + 1

        Words that occur in no text have the largest weight.

        Raises:
            KindError: `texts` is a single string, or an element is not a string.
        """
        if isinstance(texts, str):
            raise KindError(f"texts must be a list of texts, got the string {texts[:40]!r}. Pass the text in a list.")
        frequency, count = np.zeros(len(self.words)), 0
        for text in texts:
            frequency[list(set(self._known_rows(text)))] += 1
            count += 1
        return replace(self, weights=np.log((1.0 + count) / (1.0 + frequency)) + 1.0)

    def encode(
        self, inputs: Sequence[str | None], *, progress: Progress | None = None
    ) -> Float[np.ndarray, "texts width"]:
        """Encode each text as the weighted mean of the vectors of its known words, in float32.

        Args:
            inputs: texts; None counts as a text without words.
            progress: called after each batch.

        Raises:
            KindError: `inputs` is a single string, or an element is not a string.
        """
        if isinstance(inputs, str):
            raise KindError(f"inputs must be a list of texts, got the string {inputs[:40]!r}. Pass the text in a list.")
        encoded = np.zeros((len(inputs), self.width), np.float32)
        for index, text in enumerate(inputs):
            rows = self._known_rows(text)
            if rows:
                weights = np.ones(len(rows)) if self.weights is None else self.weights[rows]
                total = float(weights.sum())
                encoded[index] = weights @ self.vectors[rows].astype(np.float64) / (total or 1.0)
            if progress is not None and ((index + 1) % _BATCH == 0 or index + 1 == len(inputs)):
                progress("encoding", index + 1, len(inputs))
        return encoded

    def coverage(self, texts: Sequence[str]) -> float:
        """Return the fraction of the words of texts that have a vector, or 1 if the texts have no words.

        Example:
            >>> WordVectors(("a",), np.ones((1, 2))).coverage(["a b", "A c"])
            0.5
        """
        total = known = 0
        for text in texts:
            total += len(_WORD.findall(_check_text(text)))
            known += len(self._known_rows(text))
        return known / total if total else 1.0

    def _known_rows(self, text: str | None) -> list[int]:
        rows = (self.row(word) for word in _WORD.findall(_check_text(text)))
        return [row for row in rows if row is not None]


def _check_text(text: object) -> str:
    if text is None:
        return ""
    if not isinstance(text, str):
        raise KindError(
            f"each text must be a string or None, got {text!r} of type {type(text).__name__}. Convert it with str."
        )
    return text
