"""The `Readout` interface: a quantity computed from the weights without storing the weights.

`read` computes the quantity for some queries with all their keys, or for any tile if `accepts_tiles` is true.
`reductions` states where the result of a tile belongs in the result of the whole call and how both are combined,
so that row blocks, tiles and batch elements are assembled by one rule. A readout never changes the output, and
its weights are those before dropout.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from qkv.core.arrays import namespace, zeros
from qkv.core.parts import Part
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float
from qkv.normalizers.base import Normalizer

__all__ = [
    "Readout",
    "ReduceOp",
    "Reduction",
    "Result",
    "across_keys",
    "flatten",
    "query_slice",
    "unflatten",
]

ReduceOp = Literal["set", "add", "max", "logaddexp", "top-k"]
Result: TypeAlias = Array | tuple[Array, ...]

_REQUIREMENTS = {
    "sums_to_one": "weights that sum to 1, and those of {} do not.",
    "distribution": "the normalizer Sample, which draws a key, and the normalizer is {}.",
    "log_sum_exp": "a softmax, and the normalizer is {}.",
}
"""What a readout needs, by the fact of the normalizer, and how a normalizer without it is refused."""


@dataclass(frozen=True)
class Reduction:
    """How one array of a tile's result is combined into the array of the whole call.

    Attributes:
        shape: the last axes of the whole array; the first of them runs along the queries.
        index: the part of these axes that the tile contributes to.
        op: "set" overwrites, "add" adds, "max" takes the larger (the earlier of equals), "logaddexp" adds
            exponentials; "top-k" is handled by `Readout.merge`.
        initial: the initial value of the whole array.
        masked: the value contributed by a tile without allowed pairs; None if such a tile contributes nothing.
    """

    shape: tuple[int, ...]
    index: tuple[slice, ...]
    op: ReduceOp = "set"
    initial: float = 0
    masked: float | None = None

    def allocate(self, piece: Array, batch: tuple[int, ...] | None = None) -> Array:
        """Return the initial whole array; its batch axes are those of `piece` unless given."""
        batch = tuple(piece.shape[: piece.ndim - len(self.shape)]) if batch is None else batch
        empty = zeros(piece, (*batch, *self.shape))
        return empty + self.initial if self.initial else empty

    def slice(self, whole: Array) -> Array:
        """Return the part of the whole array that the tile contributes to."""
        return whole[(..., *self.index)]

    def combine(self, old: Array, new: Array) -> Array:
        """Return the combination of both; differentiable."""
        xp = namespace(old)
        if self.op == "add":
            return old + new
        if self.op == "max":
            return xp.where(self.exceeds(old, new), new, old)
        return xp.logaddexp(old, new) if self.op == "logaddexp" else new

    def exceeds(self, old: Array, new: Array) -> Array:
        """Return where `new` replaces `old` under "max"; NaN replaces any number."""
        xp = namespace(old)
        return (new > old) | (xp.isnan(new) & ~xp.isnan(old))


class Readout(Part, ABC):
    """Base class of readouts.

    Facts, read by kernels:
        accepts_tiles: `read` may be called with part of the keys.
        pooling: "mean" or "max" if the result is the weights pooled to `size` cells per side, which kernels
            compute in the forward pass; otherwise None.
        is_log_sum_exp: the result is the log-sum-exp of each query, which kernels have after the forward pass.
        head_indices: indices along the last batch axis of the heads that are read; None if all heads are.
        requires: fact of a normalizer without which the readout is undefined; None if it is always defined.
        reduce_op, initial: how the numbers of a query are combined over the keys, see `Reduction`.
    """

    accepts_tiles: bool = True
    pooling: Literal["mean", "max"] | None = None
    is_log_sum_exp: bool = False
    head_indices: tuple[int, ...] | None = None
    requires: Literal["sums_to_one", "distribution", "log_sum_exp"] | None = None
    reduce_op: ReduceOp = "set"
    initial: float = 0

    @property
    def per_head(self) -> Readout:
        """The readout of each head that is read; the readout itself if all heads are."""
        return self

    def refuse(self, normalizer: Normalizer) -> str | None:
        """Return the reason why the readout is undefined for the normalizer, as a sentence, or None."""
        if self.requires is None or getattr(normalizer, self.requires):
            return None
        return f"{type(self).__name__} needs {_REQUIREMENTS[self.requires].format(normalizer)}"

    def check(self, tile: Tile) -> None:
        """Raise an error if the readout refers to queries, heads or positions that the call does not have."""

    def element_count(self, q: int, k: int) -> int:
        """Return the count of numbers stored per batch element."""
        return q

    def total_elements(self, tile: Tile) -> int:
        """Return the count of numbers stored for the whole batch."""
        return math.prod(tile.batch) * self.element_count(tile.q_total, tile.k_total)

    @abstractmethod
    def read(
        self,
        logits: Float[Array, "*batch q k"],
        weights: Float[Array, "*batch q k"],
        normalizer: Normalizer,
        tile: Tile,
    ) -> Result:
        """Return the result of a tile: an array, or a named tuple of arrays.

        Args:
            logits: logits of the tile, −inf where a key is excluded.
            weights: weights of the tile, before dropout.
            normalizer: the normalizer that computed the weights.
            tile: the tile.
        """

    def reductions(self, tile: Tile) -> tuple[Reduction, ...]:
        """Return one `Reduction` per array of the result of `read`; by default one number per query."""
        return (Reduction((tile.q_total,), query_slice(tile), across_keys(tile, self.reduce_op), self.initial),)

    def merge(self, old: tuple[Array, ...], new: tuple[Array, ...], tile: Tile) -> tuple[Array, ...]:
        """Combine the arrays stored so far with those of a tile."""
        reductions = self.reductions(tile)
        return tuple(each.combine(a, b) for each, a, b in zip(reductions, old, new, strict=True))

    def finalize(self, whole: Any, tile: Tile) -> Any:
        """Return the final result from the assembled arrays."""
        return whole


def query_slice(tile: Tile) -> tuple[slice]:
    """Return the index of the tile's queries along an axis of all queries."""
    return (slice(*tile.rows),)


def across_keys(tile: Tile, op: ReduceOp) -> ReduceOp:
    """Return `op`, or "set" if the tile holds all keys, so that nothing is left to combine."""
    return "set" if tile.cols == (0, tile.k_total) else op


def flatten(result: Result) -> tuple[Array, ...]:
    """Return the arrays of a result as a tuple."""
    return tuple(result) if isinstance(result, tuple) else (result,)


def unflatten(arrays: tuple[Array, ...], like: Result | type) -> Result:
    """Return the arrays as a result of the same type as `like`, a result or its class."""
    kind: Any = like if isinstance(like, type) else type(like)
    unflattened: Result = kind(*arrays) if issubclass(kind, tuple) else arrays[0]
    return unflattened
