"""Sentence pairs from a file with two columns, and their split by English sentence.

All translations of a sentence are on the same side of the split; on the held-out side they are the references
of one test sentence. Sentences that differ only in case and punctuation are on the same side too.
"""

import gzip
import hashlib
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from qkv.errors import DataError, OptionError

__all__ = ["Asked", "Split", "clean", "read", "read_asked", "split", "words"]

_SPACES = dict.fromkeys(map(ord, "\u00a0\u2009\u202f"), " ")
_MARKS = {ord("\u200b"): None, ord("\u2018"): "'", ord("\u2019"): "'"}


def clean(sentence: str) -> str:
    """Return the text in a canonical form: composed letters, plain spaces, one kind of apostrophe.

    Example:
        >>> clean("Qu’est-ce que c’est\u202f?")
        "Qu'est-ce que c'est ?"
    """
    return " ".join(unicodedata.normalize("NFC", sentence).translate(_SPACES | _MARKS).split())


def words(sentence: str) -> int:
    """Return the number of words of a sentence, separated by spaces.

    Example:
        >>> words("I'm not sure.")
        3
    """
    return len(sentence.split())


def read(path: Path) -> list[tuple[str, str]]:
    """Return the pairs of a text file, optionally gzipped: sentence, tab, sentence. Further columns are ignored.

    Raises:
        DataError: the file cannot be read, is not UTF-8, or a line is not a pair; the message names the line.
    """
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as stream:
            found = list(_pairs(stream, path.name))
    except (OSError, EOFError, zlib.error) as error:
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(
            f"the pairs {str(path)!r} cannot be read: {said}. Name a text file, optionally gzipped."
        ) from None
    if not found:
        raise DataError(f"{path.name!r} must contain lines of sentence, tab, translation, got none.")
    return found


def _pairs(stream: Iterable[bytes], name: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(stream, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise DataError(f"line {number} of {name!r} must be UTF-8. Save the file as UTF-8.") from None
        if not text.strip():
            continue
        cells = [clean(cell) for cell in text.rstrip("\r\n").split("\t")[:2]]
        if len(cells) < 2 or not all(cells):
            shown = text.strip()[:60]
            raise DataError(f"line {number} of {name!r} must be a sentence, a tab and its translation, got {shown!r}.")
        yield cells[0], cells[1]


@dataclass(frozen=True)
class Asked:
    """A sentence to translate, with all its known translations."""

    sentence: str
    references: tuple[str, ...]


@dataclass(frozen=True)
class Split:
    """Training pairs, validation sentences and test sentences."""

    train: tuple[tuple[str, str], ...]
    watched: tuple[Asked, ...]
    held_out: tuple[Asked, ...]


def split(pairs: Iterable[tuple[str, str]], held_out: int, watched: int, most: int | None = None) -> Split:
    """Split by English sentence, in an order that depends on the sentences only: never on seeds or rows.

    Args:
        pairs: pairs with the English sentence first.
        held_out, watched: numbers of distinct English sentences for test and validation.
        most: maximum number of training pairs, the first in that order; None: all.

    Raises:
        OptionError: no sentences remain for training.
    """
    together: dict[str, dict[str, list[str]]] = {}
    for english, french in pairs:
        together.setdefault(_folded(english), {}).setdefault(english, []).append(french)
    groups = [together[key] for key in sorted(together, key=_place)]
    count = sum(map(len, groups))
    if held_out + watched >= count:
        raise OptionError(
            f"--held-out and --watched must be less in total than the number of English sentences ({count:,}), got "
            f"{held_out:,} and {watched:,}. Reduce them, or give more pairs."
        )
    sides: list[list[Asked]] = [[], []]
    rest = iter(groups)
    for side, wanted in zip(sides, (held_out, watched), strict=True):
        while len(side) < wanted:
            side += [Asked(one, tuple(dict.fromkeys(each))) for one, each in next(rest).items()]
    train = [(english, french) for group in rest for english, each in group.items() for french in each]
    return Split(tuple(train[:most]), tuple(sides[1]), tuple(sides[0]))


def read_asked(path: Path) -> tuple[Asked, ...]:
    """Return the sentences of a file of pairs with all their translations, in the order of the file."""
    found: dict[str, list[str]] = {}
    for english, french in read(path):
        found.setdefault(english, []).append(french)
    return tuple(Asked(english, tuple(dict.fromkeys(each))) for english, each in found.items())


def _folded(sentence: str) -> str:
    letters = "".join(letter if letter.isalnum() else " " for letter in sentence.casefold())
    return " ".join(letters.split())


def _place(folded: str) -> bytes:
    return hashlib.sha256(folded.encode()).digest()
