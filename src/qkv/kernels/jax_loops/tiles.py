"""Normalizers that fold in one pass, in JAX: a compiled loop over the tiles that the mask leaves.

forward: partials of all queries are carried; each tile merges what it has into those of its rows
backward: weights of the tile from the summary;  dV += Wᵀ dO
          dS by the normalizer's `logit_gradient`;  both sides and the parameters from dS, by JAX on the tile

Nothing is kept for backward but the sides, the output and a few numbers per query.
Source: Rabe, Staats (2021), Self-attention does not need O(n²) memory, https://arxiv.org/abs/2112.05682;
Dao et al. (2022), FlashAttention, https://arxiv.org/abs/2205.14135.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from qkv.core.arrays import Array, is_array, is_floating
from qkv.core.equation import BoundCall, drop
from qkv.core.guard import zero_nonfinite
from qkv.core.online_softmax import PartialResult
from qkv.core.tile import Tile
from qkv.kernels.jax_loops.dynamic_tiles import (
    DynamicCall,
    DynamicTile,
    add_piece,
    add_rows,
    names_of,
    part_at,
    rows_at,
    write_rows,
)
from qkv.kernels.runtime.tile_loop import fully_masked
from qkv.masks import Mask
from qkv.normalizers.base import Summary

__all__ = ["attend_tiles", "tile_numbers"]


def attend_tiles(call: BoundCall, sides: tuple[int, int]) -> Array:
    """Output of a call in tiles of these sides; differentiable, by the normalizer's own gradient."""
    import jax

    moving = DynamicCall.of(call)
    call = moving.call
    arrays = [call.query, call.key, call.value, *call.score.arrays(), *call.normalizer.arrays()]
    floating = [is_floating(x) for x in arrays]
    fixed = (
        [x for x, some in zip(arrays, floating, strict=True) if not some],
        moving.raw,
        call.mask,
        call.tile.positions,
        call.tile.seed,
    )

    def loop(floats: Any, fixed: Any) -> _Loop:
        rest, raw, mask, positions, seed = fixed
        queues = iter(floats), iter(rest)
        held = [next(queues[0] if some else queues[1]) for some in floating]
        tile = dataclasses.replace(call.tile, positions=positions, seed=seed)
        bound = dataclasses.replace(call.with_arrays(held), mask=mask, tile=tile)
        return _Loop(DynamicCall(bound, raw), sides, tuple(floating))

    # What JAX traces must come in by the door: it may be differentiated, or mapped, from outside.
    @jax.custom_vjp  # type: ignore[untyped-decorator, unused-ignore]
    def attend(floats: Any, fixed: Any) -> Array:
        return loop(floats, fixed).forward()[0]

    def forward(floats: Any, fixed: Any) -> Any:
        output, summary = loop(floats, fixed).forward()
        return output, (floats, fixed, output, summary)

    def backward(kept: Any, gradient: Array) -> Any:
        floats, fixed, output, summary = kept
        return loop(floats, fixed).backward(output, summary, gradient), None

    attend.defvjp(forward, backward)
    floats = [x for x, some in zip(arrays, floating, strict=True) if some]
    output: Array = attend(floats, fixed)
    return output


