"""What a search finds: passages, their attention, and the words it rests on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

__all__ = ["Evidence", "Hit", "joined"]


@dataclass(frozen=True)
class Evidence:
    """What every pair of a word of the query and a word of the passage adds to the score.

        score = Σ_{v, w} pairs[v, w] + rest

    Fields:
        asked: words of the query; "" stands for tokens of a sentence model's own.
        words: words of the passage.
        pairs: `(asked, words)`.
        rest: what no word is the cause of: scores are standardised, and their mean is taken away.
    """

    asked: list[str]
    words: list[str]
    pairs: np.ndarray = field(repr=False)
    rest: float

    @property
    def score(self) -> float:
        """The sum of everything."""
        return float(self.pairs.sum()) + self.rest

    def of_words(self) -> dict[str, float]:
        """What each word of the passage adds, largest first."""
        return _sorted(self.words, self.pairs.sum(axis=0))

    def of_asked(self) -> dict[str, float]:
        """What each word of the query adds, largest first."""
        return _sorted(self.asked, self.pairs.sum(axis=1))


@dataclass(frozen=True)
class Hit:
    """A passage that was found.

    Fields:
        document: its name.
        title: of the document.
        text: the passage.
        start, end: where it stands in title and text of the document, in characters.
        weight: its attention, over all passages.
        score: standardised, in deviations above the mean of all passages.
        evidence: the words it rests on; None where it was not asked for.
    """

    document: str
    title: str
    text: str
    start: int
    end: int
    weight: float
    score: float
    evidence: Evidence | None = field(default=None, repr=False)


def joined(parts: list[tuple[list[str], list[str], np.ndarray]], rest: float) -> Evidence:
    """Evidence from several comparisons of the same two texts: pairs of like words are added.

    Example:
        >>> one = (["ring"], ["ring", "gold"], np.array([[2.0, 1.0]]))
        >>> two = (["ring"], ["ring"], np.array([[0.5]]))
        >>> joined([one, two], -1.0).of_words()
        {'ring': 2.5, 'gold': 1.0}
    """
    asked = list(dict.fromkeys(word for part in parts for word in part[0]))
    words = list(dict.fromkeys(word for part in parts for word in part[1]))
    rows, columns = ({word: at for at, word in enumerate(names)} for names in (asked, words))
    pairs = np.zeros((len(asked), len(words)))
    for left, right, shares in parts:
        pairs[np.ix_([rows[word] for word in left], [columns[word] for word in right])] += shares
    return Evidence(asked, words, pairs, rest)


def _sorted(words: list[str], shares: np.ndarray) -> dict[str, float]:
    return {words[at]: float(shares[at]) for at in np.argsort(-shares, kind="stable")}
