"""Sums over rows that come tile by tile, for normalizers that need no whole row: what `ask` streams with.

Softmax keeps, for each query, with m the largest logit so far and d = l − m,

    total = Σ e^d        weighted = Σ e^d v        surprise = Σ e^d d

all in float64; a new m rescales them. The entropy of the weights is log total − surprise / total. The other
normalizers keep the sums of their masses μ, whose entropy is log Σ μ − Σ μ log μ / Σ μ.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from qkv.core.online_softmax import ExponentialSums, WeightedSums
from qkv.core.tile import Tile
from qkv.database.execute.aggregates import Reading
from qkv.database.execute.streamed_aggregates import Tally
from qkv.database.execute.top_rows import TopRows
from qkv.normalizers.base import Normalizer
from qkv.normalizers.linear import LinearNormalizer

__all__ = ["Accumulator", "accumulator_for"]

# The exponential of anything smaller is too small for a normal number, and slow.
_FLOOR = {"float32": -87.0, "float64": -700.0}


def accumulator_for(normalizer: Normalizer, queries: int, tally: Tally, evidence: int) -> "Accumulator | None":
    """The sums for a normalizer; None where it needs whole rows, or a few best ones."""
    kind = SoftmaxAccumulator if normalizer.log_sum_exp else LinearAccumulator
    if not (normalizer.log_sum_exp or isinstance(normalizer, LinearNormalizer)):
        return None
    return kind(normalizer, queries, tally, evidence)


class Accumulator(ABC):
    """What is known of some queries so far.

    Fields:
        best: the rows of most weight.
    """

    def __init__(self, normalizer: Any, queries: int, tally: Tally, evidence: int) -> None:
        self.normalizer, self.tally, self.queries = normalizer, tally, queries
        self.best = TopRows(queries, evidence)
        self.total = np.zeros((queries, 1))
        self.surprise = np.zeros((queries, 1))

    @abstractmethod
    def absorb(self, logits: np.ndarray, first: int, values: Any) -> None:
        """Add the rows of a tile; `logits` `(q, rows)`, −inf where a row takes no part, are written over."""

    @abstractmethod
    def finish(self) -> tuple[Any, list[Reading], np.ndarray | None]:
        """The summary that gives rows their weights, the answers, and exp(entropy)."""

    def weights(self, logits: np.ndarray, summary: Any) -> np.ndarray:
        """Weights of some rows."""
        tile = Tile.whole(*logits.shape)
        return np.asarray(self.normalizer.tile_weights(self.normalizer.prepare(logits), summary, tile))

    def _support(self) -> np.ndarray | None:
        if not self.normalizer.sums_to_one:
            return None
        total = np.where(self.total > 0, self.total, 1.0)
        return np.asarray(np.exp(np.log(total) - self.surprise / total)[:, 0])


class SoftmaxAccumulator(Accumulator):
    """Sums of exponentials."""

    def __init__(self, normalizer: Any, queries: int, tally: Tally, evidence: int) -> None:
        super().__init__(normalizer, queries, tally, evidence)
        self.maximum = np.full((queries, 1), -np.inf)

    def absorb(self, logits: np.ndarray, first: int, values: Any) -> None:
        """Exponentials relative to the largest logit so far."""
        if not logits.shape[1]:
            return
        own, logits = logits, self.normalizer.prepare(logits)
        largest = logits.max(axis=1)
        self.best.absorb(logits, first, largest)
        self._raise_to(np.maximum(self.maximum, largest[:, None]))
        shift = np.where(self.maximum == -np.inf, 0.0, self.maximum)
        d = np.subtract(logits, shift.astype(logits.dtype), out=logits if own is logits else None)
        least = d.min()
        none = d == -np.inf if least == -np.inf else None
        if not least >= _FLOOR[str(d.dtype)]:
            np.maximum(d, _FLOOR[str(d.dtype)], out=d)
        e = np.exp(d)
        if none is not None:
            e[none] = 0.0
        if self.queries == 1:  # products that no array is made for
            self.surprise += float(np.dot(e[0], d[0]))
        else:
            self.surprise += np.multiply(e, d, out=d).sum(axis=1, keepdims=True, dtype=np.float64)
        # Pairwise, so float32 does.
        total = e.sum(axis=1, keepdims=True)
        self.total += total
        self.tally.add(e, values, total)

    def finish(self) -> tuple[Any, list[Reading], np.ndarray | None]:
        """Divided by the total, to which a sink adds."""
        tile = Tile.whole(self.queries, 0)
        partial = ExponentialSums(self.maximum, self.total, np.ones_like(self.total))
        scale, summary = self.normalizer.finalize(partial, tile, 0.0)
        return summary, self.tally.readings(scale, self.total * scale), self._support()

    def _raise_to(self, maximum: np.ndarray) -> None:
        moved = maximum != self.maximum
        if not moved.any():
            return
        met = self.maximum > -np.inf
        by = np.where(moved & met, self.maximum - np.where(met, maximum, 0.0), 0.0)
        factor = np.exp(by)
        self.surprise = factor * (self.surprise + by * self.total)
        self.total *= factor
        self.tally.sums *= factor
        self.maximum = maximum


class LinearAccumulator(Accumulator):
    """Sums of masses."""

    def absorb(self, logits: np.ndarray, first: int, values: Any) -> None:
        """As they are."""
        mass = np.asarray(self.normalizer.mass(self.normalizer.prepare(logits)))
        self.best.absorb(np.where(mass == 0, -np.inf, mass), first)
        self.total += mass.sum(axis=1, keepdims=True, dtype=np.float64)
        if self.normalizer.sums_to_one:
            logarithm = np.log(np.where(mass == 0, 1.0, mass))
            self.surprise += (mass * logarithm).sum(axis=1, keepdims=True, dtype=np.float64)
        self.tally.add(mass, values, mass.sum(axis=1, keepdims=True))

    def finish(self) -> tuple[Any, list[Reading], np.ndarray | None]:
        """Divided by the total, where the normalizer does."""
        partial = WeightedSums(self.total, np.ones_like(self.total))
        scale, summary = self.normalizer.finalize(partial, Tile.whole(self.queries, 0), 0.0)
        return summary, self.tally.readings(scale, self.total * scale), self._support()
