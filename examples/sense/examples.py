"""Read example sentences of the senses of a word from a file."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from qkv.encoders import ContextualVectors
from qkv.errors import DataError

__all__ = ["Examples", "from_lists", "marked", "read"]

_MARKED = re.compile(r"\*([^*]+)\*")


class Examples(NamedTuple):
    """Sentences that each contain an ambiguous word.

    Attributes:
        sentences: the sentences, without asterisks.
        spans: range of characters of the word in each sentence.
        senses: names of the senses, in the order of their first sentence.
        labels: `(sentences,)`, index of the sense of each sentence.
    """

    sentences: list[str]
    spans: list[tuple[int, int]]
    senses: list[str]
    labels: np.ndarray


def marked(sentence: str) -> tuple[str, tuple[int, int]]:
    """Return a sentence without asterisks, and the range of characters of the word between them.

    Raises:
        DataError: the sentence does not contain exactly one word between asterisks.

    Example:
        >>> marked("She sat on the *banks* of the river.")
        ('She sat on the banks of the river.', (15, 20))
    """
    words = list(_MARKED.finditer(sentence))
    if len(words) != 1 or sentence.count("*") != 2:
        raise DataError(
            f"sentence must have one word between asterisks, got {sentence!r}. Mark the word, as in 'on the *bank* of'."
        )
    begin, end = words[0].span()
    return sentence[:begin] + words[0][1] + sentence[end:], (begin, end - 2)


def from_lists(word: str, lists: Mapping[str, Sequence[str]]) -> Examples:
    """Return the examples of a word from a list of sentences for each sense, which all contain the word."""
    sentences = [sentence for each in lists.values() for sentence in each]
    spans = [ContextualVectors.find(sentence, word) for sentence in sentences]
    labels = np.repeat(np.arange(len(lists)), [len(each) for each in lists.values()])
    return Examples(sentences, [(span.start, span.stop) for span in spans], list(lists), labels)


def read(path: Path) -> Examples:
    """Read a file with the columns `sense` and `sentence`, separated by tabs; or by commas, if its name ends in .csv.

    Raises:
        DataError: the file cannot be read, a sentence has no marked word, or the file has fewer than two senses or
            fewer than two sentences of a sense.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            comma = path.suffix.lower() == ".csv"
            rows = csv.DictReader(stream, **({} if comma else {"delimiter": "\t", "quoting": csv.QUOTE_NONE}))
            if not {"sense", "sentence"} <= set(rows.fieldnames or ()):
                raise DataError(
                    f"the first line of {path.name} must name the columns sense and sentence, got {rows.fieldnames}. "
                    f"Separate columns by {'commas' if comma else 'tabs'}."
                )
            pairs = [(row["sense"] or "", row["sentence"] or "") for row in rows]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"path must be a readable file in UTF-8, got {str(path)!r}: {error}. Check the path.") from None
    senses = list(dict.fromkeys(sense for sense, _ in pairs))
    labels = np.array([senses.index(sense) for sense, _ in pairs], np.int64)
    counts = {sense: int((labels == at).sum()) for at, sense in enumerate(senses)}
    if len(senses) < 2 or min(counts.values()) < 2:
        raise DataError(
            f"{path.name} must have at least two senses with two sentences each, got {counts}. Add sentences."
        )
    sentences, spans = zip(*(marked(sentence) for _, sentence in pairs), strict=True)
    return Examples(list(sentences), list(spans), senses, labels)
