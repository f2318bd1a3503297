"""The class `TokenAxis`, which holds the tokens along one axis of an attention map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = ["TokenAxis"]


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
    """

    tokens: tuple[str, ...]
    pieces: tuple[str, ...]
    words: tuple[int, ...]
    special: tuple[bool, ...]
    numbered: bool = False
    grid: tuple[int, int] | None = None
    patches: tuple[int, ...] | None = None
    segments: tuple[int, ...] | None = None

    @classmethod
    def from_count(cls, count: int) -> TokenAxis:
        """Create an axis whose tokens are the numbers from 0 to `count` − 1."""
        return replace(cls.from_words(range(count)), numbered=True)

    @classmethod
    def from_words(cls, words: Sequence[object]) -> TokenAxis:
        """Create an axis with one token for each word."""
        names = tuple(str(word) for word in words)
        return cls(names, names, tuple(range(len(names))), (False,) * len(names))

    def meta(self) -> dict[str, object]:
        """Return the axis as a JSON-serializable dictionary, or only its length if the tokens are numbers from 0."""
        if self.numbered:
            return {"count": len(self.tokens)}
        sent: dict[str, object] = {name: list(getattr(self, name)) for name in ("tokens", "pieces", "words", "special")}
        return {
            **sent,
            **{name: list(value) for name in ("grid", "patches", "segments") if (value := getattr(self, name))},
        }
