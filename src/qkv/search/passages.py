"""Long documents become passages, cut where paragraphs and sentences end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qkv.errors import OptionError
from qkv.search.text_sources import Document

__all__ = ["Passage", "passages_of", "split"]

_BLOCK = re.compile(r"(?:[^\n]*\S[^\n]*\n?)+")
_END = re.compile(r"(?<=[.!?])['\"”’)\]]*(?=\s+['\"“‘(\[]*[^\W_a-z])")
_SHORT = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Prof|cf|vs|[A-Z])|\b[a-z]\.[a-z])\.$")
"""Ends in a full stop that ends no sentence."""
_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class Passage:
    """A part of a document.

    Fields:
        document: its number.
        start, end: characters of `Document.whole`.
    """

    document: int
    start: int
    end: int


@dataclass(frozen=True)
class _Piece:
    start: int
    end: int
    words: int
    closes: bool  # the last of its paragraph


def passages_of(documents: Sequence[Document], words: int, overlap: int = 0) -> list[Passage]:
    """Every document in passages, in order; see `split`. A document without a word is one passage."""
    return [
        Passage(number, start, end)
        for number, document in enumerate(documents)
        for start, end in split(document.whole, words, overlap) or [(0, len(document.whole))]
    ]


def split(text: str, words: int, overlap: int = 0) -> list[tuple[int, int]]:
    """Where passages of at most so many words begin and end.

    A passage ends with a paragraph if that fills half of it, otherwise with a sentence; a sentence that is
    longer is cut between words. Every word lies in some passage.

    Args:
        text: the document.
        words: at most, in a passage; 0: the text stays whole.
        overlap: a passage begins with the last sentences of the one before, up to so many words.

    Raises:
        OptionError: a number below 0, or an overlap of half a passage or more.

    Example:
        >>> text = "The den is dark. A shepherd found a ring. All is well. Nobody saw it."
        >>> [text[start:end] for start, end in split(text, 8, 3)]
        ['The den is dark.', 'A shepherd found a ring. All is well.', 'All is well. Nobody saw it.']
    """
    if words < 0 or overlap < 0 or (words and 2 * overlap >= words):
        raise OptionError(
            f"passages of {words} words that share {overlap} cannot be made. The overlap is from 0 to less "
            "than half of a passage."
        )
    pieces = list(_pieces(text, words or len(text)))
    if not pieces:
        return []
    if words == 0:
        return [(pieces[0].start, pieces[-1].end)]
    found, first = [], 0
    while True:
        held, after = pieces[first].words, first + 1
        while after < len(pieces) and held + pieces[after].words <= words:
            if pieces[after - 1].closes and 2 * held >= words:
                break
            held += pieces[after].words
            after += 1
        found.append((pieces[first].start, pieces[after - 1].end))
        if after == len(pieces):
            return found
        back, shared = after, 0
        while back - 1 > first and shared + pieces[back - 1].words <= overlap:
            back -= 1
            shared += pieces[back].words
        # What is repeated must leave room for the sentence that is new.
        while back < after and shared + pieces[after].words > words:
            shared -= pieces[back].words
            back += 1
        first = back


def _pieces(text: str, words: int) -> Iterator[_Piece]:
    """Sentences, without the space around them; long ones in parts of so many words."""
    for block in _BLOCK.finditer(text):
        begin = block.start()
        ends = [match.end() for match in _END.finditer(text, block.start(), block.end())]
        for end in [*ends, block.end()]:
            if end != block.end() and _SHORT.search(text, begin, end):
                continue
            spans = [match.span() for match in _WORD.finditer(text, begin, end)]
            for at in range(0, len(spans), words):
                part = spans[at : at + words]
                closes = end == block.end() and at + words >= len(spans)
                yield _Piece(part[0][0], part[-1][1], len(part), closes)
            begin = end
