"""Read and write files of word vectors, one line or vector at a time; errors name the line or byte."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import numpy as np

from qkv.core.files import write_atomic
from qkv.core.progress import Progress
from qkv.errors import DataError, OptionError

__all__ = ["FORMATS", "read_word_vectors", "write_word_vectors"]

FORMATS = ("word2vec", "glove", "binary")
_PROGRESS_INTERVAL = 10_000
_MAX_WORD_BYTES = 10_000
_MAX_WIDTH = 10**6


def read_word_vectors(
    path: Path, format: str | None, limit: int | None, progress: Progress | None
) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the words of a file and their vectors; see `WordVectors.load`."""
    if format is not None and format not in FORMATS:
        raise OptionError(f"format must be one of {', '.join(FORMATS)}, got {format!r}.")
    if limit is not None and limit < 1:
        raise OptionError(f"limit must be an integer of at least 1, got {limit}.")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    zipped = suffixes[-1:] == [".gz"]
    binary = format == "binary" or (format is None and ".bin" in suffixes[-2:])
    try:
        with gzip.open(path, "rb") if zipped else path.open("rb") as stream:
            if binary:
                return _read_binary(cast("IO[bytes]", stream), path.name, limit, progress)
            return _read_text(cast("IO[bytes]", stream), path.name, format, limit, progress)
    except FileNotFoundError:
        raise DataError(f"path must be an existing file, got {str(path)!r}. Check the name.") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path.name} must be a complete gzip file, got: {error}. Download it again.") from None
    except OSError as error:
        raise DataError(f"{str(path)!r} could not be read: {error.strerror or error}. Check the path.") from None


def _read_text(
    stream: IO[bytes], name: str, format: str | None, limit: int | None, progress: Progress | None
) -> tuple[tuple[str, ...], np.ndarray]:
    lines = enumerate(iter(stream.readline, b""), start=1)
    first = next(lines, (1, b""))[1]
    if not first.strip():
        raise DataError(f"the first line of {name} must hold a word and numbers, got an empty line.")
    sizes = _sizes(first) if format != "glove" else None
    if format == "word2vec" and sizes is None:
        raise DataError(
            f"{name}, line 1 must be the number of words and their width, got {_quote(first)}. Pass "
            "format='glove' for a GloVe file."
        )
    rows = _Rows(None if sizes is None else sizes[1])
    expected = limit if sizes is None else min(sizes[0], limit or sizes[0])

    def numbered_lines() -> Iterator[tuple[int, bytes]]:
        if sizes is None:
            yield 1, first
        yield from lines

    for number, line in numbered_lines():
        if expected is not None and rows.count == expected:
            break
        if not line.strip():
            continue
        rows.parse(line, f"{name}, line {number}")
        if progress is not None and rows.count % _PROGRESS_INTERVAL == 0:
            progress("reading", rows.count, expected or rows.count)
    if sizes is not None and rows.count < (expected or 0):
        raise DataError(
            f"{name} must hold {sizes[0]:,} words, as its first line states, but ends after {rows.count:,} words. "
            "Download it again."
        )
    return rows.result()


class _Rows:
    """Collects words and vectors of one width; of repeated words the first is kept."""

    def __init__(self, width: int | None) -> None:
        self.width = width
        self.count = 0
        self.words: dict[str, int] = {}
        self._rows = np.zeros((0, 0), np.float32)

    def parse(self, line: bytes, where: str) -> None:
        """Add a line: a word, which may contain spaces, followed by numbers."""
        cells = line.rstrip(b"\r\n ").split(b" ")
        width = len(cells) - 1 if self.width is None else self.width
        if width < 1 or len(cells) < width + 1:
            raise DataError(f"{where} must hold {max(width, 1)} numbers, got {len(cells) - 1}.")
        self.width = width
        try:
            word = b" ".join(cells[:-width]).decode("utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{where}: the word must be valid UTF-8.") from None
        try:
            row = np.array(cells[-width:]).astype(np.float32)
        except ValueError:
            raise DataError(f"{where} must be a word and {width} numbers, got {_quote(line)}.") from None
        self.add(word, row, where)

    def add(self, word: str, row: np.ndarray, where: str) -> None:
        """Add the vector of a word."""
        if not np.isfinite(row).all():
            raise DataError(f"{where}: the vector of {word!r} must be finite.")
        self.count += 1
        if word in self.words:
            return
        place = self.words[word] = len(self.words)
        if place >= len(self._rows):
            # Resized in place, so that a large file is in memory only once.
            self._rows.resize((max(2 * place, 1024), len(row)), refcheck=False)
        self._rows[place] = row

    def result(self) -> tuple[tuple[str, ...], np.ndarray]:
        """Return the words and their vectors."""
        self._rows.resize((len(self.words), self.width or 0), refcheck=False)
        return tuple(self.words), self._rows


