"""Split a text into sentences, each with the line where it begins."""

import bisect
import gzip
import re
from dataclasses import dataclass
from pathlib import Path

from qkv.errors import DataError

__all__ = ["Sentence", "read", "sentences_of"]

_BLOCK = re.compile(r"(?:[^\n]*\S[^\n]*\n?)+")
_END = re.compile(r"(?<=[.!?])['\"”’)\]]*(?=\s+['\"“‘(\[]*[A-Z0-9])")
_SHORT = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Prof|cf|vs|[A-Z])|\b[a-z]\.[a-z])\.$")
"""Abbreviations, whose full stop does not end a sentence."""


@dataclass(frozen=True)
class Sentence:
    """A sentence with single spaces, and the line where it begins, counted from 1."""

    text: str
    line: int


def sentences_of(text: str) -> list[Sentence]:
    """Split at full stops, question and exclamation marks before a capital, and at empty lines.

    Example:
        >>> [sentence.text for sentence in sentences_of("Dr. Li saw it, e.g. Sunday. Did she?\\n\\nYes")]
        ['Dr. Li saw it, e.g. Sunday.', 'Did she?', 'Yes']
    """
    lines = [match.end() for match in re.finditer("\n", text)]
    found = []
    for block in _BLOCK.finditer(text):
        begin = block.start()
        ends = [match.end() for match in _END.finditer(text, block.start(), block.end())]
        for end in [*ends, block.end()]:
            part = text[begin:end]
            if _SHORT.search(part) and end != block.end():
                continue
            if part.strip():
                first = begin + len(part) - len(part.lstrip())
                found.append(Sentence(" ".join(part.split()), bisect.bisect_right(lines, first) + 1))
            begin = end
    return found


def read(path: Path) -> list[Sentence]:
    """Return the sentences of a text file, optionally gzipped.

    Raises:
        DataError: the file cannot be read, is not UTF-8, or contains no sentence.
    """
    try:
        held = path.read_bytes()
        text = (gzip.decompress(held) if path.suffix == ".gz" else held).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{str(path)!r} must be text in UTF-8. Save it as UTF-8.") from None
    except (EOFError, gzip.BadGzipFile, OSError) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"{str(path)!r} cannot be read: {why}. Name a text file.") from None
    found = sentences_of(text.replace("\r\n", "\n"))
    if not found:
        raise DataError(f"{str(path)!r} must contain a sentence, got none.")
    return found
