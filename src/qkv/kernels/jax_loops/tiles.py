"""Compiled JAX loop over the tiles that the mask allows, for normalizers that can be accumulated over tiles.

forward:  the loop carries the partial results of all queries, and each tile merges its results into those of its rows
tangent:  weights W of the tile from the summary;  dO += W dV + effect of the tangents dS of the logits, which is the
          transpose of the normalizer's `logit_gradient`;  dS from the tangents of query, key and parameters, by JAX
backward: the transpose of the tangent loop, by JAX; each tile computes its logits and weights again

Only the projections, the output and a few statistics per query are saved for the backward pass.
Source: Rabe, Staats (2021), Self-attention does not need O(n²) memory, https://arxiv.org/abs/2112.05682;
Dao et al. (2022), FlashAttention, https://arxiv.org/abs/2205.14135.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np

from qkv.core.arrays import is_array, is_floating
from qkv.core.equation import BoundCall, apply_dropout
from qkv.core.guard import zero_nonfinite
from qkv.core.partial import PartialResult
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, Float, Int, OutputArray, Shaped
from qkv.kernels.jax_loops.dynamic_tiles import (
    DynamicCall,
    DynamicTile,
    add_to_slice,
    axis_names,
    slice_array,
    slice_axis,
    slice_part,
    vary_like,
)
from qkv.kernels.runtime.tile_loop import fully_masked
from qkv.masks.base import Mask
from qkv.normalizers.base import Summary

Item = TypeVar("Item")
Partial = TypeVar("Partial", bound=PartialResult)
_Constants = tuple[Any, ...]
"""Inputs without gradients: integer arrays, unprojected query and key, mask, positions and seed."""


def attend_tiles(call: BoundCall, sides: tuple[int, int]) -> OutputArray:
    """Return the output of a call, computed tile by tile, with derivatives of any order in forward and reverse mode.

    First derivatives are computed by `Normalizer.logit_gradient`.
    """
    import jax

    dynamic = DynamicCall.of(call)
    call = dynamic.call
    arrays = [call.query, call.key, call.value, *call.score.arrays(), *call.normalizer.arrays()]
    floating = tuple(is_floating(x) for x in arrays)
    constants = (
        [x for x, is_float in zip(arrays, floating, strict=True) if not is_float],
        dynamic.unprojected,
        call.mask,
        call.tile.positions,
        call.tile.seed,
    )

    def loop(floats: list[Array], constants: _Constants) -> TileLoop:
        integers, unprojected, mask, positions, seed = constants
        queues = iter(floats), iter(integers)
        ordered = [next(queues[0] if is_float else queues[1]) for is_float in floating]
        tile = dataclasses.replace(call.tile, positions=positions, seed=seed)
        bound = dataclasses.replace(call.with_arrays(ordered), mask=mask, tile=tile)
        return TileLoop(DynamicCall(bound, unprojected), sides, floating)

    # All arrays are arguments, because JAX may differentiate or vectorize the function with respect to them.
    @jax.custom_jvp  # type: ignore[untyped-decorator, unused-ignore]
    def attend(floats: list[Array], constants: _Constants) -> Array:
        return loop(floats, constants).forward()[0]

    def with_tangent(
        primals: tuple[list[Array], _Constants], tangents: tuple[list[Array], _Constants]
    ) -> tuple[Array, Array]:
        own = loop(*primals)
        output, summary = own.forward()
        return output, own.tangent(output, summary, tangents[0])

    attend.defjvp(with_tangent)
    return cast("Array", attend([x for x, is_float in zip(arrays, floating, strict=True) if is_float], constants))


@dataclass(frozen=True)
class TileLoop:
    """Forward and backward loop over the tiles of a call.

    Attributes:
        dynamic: the call.
        sides: numbers of queries and keys in a tile.
        floating: for query, key, value and each array of score and normalizer, whether it is a floating-point array.
    """

    dynamic: DynamicCall
    sides: tuple[int, int]
    floating: tuple[bool, ...]

    @property
    def call(self) -> BoundCall:
        """The call, with query and key replaced by their projections."""
        return self.dynamic.call

    @cached_property
    def arrays(self) -> list[Shaped[Array, "*_"]]:
        """Query, key, value and the arrays of score and normalizer."""
        call = self.call
        return [call.query, call.key, call.value, *call.score.arrays(), *call.normalizer.arrays()]

    @cached_property
    def names(self) -> list[tuple[str, ...] | None]:
        """Names of the axes of each array in `arrays`, without batch axes."""
        sides = ("q", "width"), ("k", "width"), ("k", "value_width")
        return [*sides, *axis_names(self.call.score), *axis_names(self.call.normalizer)]

    def forward(self) -> tuple[OutputArray, Summary]:
        """Return the output and the normalizer's summary of all queries."""
        tile = self.call.tile.restrict((0, self.call.tile.q_total), (0, 0))
        return self.call.normalizer.finalize(self.partial(), tile, self.call.dropout)

    def empty(self) -> PartialResult:
        """Return the partial result of all queries without keys."""
        call = self.call
        tile = call.tile.restrict((0, call.tile.q_total), (0, 0))
        no_logits = fully_masked(call, tile.rows, 0)
        return call.normalizer.accumulate(no_logits, call.value[..., :0, :], tile, call.dropout, True)

    def partial(self) -> PartialResult:
        """Return the partial result of all queries over all keys of the call."""
        import jax

        call, normalizer = self.call, self.call.normalizer
        empty = self.empty()
        axis = len(call.batch)

        def step(carried: list[Array], number: Array) -> tuple[list[Array], None]:
            window = self._window(number)
            old = [jax.lax.dynamic_slice_in_dim(x, *window.rows, axis) for x in carried]
            query, key, value = self._tile_arrays(window)[:3]
            tile = self.dynamic.tile(window)

            def merged(allowed: Array) -> list[Array]:
                logits = self.dynamic.logits(window, query, key, slice_part(call.score, window), allowed)
                logits = normalizer.prepare(logits)
                new = normalizer.accumulate(logits, value, tile, call.dropout, call.finite_value)
                return arrays_of_partial(with_arrays(empty, old).merge(new))

            new = self._compute_unless_masked(window, merged, lambda allowed: old)
            write = jax.lax.dynamic_update_slice_in_dim
            return [write(x, y, window.rows[0], axis) for x, y in zip(carried, new, strict=True)], None

        return with_arrays(empty, self._scan(step, arrays_of_partial(empty)))

    def tangent(self, output: OutputArray, summary: Summary, tangents: list[Float[Array, "*_"]]) -> OutputArray:
        """Return the tangent of the output, a linear function of the tangents of the floating-point arrays.

        For the gradient, JAX transposes it to a loop over the same tiles.
        """
        return self._add_normalizer_tangent(self.tile_tangents(output, summary, tangents), output, summary, tangents)

    def tile_tangents(self, output: OutputArray, summary: Summary, tangents: list[Float[Array, "*_"]]) -> OutputArray:
        """Return the part of the tangent that flows through the logits and values of the call.

        `output` and `summary` may be those of more keys than the call has.
        """
        import jax
        import jax.numpy as jnp

        names = self._floats(self.names)

        # The logits and weights of a tile are computed again for the gradient instead of being saved. `prevent_cse` is
        # not needed within a loop and would prevent optimizations.
        @functools.partial(jax.checkpoint, prevent_cse=False)
        def tile_tangent(number: Array) -> Array:
            window = self._window(number)
            rows = [slice_axis(x, window.rows, -2) for x in (output, *summary)]
            of_tile = [slice_array(x, of_x, window) for x, of_x in zip(tangents, names, strict=True)]
            (found,) = self._compute_unless_masked(
                window,
                lambda allowed: [self._tangent(window, of_tile, allowed, rows[0], tuple(rows[1:]))],
                lambda allowed: [jnp.zeros_like(rows[0])],
            )
            return found

        def step(total: list[Array], number: Array) -> tuple[list[Array], None]:
            more = tile_tangent(number)
            return [add_to_slice(total[0], more, ("q", "value_width"), self._window(number))], None

        (total,) = self._scan(step, [jnp.zeros_like(output)])
        return total

    def _tangent(
        self,
        window: DynamicTile,
        tangents: list[Float[Array, "*_"]],
        allowed: Bool[Array, " ..."],
        output: OutputArray,
        summary: Summary,
    ) -> OutputArray:
        """Return the contribution of a tile to the tangent of the output."""
        import jax
        import jax.numpy as jnp

        call, normalizer, tile = self.call, self.call.normalizer, self.dynamic.tile(window)
        of_tile = self._tile_arrays(window)
        score, count = slice_part(call.score, window), len(call.score.arrays())

        def prepared_logits(floats: list[Array]) -> Array:
            queue = iter(floats)
            arrays = [next(queue) if is_float else x for x, is_float in zip(of_tile, self.floating, strict=True)]
            of_score = score.replace_arrays(arrays[3 : 3 + count])
            logits = self.dynamic.logits(window, arrays[0], arrays[1], of_score, allowed)
            return normalizer.replace_arrays(arrays[3 + count :]).prepare(logits)

        prepared, logit_tangent = jax.jvp(prepared_logits, (self._floats(of_tile),), (tangents,))
        weights = normalizer.tile_weights(prepared, summary, tile)
        value = of_tile[2] if call.finite_value else zero_nonfinite(of_tile[2])

        def logit_gradient(gradient: Array) -> Array:
            row_dot = jnp.sum(gradient * output, axis=-1, keepdims=True)
            weight_gradient = apply_dropout(gradient @ jnp.matrix_transpose(value), tile, call.dropout)
            return normalizer.logit_gradient(prepared, weights, weight_gradient, row_dot, summary, tile)

        # The gradient of the logits is linear in that of the output. Its transpose is the effect of the logits.
        (found,) = jax.linear_transpose(logit_gradient, output)(logit_tangent)
        value_tangent = tangents[self._floats(range(len(of_tile))).index(2)]
        return cast("Array", found) + apply_dropout(weights, tile, call.dropout) @ value_tangent

    def _add_normalizer_tangent(
        self, total: OutputArray, output: OutputArray, summary: Summary, tangents: list[Float[Array, "*_"]]
    ) -> OutputArray:
        """Return a tangent with the effect of the normalizer's arrays that does not pass through `prepare`."""
        import jax
        import jax.numpy as jnp

        normalizer = self.call.normalizer
        own = dict(zip(self._floats(range(len(self.arrays))), tangents, strict=True))
        first = len(self.arrays) - len(normalizer.arrays())  # the arrays of the normalizer come last

        def gradients(gradient: Array) -> dict[int, Array]:
            row_dot = jnp.sum(gradient * output, axis=-1, keepdims=True)
            found = enumerate(normalizer.array_gradients(summary, row_dot), start=first)
            return {n: x for n, x in found if x is not None and n in own}

        shapes = jax.eval_shape(gradients, output)
        if not shapes:
            return total
        per_row = {n: jnp.broadcast_to(own[n][..., None, None], x.shape) for n, x in shapes.items()}
        (found,) = jax.linear_transpose(gradients, output)(per_row)
        return total + cast("Array", found)

    def _scan(
        self, step: Callable[[list[Array], Array], tuple[list[Array], None]], first: list[Shaped[Array, "*_"]]
    ) -> list[Shaped[Array, "*_"]]:
        """Return the carried arrays after a step of `jax.lax.scan` for each tile in which the mask may allow a pair."""
        import jax

        first = vary_like(first, self.call.query)
        numbers = _tile_numbers(self.call.mask, self.call.tile, self.sides)
        if not len(numbers):
            # JAX would trace a step even for an empty scan, and slices of empty arrays fail.
            return first
        return list(cast("list[Array]", jax.lax.scan(step, first, numbers)[0]))

    def _window(self, number: Int[Array, " 2"]) -> DynamicTile:
        """Return the tile with the given row and column number."""
        tile = self.call.tile
        return DynamicTile.of((number[0], number[1]), self.sides, (tile.q_total, tile.k_total))

    def _tile_arrays(self, window: DynamicTile) -> list[Shaped[Array, "*_"]]:
        """Return query, key, value and the arrays of score and normalizer, restricted to a tile."""
        return [slice_array(x, names, window) for x, names in zip(self.arrays, self.names, strict=True)]

    def _floats(self, items: Iterable[Item]) -> list[Item]:
        """Return the items that belong to floating-point arrays, given one item for each array of the call."""
        return [x for x, is_float in zip(items, self.floating, strict=True) if is_float]

    def _compute_unless_masked(
        self,
        window: DynamicTile,
        compute: Callable[[Bool[Array, " ..."]], list[Shaped[Array, "*_"]]],
        skip: Callable[[Bool[Array, " ..."]], list[Shaped[Array, "*_"]]],
    ) -> list[Shaped[Array, "*_"]]:
        """Return `compute(allowed)`, or `skip(allowed)` if a check at run time finds the tile fully masked.

        `allowed` is the mask of the tile.
        """
        import jax
        import jax.numpy as jnp

        call = self.call
        allowed, mask = self.dynamic.allowed(window), call.mask
        if mask is None or not mask.arrays():
            # Fully masked tiles of a mask without arrays are already excluded by `_tile_numbers`.
            return vary_like(compute(allowed), call.query)
        branches = [lambda allowed, of=of: vary_like(of(allowed), call.query) for of in (compute, skip)]
        return cast("list[Array]", jax.lax.cond(jnp.any(allowed), *branches, allowed))


