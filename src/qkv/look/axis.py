"""The class `Axis`: what the rows or columns of an attention map stand for, and what is drawn along them.

tokens of a text       labels; grouped to words and sentences
patches of an image    the patches and their labels `row,column`, also between the tokens of a text
times of a series      a curve and labels; grouped to units that are given, such as days
rows of a table        labels, and a curve of one of its columns; grouped by columns that are given
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

import numpy as np

from qkv.core.typing import ArrayLike, Float, Num
from qkv.errors import ShapeError
from qkv.look.quantize import jsonable

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


@dataclass(frozen=True, eq=False)
class Patches:
    """An image of which some tokens of an axis are patches.

    Attributes:
        grid: numbers of rows and columns of patches.
        places: for each token its patch, counted row by row; −1 for other tokens.
        pixels: `(height, width, 3)` uint8, red, green and blue of the image; None: unknown.
    """

    grid: tuple[int, int]
    places: tuple[int, ...]
    pixels: Num[np.ndarray, "height width 3"] | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Curve:
    """Values along an axis.

    Attributes:
        low, high: `(n,)`, the smallest and the largest value of each token, such as those of the samples in a frame of
            speech; equal for tokens of one value.
        name: what the values are, with their unit.
    """

    low: Float[np.ndarray, " n"]
    high: Float[np.ndarray, " n"]
    name: str = ""


@dataclass(frozen=True)
class Axis:
    """What the rows or columns of an attention map stand for.

    Attributes:
        tokens: the label of each row or column, such as a token.
        pieces: the text that each token adds to its word.
        words: the index of the word that each token belongs to; −1: none.
        special: whether each token is a special token of the model, such as [CLS].
        numbered: whether the tokens are the numbers from 0, which need not be sent to the page.
        segments: for a pair of texts, 0 or 1 for tokens of the first or second text and −1 for others; None: no pair.
        text: the text of the tokens; empty: the words with single spaces between them.
        spans: the characters of each token in `text`; special tokens that are not written in the text have none.
        groups: for each unit, such as `"day"`, the name of the group of each token; neighbours of one name are a group.
            None: the sentences of the text.
        patches: the image of which tokens are patches; None: none.
        curve: values that are drawn along the axis; None: none.
    """

    tokens: tuple[str, ...]
    pieces: tuple[str, ...]
    words: tuple[int, ...]
    special: tuple[bool, ...]
    numbered: bool = False
    segments: tuple[int, ...] | None = None
    text: str = field(default="", repr=False)
    spans: tuple[Span, ...] = field(default=(), repr=False)
    groups: Mapping[str, tuple[str, ...]] | None = None
    patches: Patches | None = None
    curve: Curve | None = None

    def __post_init__(self) -> None:
        if not self.text:
            for name, value in zip(("text", "spans"), self._join_words(), strict=True):
                object.__setattr__(self, name, value)

    @classmethod
    def from_count(cls, count: int) -> Axis:
        """Create an axis whose tokens are the numbers from 0 to `count` − 1."""
        return replace(cls.from_words(range(count)), numbered=True, groups={})

    @classmethod
    def from_words(cls, words: Sequence[object] | Axis) -> Axis:
        """Create an axis with one token for each word; names such as `[CLS]`, `</s>` and `<|end|>` are special tokens.

        An axis is returned as it is.

        Example:
            >>> Axis.from_words(["[CLS]", "cats", "[SEP]"]).special
            (True, False, True)
        """
        if isinstance(words, Axis):
            return words
        names = tuple(str(word) for word in words)
        special = tuple(_SPECIAL.fullmatch(name) is not None for name in names)
        return cls(names, names, tuple(-1 if mark else i for i, mark in enumerate(special)), special)

    @classmethod
    def from_patches(
        cls, rows: int, columns: int, special: int = 0, pixels: Num[np.ndarray, "height width 3"] | None = None
    ) -> Axis:
        """Create the axis of the patches of an image, named by row and column, after special tokens such as [CLS].

        Example:
            >>> Axis.from_patches(2, 2, 1).tokens
            ('[CLS]', '0,0', '0,1', '1,0', '1,1')
        """
        before = ("[CLS]", *(f"[REG{i}]" for i in range(1, special)))[:special]
        names = (*before, *(f"{row},{column}" for row in range(rows) for column in range(columns)))
        places = (*(-1 for _ in before), *range(rows * columns))
        marks = tuple(place < 0 for place in places)
        lines = tuple("" if place < 0 else f"row {place // columns}" for place in places)
        patches = Patches((rows, columns), places, pixels)
        return cls(names, names, places, marks, groups={"row": lines}, patches=patches)

    @classmethod
    def from_series(
        cls,
        labels: Sequence[object],
        values: ArrayLike | None = None,
        *,
        name: str = "",
        groups: Mapping[str, Sequence[object]] | None = None,
    ) -> Axis:
        """Create the axis of a time series, of the frames of a sound, or of the rows of a table.

        Args:
            labels: the time of each value or frame, or the name of each row.
            values: one number for each label, or several, such as the samples of a sound: the curve is then the range
                between the smallest and the largest value of each label.
            name: what the values are, with their unit.
            groups: for each unit in which tokens can be merged, such as `"day"`, the name of the group of each label.

        Raises:
            ShapeError: there are fewer values than labels, or another number of groups.

        Example:
            >>> axis = Axis.from_series([0.1, 0.2], [1, -2, 0, 3], name="sound", groups={"second": ["first", "first"]})
            >>> axis.tokens, axis.curve.low.tolist(), axis.curve.high.tolist()
            (('0.1', '0.2'), [-2.0, 0.0], [1.0, 3.0])
        """
        names = tuple(f"{label:g}" if isinstance(label, float) else str(label) for label in labels)
        count = len(names)
        units = {unit: tuple(map(str, owners)) for unit, owners in (groups or {}).items()}
        numbers = None if values is None else np.asarray(values, np.float64)
        shape = (count,) if numbers is None else numbers.shape
        if len(shape) != 1 or shape[0] < count or any(len(own) != count for own in units.values()):
            raise ShapeError(
                f"values must be at least one number, and groups one name, for each of {count} labels, got values of "
                f"shape {shape} and {[len(own) for own in units.values()]} names. Pass one row or channel."
            )
        curve = None
        if numbers is not None:
            firsts = np.arange(count) * len(numbers) // count
            curve = Curve(np.minimum.reduceat(numbers, firsts), np.maximum.reduceat(numbers, firsts), name)
        return cls(names, names, tuple(range(count)), (False,) * count, groups=units, curve=curve)

    def beginning(self, count: int) -> Axis:
        """Return the axis of the first `count` tokens of a text."""
        parts = {name: getattr(self, name)[:count] for name in ("tokens", "pieces", "words", "special", "spans")}
        return replace(self, **parts)

    @cached_property
    def sentences(self) -> tuple[int, ...]:
        """The index of the sentence of each token; −1 for tokens that stand for no text.

        Example:
            >>> Axis.from_words("[CLS] It rained . We left .".split()).sentences
            (-1, 0, 0, 0, 1, 1, 1)
        """
        ends = [found.end() for found in _SENTENCE_END.finditer(self.text)]
        ends = [end for end in ends if end < len(self.text) and not self.text[end].islower()]
        return tuple(-1 if start == stop else bisect_right(ends, start) for start, stop in self.spans)

    @property
    def units(self) -> dict[str, Sequence[int | str]]:
        """For each unit in which tokens can be merged, the group of each token; −1 and empty names: none."""
        return {"words": self.words, **({"sentences": self.sentences} if self.groups is None else self.groups)}

    def name(self, tokens: Sequence[int], unit: str = "") -> str:
        """Return the name of a group of a unit, the text from its first to its last token, or its first token."""
        given = (self.groups or {}).get(unit)
        text = self.text[self.spans[tokens[0]][0] : self.spans[tokens[-1]][1]]
        return (given and given[tokens[0]]) or text or self.tokens[tokens[0]]

    def grouped(self, groups: Sequence[Sequence[int]], unit: str = "") -> Axis:
        """Return the axis whose tokens are groups of tokens, such as those of a unit."""
        names = tuple(self.name(group, unit) for group in groups)
        special = tuple(all(self.special[i] for i in group) for group in groups)
        spans = tuple((self.spans[group[0]][0], self.spans[group[-1]][1]) for group in groups)
        words = tuple(-1 if mark else i for i, mark in enumerate(special))
        curve = self.curve
        if curve is not None:
            low, high = np.array([(curve.low[[*group]].min(), curve.high[[*group]].max()) for group in groups]).T
            curve = replace(curve, low=low, high=high)
        units = None if self.groups is None else dict[str, tuple[str, ...]]()
        return Axis(names, names, words, special, text=self.text, spans=spans, groups=units, curve=curve)

    def meta(self) -> dict[str, object]:
        """Return the axis as a JSON-serializable dictionary, or only its length if the tokens are numbers from 0."""
        if self.numbered:
            return {"count": len(self.tokens)}
        # Browsers count the two halves of characters above U+FFFF.
        units = list(accumulate((1 + (letter > "\uffff") for letter in self.text), initial=0))
        drawn: dict[str, object] = {}
        if self.patches:  # the pixels are sent apart
            size = None if self.patches.pixels is None else self.patches.pixels.shape[:2]
            drawn["patches"] = {"grid": self.patches.grid, "places": self.patches.places, "size": size}
        if self.curve:
            drawn["curve"] = vars(self.curve)
        return {
            **{name: list(getattr(self, name)) for name in ("tokens", "special")},
            "text": self.text,
            "spans": [[units[start], units[stop]] for start, stop in self.spans],
            "units": {unit: list(owners) for unit, owners in self.units.items()},
            **jsonable(drawn, 4),
            **({"segments": list(self.segments)} if self.segments else {}),
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
