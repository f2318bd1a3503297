"""Class `Tile`, a range of queries and keys of a call with their positions, batch elements and random seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from qkv.core import random
from qkv.core.arrays import arange, asarray_like, is_array, is_text, library, toeplitz
from qkv.core.batch import AnyArray, BatchIndex, batch_shape, take_batch
from qkv.core.positions import Align, Positions, unknown_positions
from qkv.core.threefry import Seed
from qkv.core.typing import Array, Bool, Float, Int, Shaped
from qkv.errors import OptionError

Centre: TypeAlias = "Array | tuple[Centre, ...] | None"
"""The reference point of a score, `(*batch, 1, width)`, or a tuple with one entry per score of a `SumOf`.

`Score.centre` computes it.
"""

_COMPILED = ("jax", "tensorflow")
"""Libraries whose compilers fuse elementwise functions, so evaluating a function once per diagonal saves nothing."""


# Not frozen: a frozen class takes four times as long to construct, and kernels make a tile for each product of
# blocks. mypy enforces `Final`.
@dataclass(slots=True)
class Tile:
    """Range of queries and range of keys of a call, with the positions, batch elements and random seed of the call.

    A tile must not be changed, because several objects may share it.

    Attributes:
        rows: first query of the tile and one past the last.
        cols: first key of the tile and one past the last.
        q_total, k_total: number of queries and number of keys in the call.
        batch: batch axes of the tile.
        positions: how query positions relate to key positions; None if the call gives no positions.
        seed: seed of random numbers, or None.
        centre: reference point of the score (`Score.centre`), or None.
        batch_origin: batch axes of the call and the index of the tile's batch elements; None: the whole batch.
        dynamic_start: first query and first key as traced values, added to `rows` and `cols`. Compiled loops
            know the size of a tile when they are traced, but its position only at run time. None: `rows`
            and `cols` are absolute.
        first_pair: index of query 0 and key 0 of the call among all pairs that share its random numbers, which
            differ from (0, 0) if the call is one chunk of a longer sequence.
    """

    rows: Final[tuple[int, int]]
    cols: Final[tuple[int, int]]
    q_total: Final[int]
    k_total: Final[int]
    batch: Final[tuple[int, ...]] = ()
    positions: Final[Positions | None] = None
    seed: Final[Seed | None] = None
    centre: Final[Centre] = None
    batch_origin: Final[tuple[tuple[int, ...], BatchIndex] | None] = None
    dynamic_start: Final[tuple[Array | int | np.integer, Array | int | np.integer] | None] = None
    first_pair: Final[tuple[int, int]] = (0, 0)

    @classmethod
    def whole(
        cls,
        q: int,
        k: int,
        batch: tuple[int, ...] = (),
        positions: Positions | None = None,
        *,
        seed: Seed | None = None,
        first_pair: tuple[int, int] = (0, 0),
    ) -> Tile:
        """Return the tile that covers all `q` queries and `k` keys of a call.

        Example:
            >>> Tile.whole(2, 5, positions=Positions(align="end")).query_position_range()
            (3, 4)
        """
        return cls((0, q), (0, k), q, k, batch, positions, seed, first_pair=first_pair)

    def restrict(self, rows: tuple[int, int], cols: tuple[int, int]) -> Tile:
        """Return the tile of the same call with queries `rows` and keys `cols`, which are index ranges of the call."""
        # dataclasses.replace takes ten times as long, and kernels call this for every tile.
        return Tile(
            rows,
            cols,
            self.q_total,
            self.k_total,
            self.batch,
            self.positions,
            self.seed,
            self.centre,
            self.batch_origin,
            self.dynamic_start,
            self.first_pair,
        )

    def select_batch(self, index: BatchIndex) -> Tile:
        """Return the tile restricted to the batch elements that `index` selects.

        The tile `self` must contain all batch elements of the call.
        """
        return dataclasses.replace(
            self,
            batch=batch_shape(self.batch, index),
            positions=None if self.positions is None else self.positions.select_batch(index),
            centre=_select_centre(self.centre, index),
            batch_origin=(self.batch, index),
        )

    @property
    def removed_axes(self) -> int:
        """Number of batch axes of the call that the tile lacks, because it has a single element of them."""
        return 0 if self.batch_origin is None else len(self.batch_origin[0]) - len(self.batch)

    def offset(self, align: Align | None = None) -> Int[Array, "*batch"] | int:
        """Return the position of query 0 of the call as an int, or as an array with one int per batch element.

        Args:
            align: alignment that overrides the positions of the call.

        Raises:
            PositionError: the numbers of queries and keys differ and the call gives no positions.
        """
        if align is not None:
            return Positions(align=align).offset(self.q_total, self.k_total)
        if self.positions is not None:
            return self.positions.offset(self.q_total, self.k_total)
        if self.q_total != self.k_total:
            raise unknown_positions(self.q_total, self.k_total)
        return 0

    def query_positions(self, reference: Array, align: Align | None = None) -> Int[Array, "*batch q 1"]:
        """Return the positions of the tile's queries, `(q, 1)`, or `(*batch, q, 1)` if they differ in the batch."""
        offset = self.offset(align)
        rows = self.query_indices(reference)[:, None]
        return rows + (asarray_like(rows, offset)[..., None, None] if is_array(offset) else offset)

    def query_indices(self, reference: Array) -> Int[Array, " q"]:
        """Return the indices of the tile's queries in the call, `(q,)`, in the library of `reference`."""
        rows = arange(reference, *self.rows)
        return rows if self.dynamic_start is None else rows + self.dynamic_start[0]

    def key_positions(self, reference: Array) -> Int[Array, " k"]:
        """Return the positions of the tile's keys, `(k,)`, which equal their indices in the call."""
        cols = arange(reference, *self.cols)
        return cols if self.dynamic_start is None else cols + self.dynamic_start[1]

    @property
    def first_key(self) -> Int[Array, ""] | int | np.integer:
        """Index of the tile's first key in the call."""
        return self.cols[0] if self.dynamic_start is None else self.cols[0] + self.dynamic_start[1]

    def map_relative_positions(
        self, reference: Array, function: Callable[[Int[Array, "*_"]], Shaped[Array, "*_"]], align: Align | None = None
    ) -> Shaped[Array, "*batch q k"]:
        """Return `function(key position - query position)` for each pair of the tile, `(*batch, q, k)`.

        Args:
            reference: an array of the library and device of the result.
            function: elementwise function of integer arrays `(*batch, n, m)`. If all batch elements have the same
                positions, it is evaluated once for each of the q + k - 1 diagonals.
            align: alignment that overrides the positions of the call.
        """
        span, cols = self.query_position_range(align), self.cols
        if span is None or span[1] < span[0] or cols[1] <= cols[0] or library(reference) in _COMPILED:
            return function(self.key_positions(reference) - self.query_positions(reference, align))
        diagonals = arange(reference, cols[0] - span[1], cols[1] - span[0])
        return toeplitz(function(diagonals[None, :])[..., 0, :], self.rows[1] - self.rows[0], cols[1] - cols[0])

    def query_position_range(self, align: Align | None = None) -> tuple[int, int] | None:
        """Return the positions of the tile's first and last query, or None if they are not two plain integers.

        They are not if they are traced or given by an array.
        """
        offset = self.offset(align)
        # While a graph is traced, lengths may be symbols (PyTorch) or tensors (TensorFlow).
        if self.dynamic_start is not None or not (isinstance(offset, int) and isinstance(self.rows[1], int)):
            return None
        return self.rows[0] + offset, self.rows[1] - 1 + offset

    def uniform(self, reference: Array, stream: int) -> Float[Array, "*batch q k"]:
        """Return a uniform random number in (0, 1) for each pair of the tile, `(*batch, q, k)`."""
        return random.uniform(reference, self._draws(reference), stream)

    def gumbel(self, reference: Array, stream: int) -> Float[Array, "*batch q k"]:
        """Return a standard Gumbel random number for each pair of the tile, `(*batch, q, k)`."""
        return random.gumbel(reference, self._draws(reference), stream)

    def dropout_mask(
        self, reference: Array, dropout: float, keys: Int[Array, "*#batch q n"] | None = None
    ) -> Bool[Array, "*batch q k"]:
        """Return a boolean array `(*batch, q, k)` that is True for the tile's weights that dropout keeps.

        Args:
            reference: an array of the library and device of the result.
            dropout: probability of dropping a weight.
            keys: absolute indices of the keys of each query; None: the keys of the tile.
        """
        draws = self._draws(reference)
        return random.dropout_mask(reference, draws if keys is None else draws._replace(cols=keys), dropout)

    def _draws(self, reference: Shaped[Array, "*_"]) -> random.Draws:
        if self.seed is None:
            raise OptionError(
                "seed must be given for dropout and random normalizers, got None. Pass an integer, such as seed=0."
            )
        batch, index = self.batch_origin or (self.batch, ())
        return random.Draws(self.seed, batch, *self._indices(reference), index)

    def _indices(self, reference: Shaped[Array, "*_"]) -> tuple[random.Indices, random.Indices]:
        """Return the index ranges of the tile's queries and keys, or two arrays of their indices.

        Arrays are returned in TensorFlow, and in compiled loops, in which the ranges are known only at run time.
        """
        first_query, first_key = self.first_pair
        if self.dynamic_start is None and library(reference) != "tensorflow":
            if first_query == first_key == 0:
                return self.rows, self.cols
            (r0, r1), (c0, c1) = self.rows, self.cols
            return (r0 + first_query, r1 + first_query), (c0 + first_key, c1 + first_key)
        return self.query_indices(reference)[:, None] + first_query, self.key_positions(reference) + first_key


def _select_centre(centre: Centre, index: BatchIndex) -> Centre:
    if isinstance(centre, tuple):
        return tuple(_select_centre(each, index) for each in centre)
    return None if centre is None else take_batch(centre, index, 2)


def take_range(x: Shaped[AnyArray, "*_"], limits: tuple[int, int]) -> Shaped[AnyArray, "*_"]:
    """Return the rows of query, key or value from index `limits[0]` up to, but not including, `limits[1]`."""
    text = is_text(x)
    if limits == (0, x.shape[-1 if text else -2]):
        return x  # in TensorFlow, a slice of all rows has a gradient that copies
    index = (..., slice(*limits)) if text else (..., slice(*limits), slice(None))
    return x[index]  # type: ignore[return-value]