def _tile_numbers(mask: Mask | None, tile: Tile, sides: tuple[int, int]) -> Int[np.ndarray, "n 2"]:
    """Return the row and column numbers of the tiles in which the mask may allow a pair, in row-major order.

    Example:
        >>> from qkv.core.tile import Tile
        >>> from qkv.masks import Causal
        >>> _tile_numbers(Causal(), Tile.whole(6, 6), (3, 2)).tolist()
        [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2]]
    """
    (rows, cols), q, k = sides, tile.q_total, tile.k_total
    found = []
    for i in range(-(-q // rows)):
        for j in range(-(-k // cols)):
            part = tile.restrict((i * rows, min(q, (i + 1) * rows)), (j * cols, min(k, (j + 1) * cols)))
            if mask is None or mask.coverage(part) != "none":
                found.append((i, j))
    return np.asarray(found, dtype=np.int32).reshape(-1, 2)


def arrays_of_partial(partial: PartialResult) -> list[Shaped[Array, "*_"]]:
    """Return the arrays of a partial result, in the order of its fields."""
    values = [getattr(partial, field.name) for field in dataclasses.fields(partial)]  # type: ignore[arg-type]
    return [x for x in values if is_array(x)]


def with_arrays(partial: Partial, arrays: Sequence[Shaped[Array, "*_"]]) -> Partial:
    """Return a copy of a partial result with its arrays replaced by `arrays`."""
    names = [f.name for f in dataclasses.fields(partial) if is_array(getattr(partial, f.name))]  # type: ignore[arg-type]
    return dataclasses.replace(partial, **dict(zip(names, arrays, strict=True)))  # type: ignore[type-var]


def sum_to(x: Float[Array, "*_"], shape: tuple[int, ...]) -> Float[Array, "*_sum"]:
    """Return `x` summed over the axes along which an array of the given shape was broadcast."""
    import jax.numpy as jnp

    x = jnp.sum(x, axis=tuple(range(x.ndim - len(shape))))
    broadcast = tuple(n for n, m in enumerate(shape) if m == 1 and x.shape[n] != 1)
    return cast("Array", jnp.sum(x, axis=broadcast, keepdims=True))