@dataclass(frozen=True)
class _Loop:
    """The two loops over the tiles of a call.

    Attributes:
        moving: the call.
        sides: rows and columns of a tile.
        floating: which of query, key, value and the arrays of the parts are floating-point numbers.
    """

    moving: DynamicCall
    sides: tuple[int, int]
    floating: tuple[bool, ...]

    @property
    def call(self) -> BoundCall:
        return self.moving.call

    @cached_property
    def lengths(self) -> tuple[int, int]:
        return self.call.tile.q_total, self.call.tile.k_total

    @cached_property
    def numbers(self) -> Any:
        """Of the tiles that are computed."""
        return tile_numbers(self.call.mask, self.call.tile, self.sides)

    def forward(self) -> tuple[Array, Summary]:
        """Output `(*batch, q, value_width)` and the normalizer's summary."""
        import jax

        call, normalizer = self.call, self.call.normalizer
        tile = call.tile.restrict((0, self.lengths[0]), (0, 0))
        none = fully_masked(call, tile.rows, 0)
        first = normalizer.accumulate(none, call.value[..., :0, :], tile, call.dropout, True)
        axis = len(call.batch)

        def step(carried: list[Array], number: Any) -> Any:
            window = DynamicTile.of((number[0], number[1]), self.sides, self.lengths)
            old = [jax.lax.dynamic_slice_in_dim(x, *window.rows, axis) for x in carried]
            left, right, value = self._pieces(window)[:3]
            here = self.moving.tile_of(window)

            def merged(allowed: Array) -> list[Array]:
                logits = self.moving.logits(window, left, right, part_at(call.score, window), allowed)
                logits = normalizer.prepare(logits)
                more = self.moving.with_clean(
                    lambda clean: _arrays(normalizer.accumulate(logits, value, here, call.dropout, clean)), value
                )
                return _arrays(_with(first, old).merge(_with(first, more)))

            new = self._where_allowed(window, merged, lambda allowed: old)
            return [write_rows(x, y, window.rows[0], axis) for x, y in zip(carried, new, strict=True)], None

        carried = _over(step, _arrays(first), self.numbers)
        output, summary = normalizer.finalize(_with(first, carried), tile, call.dropout)
        return output, summary

    def backward(self, output: Array, summary: Summary, gradient: Array) -> list[Array]:
        """Gradients of the floating arrays: query, key, value, those of the score and of the normalizer."""
        import jax.numpy as jnp

        call, normalizer = self.call, self.call.normalizer
        row_dot = jnp.sum(gradient * output, axis=-1, keepdims=True)
        arrays = [call.query, call.key, call.value, *call.score.arrays(), *normalizer.arrays()]
        names = [None, None, None, *names_of(call.score), *names_of(normalizer)]

        def step(total: list[Array], number: Any) -> Any:
            window = DynamicTile.of((number[0], number[1]), self.sides, self.lengths)
            pieces = self._pieces(window)
            rows = [rows_at(x, window.rows) for x in (gradient, row_dot, *summary)]
            more = self._where_allowed(
                window,
                lambda allowed: self._gradients(window, pieces, allowed, rows[0], rows[1], tuple(rows[2:])),
                lambda allowed: self._floats([jnp.zeros_like(x) for x in pieces]),
            )
            added = [
                add_rows(x, y, window.rows[0] if n == 0 else window.cols[0]) if n < 3 else add_piece(x, y, name, window)
                for n, name, x, y in zip(self._floats(range(len(names))), self._floats(names), total, more, strict=True)
            ]
            return added, None

        out = list(_over(step, self._floats([jnp.zeros_like(x) for x in arrays]), self.numbers))
        floating = self._floats(range(len(names)))
        # What does not go through the normalizer's `prepare`; its arrays come last.
        rest = normalizer.array_gradients(summary, row_dot)
        for n, x in enumerate(rest, start=len(names) - len(rest)):
            if x is not None and n in floating:
                at = floating.index(n)
                out[at] = out[at] + _sum_to(x, (*out[at].shape, 1, 1))[..., 0, 0]
        return out

    def _gradients(
        self,
        window: DynamicTile,
        pieces: list[Array],
        allowed: Array,
        gradient: Array,
        row_dot: Array,
        summary: Summary,
    ) -> list[Array]:
        """What a tile adds to the gradient of each floating piece."""
        import jax
        import jax.numpy as jnp

        call, normalizer, tile = self.call, self.call.normalizer, self.moving.tile_of(window)
        score, held = part_at(call.score, window), len(call.score.arrays())

        def prepared_of(floats: list[Array]) -> Array:
            queue = iter(floats)
            here = [next(queue) if some else x for x, some in zip(pieces, self.floating, strict=True)]
            of_score = score.replace_arrays(here[3 : 3 + held])
            logits = self.moving.logits(window, here[0], here[1], of_score, allowed)
            return normalizer.replace_arrays(here[3 + held :]).prepare(logits)

        prepared, back = jax.vjp(prepared_of, self._floats(pieces))
        weights = normalizer.tile_weights(prepared, summary, tile)
        dropped = drop(weights, tile, call.dropout)
        value = pieces[2] if call.finite_value else zero_nonfinite(pieces[2])
        of_weights = drop(gradient @ jnp.matrix_transpose(value), tile, call.dropout)
        of_logits = normalizer.logit_gradient(prepared, weights, of_weights, row_dot, summary, tile)
        (found,) = back(of_logits)
        of_value = _sum_to(jnp.matrix_transpose(dropped) @ gradient, value.shape)
        return [of_value if n == 2 else x for n, x in zip(self._floats(range(len(pieces))), found, strict=True)]

    def _pieces(self, window: DynamicTile) -> list[Array]:
        """Query, key, value and the arrays of both parts, cut to a tile."""
        call = self.call
        return [
            rows_at(call.query, window.rows),
            rows_at(call.key, window.cols),
            rows_at(call.value, window.cols),
            *part_at(call.score, window).arrays(),
            *call.normalizer.arrays(),
        ]

    def _floats(self, items: Any) -> list[Any]:
        """Of query, key, value and the arrays of the parts, those that are floating-point numbers."""
        return [x for x, some in zip(items, self.floating, strict=True) if some]

    def _where_allowed(self, window: DynamicTile, compute: Any, skip: Any) -> Any:
        """What `compute` gives, or where the mask's arrays allow nothing in the tile, `skip`."""
        import jax
        import jax.numpy as jnp

        allowed, mask = self.moving.allowed(window), self.call.mask
        if mask is None or not mask.arrays():
            # Without arrays the mask has said so of whole tiles already.
            return compute(allowed)
        return jax.lax.cond(jnp.any(allowed), compute, skip, allowed)


