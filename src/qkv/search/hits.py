"""Define the results of a search: passages with their attention weights, and the contributions of words."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from qkv.core.typing import Float, Int


@dataclass(frozen=True)
class Contributions:
    """Contributions of all pairs of a query word and a passage word to the score of a passage.

        score = Σ_{v, w} pairs[v, w] + rest

    Attributes:
        query_words: words of the query; "" is a special token of a sentence model.
        words: words of the passage.
        pairs: contributions `(query_words, words)`.
        rest: the part of the score that is not due to words: the negative mean, since scores are standardized.
    """

    query_words: list[str]
    words: list[str]
    pairs: Float[np.ndarray, "query_words words"] = field(repr=False)
    rest: float

    @property
    def score(self) -> float:
        """Score of the passage: the sum of all contributions and `rest`."""
        return float(self.pairs.sum()) + self.rest

    def by_word(self) -> dict[str, float]:
        """Return the contribution of each word of the passage, largest first."""
        return _sorted(self.words, self.pairs.sum(axis=0))

    def by_query_word(self) -> dict[str, float]:
        """Return the contribution of each word of the query, largest first."""
        return _sorted(self.query_words, self.pairs.sum(axis=1))


@dataclass(frozen=True)
class Hit:
    """Passage that a search found, with its attention weight and score.

    Attributes:
        document: name of the document.
        title: title of the document.
        text: text of the passage.
        start, end: range of characters in the title and text of the document.
        weight: attention weight among all passages.
        score: score in standard deviations above the mean of all passages.
        contributions: contributions of words to the score; None if not requested.

    Example:
        >>> from qkv.search import Document, Index
        >>> index = Index.from_texts([Document("a", "A golden ring."), Document("b", "A dark den with shadows.")])
        >>> hit = index.search("shadows")[0]
        >>> hit.document, hit.text[hit.start:hit.end], hit.record()["document"]
        ('b', 'A dark den with shadows.', 'b')
    """

    document: str
    title: str
    text: str
    start: int
    end: int
    weight: float
    score: float
    contributions: Contributions | None = field(default=None, repr=False)

    def record(self) -> dict[str, object]:
        """Return the passage as an object for JSON, with the contributions of words if there are any."""
        names = ("document", "title", "weight", "score", "start", "end", "text")
        found: dict[str, object] = {name: getattr(self, name) for name in names}
        if (shares := self.contributions) is None:
            return found
        return found | {"words": shares.by_word(), "query_words": shares.by_query_word(), "rest": shares.rest}


def merge_contributions(
    parts: list[tuple[list[str], list[str], Float[np.ndarray, "query_words words"]]], rest: float
) -> Contributions:
    """Add up the contributions of equal word pairs to several scores of the same query and passage.

    Example:
        >>> one = (["ring"], ["ring", "gold"], np.array([[2.0, 1.0]]))
        >>> two = (["ring"], ["ring"], np.array([[0.5]]))
        >>> merge_contributions([one, two], -1.0).by_word()
        {'ring': 2.5, 'gold': 1.0}
    """
    query_words = list(dict.fromkeys(word for part in parts for word in part[0]))
    words = list(dict.fromkeys(word for part in parts for word in part[1]))
    rows, columns = ({word: at for at, word in enumerate(names)} for names in (query_words, words))
    pairs = np.zeros((len(query_words), len(words)))
    for left, right, shares in parts:
        pairs[np.ix_([rows[word] for word in left], [columns[word] for word in right])] += shares
    return Contributions(query_words, words, pairs, rest)


def _sorted(words: list[str], shares: Float[np.ndarray, " words"]) -> dict[str, float]:
    return {words[at]: float(shares[at]) for at in np.argsort(-shares, kind="stable")}


@dataclass(frozen=True, eq=False)
class TopPassages:
    """The passages of largest weight of each query.

    Attributes:
        rows: `(queries, top)`, −1 in unused places.
        weights: `(queries, top)`, in descending order.
        scores: `(queries, top)`; None if they were not asked for.
        log_sum_exp: the logarithm of the sum by which the weights were divided.
        most: maximum number of passages of a merge.
    """

    rows: Int[np.ndarray, "queries top"]
    weights: Float[np.ndarray, "queries top"]
    scores: Float[np.ndarray, "queries top"] | None
    log_sum_exp: Float[np.ndarray, " queries"]
    most: int

    def merge(self, other: TopPassages) -> TopPassages:
        """Return the passages of largest weight among those of both; the lower row first if two are equal."""
        total = np.logaddexp(self.log_sum_exp, other.log_sum_exp)
        parts = (self, other)
        rows = np.concatenate([part.rows for part in parts], axis=1)
        weights = [part.weights * np.exp(part.log_sum_exp - total)[:, None] for part in parts]
        weight, score = np.concatenate(weights, axis=1), None
        if self.scores is not None and other.scores is not None:
            score = np.concatenate([self.scores, other.scores], axis=1)
        order = np.lexsort((rows, -(weight if score is None else score), rows < 0), axis=1)[:, : self.most]
        rows, weight = (np.take_along_axis(each, order, axis=1) for each in (rows, weight))
        score = None if score is None else np.take_along_axis(score, order, axis=1)
        return TopPassages(rows, weight, score, total, self.most)
