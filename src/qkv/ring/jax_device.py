"""The call of one device in JAX: turns of keys around a ring of devices, forward and backward, in compiled loops."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from qkv.core.arrays import is_floating
from qkv.core.equation import BoundCall
from qkv.core.partial import PartialResult, WeightedSums
from qkv.core.parts import AnyPart
from qkv.core.positions import Positions
from qkv.core.tile import Tile, take_range
from qkv.core.typing import Array, KeyArray, OutputArray, PairArray, QueryArray, Shaped
from qkv.kernels.jax_loops.dynamic_tiles import DynamicCall, DynamicTile, axis_names, slice_axis, vary_like
from qkv.kernels.jax_loops.tiles import TileLoop, arrays_of_partial, sum_to, with_arrays
from qkv.masks.window import BandMask
from qkv.normalizers import Normalizer, Softmax
from qkv.normalizers.base import Summary
from qkv.ring.layout import Limits, Order
from qkv.ring.local_parts import Names, local_mask, travels
from qkv.ring.shards import received, travelling
from qkv.ring.sparse_weights import KnownThreshold, newton_step
from qkv.scores import Score

T = TypeVar("T")
_Turned = tuple[list[T], list[Array]]
Saved = tuple[list[OutputArray], list[Summary], list[tuple[Array, ...]]]
"""Output, summary and thresholds of each chunk of queries."""

_MAX_STEPS = 60
"""Largest number of Newton steps."""


@dataclass(frozen=True)
class Mesh:
    """Mesh and shapes of a sharded call, equal on all devices.

    Attributes:
        axis: name of the mesh axis along which the sequence is divided.
        size: number of devices along the axis.
        order: which device holds which chunks.
        lengths: numbers of queries and keys of each device.
        offset: position of the first query of the whole sequence.
        sides: numbers of queries and keys in a tile.
    """

    axis: str
    size: int
    order: Order
    lengths: tuple[int, int]
    offset: int
    sides: tuple[int, int]

    @property
    def count(self) -> int:
        """The number of chunks of a device."""
        return 1 if self.order == "contiguous" else 2

    def local(self, side: int, number: int) -> Limits:
        """Return the range of a chunk in the arrays of its device; `side` is 0 for queries and 1 for keys."""
        size = self.lengths[side] // self.count
        return number * size, (number + 1) * size

    def start(self, side: int, number: int, rank: Array) -> Array:
        """Return the index in the whole sequence of the first element of a chunk of a device."""
        size = self.lengths[side] // self.count
        return (2 * self.size - 1 - rank if number else rank) * size


@dataclass(frozen=True)
class _RingCall(DynamicCall):
    """Call of a block in which the logits of rows of query or key that are not finite are NaN.

    Attributes:
        nonfinite: for query and key, whether each row is not finite, `(*batch, n, 1)`.
    """

    nonfinite: tuple[Array, Array] | None = None

    def logits(
        self, window: DynamicTile, query: QueryArray, key: KeyArray, score: Score, allowed: Shaped[Array, " ..."]
    ) -> PairArray:
        import jax.numpy as jnp

        logits = super().logits(window, query, key, score, allowed)
        if self.nonfinite is None:
            return logits
        rows, cols = self.nonfinite
        unknown = slice_axis(rows, window.rows, -2) | jnp.matrix_transpose(slice_axis(cols, window.cols, -2))
        return cast("Array", jnp.where(allowed & unknown, math.nan, logits))


def cut_part(part: AnyPart, rows: Limits, cols: Limits, first_key: Array) -> AnyPart:
    """Return a part with its arrays restricted to a chunk of queries and a chunk of keys, as `slice_part` does."""
    return part._map(lambda x, names: _cut_array(x, names, rows, cols, first_key))


def _cut_array(x: Array, names: Names, rows: Limits, cols: Limits, first_key: Array) -> Array:
    for back, name in enumerate(reversed(names or ()), start=1):
        if name == "q":
            x = slice_axis(x, (rows[0], rows[1] - rows[0]), -back)
        elif name == "k":
            x = slice_axis(x, (cols[0] if travels(names) else first_key, cols[1] - cols[0]), -back)
    return x


@dataclass(frozen=True)
class DeviceCall:
    """The call of one device, with its arrays.

    Attributes:
        mesh: the devices.
        call: the projected call.
        nonfinite: which rows of query and key are not finite; None without a mask.
    """

    mesh: Mesh
    call: BoundCall
    nonfinite: tuple[Array, Array] | None

    def forward(self) -> tuple[OutputArray, Saved]:
        """Return the output, and for each chunk of queries the normalizer's arrays, summary and row means."""
        import jax.numpy as jnp

        normalizers: list[Normalizer] = [self.call.normalizer] * self.mesh.count
        if self.call.normalizer.power is not None:
            normalizers = list(self._thresholds())
        outputs, summaries = [], []
        for number, partial in enumerate(self._partials(self.call, normalizers)):
            tile = self.call.tile.restrict((0, self.mesh.lengths[0] // self.mesh.count), (0, 0))
            output, summary = normalizers[number].finalize(partial, tile, self.call.dropout)
            outputs.append(output)
            summaries.append(summary)
        thresholds: list[tuple[Array, ...]] = [
            (x.maximum, x.tau) if isinstance(x, KnownThreshold) else () for x in normalizers
        ]
        return jnp.concat(outputs, axis=-2), (outputs, summaries, thresholds)

    def backward(self, saved: Saved, gradient: OutputArray) -> list[Array | None]:
        """Return the gradients of query, key, value and the arrays of score and normalizer."""
        import jax
        import jax.numpy as jnp

        outputs, summaries, thresholds = saved
        call, mesh = self.call, self.mesh
        count = len(call.score.arrays())
        own = [call.query, call.key, call.value, *call.score.arrays(), *call.normalizer.arrays()]
        names = [("q", "w"), ("k", "w"), ("k", "w"), *axis_names(call.score), *axis_names(call.normalizer)]
        floating = [is_floating(x) for x in own]
        moves = [travels(each) for each in names]

        def visit(carry: list[Array], arrays: list[Array], sums: list[Array], owner: Array) -> _Turned[Array]:
            there = received(call, arrays)
            full = [call.query, there.key, there.value, *there.score.arrays(), *call.normalizer.arrays()]
            floats = [x for x, is_float in zip(full, floating, strict=True) if is_float]
            total = [jnp.zeros_like(x) for x in floats]
            for i, j in self._pairs():
                normalizer = self._normalizer(thresholds[i])
                mean = summaries[i][0] if isinstance(normalizer, KnownThreshold) else outputs[i]
                rows, cols = mesh.local(0, i), mesh.local(1, j)
                loop, visible = self._loop(there, arrays[-1], normalizer, i, j, owner)
                first_key = mesh.start(1, j, owner)

                @jax.custom_jvp  # type: ignore[untyped-decorator, unused-ignore]
                def share(floats: list[Array], mean: Array = mean) -> Array:
                    return cast("Array", jnp.zeros_like(mean))

                def with_tangent(
                    primals: object, tangents: list[list[Array]], loop: TileLoop = loop, mean: Array = mean, i: int = i,
                    rows: Limits = rows, cols: Limits = cols, first_key: Array = first_key,
                ) -> tuple[Array, Array]:  # fmt: skip
                    queue = iter(tangents[0])
                    cut = [
                        _cut_array(next(queue), each, rows, cols, first_key)
                        for each, is_float in zip(names, floating, strict=True)
                        if is_float
                    ]
                    if isinstance(loop.call.normalizer, KnownThreshold):
                        before_normalizer = sum(floating[: 3 + count])
                        cut = [*cut[:before_normalizer], *(jnp.zeros_like(x) for x in loop.call.normalizer.arrays())]
                    found = loop.tile_tangents(mean, summaries[i], cut)
                    return jnp.zeros_like(mean), found

                share.defjvp(with_tangent)

                def pull(floats: list[Array], share: object = share, rows: Limits = rows) -> list[Array]:
                    return list(jax.vjp(share, floats)[1](take_range(gradient, rows))[0])

                def nothing(floats: list[Array]) -> list[Array]:
                    return [jnp.zeros_like(x) for x in floats]

                branches = [lambda x, of=of: vary_like(of(x), call.query) for of in (pull, nothing)]
                more = jax.lax.cond(visible, *branches, floats)
                total = [x + y for x, y in zip(total, more, strict=True)]
            queue = iter(total)
            ordered = [next(queue) if is_float else None for is_float in floating]
            staying = [x for x, moved in zip(ordered, moves, strict=True) if not moved and x is not None]
            moving = [x for x, moved in zip(ordered, moves, strict=True) if moved and x is not None]
            return (
                [x + y for x, y in zip(carry, staying, strict=True)],
                [x + y for x, y in zip(sums, moving, strict=True)],
            )

        stays = [jnp.zeros_like(x) for x, f, moved in zip(own, floating, moves, strict=True) if f and not moved]
        moving = [jnp.zeros_like(x) for x, f, moved in zip(own, floating, moves, strict=True) if f and moved]
        stays, moving = self._turn(stays, moving, visit)
        queues = iter(stays), iter(moving)
        found = [next(queues[moved]) if is_float else None for is_float, moved in zip(floating, moves, strict=True)]
        if not isinstance(self._normalizer(thresholds[0]), KnownThreshold):
            for i in range(mesh.count):
                row_dot = jnp.sum(take_range(gradient, mesh.local(0, i)) * outputs[i], axis=-1, keepdims=True)
                for n, x in enumerate(call.normalizer.array_gradients(tuple(summaries[i]), row_dot), start=3 + count):
                    if x is not None:
                        shape = own[n].shape
                        found[n] = found[n] + jnp.reshape(sum_to(x, (*shape, 1, 1) if shape else ()), shape)
        return found

    def _normalizer(self, threshold: tuple[Array, ...]) -> Normalizer:
        given = self.call.normalizer
        if not threshold:
            return given
        assert given.power is not None
        assert given.scale is not None
        return KnownThreshold(threshold[0], threshold[1], given.power, given.scale)

    def _pairs(self) -> list[tuple[int, int]]:
        return [(i, j) for i in range(self.mesh.count) for j in range(self.mesh.count)]

    def _turn(
        self, carry: list[T], sums: list[Array], visit: Callable[..., _Turned[T]], with_value: bool = True
    ) -> _Turned[T]:
        """Return `carry` and `sums` after the keys of all devices have passed; `sums` travel with them."""
        import jax

        mesh, call = self.mesh, self.call
        rank = jax.lax.axis_index(mesh.axis)
        to_next = [(n, (n + 1) % mesh.size) for n in range(mesh.size)]
        arrays = [*travelling(call, with_value), None if self.nonfinite is None else self.nonfinite[1]]

        def step(state: tuple[list[T], list[Array], list[Array]], number: Array) -> tuple[object, None]:
            carry, sums, arrays = state
            carry, sums = visit(carry, arrays, sums, (rank - number) % mesh.size)
            move = functools.partial(jax.lax.ppermute, axis_name=mesh.axis, perm=to_next)
            sums = jax.tree.map(move, vary_like(sums, call.query))
            return (vary_like(carry, call.query), sums, jax.tree.map(move, arrays)), None

        first = vary_like((carry, sums, arrays), call.query)
        (carry, sums, _), _ = jax.lax.scan(step, first, jax.numpy.arange(mesh.size))
        return carry, sums

    def _loop(
        self, call: BoundCall, nonfinite_keys: Array | None, normalizer: Normalizer, i: int, j: int, owner: Array
    ) -> tuple[TileLoop, Array]:
        """Return the tile loop of two chunks, and whether the mask may allow any of its pairs."""
        import jax
        import jax.numpy as jnp

        mesh = self.mesh
        rows, cols = mesh.local(0, i), mesh.local(1, j)
        first_query = mesh.start(0, i, jax.lax.axis_index(mesh.axis))
        first_key = mesh.start(1, j, owner)
        start = mesh.offset + first_query - first_key
        mask, visible = call.mask, jnp.asarray(True)
        if mask is not None:
            mask = local_mask(
                mask, cast("int", first_query), cast("int", first_key),
                lambda part: cut_part(part, rows, cols, first_key), lambda part: part,
            )  # fmt: skip
            for part in mask.conjuncts:
                if isinstance(part, BandMask):
                    if part.after is not None:
                        visible &= start + rows[1] - rows[0] - 1 + part.after >= 0
                    if part.before is not None:
                        visible &= cols[1] - cols[0] - 1 >= start - part.before
        tile = Tile.whole(
            rows[1] - rows[0], cols[1] - cols[0], call.batch, Positions(query_start=start), seed=call.tile.seed,
            first_pair=(cast("int", first_query), cast("int", first_key)),
        )  # fmt: skip
        block = replace(
            call, query=take_range(call.query, rows), key=take_range(call.key, cols),
            value=take_range(call.value, cols), score=cut_part(call.score, rows, cols, first_key), mask=mask,
            tile=tile, normalizer=normalizer,
        )  # fmt: skip
        nonfinite = None
        if self.nonfinite is not None and nonfinite_keys is not None:
            nonfinite = take_range(self.nonfinite[0], rows), take_range(nonfinite_keys, cols)
        arrays = [block.query, block.key, block.value, *block.score.arrays(), *normalizer.arrays()]
        loop = TileLoop(_RingCall(block, None, nonfinite), mesh.sides, tuple(is_floating(x) for x in arrays))
        return loop, visible

    def _partials(
        self, call: BoundCall, normalizers: Sequence[Normalizer], with_value: bool = True
    ) -> list[PartialResult]:
        """Return the partial result of each chunk of queries over the keys of all devices."""
        import jax

        rank = jax.lax.axis_index(self.mesh.axis)
        here = call.key if self.nonfinite is None else self.nonfinite[1]
        empty = [
            self._loop(call, here if self.nonfinite is not None else None, normalizer, i, 0, rank)[0].empty()
            for i, normalizer in enumerate(normalizers)
        ]

        def visit(
            carry: list[list[Array]], arrays: list[Array], sums: list[Array], owner: Array
        ) -> _Turned[list[Array]]:
            there = received(call, arrays, with_value)
            carry = list(carry)
            for i, j in self._pairs():
                loop, visible = self._loop(there, arrays[-1], normalizers[i], i, j, owner)
                old = with_arrays(empty[i], carry[i])

                def merged(loop: TileLoop = loop, old: PartialResult = old) -> list[Array]:
                    return vary_like(arrays_of_partial(old.merge(loop.partial())), call.query)

                def same(old: PartialResult = old) -> list[Array]:
                    return vary_like(arrays_of_partial(old), call.query)

                carry[i] = jax.lax.cond(visible, merged, same)
            return carry, sums

        carry, _ = self._turn([arrays_of_partial(x) for x in empty], [], visit, with_value)
        return [with_arrays(x, y) for x, y in zip(empty, carry, strict=True)]

    def _thresholds(self) -> list[KnownThreshold]:
        """Return a normalizer with the maximum and threshold of each row, for each chunk of queries."""
        import jax
        import jax.numpy as jnp

        call, given = self.call, self.call.normalizer
        assert given.power is not None
        assert given.scale is not None
        ones = replace(call, value=jnp.ones_like(call.value[..., :1]), dropout=0.0)
        found = self._partials(ones, [Softmax()] * self.mesh.count, with_value=False)
        maxima = [x.maximum for x in found]  # type: ignore[attr-defined]
        maxima = [jnp.where(x == -jnp.inf, 0.0, x) for x in maxima]

        def step(state: tuple[Array, list[Array], Array]) -> tuple[Array, list[Array], Array]:
            number, taus, _ = state
            normalizers = [
                KnownThreshold(maximum, tau, given.power or 1, given.scale or 1.0)
                for maximum, tau in zip(maxima, taus, strict=True)
            ]
            changed = jnp.asarray(0.0, call.value.dtype)
            new = []
            for tau, sums in zip(taus, self._partials(ones, normalizers, with_value=False), strict=True):
                excess, change = newton_step(cast("WeightedSums", sums), given.power or 1)
                moved = jnp.where(jnp.abs(excess) > 8 * jnp.finfo(tau.dtype).eps, tau + change, tau)
                changed = jnp.maximum(changed, jnp.max(jnp.abs(moved - tau)))
                new.append(moved)
            return number + 1, new, jax.lax.pmax(changed, self.mesh.axis)

        start = [vary_like(jnp.full_like(x, -1.0), call.query) for x in maxima]
        state = (jnp.asarray(0), start, jnp.asarray(1.0, call.value.dtype))
        _, taus, _ = jax.lax.while_loop(lambda state: (state[0] < _MAX_STEPS) & (state[2] > 0), step, state)
        return [KnownThreshold(m, t, given.power, given.scale) for m, t in zip(maxima, taus, strict=True)]
