"""The class `TokenAxis`, which holds the tokens along one axis of an attention map with their places in the text."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

__all__ = ["Span", "TokenAxis", "text_spans"]

Span = tuple[int, int]
"""The characters of a token in its text, (start, stop); none (start = stop) for tokens that stand for no text."""

_BREAK = "\n\n"
"""What separates the two texts of a pair."""
_SPECIAL = re.compile(r"\[(CLS|SEP|PAD|MASK|UNK|BOS|EOS)\]|</?s>|<(cls|sep|pad|mask|unk|bos|eos)>|<\|.+\|>")
"""Usual names of special tokens."""
_SENTENCE_END = re.compile(
    r"(?<!\b[A-Z])(?<!\b(?:Mr|Ms|Dr|St|vs))(?<!\bMrs)(?<!\b(?:e\.g|i\.e))[.!?…]+[\"'”’»)\]]*\s+|[。！？]+[”’」』）]*|\n\s*\n"
)
"""The end of a sentence, unless a lower-case letter follows; initials and some abbreviations end none."""


@dataclass(frozen=True)
class TokenAxis:
    """The tokens along one axis of an attention map, with the word to which each token belongs.

    Attributes:
        tokens: the displayed text of each token.
        pieces: the text that each token adds to its word.
        words: the index of the word that each token belongs to; −1: none.
        special: whether each token is a special token of the model, such as [CLS].
        numbered: whether the tokens are the numbers from 0, which need not be sent to the page.
        grid: numbers of rows and columns of the patches of an image; None: no patches.
        patches: for each token its patch, counted row by row, and −1 for others; None: the last tokens are the patches.
        segments: for a pair of texts, 0 or 1 for tokens of the first or second text and −1 for others; None: no pair.
        text: the text of the tokens; empty: the words with single spaces between them.
        spans: the characters of each token in `text`; special tokens that are not written in the text have none.
    """

    tokens: tuple[str, ...]
    pieces: tuple[str, ...]
    words: tuple[int, ...]
    special: tuple[bool, ...]
    numbered: bool = False
    grid: tuple[int, int] | None = None
    patches: tuple[int, ...] | None = None
    segments: tuple[int, ...] | None = None
    text: str = field(default="", repr=False)
    spans: tuple[Span, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not self.text:
            text, spans = self._join_words()
            object.__setattr__(self, "text", text)
            object.__setattr__(self, "spans", spans)

    @classmethod
    def from_count(cls, count: int) -> TokenAxis:
        """Create an axis whose tokens are the numbers from 0 to `count` − 1."""
        return replace(cls.from_words(range(count)), numbered=True)

    @classmethod
    def from_words(cls, words: Sequence[object] | TokenAxis) -> TokenAxis:
        """Create an axis with one token for each word; names such as `[CLS]`, `</s>` and `<|end|>` are special tokens.

        An axis is returned as it is.

        Example:
            >>> TokenAxis.from_words(["[CLS]", "cats", "[SEP]"]).special
            (True, False, True)
        """
        if isinstance(words, TokenAxis):
            return words
        names = tuple(str(word) for word in words)
        special = tuple(_SPECIAL.fullmatch(name) is not None for name in names)
        return cls(names, names, tuple(-1 if mark else i for i, mark in enumerate(special)), special)

    def beginning(self, count: int) -> TokenAxis:
        """Return the axis of the first `count` tokens of a text."""
        parts = {name: getattr(self, name)[:count] for name in ("tokens", "pieces", "words", "special", "spans")}
        return replace(self, **parts)

    @cached_property
    def sentences(self) -> tuple[int, ...]:
        """The index of the sentence of each token; −1 for tokens that stand for no text.

        Example:
            >>> TokenAxis.from_words("[CLS] It rained . We left .".split()).sentences
            (-1, 0, 0, 0, 1, 1, 1)
        """
        ends = [found.end() for found in _SENTENCE_END.finditer(self.text)]
        ends = [end for end in ends if end < len(self.text) and not self.text[end].islower()]
        return tuple(-1 if start == stop else bisect_right(ends, start) for start, stop in self.spans)

    def name(self, tokens: Sequence[int]) -> str:
        """Return the text from the first to the last of some tokens, or the name of the first without text."""
        return self.text[self.spans[tokens[0]][0] : self.spans[tokens[-1]][1]] or self.tokens[tokens[0]]

    def grouped(self, groups: Sequence[Sequence[int]]) -> TokenAxis:
        """Return the axis whose tokens are groups of tokens."""
        names = tuple(self.name(group) for group in groups)
        special = tuple(all(self.special[i] for i in group) for group in groups)
        spans = tuple((self.spans[group[0]][0], self.spans[group[-1]][1]) for group in groups)
        words = tuple(-1 if mark else i for i, mark in enumerate(special))
        return TokenAxis(names, names, words, special, text=self.text, spans=spans)

    def meta(self) -> dict[str, object]:
        """Return the axis as a JSON-serializable dictionary, or only its length if the tokens are numbers from 0."""
        if self.numbered:
            return {"count": len(self.tokens)}
        names = ("tokens", "pieces", "words", "special", "sentences", "text")
        sent = {name: value if isinstance(value := getattr(self, name), str) else list(value) for name in names}
        # Browsers count the two halves of characters above U+FFFF.
        units = list(accumulate((1 + (letter > "\uffff") for letter in self.text), initial=0))
        return {
            **sent,
            "spans": [[units[start], units[stop]] for start, stop in self.spans],
            **{name: list(value) for name in ("grid", "patches", "segments") if (value := getattr(self, name))},
        }

    def _join_words(self) -> tuple[str, tuple[Span, ...]]:
        """Return the words with spaces between them as a text, and the characters of each token."""
        parts: list[str] = []
        spans: list[Span] = []
        at, before = 0, -1  # number of characters, and the token before that stands for text
        for i, (piece, word) in enumerate(zip(self.pieces, self.words, strict=True)):
            if self.special[i]:
                spans.append((at, at))
                continue
            gap = "" if before < 0 or (before == i - 1 and 0 <= word == self.words[before]) else " "
            if before >= 0 and self.segments is not None and self.segments[i] != self.segments[before]:
                gap = _BREAK
            parts += [gap, piece]
            spans.append((at + len(gap), at + len(gap) + len(piece)))
            at, before = spans[-1][1], i
        return "".join(parts), tuple(spans)


def text_spans(texts: Sequence[str], offsets: Sequence[Span], sequences: Sequence[int]) -> tuple[str, tuple[Span, ...]]:
    """Return a text, or both texts of a pair as one, and the characters of each token without spaces around them.

    Args:
        texts: one or two texts.
        offsets: the characters of each token in its text.
        sequences: the index of the text of each token; −1 for tokens that are not written in a text.

    Example:
        >>> text_spans(["a cat"], [(0, 0), (0, 1), (1, 5), (0, 0)], [-1, 0, 0, -1])
        ('a cat', ((0, 0), (0, 1), (2, 5), (5, 5)))
    """
    text, firsts = _BREAK.join(texts), [0, len(texts[0]) + len(_BREAK)]
    spans: list[Span] = []
    end = 0
    for (start, stop), sequence in zip(offsets, sequences, strict=True):
        if sequence < 0:
            spans.append((end, end))
            continue
        start, stop = firsts[sequence] + start, firsts[sequence] + stop
        part = text[start:stop]
        if part.strip():  # a token of spaces keeps them
            start, stop = start + len(part) - len(part.lstrip()), stop - len(part) + len(part.rstrip())
        spans.append((start, stop))
        end = firsts[sequence] + len(texts[sequence])
    return text, tuple(spans)
