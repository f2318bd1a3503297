"""The normalizer `TopK`, which applies an inner normalizer to the k largest logits of each row.

    w = normalizer(the k largest l)

With `Dot` this is sparse top-k attention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import namespace, where
from qkv.core.ordering import kth_largest, top_k_mask
from qkv.core.partial import PartialResult, TopKeys
from qkv.core.parts import delegates, require_positive_integer
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, Float, OutputArray, PairArray, RowArray, ValueArray
from qkv.errors import OptionError
from qkv.normalizers.base import Normalizer, Summary
from qkv.normalizers.selection import is_selected, top_keys_of_tile, weigh_top_keys
from qkv.normalizers.softmax import Softmax

__all__ = ["TopK"]


@delegates("normalizer", "shift_invariant", "sums_to_one", "stochastic", "differentiable", "prepare")
@dataclass(frozen=True, eq=False)
class TopK(Normalizer):
    """Normalizer that keeps the k largest logits of each row and normalizes them; ties go to the lowest index.

    Args:
        k: number of keys, at least 1. Rows with fewer keys keep all of them.
        normalizer: the inner normalizer, which computes the weights of the kept keys; None: `Softmax()`.

    Raises:
        OptionError: `k` is not a positive integer, or `normalizer` is not a `Normalizer`.

    Example:
        >>> import numpy as np
        >>> TopK(2).weights(np.array([[1.0, 1.0, 1.0, 0.0]]))
        array([[0.5, 0.5, 0. , 0. ]])
    """

    k: int
    normalizer: Normalizer = None  # type: ignore[assignment]  # Softmax(), which torch.compile cannot trace as a default
    selects_keys: ClassVar[bool] = True
    has_threshold_bound: ClassVar[bool] = True

    def validate(self) -> None:
        require_positive_integer("TopK", "k", self.k)
        if self.normalizer is None:
            object.__setattr__(self, "normalizer", Softmax())
        if not isinstance(self.normalizer, Normalizer):
            raise OptionError(
                f"normalizer of TopK must be a Normalizer, got {self.normalizer!r}. Pass one, such as Softmax()."
            )

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update({"normalizer": Softmax(), **state})  # old files lack a field that had its default

    def __str__(self) -> str:
        return f"TopK({self.k})" if str(self.normalizer) == "Softmax()" else super().__str__()

    @property
    def online(self) -> bool:  # type: ignore[override]
        """Whether rows can be accumulated tile by tile, which depends on the inner normalizer.

        They can if it is online, neither samples nor selects keys, and leaves the order of the logits as it is.
        """
        return self.normalizer.online and self.top_k is not None and not self.normalizer.shifts

    @property
    def top_k(self) -> int | None:  # type: ignore[override]
        """The number `k` of kept keys if the inner normalizer neither samples nor selects keys, otherwise None."""
        return None if self.normalizer.stochastic or self.normalizer.selects_keys else self.k

    @property
    def inner(self) -> Normalizer:  # type: ignore[override]
        return self.normalizer

    def accumulator_width(self, value_width: int) -> int:
        """Return the number of array elements per query, for the rank, index, logit and value of each kept key."""
        return self.k * (value_width + 3)

    def simplify(self, k: int) -> Normalizer:
        return self.normalizer if k <= self.k else self

    def weights(self, logits: PairArray, tile: Tile | None = None) -> PairArray:
        return self.normalizer.weights(_mask_others(logits, top_k_mask(logits, self.k)), tile)

    def support(self, logits: PairArray, weights: PairArray) -> Bool[Array, "*batch q k"]:
        return self.normalizer.support(_mask_others(logits, top_k_mask(logits, self.k)), weights)

    def threshold_bound(self, largest: Float[Array, "*batch q groups"]) -> RowArray | None:
        """Return a lower bound of the k-th largest logit of each row, from the maxima of groups of keys.

        The result is None if the inner normalizer samples or selects keys, because it then depends on their indices.
        """
        if self.top_k is None:
            return None  # such an inner normalizer depends on the indices of keys
        xp = namespace(largest)
        if largest.shape[-1] < self.k:
            return xp.zeros_like(largest[..., :1]) - xp.inf
        while (half := largest.shape[-1] // 2) >= 2 * self.k:
            # Merging pairs of groups lowers the bound a little and halves the time.
            largest = xp.maximum(largest[..., :half], largest[..., half : 2 * half])
        return kth_largest(largest, self.k)

    def accumulate(self, logits: PairArray, value: ValueArray, tile: Tile, dropout: float, finite: bool) -> TopKeys:
        return top_keys_of_tile(logits, logits, value, tile, self.k)

    def finalize(self, partial: PartialResult, tile: Tile, dropout: float) -> tuple[OutputArray, Summary]:
        """Return the output, and a summary that starts with the indices of the kept keys of each query.

        The inner normalizer computes the weights and the remaining elements of the summary.
        """
        assert isinstance(partial, TopKeys)
        xp = namespace(partial.logit)
        inner = self.normalizer.map_arrays(lambda array: array[..., None] if array.ndim else array)
        # Each query has its own keys now, so the query axis becomes a batch axis with one query per element.
        row = partial.logit[..., None, :]
        no_value = xp.matrix_transpose(xp.zeros_like(row))
        _, summary = inner.finalize(inner.accumulate(row, no_value, tile, 0.0, True), tile, 0.0)
        weights = inner.tile_weights(row, summary, tile)
        read = inner.support(row, weights)[..., 0, :]  # a weight may have underflowed to 0
        weights = weights[..., 0, :]
        output = weigh_top_keys(weights, partial, tile, dropout, read)
        return output, (partial.index, *(x[..., 0, :] for x in summary))

    def tile_weights(self, logits: PairArray, summary: Summary, tile: Tile) -> PairArray:
        masked = _mask_others(logits, is_selected(summary[0], logits, tile))
        return self.normalizer.tile_weights(masked, summary[1:], tile)

    def logit_gradient(
        self,
        logits: PairArray,
        weights: PairArray,
        weight_gradient: PairArray,
        row_dot: RowArray,
        summary: Summary,
        tile: Tile,
    ) -> PairArray:
        selected = is_selected(summary[0], logits, tile)
        gradient = self.normalizer.logit_gradient(
            _mask_others(logits, selected), weights, weight_gradient, row_dot, summary[1:], tile
        )
        return where(selected, gradient, 0.0)

    def array_gradients(self, summary: Summary, row_dot: RowArray) -> tuple[Array | None, ...]:
        return self.normalizer.array_gradients(summary[1:], row_dot)


def _mask_others(logits: PairArray, selected: Bool[Array, "*batch q k"]) -> PairArray:
    return where(selected, logits, -math.inf)
