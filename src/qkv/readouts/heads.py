"""Heads: another readout, of some heads alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from qkv.core.arrays import Array, namespace
from qkv.core.tile import Tile
from qkv.errors import KindError, OptionError, ShapeError
from qkv.readouts.base import Readout, Reduction, flatten, unflatten

__all__ = ["Heads"]


@dataclass(frozen=True, eq=False)
class Heads(Readout):
    """What another readout shows of the heads named, in the order named. Heads are the last batch axis.

    Args:
        readout: what is read of each.
        heads: indices of heads; negative ones count from the end.

    Raises:
        KindError: the first argument is no readout.
        OptionError: no index, or one that is no whole number.
        ShapeError: the call has no batch axis, or fewer heads.

    Example:
        >>> import numpy as np, qkv
        >>> x = np.zeros((12, 4, 1))
        >>> qkv.observe(x, x, x, readouts=[Heads(qkv.readouts.ColumnSum(), (3, -1))]).readouts[0]
        array([[1., 1., 1., 1.],
               [1., 1., 1., 1.]])
    """

    readout: Readout
    heads: tuple[int, ...]

    def validate(self) -> None:
        """A readout and whole numbers."""
        if not isinstance(self.readout, Readout):
            raise KindError(f"Heads was given {self.readout!r}. Give a readout, such as Heads(Entropy(), (0, 3)).")
        object.__setattr__(self, "heads", tuple(self.heads))
        if not self.heads or not all(isinstance(n, int) and not isinstance(n, bool) for n in self.heads):
            raise OptionError(f"Heads was given {self.heads!r}. Give one or more whole numbers.")

    @property
    def head_indices(self) -> tuple[int, ...]:
        """The heads named."""
        return self.heads

    @property
    def per_head(self) -> Readout:
        """The inner readout."""
        return self.readout

    @property
    def accepts_tiles(self) -> bool:  # type: ignore[override]
        """Fact: as the readout within."""
        return self.readout.accepts_tiles

    @property
    def pooling(self) -> Literal["mean", "max"] | None:  # type: ignore[override]
        """Fact: as the readout within."""
        return self.readout.pooling

    @property
    def is_log_sum_exp(self) -> bool:  # type: ignore[override]
        """Fact: as the readout within."""
        return self.readout.is_log_sum_exp

    def refuse(self, normalizer: Any) -> str | None:
        """As the readout within."""
        return self.readout.refuse(normalizer)

    def check(self, tile: Tile) -> None:
        """There are that many heads."""
        if not tile.batch:
            raise ShapeError(
                "Heads reads along the last batch axis, and the call has none. Give (heads, length, width)."
            )
        count = tile.batch[-1]
        for head in self.heads:
            if not -count <= head < count:
                raise ShapeError(f"Heads asks for head {head}, there are {count}.")
        self.readout.check(tile)

    def element_count(self, q: int, k: int) -> int:
        """As the readout within, of a head that is read."""
        return self.readout.element_count(q, k)

    def total_elements(self, tile: Tile) -> int:
        """As the readout within, of the heads that are read."""
        of_each = self.readout.element_count(tile.q_total, tile.k_total)
        return math.prod(tile.batch[:-1]) * len(self.heads) * of_each

    def read(self, logits: Array, weights: Array, normalizer: Any, tile: Tile) -> Any:
        """One head after another."""
        found = []
        for head in self.heads:
            n = head % weights.shape[-3]
            index = (*(slice(None) for _ in tile.batch[:-1]), slice(n, n + 1))
            one, alone = logits[..., n : n + 1, :, :], weights[..., n : n + 1, :, :]
            found.append(self.readout.read(one, alone, normalizer.select_batch(index), tile.select_batch(index)))
        arrays = []
        for pieces, field in zip(zip(*map(flatten, found), strict=True), self.reductions(tile), strict=True):
            arrays.append(namespace(*pieces).concat(list(pieces), axis=-len(field.shape) - 1))
        return unflatten(tuple(arrays), found[0])

    def reductions(self, tile: Tile) -> tuple[Reduction, ...]:
        """As the readout within."""
        return self.readout.reductions(tile)

    def merge(self, old: tuple[Array, ...], new: tuple[Array, ...], tile: Tile) -> tuple[Array, ...]:
        """As the readout within."""
        return self.readout.merge(old, new, tile)

    def finalize(self, whole: Any, tile: Tile) -> Any:
        """As the readout within."""
        return self.readout.finalize(whole, tile)