def tile_numbers(mask: Mask | None, tile: Tile, sides: tuple[int, int]) -> Any:
    """Numbers, `(n, 2)`, of the tiles in which the mask may allow something, row after row.

    Example:
        >>> from qkv.core.tile import Tile
        >>> from qkv.masks import Causal
        >>> tile_numbers(Causal(), Tile.whole(6, 6), (3, 2)).tolist()
        [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2]]
    """
    (rows, cols), q, k = sides, tile.q_total, tile.k_total
    found = []
    for i in range(-(-q // rows)):
        for j in range(-(-k // cols)):
            here = tile.restrict((i * rows, min(q, (i + 1) * rows)), (j * cols, min(k, (j + 1) * cols)))
            if mask is None or mask.coverage(here) != "none":
                found.append((i, j))
    return np.asarray(found, dtype=np.int32).reshape(-1, 2)


def _over(step: Callable[[list[Array], Any], Any], first: list[Array], numbers: Any) -> list[Array]:
    """What the step makes of the first arrays, tile after tile."""
    import jax

    if not len(numbers):
        # A step is traced even where it is never taken, and its slices would not fit.
        return first
    last: list[Array] = jax.lax.scan(step, first, numbers)[0]
    return last


def _arrays(partial: PartialResult) -> list[Array]:
    """The arrays of a partial."""
    values = [getattr(partial, field.name) for field in dataclasses.fields(partial)]  # type: ignore[arg-type]
    return [x for x in values if is_array(x)]


def _with(partial: Any, arrays: list[Array]) -> Any:
    """The partial with other arrays."""
    names = [f.name for f in dataclasses.fields(partial) if is_array(getattr(partial, f.name))]
    return dataclasses.replace(partial, **dict(zip(names, arrays, strict=True)))


def _sum_to(x: Array, shape: tuple[int, ...]) -> Array:
    """`x`, summed over the axes that were broadcast from this shape."""
    import jax.numpy as jnp

    x = jnp.sum(x, axis=tuple(range(x.ndim - len(shape))))
    return jnp.sum(x, axis=tuple(n for n, m in enumerate(shape) if m == 1 and x.shape[n] != 1), keepdims=True)
