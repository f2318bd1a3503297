"""Read and write files of word vectors.

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
from qkv.errors import DataError

__all__ = ["FORMATS", "read_word_vectors", "write_word_vectors"]

FORMATS = ("word2vec", "glove", "binary")
_PROGRESS_INTERVAL = 10_000
_MAX_WORD_BYTES = 10_000
_MAX_WIDTH = 10**6


def read_word_vectors(
    path: Path, format: str | None, limit: int | None, progress: Progress | None
) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the words of a file and their vectors; see `WordVectors.load`."""
    check_choice("format", format, (None, *FORMATS))
    check_integers(limit=limit)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if format is None and ".bin" in suffixes[-2:]:
        format = "binary"
    try:
        with gzip.open(path, "rb") if suffixes[-1:] == [".gz"] else path.open("rb") as stream:
            return _read(cast("IO[bytes]", stream), path.name, format, limit, progress)
    except FileNotFoundError:
        raise DataError(f"path must be an existing file, got {str(path)!r}. Check the name.") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path.name} must be a complete gzip file, got: {error}. Download the file again.") from None
    except OSError as error:
        raise DataError(f"path must be a readable file, got {str(path)!r}: {error.strerror or error}.") from None


def _read(
    stream: IO[bytes], name: str, format: str | None, limit: int | None, progress: Progress | None
) -> tuple[tuple[str, ...], np.ndarray]:
    binary = format == "binary"
    first = stream.readline(64 if binary else -1)
    sizes = _sizes(first) if format != "glove" else None
    if binary and sizes is None:
        raise DataError(f"{name}, byte 0: the header must state the number and width of vectors, got {_quote(first)}.")
    if not first.strip():
        raise DataError(f"the first line of {name} must hold a word and numbers, got an empty line.")
    if format == "word2vec" and sizes is None:
        raise DataError(
            f"{name}, line 1: the header must state the number and width of vectors, got {_quote(first)}. Pass "
            "format='glove' for a GloVe file."
        )
    stated, width = sizes or (None, None)
    expected = min((number for number in (stated, limit) if number is not None), default=None)
    if binary and sizes is not None:
        rows = _binary_rows(stream, name, len(first), *sizes)
    else:
        lines = enumerate(chain([b"" if sizes else first], stream), start=1)
        rows = _text_rows(lines, name, width)
    words: dict[str, int] = {}
    # Grown while reading, so that a damaged first line cannot allocate too much.
    vectors = np.zeros((0, width or 0), np.float32)
    count = 0
    for count, (word, vector, where) in enumerate(islice(rows, expected), start=1):
        if not np.isfinite(vector).all():
            raise DataError(f"{where}: the vector of {word!r} must be finite, got {vector[~np.isfinite(vector)][0]}.")
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
) -> Iterator[tuple[str, np.ndarray, str]]:
    """Yield the word, the vector and the location of each line; words may contain spaces."""
    for number, line in lines:
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        cells = line.rstrip(b"\r\n ").split(b" ")
        width = len(cells) - 1 if width is None else width
        if width < 1 or len(cells) < width + 1:
            raise DataError(f"{where} must hold {max(width, 1)} numbers, got {len(cells) - 1}.")
        word = _decode(b" ".join(cells[:-width]), where)
        try:
            vector = np.array(cells[-width:]).astype(np.float32)
        except ValueError:
            raise DataError(f"{where} must consist of a word and {width} numbers, got {_quote(line)}.") from None
        yield word, vector, where


def _binary_rows(
    stream: IO[bytes], name: str, place: int, count: int, width: int
) -> Iterator[tuple[str, np.ndarray, str]]:
    """Yield the word, the vector and the location of each of `count` entries, starting at byte `place`."""
    for number in range(count):
        word, place = _binary_word(stream, name, place, number, count)
        content = stream.read(4 * width)
        if len(content) < 4 * width:
            raise DataError(
                f"{name} must hold {count:,} words, as its first line states, but ends at byte {place + len(content)}, "
                f"within the vector of word {number + 1:,}. Download the file again."
            )
        yield word, np.frombuffer(content, "<f4"), f"{name}, byte {place}"
        place += 4 * width


def _binary_word(stream: IO[bytes], name: str, place: int, number: int, count: int) -> tuple[str, int]:
    """Read a word up to the next space, skipping the newline that some writers put after a vector."""
    start, letters = place, bytearray()
    while True:
        letter = stream.read(1)
        place += 1
        if letter == b" ":
            break
        if not letter:
            raise DataError(
                f"{name} must hold {count:,} words, as its first line states, but ends after {number:,} words, at byte "
                f"{place - 1}. Download the file again."
            )
        if letter != b"\n" or letters:
            letters += letter
        if len(letters) > _MAX_WORD_BYTES:
            raise DataError(
                f"{name}, byte {start}: a word must have at most {_MAX_WORD_BYTES:,} bytes, got more. Check the format."
            )
    return _decode(bytes(letters), f"{name}, byte {start}"), place


def _decode(word: bytes, where: str) -> str:
    try:
        return word.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{where}: the word must be valid UTF-8, got {word[:40]!r}.") from None


def _sizes(line: bytes) -> tuple[int, int] | None:
    """Return the number of words and their width if the line states them, else None."""
    cells = line.split()
    if len(cells) != 2 or not all(cell.isdigit() for cell in cells):
        return None
    rows, width = map(int, cells)
    return (rows, width) if 0 < width <= _MAX_WIDTH else None


def _quote(line: bytes) -> str:
    text = line[:40].decode("utf-8", errors="replace").strip()
    return repr(text + "…" if len(line) > 40 else text)


def write_word_vectors(path: Path, words: tuple[str, ...], vectors: np.ndarray, format: str) -> None:
    """Write words and their vectors to a file; see `WordVectors.save`."""
    check_choice("format", format, FORMATS)
    for word in words:
        if not word or "\n" in word or (format == "binary" and " " in word):
            raise DataError(f"words must not be empty or contain separators of the format, got {word!r}.")
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