def _read_binary(
    stream: IO[bytes], name: str, limit: int | None, progress: Progress | None
) -> tuple[tuple[str, ...], np.ndarray]:
    head = stream.readline(64)
    sizes = _sizes(head)
    if sizes is None:
        raise DataError(f"{name}, byte 0 must be the number of words and their width, got {_quote(head)}.")
    count, width = min(sizes[0], limit or sizes[0]), sizes[1]
    # Grown while reading, so that a damaged first line cannot allocate too much.
    rows, place = _Rows(width), len(head)
    for number in range(count):
        word, place = _binary_word(stream, name, place, number, sizes[0])
        content = stream.read(4 * width)
        if len(content) < 4 * width:
            raise DataError(
                f"{name} must hold {sizes[0]:,} words, but ends at byte {place + len(content)}, within the vector of "
                f"word {number + 1:,}. Download it again."
            )
        rows.add(word, np.frombuffer(content, "<f4"), f"{name}, byte {place}")
        place += 4 * width
        if progress is not None and ((number + 1) % _PROGRESS_INTERVAL == 0 or number + 1 == count):
            progress("reading", number + 1, count)
    return rows.result()


def _binary_word(stream: IO[bytes], name: str, place: int, number: int, count: int) -> tuple[str, int]:
    """Read a word up to the next space, without the newline that some writers put after a vector."""
    start, letters = place, bytearray()
    while True:
        letter = stream.read(1)
        place += 1
        if letter == b" ":
            break
        if not letter:
            raise DataError(
                f"{name} must hold {count:,} words, as its first line states, but ends after {number:,} words, at byte "
                f"{place - 1}. Download it again."
            )
        if letter != b"\n" or letters:
            letters += letter
        if len(letters) > _MAX_WORD_BYTES:
            raise DataError(
                f"{name}, byte {start}: a word must end within {_MAX_WORD_BYTES:,} bytes. Check the format."
            )
    try:
        return letters.decode("utf-8"), place
    except UnicodeDecodeError:
        raise DataError(f"{name}, byte {start}: the word must be valid UTF-8.") from None


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
    """Write words and vectors to a file; see `WordVectors.save`."""
    if format not in FORMATS:
        raise OptionError(f"format must be one of {', '.join(FORMATS)}, got {format!r}.")
    for word in words:
        if not word or "\n" in word or (format == "binary" and " " in word):
            raise DataError(f"words must not contain separators of the format, got {word!r}. Rename it.")
    rows = np.asarray(vectors, np.float32)

    def fill(stream: IO[bytes]) -> None:
        if path.suffix.lower() == ".gz":
            with gzip.open(stream, "wb") as zipped:
                _write(cast("IO[bytes]", zipped), words, rows, format)
        else:
            _write(stream, words, rows, format)

    write_atomic(path, fill, "the word vectors")


def _write(stream: IO[bytes], words: tuple[str, ...], rows: np.ndarray, format: str) -> None:
    if format != "glove":
        stream.write(f"{len(words)} {rows.shape[1]}\n".encode())
    for word, row in zip(words, rows, strict=True):
        # Nine significant digits represent a float32 exactly.
        numbers = row.astype("<f4").tobytes() if format == "binary" else " ".join(f"{x:.9g}" for x in row).encode()
        stream.write(word.encode() + b" " + numbers + b"\n")
