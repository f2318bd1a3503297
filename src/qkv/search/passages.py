"""Passages of documents: texts are divided at the ends of paragraphs and sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qkv.errors import OptionError
from qkv.search.text_sources import Document

_BLOCK = re.compile(r"(?:[^\n]*\S[^\n]*\n?)+")
_END = re.compile(r"(?<=[.!?])['\"”’)\]]*(?=\s+['\"“‘(\[]*[^\W_a-z])")
_SHORT = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Prof|cf|vs|[A-Z])|\b[a-z]\.[a-z])\.$")
"""Abbreviations whose full stop does not end a sentence."""
_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class Passage:
    """Part of a document that a search ranks, stored as a range of characters."""

    document: int
    start: int
    end: int


@dataclass(frozen=True)
class _Piece:
    start: int
    end: int
    words: int
    ends_block: bool  # whether this is the last piece of its paragraph


def passages_of(documents: Sequence[Document], words: int, overlap: int = 0) -> list[Passage]:
    """Return the passages of all documents, split by `split`. A document without words is one passage."""
    return [
        Passage(number, start, end)
        for number, document in enumerate(documents)
        for start, end in split(document.whole, words, overlap) or [(0, len(document.whole))]
    ]


def split(text: str, words: int, overlap: int = 0) -> list[tuple[int, int]]:
    """Split a text into passages of at most `words` words, and return their character ranges `(start, end)`.

    A passage ends at the end of a paragraph if it is then at least half full, otherwise at the end of a sentence.
    Sentences of more than `words` words are split between words. Every word is in at least one passage.

    Args:
        text: the document.
        words: maximum number of words per passage; 0 for the whole text.
        overlap: maximum number of words repeated from the end of the previous passage, in whole sentences.

    Raises:
        OptionError: `words` or `overlap` is negative, or `overlap` is at least half of `words`.

    Example:
        >>> text = "The den is dark. A shepherd found a ring. All is well. Nobody saw it."
        >>> [text[start:end] for start, end in split(text, 8, 3)]
        ['The den is dark.', 'A shepherd found a ring. All is well.', 'All is well. Nobody saw it.']
    """
    if words < 0 or overlap < 0 or (words and 2 * overlap >= words):
        raise OptionError(
            f"words must be at least 0, and overlap at least 0 and less than half of words unless words is 0, got "
            f"words={words} and overlap={overlap}. "
            "Pass, for example, words=200 and overlap=50."
        )
    pieces = list(_pieces(text, words or len(text)))
    if not pieces:
        return []
    if words == 0:
        return [(pieces[0].start, pieces[-1].end)]
    found, first = [], 0
    while True:
        total, after = pieces[first].words, first + 1
        while after < len(pieces) and total + pieces[after].words <= words:
            if pieces[after - 1].ends_block and 2 * total >= words:
                break
            total += pieces[after].words
            after += 1
        found.append((pieces[first].start, pieces[after - 1].end))
        if after == len(pieces):
            return found
        back, shared = after, 0
        while back - 1 > first and shared + pieces[back - 1].words <= overlap:
            back -= 1
            shared += pieces[back].words
        # The repeated sentences must leave space for the new sentence.
        while back < after and shared + pieces[after].words > words:
            shared -= pieces[back].words
            back += 1
        first = back


def _pieces(text: str, words: int) -> Iterator[_Piece]:
    """Yield the sentences of a text, with sentences of more than `words` words split into parts of `words` words."""
    for block in _BLOCK.finditer(text):
        begin = block.start()
        ends = [match.end() for match in _END.finditer(text, block.start(), block.end())]
        for end in [*ends, block.end()]:
            if end != block.end() and _SHORT.search(text, begin, end):
                continue
            spans = [match.span() for match in _WORD.finditer(text, begin, end)]
            for at in range(0, len(spans), words):
                part = spans[at : at + words]
                ends_block = end == block.end() and at + words >= len(spans)
                yield _Piece(part[0][0], part[-1][1], len(part), ends_block)
            begin = end
