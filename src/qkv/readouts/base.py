"""Base class `Readout`, and class `Reduction`, which states how results of tiles are combined.

`read` computes the quantity for some queries with all their keys, or for any tile if `accepts_tiles` is true.
`reductions` states where the result of a tile belongs in the result of the whole call and how both are combined,
so that the results of row blocks, tiles and batch elements are assembled in the same way. A readout never changes
the output, and uses the weights before dropout.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

from qkv.core.arrays import namespace, zeros
from qkv.core.parts import Part
from qkv.core.printable import html_table
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, Float, Int, Num, PairArray, ReadoutResult
from qkv.normalizers.base import Normalizer

__all__ = ["Readout", "ReduceOp", "Reduction", "Result", "across_keys", "flatten", "unflatten"]

ReduceOp = Literal["set", "add", "max", "logaddexp", "top-k"]
Result: TypeAlias = Array | tuple[Array, ...]

_REQUIREMENTS = {"sums_to_one": "have weights that sum to 1", "distribution": "be Sample", "log_sum_exp": "be Softmax"}
"""The condition in the error message for each attribute of the normalizer that a readout may require."""


@dataclass(frozen=True)
class Reduction:
    """Rule by which an array that a readout returns for a tile is combined into the array for the whole call.

    Attributes:
        shape: lengths of the axes of the whole array after its batch axes.
        index: index of the part of these axes to which the tile contributes.
        op: "set" overwrites, "add" adds, "max" keeps the larger element (the earlier one if equal), "logaddexp" adds
            exponentials; "top-k" is handled by `Readout.merge`.
        initial: initial value of the elements of the array for the whole call.
        masked: value contributed by a tile without allowed pairs; None if such a tile contributes nothing.

    Example:
        >>> import numpy as np
        >>> from qkv.readouts import Reduction
        >>> rule = Reduction((4,), (slice(2, 4),), "add")  # for queries 2 and 3 of 4
        >>> whole = rule.allocate(np.array([0.5, 1.0]))
        >>> rule.combine(rule.slice(whole), np.array([0.5, 1.0])), whole.shape
        (array([0.5, 1. ]), (4,))
    """

    shape: tuple[int, ...]
    index: tuple[slice, ...]
    op: ReduceOp = "set"
    initial: float = 0
    masked: float | None = None

    def allocate(self, piece: Num[Array, "*_piece"], batch: tuple[int, ...] | None = None) -> Num[Array, "*_whole"]:
        """Return an array for the whole call in which every element has the value `initial`.

        Its batch axes are `batch`, or those of `piece` if `batch` is None.
        """
        batch = tuple(piece.shape[: piece.ndim - len(self.shape)]) if batch is None else batch
        empty = zeros(piece, (*batch, *self.shape))
        return empty + self.initial if self.initial else empty

    def slice(self, whole: Num[Array, "*_whole"]) -> Num[Array, "*_piece"]:
        """Return the part of the array for the whole call to which the tile contributes."""
        return whole[(..., *self.index)]

    def combine(self, old: Num[Array, "*shape"], new: Num[Array, "*#shape"]) -> Num[Array, "*#shape"]:
        """Combine the array `old`, stored so far, with the array `new` of a tile by the operation `op`.

        The result is differentiable.
        """
        xp = namespace(old)
        if self.op == "add":
            return old + new
        if self.op == "max":
            return xp.where(self.exceeds(old, new), new, old)
        return xp.logaddexp(old, new) if self.op == "logaddexp" else new

    def exceeds(self, old: Num[Array, "*shape"], new: Num[Array, "*#shape"]) -> Bool[Array, "*shape"]:
        """Return a boolean array that is True where `new` is larger than `old`; NaN is larger than any number."""
        xp = namespace(old)
        return (new > old) | (xp.isnan(new) & ~xp.isnan(old))


class Readout(Part, ABC):
    """Base class of readouts, which compute a quantity from the weights of a call.

    The planner and the kernels read the attributes.

    Attributes:
        accepts_tiles: whether `read` may be called with part of the keys.
        pooling: "mean" or "max" if the result is the weights pooled to `size` cells per side, which kernels
            compute in the forward pass; otherwise None.
        is_log_sum_exp: whether the result is the log-sum-exp of each query, which kernels compute anyway.
        largest: number of largest weights of each query from which `of_candidates` computes the result; 0: from all
            weights that are not 0; None: it does not.
        head_indices: indices of the heads, along the last batch axis, that the readout uses; None: all heads.
        requires: attribute of the normalizer that must be set; None: the readout is defined for every normalizer.
        reduce_op, initial: how results of tiles are combined over the keys, see `Reduction`.

    Example:
        >>> import numpy as np, qkv
        >>> from qkv import readouts
        >>> x = np.zeros((4, 1))
        >>> entropy, top = qkv.observe(x, x, x, readouts=[readouts.Entropy(), readouts.TopWeights(1)]).readouts
        >>> entropy.round(2), top.weights[:, 0]  # uniform weights: log 4 nats
        (array([1.39, 1.39, 1.39, 1.39]), array([0.25, 0.25, 0.25, 0.25]))
    """

    accepts_tiles: bool = True
    pooling: Literal["mean", "max"] | None = None
    is_log_sum_exp: bool = False
    largest: int | None = None
    head_indices: tuple[int, ...] | None = None
    requires: Literal["sums_to_one", "distribution", "log_sum_exp"] | None = None
    reduce_op: ReduceOp = "set"
    initial: float = 0

    def _repr_html_(self) -> str:
        """Return the parameters as a table, which notebooks show."""
        return html_table(type(self).__name__, [(one.name, str(getattr(self, one.name))) for one in fields(self)])

    @property
    def per_head(self) -> Readout:
        """The readout that is applied to each head: the inner readout of `Heads`, otherwise this readout."""
        return self

    def refuse(self, normalizer: Normalizer) -> str | None:
        """Return the error message if the readout is undefined for a normalizer, or None if it is defined."""
        if self.requires is None or getattr(normalizer, self.requires):
            return None
        return (
            f"the normalizer must {_REQUIREMENTS[self.requires]} for {type(self).__name__}, got {normalizer}. "
            "Choose such a normalizer, or leave out the readout."
        )

    def check(self, tile: Tile) -> None:
        """Raise an error if the readout refers to queries, heads or positions that the call does not have."""

    def element_count(self, q: int, k: int) -> int:
        """Return how many array elements the readout stores per batch element for `q` queries and `k` keys."""
        return q

    def total_elements(self, tile: Tile) -> int:
        """Return how many array elements the readout stores for all batch elements of a call."""
        return math.prod(tile.batch) * self.element_count(tile.q_total, tile.k_total)

    @abstractmethod
    def read(self, logits: PairArray, weights: PairArray, normalizer: Normalizer, tile: Tile) -> Result:
        """Compute the quantity for a tile, and return it as an array or a named tuple of arrays.

        Args:
            logits: logits of the tile, −inf where a key is excluded.
            weights: weights of the tile, before dropout.
            normalizer: the normalizer that computed the weights.
            tile: the tile.
        """

    def of_candidates(self, weights: Float[Array, "*batch q n"], keys: Int[Array, "*batch q n"]) -> Result:
        """Compute the quantity from the weights of some keys of each query, of which no other key has a larger weight.

        Args:
            weights: weights of at least `largest` keys, or of all keys with weight, and 0 for missing keys.
            keys: indices of the keys.

        Raises:
            TypeError: the class sets `largest` and does not define `of_candidates`.
        """
        raise TypeError(f"{type(self).__name__} must define of_candidates if it sets largest, got none. Define it.")

    def reductions(self, tile: Tile) -> tuple[Reduction, ...]:
        """Return a `Reduction` for each array that `read` returns, by default for one array `(*batch, q)`."""
        return (Reduction((tile.q_total,), (slice(*tile.rows),), across_keys(tile, self.reduce_op), self.initial),)

    def merge(
        self, old: tuple[Num[Array, "*_"], ...], new: tuple[Num[Array, "*_"], ...], tile: Tile
    ) -> tuple[Num[Array, "*_"], ...]:
        """Combine the arrays `old`, stored so far, with the arrays `new` of a tile, and return the result."""
        reductions = self.reductions(tile)
        return tuple(each.combine(a, b) for each, a, b in zip(reductions, old, new, strict=True))

    def finalize(self, whole: ReadoutResult, tile: Tile) -> ReadoutResult:
        """Return the result of the readout, computed from its arrays for the whole call.

        The default returns the arrays unchanged.
        """
        return whole


def across_keys(tile: Tile, op: ReduceOp) -> ReduceOp:
    """Return "set" if the tile contains all keys, so that nothing needs to be combined, otherwise `op`."""
    return "set" if tile.cols == (0, tile.k_total) else op


def flatten(result: Result) -> tuple[Num[Array, "*_"], ...]:
    """Return the arrays of a readout's result, which is an array or a named tuple of arrays, as a tuple."""
    return tuple(result) if isinstance(result, tuple) else (result,)


def unflatten(arrays: tuple[Num[Array, "*_"], ...], like: Result | type) -> Result:
    """Return `arrays` as a result of the same type as `like`, which is a result or the class of a result."""
    kind: Any = like if isinstance(like, type) else type(like)
    unflattened: Result = kind(*arrays) if issubclass(kind, tuple) else arrays[0]
    return unflattened
