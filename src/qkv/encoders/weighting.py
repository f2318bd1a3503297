"""What a count of a word in a document weighs: a local part for the cell, a global one for the word.

    None          the count tf
    "tfidf"       tf · (log((1 + n) / (1 + df)) + 1)
    "log-entropy" log(1 + tf) · (1 + Σ_d p log p / log n),   p = tf / Σ_d tf

n is the number of documents, df in how many a word stands. A word that is spread evenly over all documents
has entropy weight 0, one that stands in a single document weight 1.

Source: Dumais 1991, Improving the retrieval of information from external sources (log-entropy);
Salton and Buckley 1988, Term-weighting approaches in automatic text retrieval (tf-idf; smoothed as in
scikit-learn, so that no word that stands everywhere is lost).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from qkv.errors import OptionError

__all__ = ["WEIGHTINGS", "Weighting", "get_weighting"]


@dataclass(frozen=True, eq=False)
class Weighting:
    """No weighting; its children weigh.

    Fields:
        words: the global weight of each column, once fitted.
    """

    words: np.ndarray | None = None

    def fit(self, counts: Any) -> Self:
        """Learn the global weights from `(documents, words)`, dense or sparse (CSR)."""
        words = self.weigh_words(counts)
        return self if words is None else replace(self, words=words)

    def apply(self, counts: Any) -> Any:
        """The weighted matrix, sparse where the counts are."""
        if self.words is None:
            return counts
        if isinstance(counts, np.ndarray):
            return self.weigh_cells(counts) * self.words
        weighted = counts.copy()
        weighted.data = self.weigh_cells(counts.data) * self.words[counts.indices]
        return weighted

    def weigh_words(self, counts: Any) -> np.ndarray | None:
        """The global weights; None where there are none."""
        return None

    def weigh_cells(self, counts: np.ndarray) -> np.ndarray:
        """The local weights."""
        return counts


class _TfIdf(Weighting):
    def weigh_words(self, counts: Any) -> np.ndarray:
        found = np.asarray((counts > 0).sum(axis=0)).reshape(-1)
        return np.asarray(np.log((1 + counts.shape[0]) / (1 + found)) + 1.0)


class _LogEntropy(Weighting):
    def weigh_words(self, counts: Any) -> np.ndarray:
        documents = counts.shape[0]
        totals = np.asarray(counts.sum(axis=0)).reshape(-1)
        # Σ p log p = Σ tf log tf / total − log total
        spread = np.asarray(_times_log(counts).sum(axis=0)).reshape(-1)
        there = totals > 0
        safe = np.where(there, totals, 1.0)
        entropy = np.where(there, spread / safe - np.log(safe), 0.0)
        # One document tells nothing of how a word is spread.
        return np.asarray(1.0 + entropy / np.log(documents)) if documents > 1 else np.ones(len(totals))

    def weigh_cells(self, counts: np.ndarray) -> np.ndarray:
        return np.asarray(np.log1p(counts))


def _times_log(counts: Any) -> Any:
    if isinstance(counts, np.ndarray):
        return counts * np.log(np.where(counts > 0, counts, 1.0))
    logs = counts.copy()
    logs.data = counts.data * np.log(np.where(counts.data > 0, counts.data, 1.0))
    return logs


WEIGHTINGS: dict[str | None, type[Weighting]] = {
    None: Weighting,
    "tfidf": _TfIdf,
    "log-entropy": _LogEntropy,
}


def get_weighting(name: str | None) -> Weighting:
    """The weighting of a name, not yet fitted.

    Raises:
        OptionError: there is none of that name.

    Example:
        >>> counts = np.array([[1.0, 4.0], [1.0, 0.0]])
        >>> get_weighting("log-entropy").fit(counts).words.tolist()
        [0.0, 1.0]
    """
    if name not in WEIGHTINGS:
        known = ", ".join(map(repr, WEIGHTINGS))
        raise OptionError(f"the weighting is {name!r}, and one of {known} is wanted.")
    return WEIGHTINGS[name]()
