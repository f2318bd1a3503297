"""Kernel that computes attention in TensorFlow in blocks of queries, in memory linear in the lengths.

It supports gradients, eager execution and `tf.function`.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, TypeVar

from qkv.core.arrays import cast, is_floating
from qkv.core.equation import BoundCall, apply_dropout, dense, masked_logits
from qkv.core.guard import apply_weights
from qkv.core.parts import Part
from qkv.core.typing import Array, Bool, Float, Int, OutputArray, Shaped
from qkv.kernels.runtime.tile_sizes import ROW_BLOCK_BUDGET, equal_parts, row_block_arrays, row_block_size, size_text
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem
from qkv.plan.time_model import amounts_of_work

AnyPart = TypeVar("AnyPart", bound=Part)
Axes = tuple[str, ...] | None
_Index = Int[Array, ""]


class _Blocks(Protocol):
    """A `tf.TensorArray`."""

    def write(self, index: _Index, value: Float[Array, "*_"]) -> _Blocks: ...

    def stack(self) -> Float[Array, " count *_"]: ...


_Total = Array | _Blocks
"""A variable of the loop: a sum over blocks, or the results of all blocks."""


def attend_row_blocks(call: BoundCall, rows: int) -> OutputArray:
    """Return the output of a call with at least one query, computed in blocks of `rows` queries, with gradients."""
    import tensorflow as tf

    if call.mask is None or call.finite_sides:
        call = call.with_projections(*call.score.project(call.query, call.key, call.tile))
    arrays = [call.query, call.key, call.value, *call.score.arrays(), *call.normalizer.arrays()]
    floating = [n for n, x in enumerate(arrays) if is_floating(x)]

    # All floating-point arrays are arguments, because TensorFlow differentiates the function by its arguments.
    @tf.custom_gradient  # type: ignore[untyped-decorator, unused-ignore]
    def attend(
        *floats: Float[Array, "*_"],
    ) -> tuple[Float[Array, "*_"], Callable[[Float[Array, "*_"]], list[Float[Array, "*_"]]]]:
        given = list(arrays)
        for n, x in zip(floating, floats, strict=True):
            given[n] = x
        loop = _RowBlockLoop(call.with_arrays(given), rows, floating)
        # Constants in the forward loop: the tape of the caller would save the arrays of all blocks.
        constants = replace(loop, call=loop.call.with_arrays([tf.stop_gradient(x) for x in loop.arrays]))
        return constants.forward(), loop.backward

    output: Array = attend(*(arrays[n] for n in floating))
    return output


@dataclass(frozen=True)
class _RowBlockLoop:
    """Forward and backward loop over the row blocks of a call."""

    call: BoundCall
    rows: int
    floating: Sequence[int]

    @property
    def count(self) -> int:
        """Number of blocks."""
        return -(-self.call.tile.q_total // self.rows)

    @property
    def arrays(self) -> list[Shaped[Array, "*_"]]:
        """Query, key, value and the arrays of score and normalizer."""
        call = self.call
        return [call.query, call.key, call.value, *call.score.arrays(), *call.normalizer.arrays()]

    @property
    def names(self) -> list[Axes]:
        """Names of the axes of each array in `arrays`, without batch axes."""
        parts = (self.call.score, self.call.normalizer)
        sides: list[Axes] = [("q", "width"), ("k", "width"), ("k", "value_width")]
        return sides + [names for part in parts for _, names in part.array_fields()]

    def forward(self) -> OutputArray:
        """Return the output of the call."""
        import tensorflow as tf

        call = self.call
        shape = (*call.batch, self.rows, call.value.shape[-1])

        def step(number: _Index, blocks: _Blocks) -> tuple[_Index, _Blocks]:
            return number + 1, blocks.write(tf.cast(number, "int32"), self._block(number, self._slices(number)))

        _, blocks = self._loop(step, (tf.TensorArray(call.dtype, size=self.count, element_shape=shape),))
        return self._join(typing.cast("_Blocks", blocks).stack(), 2)

    def backward(self, gradient: OutputArray) -> list[Float[Array, "*_"]]:
        """Return the gradients of the floating-point arrays, given the gradient of the output."""
        import tensorflow as tf

        own = self.arrays
        arrays, names = [own[n] for n in self.floating], [self.names[n] for n in self.floating]
        axes = [_query_axis(x, of_x) for x, of_x in zip(arrays, names, strict=True)]

        def step(number: _Index, *totals: _Total) -> tuple[_Total, ...]:
            # Copies, because a tape tells tensors apart by identity, and one tensor may be key and value.
            slices = [tf.identity(x) for x in self._slices(number)]
            watched = [slices[n] for n in self.floating]
            upstream = tf.where(self._uncovered(number), self._slice(gradient, 2, number), tf.zeros((), gradient.dtype))
            with tf.GradientTape() as tape:
                tape.watch(watched)
                output = self._block(number, slices)
            found = tape.gradient(output, watched, upstream, tf.UnconnectedGradients.ZERO)
            found = [tf.convert_to_tensor(x) for x in found]  # gathers have gradients in another format
            index = tf.cast(number, "int32")
            more = zip(totals, found, axes, strict=True)
            return number + 1, *(_add(total, x, index, axis is None) for total, x, axis in more)

        def initial(x: Array, axis: int | None) -> _Total:
            shape = list(x.shape)
            if axis is None:
                return typing.cast("Array", tf.zeros(shape, x.dtype))
            shape[-axis] = self.rows
            return typing.cast("_Blocks", tf.TensorArray(x.dtype, size=self.count, element_shape=shape))

        _, *totals = self._loop(step, tuple(initial(x, axis) for x, axis in zip(arrays, axes, strict=True)))
        return [
            typing.cast("Array", total) if axis is None else self._join(typing.cast("_Blocks", total).stack(), axis)
            for total, axis in zip(totals, axes, strict=True)
        ]

    def _block(self, number: _Index, arrays: list[Shaped[Array, "*_"]]) -> Float[Array, "*batch rows value_width"]:
        """Return the output of a block, given the arrays of the call restricted to its queries."""
        call, tile = self.call, self.call.tile
        query, key, value, *of_parts = arrays
        count = len(call.score.arrays())
        score, normalizer = (
            call.score.replace_arrays(of_parts[:count]),
            call.normalizer.replace_arrays(of_parts[count:]),
        )
        mask = None if call.mask is None else call.mask._map(lambda x, names: self._slice_named(x, names, number))
        tile = replace(tile, rows=(0, self.rows), dynamic_start=(self._start(number), 0))
        compare = score.projected_logits if call.projected else score.logits
        clean = mask is None or call.finite_sides
        logits = masked_logits(compare, mask, query, key, tile, value, clean)
        weights = normalizer.weights(logits, tile)
        dropped = apply_dropout(weights, tile, call.dropout)
        return apply_weights(dropped, value, lambda: normalizer.support(logits, weights), call.finite_value)

    def _loop(self, step: Callable[..., tuple[_Total, ...]], initial: tuple[_Total, ...]) -> tuple[_Total, ...]:
        """Return the loop variables, of which the first is the number of the block, after all blocks."""
        import tensorflow as tf

        first = tf.zeros((), tf.int64)
        # One block at a time: TensorFlow would run ten iterations in parallel, each with its own arrays.
        found: tuple[_Total, ...] = tf.while_loop(
            lambda number, *_: number < self.count, step, (first, *initial), parallel_iterations=1
        )
        return found

    def _start(self, number: _Index) -> _Index:
        import tensorflow as tf

        return typing.cast("Array", tf.minimum(number * self.rows, self.call.tile.q_total - self.rows))

    def _uncovered(self, number: _Index) -> Bool[Array, "rows 1"]:
        """Return a boolean array that is True for the queries of a block that no earlier block contains."""
        import tensorflow as tf

        rows = self._start(number) + tf.range(self.rows, dtype=tf.int64)
        return typing.cast("Array", (rows >= number * self.rows)[:, None])

    def _slices(self, number: _Index) -> list[Shaped[Array, "*_"]]:
        """Return the arrays of the call, restricted to the queries of a block."""
        return [self._slice_named(x, names, number) for x, names in zip(self.arrays, self.names, strict=True)]

    def _slice_named(self, x: Shaped[Array, "*_"], names: Axes, number: _Index) -> Shaped[Array, "*_slice"]:
        axis = _query_axis(x, names)
        return x if axis is None else self._slice(x, axis, number)

    def _slice(self, x: Shaped[Array, "*_"], axis: int, number: _Index) -> Shaped[Array, "*_slice"]:
        """Return the part of an array for the queries of a block, along an axis that is counted from the end."""
        import tensorflow as tf

        sizes: list[int] = list(x.shape)
        sizes[-axis] = self.rows
        starts: list[_Index | int] = [0] * len(sizes)
        starts[-axis] = self._start(number)
        sliced: Array = tf.slice(x, tf.stack([tf.cast(n, tf.int64) for n in starts]), sizes)
        return sliced

    def _join(self, blocks: Shaped[Array, " count *_block"], axis: int) -> Shaped[Array, "*_whole"]:
        """Return blocks joined along the axis of the queries, which is counted from the end."""
        import tensorflow as tf

        count, axis = self.count, len(blocks.shape) - 1 - axis
        if count == 1:
            return blocks[0]
        drop = count * self.rows - self.call.tile.q_total
        last = tf.gather(blocks[-1], tf.range(drop, self.rows), axis=axis)
        order = [*range(1, axis + 1), 0, *range(axis + 1, len(blocks.shape))]
        shape = list(blocks.shape[1:])
        shape[axis] *= count - 1
        joined: Array = tf.concat([tf.reshape(tf.transpose(blocks[:-1], order), shape), last], axis)
        return joined


def _add(total: _Total, x: Float[Array, "*_"], index: _Index, sums: bool) -> _Total:
    """Return the sum of `total` and `x`, or `total` with `x` as the result of the block `index`."""
    return typing.cast("Array", total) + x if sums else typing.cast("_Blocks", total).write(index, x)


def _query_axis(x: Shaped[Array, "*_"], names: Axes) -> int | None:
    """Return the axis of the queries, counted from the end, or None if an array has none or broadcasts along it."""
    for back, name in enumerate(reversed(names or ()), start=1):
        if name == "q" and x.shape[-back] != 1:
            return back
    return None


@dataclass(frozen=True)
class TensorflowBlocksKernel(Kernel):
    """Kernel that computes attention in blocks of TensorFlow tensors, for every score, normalizer and mask.

    The backward pass computes each block again, so only the inputs are saved. Readouts are not supported.

    Args:
        budget: largest number of elements in all arrays of a block together.
    """

    name: ClassVar[str] = "tensorflow_blocks"
    libraries: ClassVar[tuple[str, ...]] = ("tensorflow",)
    budget: int = ROW_BLOCK_BUDGET

    def limits(self, problem: Problem) -> Iterator[str]:
        if problem.readouts:
            yield "it computes no readouts; on TensorFlow only the dense kernel does"

    def describe(self, problem: Problem) -> str:
        return f"row blocks of {size_text(self._rows(problem), problem.axes.k)}; backward computes them again"

    def scratch(self, problem: Problem) -> float:
        """Return the bytes of one block and of the gradients at the peak."""
        axes, rows = problem.axes, self._rows(problem)
        block = axes.batch_size * rows * axes.k * row_block_arrays(problem)
        # Projections, a copy of the output, and what is added to the gradients for each block.
        sides = axes.batch_size * (axes.q + axes.k) * (axes.query_width + axes.value_width)
        numbers = block + sides * (3 if problem.gradient else 1)
        return numbers * problem.itemsize + problem.cast_bytes

    def work(self, problem: Problem) -> dict[str, float]:
        """Return the amounts of work, from which the time is estimated; masked pairs are computed too."""
        axes, rows = problem.axes, self._rows(problem)
        return amounts_of_work(problem, axes.pairs, -(-axes.q // rows), axes.batch_size * rows * axes.k)

    def run(self, call: BoundCall, problem: Problem) -> Result:
        if 0 in (call.tile.q_total, call.tile.k_total):
            return Result(dense(call).output)
        return Result(cast(attend_row_blocks(call, self._rows(problem)), call.out_dtype))

    def _rows(self, problem: Problem) -> int:
        return equal_parts(problem.axes.q, row_block_size(problem, self.budget, row_block_arrays(problem)))
