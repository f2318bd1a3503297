"""Files of word vectors, read a line or a vector at a time; what is wrong is named by its line or byte."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from qkv.core.files import write_atomic
from qkv.core.progress import Progress
from qkv.errors import DataError, OptionError

__all__ = ["FORMATS", "read_word_vectors", "write_word_vectors"]

FORMATS = ("word2vec", "glove", "binary")
_EVERY = 10_000
_LONGEST_WORD = 10_000
_MOST_NUMBERS = 10**6


def read_word_vectors(
    path: Path, format: str | None, limit: int | None, progress: Progress | None
) -> tuple[tuple[str, ...], np.ndarray]:
    """The words of a file and their vectors; see `WordVectors.load`."""
    if format is not None and format not in FORMATS:
        raise OptionError(f"the format is {format!r}, and it is one of {', '.join(FORMATS)}.")
    if limit is not None and limit < 1:
        raise OptionError(f"the limit is {limit}, and a whole number from 1 is wanted.")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    zipped = suffixes[-1:] == [".gz"]
    binary = format == "binary" or (format is None and ".bin" in suffixes[-2:])
    try:
        with gzip.open(path, "rb") if zipped else path.open("rb") as stream:
            if binary:
                return _binary(stream, path.name, limit, progress)
            return _text(stream, path.name, format, limit, progress)
    except FileNotFoundError:
        raise DataError(f"there is no file {str(path)!r}. Check the name.") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path.name} is no whole gzip file: {error}. Fetch it again.") from None
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be read: {error.strerror or error}. Check its name.") from None


def _text(
    stream: Any, name: str, format: str | None, limit: int | None, progress: Progress | None
) -> tuple[tuple[str, ...], np.ndarray]:
    lines = enumerate(iter(stream.readline, b""), start=1)
    first = next(lines, (1, b""))[1]
    if not first.strip():
        raise DataError(f"{name} is empty, or its first line is. Word vectors have a word and numbers on it.")
    sizes = _sizes(first) if format != "glove" else None
    if format == "word2vec" and sizes is None:
        raise DataError(f"{name}, line 1: {_shown(first)} is not the number of words and their width. Is it GloVe?")
    rows = _Rows(None if sizes is None else sizes[1])
    wanted = limit if sizes is None else min(sizes[0], limit or sizes[0])

    def rest() -> Iterator[tuple[int, bytes]]:
        if sizes is None:
            yield 1, first
        yield from lines

    for number, line in rest():
        if wanted is not None and rows.seen == wanted:
            break
        if not line.strip():
            continue
        rows.parse(line, f"{name}, line {number}")
        if progress is not None and rows.seen % _EVERY == 0:
            progress("reading", rows.seen, wanted or rows.seen)
    if sizes is not None and rows.seen < (wanted or 0):
        raise DataError(f"{name} ends after {rows.seen:,} words, and its first line says {sizes[0]:,}. Fetch it again.")
    return rows.result()


class _Rows:
    """Words and vectors of one width; of a word that stands twice the first counts, as elsewhere."""

    def __init__(self, width: int | None) -> None:
        self.width = width
        self.seen = 0
        self.words: dict[str, int] = {}
        self._rows = np.zeros((0, 0), np.float32)

    def parse(self, line: bytes, where: str) -> None:
        """Keep a line: a word, which may hold spaces, and the numbers at its end."""
        cells = line.rstrip(b"\r\n ").split(b" ")
        width = len(cells) - 1 if self.width is None else self.width
        if width < 1 or len(cells) < width + 1:
            raise DataError(f"{where}: {len(cells) - 1} numbers, and {max(width, 1)} are wanted.")
        self.width = width
        try:
            word = b" ".join(cells[:-width]).decode("utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{where}: the word is not text in UTF-8.") from None
        try:
            row = np.array(cells[-width:]).astype(np.float32)
        except ValueError:
            raise DataError(f"{where}: {_shown(line)} is no word and {width} numbers.") from None
        self.keep(word, row, where)

    def keep(self, word: str, row: np.ndarray, where: str) -> None:
        """Add a vector."""
        if not np.isfinite(row).all():
            raise DataError(f"{where}: a number of the word {word!r} is not finite.")
        self.seen += 1
        if word in self.words:
            return
        place = self.words[word] = len(self.words)
        if place >= len(self._rows):
            # In place, by realloc: large files are in memory once.
            self._rows.resize((max(2 * place, 1024), len(row)), refcheck=False)
        self._rows[place] = row

    def result(self) -> tuple[tuple[str, ...], np.ndarray]:
        """What was kept."""
        self._rows.resize((len(self.words), self.width or 0), refcheck=False)
        return tuple(self.words), self._rows


def _binary(stream: Any, name: str, limit: int | None, progress: Progress | None) -> tuple[tuple[str, ...], np.ndarray]:
    head = stream.readline(64)
    sizes = _sizes(head)
    if sizes is None:
        raise DataError(f"{name}, byte 0: {_shown(head)} is no number of words and a width.")
    count, width = min(sizes[0], limit or sizes[0]), sizes[1]
    # Grown as they are read: a damaged first line must not allocate what it says.
    rows, place = _Rows(width), len(head)
    for number in range(count):
        word, place = _binary_word(stream, name, place, number, sizes[0])
        content = stream.read(4 * width)
        if len(content) < 4 * width:
            raise DataError(
                f"{name}, byte {place + len(content)}: it ends within the vector of word {number + 1:,} of "
                f"{sizes[0]:,}. Fetch it again."
            )
        rows.keep(word, np.frombuffer(content, "<f4"), f"{name}, byte {place}")
        place += 4 * width
        if progress is not None and ((number + 1) % _EVERY == 0 or number + 1 == count):
            progress("reading", number + 1, count)
    return rows.result()


def _binary_word(stream: Any, name: str, place: int, number: int, count: int) -> tuple[str, int]:
    """The bytes up to a space, without the new line that some writers put after a vector."""
    start, letters = place, bytearray()
    while True:
        letter = stream.read(1)
        place += 1
        if letter == b" ":
            break
        if not letter:
            raise DataError(
                f"{name}, byte {place - 1}: it ends after {number:,} words, and its first line says "
                f"{count:,}. Fetch it again."
            )
        if letter != b"\n" or letters:
            letters += letter
        if len(letters) > _LONGEST_WORD:
            raise DataError(f"{name}, byte {start}: no word ends within {_LONGEST_WORD:,} bytes. Is it binary?")
    try:
        return letters.decode("utf-8"), place
    except UnicodeDecodeError:
        raise DataError(f"{name}, byte {start}: the word is not text in UTF-8.") from None


def _sizes(line: bytes) -> tuple[int, int] | None:
    """How many words and how wide, where a line says so."""
    cells = line.split()
    if len(cells) != 2 or not all(cell.isdigit() for cell in cells):
        return None
    rows, width = map(int, cells)
    return (rows, width) if 0 < width <= _MOST_NUMBERS else None


def _shown(line: bytes) -> str:
    text = line[:40].decode("utf-8", errors="replace").strip()
    return repr(text + "…" if len(line) > 40 else text)


def write_word_vectors(path: Path, words: tuple[str, ...], vectors: np.ndarray, format: str) -> None:
    """Write a file; see `WordVectors.save`."""
    if format not in FORMATS:
        raise OptionError(f"the format is {format!r}, and it is one of {', '.join(FORMATS)}.")
    for word in words:
        if not word or "\n" in word or (format == "binary" and " " in word):
            raise DataError(f"the word {word!r} cannot stand in a file of this format. Rename it.")
    rows = np.asarray(vectors, np.float32)

    def fill(stream: IO[bytes]) -> None:
        if path.suffix.lower() == ".gz":
            with gzip.open(stream, "wb") as zipped:
                _fill(zipped, words, rows, format)
        else:
            _fill(stream, words, rows, format)

    write_atomic(path, fill, "the word vectors")


def _fill(stream: Any, words: tuple[str, ...], rows: np.ndarray, format: str) -> None:
    if format != "glove":
        stream.write(f"{len(words)} {rows.shape[1]}\n".encode())
    for word, row in zip(words, rows, strict=True):
        # Nine digits tell a float32 exactly.
        numbers = row.astype("<f4").tobytes() if format == "binary" else " ".join(f"{x:.9g}" for x in row).encode()
        stream.write(word.encode() + b" " + numbers + b"\n")
