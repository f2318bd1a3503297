"""What a readout is: something computed from the weights, without keeping them.

`read` shows some queries with all their keys; of a readout whose `tiles` is true, any tile of them. `fields`
says where what it shows belongs in the whole and how it meets what is there: so strips, tiles and batch
elements are put together by one rule. A readout never changes the output, and sees no dropout.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from qkv.core.arrays import Array, namespace, zeros
from qkv.core.parts import Part
from qkv.core.tile import Tile

__all__ = ["Reduction", "ReduceOp", "Readout", "across_keys", "flatten", "query_slice", "unflatten"]

ReduceOp = Literal["set", "add", "max", "logaddexp", "top-k"]


@dataclass(frozen=True)
class Reduction:
    """Where one array of what a tile shows goes in the array of the whole, and how.

    Attributes:
        shape: the last axes of the whole; the first of them runs along the queries.
        at: the part of these axes that the tile shows.
        how: "set" it there; or "add" it to what is there, take the larger ("max"; of equals what came first),
            add their exponentials ("logaddexp"). "top-k" is for `Readout.merge` alone.
        start: what is there at first.
        nothing: what a tile shows that holds no pair, where it must be told; None: what is there stays.
    """

    shape: tuple[int, ...]
    index: tuple[slice, ...]
    op: ReduceOp = "set"
    initial: float = 0
    masked: float | None = None

    def allocate(self, piece: Array, batch: tuple[int, ...] | None = None) -> Array:
        """The whole, with nothing in it yet; its batch axes are those of the piece unless given."""
        batch = tuple(piece.shape[: piece.ndim - len(self.shape)]) if batch is None else batch
        empty = zeros(piece, (*batch, *self.shape))
        return empty + self.initial if self.initial else empty

    def slice(self, whole: Array) -> Array:
        """The part of the whole that the tile shows."""
        return whole[(..., *self.index)]

    def combine(self, old: Array, new: Array) -> Array:
        """What is there afterwards; differentiable."""
        xp = namespace(old)
        if self.op == "add":
            return old + new
        if self.op == "max":
            return xp.where(self.exceeds(old, new), new, old)
        return xp.logaddexp(old, new) if self.op == "logaddexp" else new

    def exceeds(self, old: Array, new: Array) -> Array:
        """Where the new one is larger; NaN is, once."""
        xp = namespace(old)
        return (new > old) | (xp.isnan(new) & ~xp.isnan(old))


class Readout(Part, ABC):
    """Reads tiles of weights.

    Facts, read by kernels:
        tiles: `read` may be given part of the keys.
        blocks: "mean" or "max" where it is that of cells, `size` along each side, which kernels know how to
            take in the pass that makes the output; "" where it is not.
        total: it is the logarithm of each query's total, which kernels have when that pass ends.
    """

    accepts_tiles: bool = True
    pooling: Literal["mean", "max"] | None = None
    is_log_sum_exp: bool = False

    @property
    def head_indices(self) -> tuple[int, ...] | None:
        """Indices along the last batch axis of the heads that are read; None if all heads are."""
        return None

    @property
    def per_head(self) -> Readout:
        """The readout of each head that is read; the readout itself if all heads are."""
        return self

    def refuse(self, normalizer: Any) -> str | None:
        """Why this readout makes no sense for the normalizer, as a sentence; None where it does."""
        return None

    def check(self, tile: Tile) -> None:
        """Raise an error where the readout asks for what the call does not have."""

    def element_count(self, q: int, k: int) -> int:
        """How many numbers it keeps for each batch element."""
        return q

    def total_elements(self, tile: Tile) -> int:
        """How many numbers it keeps in all."""
        return math.prod(tile.batch) * self.element_count(tile.q_total, tile.k_total)

    @abstractmethod
    def read(self, logits: Array, weights: Array, normalizer: Any, tile: Tile) -> Any:
        """What this tile shows: an array, or named fields.

        Args:
            logits: `(*batch, q, k)`, −inf where a key is excluded.
            weights: `(*batch, q, k)`, before dropout.
            normalizer: made the weights of the logits.
            place: of the tile.
        """

    def reductions(self, tile: Tile) -> tuple[Reduction, ...]:
        """Where each array that `read` gives of this tile goes; by default a number for each query."""
        return (Reduction((tile.q_total,), query_slice(tile)),)

    def merge(self, old: tuple[Array, ...], new: tuple[Array, ...], tile: Tile) -> tuple[Array, ...]:
        """What was there and what a tile shows of the same, together."""
        fields = self.reductions(tile)
        return tuple(field.combine(a, b) for field, a, b in zip(fields, old, new, strict=True))

    def finalize(self, whole: Any, tile: Tile) -> Any:
        """The result, from the whole that was put together."""
        return whole


def query_slice(tile: Tile) -> tuple[slice]:
    """Where numbers go of which each query has one."""
    return (slice(*tile.rows),)


def across_keys(tile: Tile, op: ReduceOp) -> ReduceOp:
    """How numbers of queries meet those of the same queries and other keys; there are none beside all."""
    return "set" if tile.cols == (0, tile.k_total) else op


def flatten(result: Any) -> tuple[Array, ...]:
    """The arrays of a result."""
    return tuple(result) if isinstance(result, tuple) else (result,)


def unflatten(arrays: tuple[Array, ...], like: Any) -> Any:
    """The arrays, named as those of another result; `like` is a result or its class."""
    kind = like if isinstance(like, type) else type(like)
    return kind(*arrays) if issubclass(kind, tuple) else arrays[0]
