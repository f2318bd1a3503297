"""Where queries and keys stand: the positions of a call, and the place of one tile within it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from qkv.core import random
from qkv.core.arrays import Array, along_diagonals, arange, as_array, dtype_name, is_array, library, like
from qkv.core.batch import Index, shape_at, take
from qkv.core.parts import Part, axes
from qkv.errors import KindError, OptionError, PositionError

__all__ = ["Tile", "Positions", "whole"]

Align = Literal["start", "end"]

_DIRECT = ("jax", "tensorflow")
"""Libraries whose compilers do without the whole what others are spared by looking up diagonals."""


@dataclass(frozen=True, eq=False)
class Positions(Part):
    """How query positions relate to key positions; key j stands at position j.

    `align="start"`: query i stands at position i. `align="end"`: the last query stands where the last key
    does (a decoder that continues). `query_start=s`: query i stands at s + i (cached decoding); `s` may be an
    integer array with one start per batch element.

    Example:
        >>> Positions(align="end").offset(q=2, k=5)
        3
    """

    align: Align | None = None
    query_start: Any = axes(default=None)

    def validate(self) -> None:
        if self.align not in (None, "start", "end"):
            raise OptionError(f'Positions was given align={self.align!r}. It must be "start" or "end".')
        if (self.align is None) == (self.query_start is None):
            raise OptionError('Positions wants one of align="start", align="end" or query_start=….')
        start = self.query_start
        if start is not None and not is_array(start) and not isinstance(start, int):
            object.__setattr__(self, "query_start", start := as_array(start))
        if is_array(start) and "int" not in dtype_name(start):
            raise KindError(f"Positions was given query_start of {dtype_name(start)}. Give integers.")

    def offset(self, q: int, k: int) -> Any:
        """Position of query 0."""
        if self.query_start is not None:
            return self.query_start
        return 0 if self.align == "start" else k - q


@dataclass(frozen=True)
class Tile:
    """Where a tile stands in its call: which queries and keys, at which positions, with which seed.

    `origin` is the batch of the whole call and the index of this place's elements in it; None: all.
    `moved` is for loops that are compiled, which know how long a tile is but not where it stands: its first
    query and key, not known in Python, from which `rows` and `cols` then count; None: they count from 0.
    """

    rows: tuple[int, int]
    cols: tuple[int, int]
    q_total: int
    k_total: int
    batch: tuple[int, ...] = ()
    positions: Positions | None = None
    seed: Any = None
    centre: Array | None = None
    origin: tuple[tuple[int, ...], Index] | None = None
    moved: tuple[Any, Any] | None = None

    def cut(self, rows: tuple[int, int], cols: tuple[int, int]) -> Tile:
        """The place of a tile, from absolute row and column limits."""
        # Not `dataclasses.replace`, which takes ten times as long; this is done for every tile.
        tile = object.__new__(Tile)
        tile.__dict__.update(self.__dict__, rows=rows, cols=cols)
        return tile

    def at(self, index: Index) -> Tile:
        """The place of some batch elements of a whole call."""
        return dataclasses.replace(
            self,
            batch=shape_at(self.batch, index),
            positions=None if self.positions is None else self.positions.at(index),
            centre=None if self.centre is None else take(self.centre, index, 2),
            origin=(self.batch, index),
        )

    def offset(self, align: Align | None = None) -> Any:
        """Position of query 0: an int, or an integer array of the batch's shape.

        Raises:
            PositionError: query and key differ in length and nothing says how they are aligned.
        """
        if align is not None:
            return Positions(align=align).offset(self.q_total, self.k_total)
        if self.positions is not None:
            return self.positions.offset(self.q_total, self.k_total)
        if self.q_total != self.k_total:
            raise PositionError(
                f"{self.q_total} queries meet {self.k_total} keys and positions matter here. "
                f'Give positions=Positions(align="start") if query 0 stands at key 0, or '
                f'Positions(align="end") if the last query stands at the last key.'
            )
        return 0

    def query_positions(self, reference: Array, align: Align | None = None) -> Array:
        """Positions of the tile's queries, `(q, 1)` or `(*batch, q, 1)`."""
        offset = self.offset(align)
        rows = self.query_indices(reference)[:, None]
        return rows + (like(rows, offset)[..., None, None] if is_array(offset) else offset)

    def query_indices(self, reference: Array) -> Array:
        """Which queries of the call are in the tile, `(q,)`."""
        rows = arange(reference, *self.rows)
        return rows if self.moved is None else rows + self.moved[0]

    def key_positions(self, reference: Array) -> Array:
        """Positions of the tile's keys, which are their indices too, `(k,)`."""
        cols = arange(reference, *self.cols)
        return cols if self.moved is None else cols + self.moved[1]

    @property
    def first_key(self) -> Any:
        """Index of the tile's first key."""
        return self.cols[0] if self.moved is None else self.cols[0] + self.moved[1]

    def by_distance(self, reference: Array, function: Callable[[Array], Array], align: Align | None = None) -> Array:
        """`function(key position − query position)` for each pair of the tile, `(*batch, q, k)`.

        The function takes integers `(*batch, n, m)` element by element. A tile has q + k − 1 diagonals: where
        the whole batch shares them, it is asked once for each.
        """
        span, cols = self.query_span(align), self.cols
        if span is None or span[1] < span[0] or cols[1] <= cols[0] or library(reference) in _DIRECT:
            return function(self.key_positions(reference) - self.query_positions(reference, align))
        diagonals = arange(reference, cols[0] - span[1], cols[1] - span[0])
        return along_diagonals(function(diagonals[None, :])[..., 0, :], self.rows[1] - self.rows[0], cols[1] - cols[0])

    def query_span(self, align: Align | None = None) -> tuple[int, int] | None:
        """First and last query position of the tile; None where they are unknown or differ over the batch."""
        offset = self.offset(align)
        # While a graph is traced, lengths may be symbols (PyTorch) or tensors (TensorFlow).
        if self.moved is not None or not (isinstance(offset, int) and isinstance(self.rows[1], int)):
            return None
        return self.rows[0] + offset, self.rows[1] - 1 + offset

    def need_seed(self, what: str) -> Any:
        if self.seed is None:
            raise OptionError(f"{what} draws at random. Give seed=….")
        return self.seed

    def uniform(self, reference: Array, stream: int) -> Array:
        """The draw of this tile, `(*batch, q, k)`."""
        return self._draw(random.uniform, reference, stream)

    def gumbel(self, reference: Array, stream: int) -> Array:
        """The Gumbel draw of this tile, `(*batch, q, k)`."""
        return self._draw(random.gumbel, reference, stream)

    def kept(self, reference: Array, dropout: float, keys: Array | None = None) -> Array:
        """Which weights of this tile dropout keeps, booleans `(*batch, q, k)`; `keys` names other absolute
        keys `(*batch, q, n)`.
        """
        batch, index = self.origin or (self.batch, ())
        rows, cols = self._indices(reference)
        if keys is not None:
            cols = keys
        return random.kept(reference, self.need_seed("This"), batch, rows, cols, dropout, index)

    def _draw(self, function: Any, reference: Array, stream: int) -> Array:
        batch, index = self.origin or (self.batch, ())
        return function(reference, self.need_seed("This"), stream, batch, *self._indices(reference), index)

    def _indices(self, reference: Array) -> tuple[random.Indices, random.Indices]:
        """Limits of the tile's queries and keys; the indices themselves where Python does not know them."""
        if self.moved is None and library(reference) != "tensorflow":
            return self.rows, self.cols
        return self.query_indices(reference)[:, None], self.key_positions(reference)


def whole(q: int, k: int, batch: tuple[int, ...] = (), positions: Positions | None = None, **more: Any) -> Tile:
    """The place of a whole call."""
    return Tile((0, q), (0, k), q, k, batch, positions, **more)
