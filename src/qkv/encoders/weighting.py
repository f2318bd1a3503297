"""Weight word counts by the product of a local weight, a function of the count, and a global weight of the word.

    None          the count tf
    "tfidf"       tf · (log((1 + n) / (1 + df)) + 1)
    "log-entropy" log(1 + tf) · (1 + Σ_d p log p / log n),   p = tf / Σ_d tf

n is the number of documents, and df the number of documents that contain the word. The log-entropy weight
of a word is 0 if the word is spread evenly over all documents, and 1 if it occurs in a single document.

Source: Dumais 1991, Improving the retrieval of information from external sources (log-entropy);
Salton and Buckley 1988, Term-weighting approaches in automatic text retrieval (tf-idf; smoothed as in
scikit-learn, so that words in every document keep a weight).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np

from qkv.core.checks import check_choice
from qkv.core.typing import Float, Num

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    Counts: TypeAlias = Num[np.ndarray, "documents words"] | csr_array
    """Counts `(documents, words)`, dense or sparse."""


@dataclass(frozen=True, eq=False)
class Weighting:
    """Weighting that leaves word counts unchanged, and base class of the other weightings.

    Attributes:
        words: the global weight of each word after fitting; None if counts are not weighted.
    """

    words: Float[np.ndarray, " words"] | None = None

    def fit(self, counts: Counts) -> Self:
        """Return a copy of this weighting with the global weights of the words in counts `(documents, words)`."""
        words = self.global_weights(counts)
        return self if words is None else replace(self, words=words)

    def apply(self, counts: Counts) -> Counts:
        """Return the counts multiplied by local and global weights, as a sparse array if the counts are sparse."""
        if self.words is None:
            return counts
        weighted = _map_cells(self.local_weights, counts)
        if isinstance(weighted, np.ndarray):
            return weighted * self.words
        weighted.data = weighted.data * self.words[weighted.indices]
        return weighted

    def global_weights(self, counts: Counts) -> Float[np.ndarray, " words"] | None:
        """Return the global weight of each word, computed from counts `(documents, words)`.

        Return None if the weighting leaves counts unchanged.
        """
        return None

    def local_weights(self, counts: Num[np.ndarray, "*shape"]) -> Num[np.ndarray, "*shape"]:
        """Return the local weight of each count, such as log(1 + count)."""
        return counts


class _TfIdf(Weighting):
    def global_weights(self, counts: Counts) -> Float[np.ndarray, " words"]:
        frequency = np.asarray((counts > 0).sum(axis=0)).reshape(-1)
        return np.asarray(np.log((1 + counts.shape[0]) / (1 + frequency)) + 1.0)


class _LogEntropy(Weighting):
    def global_weights(self, counts: Counts) -> Float[np.ndarray, " words"]:
        from scipy.special import xlogy

        documents = counts.shape[0]
        totals = np.asarray(counts.sum(axis=0)).reshape(-1)
        # Σ p log p = Σ tf log tf / total − log total
        spread = np.asarray(_map_cells(lambda cells: xlogy(cells, cells), counts).sum(axis=0)).reshape(-1)
        present = totals > 0
        safe = np.where(present, totals, 1.0)
        entropy = np.where(present, spread / safe - np.log(safe), 0.0)
        # With one document, log n is 0 and the entropy is undefined.
        return np.asarray(1.0 + entropy / np.log(documents)) if documents > 1 else np.ones(len(totals))

    def local_weights(self, counts: Num[np.ndarray, "*shape"]) -> Num[np.ndarray, "*shape"]:
        return np.asarray(np.log1p(counts))


def _map_cells(function: Callable[[Num[np.ndarray, "*shape"]], Num[np.ndarray, "*shape"]], counts: Counts) -> Counts:
    """Apply an elementwise function that maps 0 to 0 to a dense or sparse array of counts."""
    if isinstance(counts, np.ndarray):
        return function(counts)
    mapped = counts.copy()
    mapped.data = function(counts.data)
    return mapped


_WEIGHTINGS: dict[str | None, type[Weighting]] = {None: Weighting, "tfidf": _TfIdf, "log-entropy": _LogEntropy}


def get_weighting(name: str | None) -> Weighting:
    """Return the unfitted weighting called `name`: None, `"tfidf"` or `"log-entropy"`.

    Raises:
        OptionError: the name is unknown.

    Example:
        >>> counts = np.array([[1.0, 4.0], [1.0, 0.0]])
        >>> get_weighting("log-entropy").fit(counts).words.tolist()
        [0.0, 1.0]
    """
    check_choice("weighting", name, _WEIGHTINGS)
    return _WEIGHTINGS[name]()
