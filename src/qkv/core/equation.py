"""Bound calls, and the dense reference implementation of attention with which tests compare every kernel.

weights = normalize(score(query, key), mask)          output = weights @ value
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from qkv.core import random
from qkv.core.arrays import (
    accumulation_dtype,
    cast,
    ignore_numpy_warnings,
    is_text,
    library,
    namespace,
    result_dtype,
    where,
    zeros,
)
from qkv.core.axes import Axes, broadcast_batch
from qkv.core.batch import AnyArray, BatchIndex, take_batch
from qkv.core.guard import all_finite, apply_weights, by_finiteness, guarded_logits, is_traced
from qkv.core.positions import Positions
from qkv.core.threefry import Seed
from qkv.core.tile import Tile, take_range
from qkv.core.typing import Array, Bool, DType, Float, Int, Num, Shaped, Tensor

if TYPE_CHECKING:
    from qkv.masks.base import Mask
    from qkv.normalizers.base import Normalizer
    from qkv.scores.base import Score

T = TypeVar("T")


@dataclass(frozen=True)
class _DenseResult:
    """Output, weights and logits of a call, computed by the dense reference implementation.

    Attributes:
        output: `(*batch, q, value_width)`.
        weights: weights before dropout, `(*batch, q, k)`.
        logits: `(*batch, q, k)`, −inf where the mask excludes a key.
    """

    output: Float[Array, "*batch q value_width"]
    weights: Float[Array, "*batch q k"]
    logits: Float[Array, "*batch q k"]


@dataclass(frozen=True)
class BoundCall:
    """Call with its arrays, and with a score, normalizer and mask that have been checked against their shapes.

    Attributes:
        query, key, value: arrays in the dtype of accumulation, or uncast if `tile_dtype` is set; text is not cast.
        score, normalizer, mask: parts whose batch axes, lengths and dtypes have been checked and converted.
        tile: the tile that covers the whole call.
        dropout: probability of dropping a weight.
        out_dtype: dtype of the output.
        projected: whether query and key are projections, so that `score.projected_logits` computes the logits.
        tile_dtype: dtype to which each tile of query, key and value is cast; None if whole arrays have been cast.
        finite: whether query and key are known to be finite, and whether value is; None if not checked yet.
    """

    query: Array
    key: Array
    value: Array
    score: Score
    normalizer: Normalizer
    mask: Mask | None
    tile: Tile
    dropout: float
    out_dtype: DType
    projected: bool = False
    tile_dtype: DType = None
    finite: tuple[bool, bool] | None = None

    @property
    def dtype(self) -> DType:
        """The dtype of accumulation, which is at least float32."""
        return self.value.dtype if self.tile_dtype is None else self.tile_dtype

    @property
    def batch(self) -> tuple[int, ...]:
        """The lengths of the batch axes of the call."""
        return self.tile.batch

    def queries(self, rows: tuple[int, int]) -> Shaped[Array, "*_"]:
        """Return the queries in the range `rows`, cast to the dtype of accumulation if the score requires it."""
        return self._compared(take_range(self.query, rows))

    def keys(self, cols: tuple[int, int]) -> Shaped[Array, "*_"]:
        """Return the keys in the range `cols`, cast to the dtype of accumulation if the score requires it."""
        return self._compared(take_range(self.key, cols))

    def values(self, cols: tuple[int, int]) -> Num[Array, "*#batch k value_width"]:
        """Return the values of the keys in the range `cols`, cast to the dtype of accumulation."""
        return cast(take_range(self.value, cols), self.dtype)

    def with_all_cast(self) -> BoundCall:
        """Return the call with query, key and value cast as whole arrays instead of tile by tile."""
        if self.tile_dtype is None:
            return self
        q, k = (0, self.tile.q_total), (0, self.tile.k_total)
        return replace(self, query=self.queries(q), key=self.keys(k), value=self.values(k), tile_dtype=None)

    def _compared(self, x: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
        return x if self.tile_dtype is None or self.score.keeps_dtype or is_text(x) else cast(x, self.dtype)

    @cached_property
    def finite_sides(self) -> bool:
        """Whether all elements of query and key are known to be finite, by `finite` or by a check on first access."""
        return all_finite(self.query) and all_finite(self.key) if self.finite is None else self.finite[0]

    @cached_property
    def finite_value(self) -> bool:
        """Whether all elements of value are known to be finite, which is checked on first access."""
        return all_finite(self.value) if self.finite is None else self.finite[1]

    def by_finiteness(self, run: Callable[[BoundCall], T]) -> T:
        """Return `run` of the call with `finite` known, which a compiled function finds when it runs.

        Args:
            run: function that returns arrays.
        """
        sides = (self.query, self.key) if self.mask is not None else ()
        if self.finite is not None or not is_traced(*sides, self.value):
            return run(self)
        return by_finiteness((*sides, self.value), lambda finite: run(replace(self, finite=(finite, finite))))

    def with_projections(self, query: Shaped[Array, "*_"], key: Shaped[Array, "*_"]) -> BoundCall:
        """Return the call with query and key replaced by their projections, which all tiles then share.

        `finite` still describes the original query and key.
        """
        return replace(self, query=query, key=key, projected=True, finite=(self.finite_sides, self.finite_value))

    def with_axes_of_values(self) -> BoundCall:
        """Return the call with views of its queries that have all batch axes, also those that only the values have."""
        query, known = self.query, broadcast_batch(query=tuple(self.query.shape[:-2]), key=tuple(self.key.shape[:-2]))
        if known == self.batch:
            return self
        return replace(self, query=namespace(query).broadcast_to(query, (*self.batch, *query.shape[-2:])))

    def with_arrays(self, tensors: Sequence[Shaped[Array, "*_"]]) -> BoundCall:
        """Return the call with its arrays replaced by arrays of the same elements, such as detached tensors.

        Args:
            tensors: query, key, value, the arrays of the score and the arrays of the normalizer, in this order.
        """
        query, key, value, *arrays = tensors
        count = len(self.score.arrays())
        return replace(
            self,
            query=query,
            key=key,
            value=value,
            score=self.score.replace_arrays(arrays[:count]),
            normalizer=self.normalizer.replace_arrays(arrays[count:]),
            finite=(self.finite_sides, self.finite_value),
        )

    def select_batch(self, index: BatchIndex) -> BoundCall:
        """Return the call restricted to the batch elements that `index` selects."""
        if not index:  # the call has no batch axes
            return self
        return replace(
            self,
            query=take_batch(self.query, index, 1 if is_text(self.query) else 2),
            key=take_batch(self.key, index, 1 if is_text(self.key) else 2),
            value=take_batch(self.value, index, 2),
            score=self.score.select_batch(index),
            normalizer=self.normalizer.select_batch(index),
            mask=None if self.mask is None else self.mask.select_batch(index),
            tile=self.tile.select_batch(index),
            finite=(self.finite_sides, self.finite_value),
        )

    def logits(
        self,
        rows: tuple[int, int],
        cols: tuple[int, int],
        query: Shaped[Array, "*_"] | None = None,
        key: Shaped[Array, "*_"] | None = None,
        score: Score | None = None,
    ) -> Num[Array, "*batch q k"] | None:
        """Return the logits of a tile, `(*batch, q, k)`, or None if the mask excludes every pair of the tile.

        Args:
            rows: first query and one past the last.
            cols: first key and one past the last.
            query: queries of the tile, which a backward pass passes to differentiate them; None: those of the call.
            key: keys of the tile, passed for the same reason; None: those of the call.
            score: score restricted to the tile, passed for the same reason; None: that of the call.
        """
        tile = self.tile.restrict(rows, cols)
        cut = (slice(*rows), slice(*cols))
        mask = self.mask
        if mask is not None:
            cover = mask.coverage(tile)
            if cover == "none":
                return None
            mask = mask.slice(*cut) if cover == "part" else None
        query = self.queries(rows) if query is None else query
        key = self.keys(cols) if key is None else key
        score = self.score.slice(*cut) if score is None else score
        compare = score.projected_logits if self.projected else score.logits
        clean = mask is None or self.finite_sides
        reference = self.value if self.tile_dtype is None else zeros(self.value, (0,), self.dtype)
        return masked_logits(compare, mask, query, key, tile, reference, clean)


if TYPE_CHECKING:

    class TorchCall(BoundCall):
        """`BoundCall` with PyTorch tensors, used in annotations of kernels that run only on PyTorch."""

        query: Tensor
        key: Tensor
        value: Tensor

        def logits(self, *args: object, **kwargs: object) -> Num[Tensor, "*batch q k"] | None:
            """Return the logits of a tile, `(*batch, q, k)`, or None if the mask excludes every pair of the tile."""

        def with_projections(self, query: Shaped[Array, "*_"], key: Shaped[Array, "*_"]) -> TorchCall:
            """Return the call with query and key replaced by their projections."""

        def with_arrays(self, tensors: Sequence[Shaped[Array, "*_"]]) -> TorchCall:
            """Return the call with its arrays replaced by arrays of the same elements."""

        def select_batch(self, index: BatchIndex) -> TorchCall:
            """Return the call restricted to the batch elements that `index` selects."""
else:
    TorchCall = BoundCall


def bind_call(
    query: Shaped[Array, "*_"],
    key: Shaped[Array, "*_"],
    value: Shaped[Array, "*_"],
    *,
    score: Score,
    normalizer: Normalizer,
    mask: Mask | None = None,
    positions: Positions | None = None,
    dropout: float = 0.0,
    seed: Seed | None = None,
    cast_tiles: bool = False,
    axes: Axes | None = None,
) -> BoundCall:
    """Check the arguments of a call, cast its arrays to the dtype of accumulation, and return a `BoundCall`.

    Args:
        query: `(*batch, q, query_width)`, or text `(*batch, q)`.
        key: `(*batch, k, key_width)`, or text `(*batch, k)`.
        value: `(*batch, k, value_width)`.
        mask: the mask; None: all pairs.
        positions: how query positions relate to key positions.
        dropout: probability of dropping a weight.
        seed: seed of dropout and of random normalizers.
        cast_tiles: cast each tile of query, key and value when it is used, instead of casting the whole arrays.
        axes: axes of query, key and value; None: computed from the arrays.

    Raises:
        ShapeError: the shapes of the arrays do not match.
        KindError: a part holds a floating-point array of another library than `value`.
    """
    text = is_text(query)
    shape = axes or Axes.of(query.shape, key.shape, value.shape, text)
    numbers = (value,) if text else (query, key, value)
    dtype = accumulation_dtype(*numbers)
    out_dtype = result_dtype(*numbers)
    lengths = {"q": shape.q, "k": shape.k}
    if not cast_tiles:
        if not text and not score.keeps_dtype:
            query, key = cast(query, dtype), cast(key, dtype)
        value = cast(value, dtype)
    return BoundCall(
        query,
        key,
        value,
        score.bind(value, shape.batch, dtype, lengths),
        normalizer.bind(value, shape.batch, dtype, lengths),
        mask.bind(value, shape.batch, None, lengths) if mask is not None else None,
        Tile.whole(
            shape.q,
            shape.k,
            shape.batch,
            positions.bind(value, shape.batch) if positions is not None else None,
            seed=seed,
        ),
        dropout,
        out_dtype,
        tile_dtype=dtype if cast_tiles else None,
    )


def masked_logits(
    function: Callable[[Shaped[Array, "*_"], Shaped[Array, "*_"], Tile], Shaped[Array, "*#batch #q #k"]],
    mask: Mask | None,
    query: Shaped[Array, "*_"],
    key: Shaped[Array, "*_"],
    tile: Tile,
    reference: Shaped[Array, "*_"],
    clean: bool,
) -> Num[Array, "*batch q k"]:
    """Return the logits of a tile, `(*batch, q, k)`, with −inf for the pairs that the mask excludes.

    Args:
        function: `logits` or `projected_logits` of a score that is restricted to the tile.
        mask: the mask, restricted to the tile; None: all pairs.
        query: the tile's queries or their projections.
        key: the tile's keys or their projections.
        reference: an array in the dtype of accumulation.
        clean: whether query and key are known to be finite.
    """
    shape = (*tile.batch, tile.rows[1] - tile.rows[0], tile.cols[1] - tile.cols[0])
    known = all(isinstance(n, int) for n in shape)

    def compare(query: Array, key: Array) -> Array:
        logits = cast(function(query, key, tile), reference.dtype)
        return logits if known and tuple(logits.shape) == shape else namespace(logits).broadcast_to(logits, shape)

    logits = compare(query, key) if clean else guarded_logits(compare, query, key)
    return logits if mask is None else where(mask.allowed(tile, logits), logits, -math.inf)


def apply_dropout(
    weights: Float[AnyArray, "*batch q n"], tile: Tile, dropout: float, keys: Int[Array, "*#batch q n"] | None = None
) -> Float[AnyArray, "*batch q n"]:
    """Set each weight to 0 with probability `dropout`, and divide the remaining weights by 1 − `dropout`.

    Args:
        weights: `(*batch, q, k)`.
        tile: the tile of the weights, which has the seed.
        dropout: probability of dropping a weight, rounded to a multiple of 2^-16.
        keys: absolute index of the key of each weight; None: the keys of the tile.
    """
    if not dropout:
        return weights
    dropout_mask = tile.dropout_mask(weights, dropout, keys)
    return where(dropout_mask, weights / (1.0 - random.dropout_rate(dropout)), 0.0)  # type: ignore[return-value]


def attend_dense(
    query: Shaped[Array, "*_"],
    key: Shaped[Array, "*_"],
    value: Shaped[Array, "*_"],
    *,
    score: Score,
    normalizer: Normalizer,
    mask: Mask | None = None,
    positions: Positions | None = None,
    dropout: float = 0.0,
    seed: Seed | None = None,
) -> _DenseResult:
    """Compute attention from the matrix of all logits, in O(q · k) memory, as the reference for tests.

    Args:
        query: `(*batch, q, width)`, or text `(*batch, q)`.
        key: `(*batch, k, width)`, or text `(*batch, k)`.
        value: `(*batch, k, value_width)`.
        mask: the mask; None: all pairs.
        positions: how query positions relate to key positions.
        dropout: probability of dropping a weight.
        seed: seed of dropout and of `Sample`.
    """
    call = bind_call(
        query,
        key,
        value,
        score=score,
        normalizer=normalizer,
        mask=mask,
        positions=positions,
        dropout=dropout,
        seed=seed,
    )
    with ignore_numpy_warnings():
        return dense(call)


def dense(call: BoundCall) -> _DenseResult:
    """Compute the output, weights and logits of a bound call from the matrix of all logits."""
    xp, tile = namespace(call.value), call.tile
    logits = call.logits(tile.rows, tile.cols)
    if logits is None:
        logits = zeros(call.value, (*tile.batch, tile.q_total, tile.k_total)) - xp.inf
    weights = call.normalizer.weights(logits, tile)
    dropped = apply_dropout(weights, tile, call.dropout)

    def support() -> Bool[Array, "*#batch #q #k"]:
        # XLA stores the logits that a branch reads, where it would fuse the loops around them: JAX computes them again.
        again = call.logits(tile.rows, tile.cols) if library(weights) == "jax" else None
        return call.normalizer.support(logits if again is None else again, weights)

    output = apply_weights(dropped, call.value, support, call.finite_value)
    return _DenseResult(cast(output, call.out_dtype), weights, logits)
