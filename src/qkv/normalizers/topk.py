"""Top-k: only the k keys with the largest logits take part, and another normalizer weighs those.

    w = of(l restricted to its k largest)

With `Dot` this is the sparse score of mission B6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import Array, asarray_like, namespace
from qkv.core.online_softmax import TopKeys
from qkv.core.ordering import kth_largest
from qkv.core.tile import Tile
from qkv.errors import OptionError
from qkv.normalizers.base import Normalizer, Summary
from qkv.normalizers.selection import is_selected, select_top, selection_threshold, top_keys_of_tile, weigh_top_keys
from qkv.normalizers.softmax import Softmax

__all__ = ["TopK"]


@dataclass(frozen=True, eq=False)
class TopK(Normalizer):
    """The k best keys, weighed by another normalizer; ties go to the lowest index, exactly k are kept.

    Args:
        k: how many, at least 1. Fewer keys than that all take part.
        normalizer: weighs the kept keys.

    Raises:
        OptionError: k is no whole number of at least 1, or `normalizer` is none.

    Example:
        >>> import numpy as np
        >>> TopK(2).weights(np.array([[1.0, 1.0, 1.0, 0.0]]))
        array([[0.5, 0.5, 0. , 0. ]])
    """

    k: int
    normalizer: Normalizer = Softmax()
    selects_keys: ClassVar[bool] = True

    def validate(self) -> None:
        """A whole number of at least 1, and a normalizer."""
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise OptionError(f"TopK was given k={self.k!r}. It must be a whole number of at least 1.")
        if not isinstance(self.normalizer, Normalizer):
            raise OptionError(f"normalizer must be a Normalizer, got {self.normalizer!r}. Give one, such as Softmax().")

    @property
    def online(self) -> bool:  # type: ignore[override]
        """True where the inner normalizer is online and neither draws nor selects keys."""
        return self.normalizer.online and not (self.normalizer.stochastic or self.normalizer.selects_keys)

    @property
    def top_k(self) -> int | None:  # type: ignore[override]
        """Fact: k, where the inner normalizer neither draws nor chooses."""
        return None if self.normalizer.stochastic or self.normalizer.selects_keys else self.k

    @property
    def shift_invariant(self) -> bool:  # type: ignore[override]
        """Fact: as the inner normalizer."""
        return self.normalizer.shift_invariant

    @property
    def sums_to_one(self) -> bool:  # type: ignore[override]
        """Fact: as the inner normalizer."""
        return self.normalizer.sums_to_one

    @property
    def stochastic(self) -> bool:  # type: ignore[override]
        """Fact: as the inner normalizer."""
        return self.normalizer.stochastic

    @property
    def differentiable(self) -> bool:  # type: ignore[override]
        """Fact: as the inner normalizer."""
        return self.normalizer.differentiable

    def accumulator_width(self, value_width: int) -> int:
        """Fact: rank, index, logit and value of each kept key."""
        return self.k * (value_width + 3)

    def simplify(self, k: int) -> Normalizer:
        """The inner normalizer, where no key would be left out."""
        return self.normalizer if k <= self.k else self

    def weights(self, logits: Array, tile: Tile | None = None) -> Array:
        """The inner weights of the kept logits."""
        return self.normalizer.weights(_only(logits, select_top(logits, self.k)), tile)

    def support(self, logits: Array, weights: Array) -> Array:
        """The kept keys that the inner normalizer reads."""
        kept = _only(logits, select_top(logits, self.k))
        return self.normalizer.support(kept, weights)

    def threshold_bound(self, largest: Array) -> Array | None:
        """The k-th largest of the groups: so many keys at least reach it."""
        if self.normalizer.stochastic or self.normalizer.selects_keys:
            return None  # it looks at the index of a key
        xp = namespace(largest)
        if largest.shape[-1] < self.k:
            return xp.zeros_like(largest[..., :1]) - xp.inf
        while (half := largest.shape[-1] // 2) >= 2 * self.k:
            # Groups of two groups: the floor falls a little, and is found in half the time.
            largest = xp.maximum(largest[..., :half], largest[..., half : 2 * half])
        return kth_largest(largest, self.k)

    def prepare(self, logits: Array) -> Array:
        """As the inner normalizer."""
        return self.normalizer.prepare(logits)

    def accumulate(self, logits: Array, value: Array, tile: Tile, dropout: float, clean: bool) -> TopKeys:
        """The best of the tile."""
        return top_keys_of_tile(logits, logits, value, tile, self.k)

    def finalize(self, partial: TopKeys, tile: Tile, dropout: float) -> tuple[Array, Summary]:
        """The inner fold over the kept keys alone; the summary adds the worst that was kept."""
        xp = namespace(partial.logit)
        inner = self.normalizer.map_arrays(lambda array: array[..., None] if array.ndim else array)
        # Each query has keys of its own now: it becomes a batch axis with one query.
        row = partial.logit[..., None, :]
        nothing = xp.matrix_transpose(xp.zeros_like(row))
        _, summary = inner.finalize(inner.accumulate(row, nothing, tile, 0.0, True), tile, 0.0)
        weights = inner.tile_weights(row, summary, tile)
        read = inner.support(row, weights)[..., 0, :]  # a weight may have underflowed to 0
        weights = weights[..., 0, :]
        output = weigh_top_keys(weights, partial, tile, dropout, read)
        return output, (*selection_threshold(partial), *(x[..., 0, :] for x in summary))

    def tile_weights(self, logits: Array, summary: Summary, tile: Tile) -> Array:
        """The inner weights of the tile's kept keys."""
        kept = _only(logits, is_selected(logits, (summary[0], summary[1]), tile))
        return self.normalizer.tile_weights(kept, summary[2:], tile)

    def logit_gradient(
        self,
        logits: Array,
        weights: Array,
        weight_gradient: Array,
        row_dot: Array,
        summary: Summary,
        tile: Tile,
    ) -> Array:
        """As the inner normalizer over the kept keys; 0 for the others."""
        xp = namespace(logits)
        kept = is_selected(logits, (summary[0], summary[1]), tile)
        gradient = self.normalizer.logit_gradient(
            _only(logits, kept), weights, weight_gradient, row_dot, summary[2:], tile
        )
        return xp.where(kept, gradient, xp.zeros_like(gradient))

    def array_gradients(self, summary: Summary, row_dot: Array) -> tuple[Array | None, ...]:
        """As the inner normalizer."""
        return self.normalizer.array_gradients(summary[2:], row_dot)


def _only(logits: Array, kept: Array) -> Array:
    xp = namespace(logits)
    return xp.where(kept, logits, asarray_like(logits, -xp.inf, logits.dtype))
