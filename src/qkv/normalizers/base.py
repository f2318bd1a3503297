"""Base class `Normalizer` of normalizers, which map logits to weights, for whole rows or tile by tile.

A logit of −inf excludes its key. If every key of a row is excluded, all weights of the row are 0.

Whole rows: `weights(logits, tile)` is the definition; it is differentiable and works with every array library.
Tile by tile, for normalizers with `online`:

    prepare(logits)                                  elementwise change of logits, such as a temperature
    accumulate(logits, value, tile) → partial        the partial result of a tile; partial results merge in any order
    finalize(partial, tile) → output, summary        the output, and a few numbers per row, from which
    tile_weights(logits, summary, tile)              the weights of any tile are recomputed, and
    logit_gradient(logits, …, summary, tile)         the gradient of the logits that `prepare` returned
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from qkv.core.arrays import namespace
from qkv.core.checks import wrong_part
from qkv.core.partial import PartialResult
from qkv.core.parts import Part
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, Float, OutputArray, PairArray, RowArray, ValueArray
from qkv.errors import RefusedError

__all__ = ["Normalizer", "Summary", "excluded", "require_normalizer"]

Summary = tuple[Array, ...]
"""Arrays with a few numbers per query, `(*batch, q, n)`."""


class Normalizer(Part, ABC):
    """Base class of normalizers, which map logits `(*batch, q, k)` to weights of the same shape.

    The planner and the kernels read the attributes.

    Attributes:
        online: whether rows can be accumulated tile by tile, as in online softmax; otherwise whole rows are needed.
        shift_invariant: whether adding a number to all logits of a row leaves the weights unchanged.
        constant: whether all keys of a row that are not excluded get the same weight, whatever their logits are.
        symmetric: whether equal logits get equal weights.
        sums_to_one: whether the weights of a row with at least one key sum to 1.
        linear: whether the weights of a row are its logits, divided by their sum if `sums_to_one`.
        nonnegative: whether a negative logit raises an error.
        log_sum_exp: whether `log_total` is defined.
        selects_keys: whether keys are selected by rank and index, so that kernels must not reorder them.
        top_k: maximum number of keys with weight, chosen by rank with ties to the lowest index; None: no maximum.
        stochastic: whether the weights are random and need a seed.
        differentiable: whether gradients reach the logits.
        has_threshold_bound: whether `threshold_bound` may return a bound.
        temperature: number or array by which `prepare` divides the logits; None for normalizers without this argument.
        power: p ≥ 1 if weights are max(0, scale · logit − τ)^p with τ such that they sum to 1; otherwise None.
        scale: the factor by which `prepare` multiplies, if it does nothing else; otherwise None.
        shifts: whether `prepare` adds a number, next to which the differences of small logits are rounded away.
        is_sigmoid: whether the weight is the sigmoid of what `prepare` returns.
        inner: normalizer that is applied to selected logits; None if no logits are selected.
        distribution: normalizer whose weights are the probabilities of the sampled key; None if no key is sampled.

    Example:
        >>> import numpy as np
        >>> from qkv import normalizers
        >>> logits = np.log([[1.0, 2.0, 5.0]])
        >>> normalizers.Softmax().weights(logits), normalizers.TopK(1).weights(logits)
        (array([[0.125, 0.25 , 0.625]]), array([[0., 0., 1.]]))
        >>> normalizers.Softmax().online, normalizers.Sparsemax().online  # tile by tile, or whole rows
        (True, False)
    """

    online: bool = True
    shift_invariant: bool = False
    constant: ClassVar[bool] = False
    symmetric: ClassVar[bool] = False
    sums_to_one: bool = True
    linear: ClassVar[bool] = False
    nonnegative: ClassVar[bool] = False
    log_sum_exp: bool = False
    selects_keys: ClassVar[bool] = False
    top_k: int | None = None
    stochastic: ClassVar[bool] = False
    differentiable: ClassVar[bool] = True
    has_threshold_bound: ClassVar[bool] = False
    temperature: Array | float | None = None
    power: float | None = None
    scale: float | None = None
    shifts: bool = False
    is_sigmoid: ClassVar[bool] = False
    inner: Normalizer | None = None
    distribution: Normalizer | None = None

    def simplify(self, k: int) -> Normalizer:
        """Return a simpler normalizer with the same weights for rows of at most `k` keys, or this normalizer."""
        return self

    def log_total(self, logits: PairArray) -> RowArray:
        """Return the log-sum-exp of each row of logits, `(*batch, q, 1)`.

        The base class raises a `RefusedError`; classes that define it set `log_sum_exp`.
        """
        raise RefusedError(f"the normalizer must define a log-sum-exp, got {self}. Use Softmax instead.")

    def accumulator_width(self, value_width: int) -> int:
        """Return the number of array elements per query in a partial result for values of width `value_width`."""
        return value_width + 2

    @abstractmethod
    def weights(self, logits: PairArray, tile: Tile | None = None) -> PairArray:
        """Return the weights of whole rows of logits, `(*batch, q, k)`."""

    def support(self, logits: PairArray, weights: PairArray) -> Bool[Array, "*batch q k"]:
        """Return a boolean array that is True for the keys whose values contribute to the output.

        The default returns all keys that are not excluded.
        """
        return ~excluded(logits)

    # Kernels call these methods to find the few keys of a row that get weight without weighing the others.

    def selection_logits(self, logits: PairArray, tile: Tile) -> PairArray:
        """Return the rank by which candidate keys are selected: the logit, plus noise in stochastic normalizers."""
        return logits

    def threshold_bound(self, largest: Float[Array, "*batch q groups"]) -> RowArray | None:
        """Return a lower bound of the ranks of keys with weight in each row, or None if every key may have weight.

        Classes that override this method set `has_threshold_bound`. Keys of a lower rank neither get weight nor change
        the weights of other keys.

        Args:
            largest: the largest rank in each of several disjoint groups of keys. They include the maximum of
                the row, and none is NaN or +inf.

        Returns:
            A lower bound of the ranks of keys with weight, NaN for rows without keys; None if every key may get
            weight.
        """
        return None

    def candidate_weights(self, logits: PairArray, ranks: PairArray, tile: Tile) -> PairArray:
        """Return the weights of the candidate keys of each query.

        The candidates are in key order, and missing candidates have logits and ranks of −inf.
        """
        return self.weights(logits, tile)

    def prepare(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Return the logits after the elementwise change that precedes `accumulate`, such as a temperature.

        The result is differentiable, and −inf stays −inf.
        """
        return logits

    def accumulate(
        self, logits: PairArray, value: ValueArray, tile: Tile, dropout: float, finite: bool
    ) -> PartialResult:
        """Return the partial result of a tile, computed from its values and the logits that `prepare` returned.

        `finite` states whether all values are known to be finite.
        """
        raise self._needs_rows()

    def finalize(self, partial: PartialResult, tile: Tile, dropout: float) -> tuple[OutputArray, Summary]:
        """Return the output `(*batch, q, value_width)`, and the summary from which `tile_weights` computes weights.

        `partial` is of the class that `accumulate` returns.
        """
        raise self._needs_rows()

    def tile_weights(self, logits: PairArray, summary: Summary, tile: Tile) -> PairArray:
        """Return the weights of a tile before dropout, from the logits that `prepare` returned and the summary."""
        raise self._needs_rows()

    def logit_gradient(
        self,
        logits: PairArray,
        weights: PairArray,
        weight_gradient: PairArray,
        row_dot: RowArray,
        summary: Summary,
        tile: Tile,
    ) -> PairArray:
        """Return the gradient of the loss with respect to the logits of a tile that `prepare` returned.

        It is 0 for normalizers that are not differentiable.

        Args:
            logits: logits of the tile, as returned by `prepare`.
            weights: weights of the tile, before dropout.
            weight_gradient: gradient with respect to `weights`.
            row_dot: Σ over all keys of weight · weight_gradient.
            summary: the second result of `finalize`.
            tile: the tile.
        """
        if self.differentiable:
            raise self._needs_rows()
        return namespace(logits).zeros_like(logits)

    def array_gradients(self, summary: Summary, row_dot: RowArray) -> tuple[Array | None, ...]:
        """Return one gradient per row for each array of the normalizer, or None for an array without a gradient.

        Gradients that flow through `prepare` are not included.
        """
        return (None,) * len(self.arrays())

    def _needs_rows(self) -> RefusedError:
        return RefusedError(
            f"{type(self).__name__} must be given whole rows of logits, got a tile of a row. Call weights instead."
        )


def excluded(logits: Float[Array, "*shape"]) -> Bool[Array, "*shape"]:
    """Return a boolean array that is True for logits of −inf, which exclude their keys; it is False for NaN."""
    return logits == -namespace(logits).inf


def require_normalizer(normalizer: object, name: str = "normalizer") -> Normalizer:
    """Return `normalizer`, or raise an error that names the argument `name` if it is not a `Normalizer`.

    Raises:
        KindError: `normalizer` is not a `Normalizer`.
    """
    if isinstance(normalizer, Normalizer):
        return normalizer
    raise wrong_part(name, "Normalizer", "Softmax()", normalizer)
