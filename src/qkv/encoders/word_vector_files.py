"""Read and write files of word vectors in the formats of word2vec and GloVe.

Files are read one line or vector at a time, and errors state the line or the byte.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import IO, cast

import numpy as np

from qkv.core.checks import check_choice, check_integers
from qkv.core.files import write_atomic
from qkv.core.progress import Progress
from qkv.core.typing import Float
from qkv.errors import DataError

__all__ = ["FORMATS", "read_word_vectors", "write_word_vectors"]

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
