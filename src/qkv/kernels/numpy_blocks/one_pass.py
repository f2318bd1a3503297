"""Attention in one pass over the keys in NumPy, from sums of exponentials or the keys of the largest logits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from qkv.core.arrays import cast, excluding
from qkv.core.batch import BatchIndex, batch_indices
from qkv.core.equation import BoundCall
from qkv.core.ordering import RunningTopK
from qkv.core.partial import ExponentialSums, TopKeys
from qkv.core.progress import checkpoint
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, DType, Float, OutputArray, Shaped
from qkv.kernels.numpy_blocks.logits import BlockLogits, Exponential, ProjectedQueries, block_logits
from qkv.kernels.runtime.tile_loop import Limits, attend_rows, ranges, row_logits, weigh_rows
from qkv.kernels.runtime.tile_readouts import SPARE_KEYS, ReadoutAccumulator, include_largest
from qkv.kernels.runtime.tile_sizes import partial_elements
from qkv.masks.base import Mask, restrict_mask
from qkv.normalizers.base import Normalizer
from qkv.normalizers.selection import weigh_top_keys
from qkv.plan.cost import tile_sides
from qkv.plan.kernel_protocol import Result
from qkv.plan.problem import Problem
from qkv.readouts import Readout
from qkv.readouts.base import Result as ReadoutResult
from qkv.scores.forms import Product

TILE_FACTOR = 4
"""Factor by which tiles of normalizers other than softmax are larger, since merging costs more than cache misses."""
_MAX_KEYS = 2**16
"""Largest number of keys in a tile, at which Python overhead is negligible even for few queries."""


@dataclass(frozen=True)
class OnePassTileSizes:
    """Sizes of the tiles of a call that is computed in one pass over the keys.

    Attributes:
        rows: number of queries in a tile.
        cols: number of keys in a tile.
        group: number of queries whose sums are in memory at once. The keys are read once per group.
        batch: number of batch elements in a tile.
    """

    rows: int
    cols: int
    group: int
    batch: int

    def scratch(self, problem: Problem) -> int:
        """Return the bytes of a tile, its keys, its group of queries, and a block that is finalized in float64."""
        axes, item = problem.axes, problem.itemsize
        tile = self.batch * self.rows * self.cols * item * _elements_per_pair(problem)
        keys = self.batch * self.cols * _elements_per_key(problem) * item
        queries = self.batch * self.group * _bytes_per_query(problem)
        return tile + keys + queries + 3 * self.batch * self.rows * (axes.value_width + 2) * 8

    def tiles(self, problem: Problem) -> int:
        """Return the number of tiles of all batch elements."""
        axes = problem.axes
        groups = axes.batch_size // self.batch * -(-axes.q // self.group)
        return groups * -(-self.group // self.rows) * -(-axes.k // self.cols)


def one_pass_tile_sizes(problem: Problem, budget: int) -> OnePassTileSizes:
    """Return the tile sizes of attention in one pass in NumPy, within `budget` and the memory limit of the call.

    No array of a tile has more than `budget` elements.
    Tiles from which keys are only selected are larger, since merging costs more than cache misses.
    """
    axes, item = problem.axes, problem.itemsize
    budget *= TILE_FACTOR if selects(problem.normalizer) else 1
    elements = problem.elements_per_logit
    # Queries, keys, sums and outputs of the batch elements of a tile should stay in the cache, too.
    element_size = max(1, axes.q * axes.k * elements, 2 * max(axes.q, axes.k) * max(axes.key_width, axes.value_width))
    batch = max(1, min(axes.batch_size, budget // element_size))
    # Below 256 pairs, Python overhead dominates the time of a tile.
    pairs = max(min(256, budget), budget // (batch * elements))
    allowed = problem.memory // 4 // (batch * item * _elements_per_pair(problem))
    # Projected keys should stay in the cache. Keys that are used unchanged may exceed it.
    cached = (budget if problem.score.form.lift != "exact" else 8 * budget) // max(1, axes.key_width)
    fitting = problem.memory // 8 // (batch * _elements_per_key(problem) * item)
    max_keys = max(1, min(axes.k, _MAX_KEYS, cached, fitting))
    rows, cols = tile_sides(axes.q, max_keys, max(1, min(256, pairs), min(pairs, allowed)))
    max_queries = max(1, problem.memory // 4 // (batch * _bytes_per_query(problem)))
    rows = max(1, min(rows, max_queries))
    group = max(rows, min(axes.q, max_queries // rows * rows))
    return OnePassTileSizes(rows, cols, group, batch)


def _elements_per_pair(problem: Problem) -> int:
    return 1 if isinstance(problem.score.form, Product) else 4 + 2 * problem.elements_per_logit


def _elements_per_key(problem: Problem) -> int:
    """Return the peak number of elements in memory for each key of a tile."""
    width = problem.axes.key_width + 2
    # Casting the keys and values of a tile copies them.
    copied = problem.axes.key_width + problem.axes.value_width
    return copied if problem.score.form.lift == "exact" else copied + 4 * width


def _bytes_per_query(problem: Problem) -> int:
    """Return the number of bytes of the projection of a query and of its sums in float64 or its selected keys."""
    axes = problem.axes
    selected = partial_elements(problem) * problem.itemsize if selects(problem.normalizer) else 0
    return (axes.query_width + 3) * problem.itemsize + (axes.value_width + 3) * 8 + selected


_WriteLogits = Callable[[Float[np.ndarray, "*batch q 1"] | None], Float[np.ndarray, "*batch q k"]]
"""Function that returns the logits of a tile minus a shift, in a buffer that may be overwritten."""

_MAX_TILE_SUM = 2.0**60
"""Largest sum over a tile for which the shift is not changed."""
_MIN_TILE_SUM = 2.0**-30
"""Smallest sum over a tile, of a row without an earlier key, for which the shift is not changed."""
_MAX_UNSHIFTED = 22.0
"""Largest magnitude of a row's maximum without a shift, at which exponentials neither overflow nor lose precision."""
CHUNK = 2**12
"""Number of keys that are summed in the dtype of the call. Longer sums lose precision."""


class ExponentialAccumulator:
    """Accumulator of sums of exponentials for a block of queries, updated tile by tile.

    Args:
        batch: batch shape.
        rows: number of queries.
        width: width of the values.
        dtype: dtype of the logits.
        exp: exponential function for the logits.

    Attributes:
        shift: shift of each query, multiplied by the factor of the exponential.
        total: Σ e^(l − s), in float64.
        weighted: Σ e^(l − s) v, in float64; of the first keys alone, in the dtype of their product.
        non_finite: whether a logit was infinite or NaN, which makes the sums invalid.
    """

    def __init__(self, batch: tuple[int, ...], rows: int, width: int, dtype: DType, exp: Exponential) -> None:
        self.exp = exp
        self.shift: Float[np.ndarray, "*batch q 1"] = np.zeros((*batch, rows, 1), dtype=dtype)
        self.total: Float[np.ndarray, "*batch q 1"] = np.zeros((*batch, rows, 1))
        self.weighted: Float[np.ndarray, "*batch q value_width"] = np.zeros((*batch, rows, width))
        self.non_finite = False
        self._shifted = False
        self._has_key: Bool[np.ndarray, "*batch q 1"] = np.zeros((*batch, rows, 1), dtype=bool)
        self._all_have_keys = False
        self._empty = True

    def update(
        self,
        write_logits: _WriteLogits,
        value: Float[np.ndarray, "*#batch k value_width"],
        ones: Float[np.ndarray, "ones 1"],
    ) -> None:
        """Add the contribution of a tile to the sums of exponentials.

        Args:
            write_logits: function that returns the logits of the tile minus a shift, in a buffer that may be
                overwritten.
            value: values of the tile's keys.
            ones: a column of ones, at least as long as the tile.
        """
        for again in (False, True):
            e = write_logits(self.shift if self._shifted else None)
            if again and not self._move_shift(e):
                return
            total = self._exponentials(e, ones)
            # No maximum is needed where the sums show that it is near the shift. Comparisons with NaN are False.
            near = self._all_have_keys or total.min(initial=1) >= _MIN_TILE_SUM
            if near and total.max(initial=0) <= _MAX_TILE_SUM:
                self._has_key |= True
                self._all_have_keys = True
                break
        else:
            self.non_finite = True
            return
        self.total += total
        for start in range(0, e.shape[-1], CHUNK):
            chunk = slice(start, start + CHUNK)
            product = np.matmul(e[..., chunk], value[..., chunk, :])
            self.weighted = product if self._empty else np.add(self.weighted, product, dtype=np.float64)
            self._empty = False

    def result(self) -> ExponentialSums | None:
        """Return the sums of exponentials, or None if they may be wrong because an input was not finite.

        They may also be wrong for a row without keys, whose logits may have become −inf when multiplied by `factor`.
        """
        if self.non_finite or not (np.isfinite(self.weighted).all() and np.isfinite(self.total).all()):
            return None
        if self.exp.factor != 1 and not self._all_have_keys:
            return None  # a row has no key, or all of its logits became −inf when multiplied by log2 e
        dtype = self.shift.dtype
        maximum = np.where(self._has_key, self.shift / self.exp.factor, -np.inf).astype(dtype)
        return ExponentialSums(maximum, self.total.astype(dtype, copy=False), self.weighted.astype(dtype, copy=False))

    def _exponentials(
        self, e: Float[np.ndarray, "*batch q k"], ones: Float[np.ndarray, "ones 1"]
    ) -> Float[np.ndarray, "*batch q 1"]:
        """Replace shifted logits by their exponentials, in place, and return the sum of each row."""
        self.exp.apply_(e)
        total = np.zeros_like(self.total)
        for start in range(0, e.shape[-1], CHUNK):
            chunk = e[..., start : start + CHUNK]
            # A matrix product with ones, because BLAS sums three times as fast as NumPy.
            total += np.matmul(chunk, ones[: chunk.shape[-1]])
        return total

    def _move_shift(self, e: Float[np.ndarray, "*batch q k"]) -> bool:
        """Move the shift of rows whose logits are far from it, and return whether all logits are below +inf.

        The sums are rescaled to the new shift.
        """
        largest = e.max(axis=-1, keepdims=True)
        if not (largest < np.inf).all():
            self.non_finite = True
            return False
        near = _MAX_UNSHIFTED * self.exp.factor
        exists = largest > -np.inf
        move = (largest > near) | (~self._has_key & exists & (largest < -near))
        if move.any():
            difference = np.where(move, largest, 0)
            np.subtract(e, difference, out=e)
            self.shift += difference
            self._shifted = True
            # The sums of a row without a key are 0: rescaling them for a large decrease must not compute 0 · inf.
            factor = self.exp.function(np.where(self._has_key, -difference, 0).astype(np.float64))
            self.total *= factor
            self.weighted = self.weighted * factor
        self._has_key |= exists
        self._all_have_keys = bool(self._has_key.all())
        return True


def attend_in_one_pass(call: BoundCall, sizes: OnePassTileSizes, readouts: Sequence[Readout]) -> Result:
    """Return the result of a call that is computed from sums of exponentials, or from the keys of largest logits."""
    tile = call.tile
    output = np.empty((*tile.batch, tile.q_total, call.value.shape[-1]), dtype=call.out_dtype)
    accumulators = [ReadoutAccumulator(readout, tile) for readout in readouts]
    for index in batch_indices(tile.batch, sizes.batch):
        part = _unchecked(call, index) if index else call
        for group in ranges(tile.q_total, sizes.group):
            for block in _attend_group(part, group, sizes, max((each.largest or 0 for each in readouts), default=0)):
                for rows, rows_output, read in _results(part, block, sizes, readouts):
                    output[index][..., slice(*rows), :] = cast(rows_output, call.out_dtype)
                    for accumulator, result in zip(accumulators, read, strict=True):
                        accumulator.add_result(result, rows, index)
    return Result(output, tuple(accumulator.result() for accumulator in accumulators))


def _unchecked(call: BoundCall, index: BatchIndex) -> BoundCall:
    """Return a call restricted to a batch element, without checking it for NaN and infinity.

    The check is deferred until it is needed.
    """
    # `select_batch` would check the whole call first, in a pass over all keys.
    unchecked = dataclasses.replace(call, finite=(False, False))
    return dataclasses.replace(unchecked.select_batch(index), finite=None)


@dataclass
class _Block:
    """Block of queries with the sums and lists that are accumulated over the keys.

    Attributes:
        rows: range of the queries.
        queries: their projections; None if the call has no keys.
        sums: sums of exponentials; None if the weights of the selected keys are all weights.
        selected: the keys of the largest logits, which are multiplied by `sums.exp.factor`; None if none are needed.
    """

    rows: Limits
    queries: ProjectedQueries | None
    sums: ExponentialAccumulator | None
    selected: RunningTopK | None

    def update(
        self,
        write_logits: _WriteLogits,
        value: Float[np.ndarray, "*#batch k value_width"],
        ones: Float[np.ndarray, "ones 1"],
        first: int,
    ) -> None:
        """Add a tile of keys, of which `first` is the index of the first; see `ExponentialAccumulator.update`."""
        selected = self.selected
        if selected is None:
            assert self.sums is not None
            self.sums.update(write_logits, value, ones)
            return
        logits = write_logits(None)
        selected.update(logits, first)
        if self.sums is None:
            return
        unread = iter([logits])

        def shifted(shift: Float[np.ndarray, "*batch q 1"] | None) -> Float[np.ndarray, "*batch q k"]:
            # Without the shift in the product, equal logits of several tiles stay equal, so that ties go to the first.
            e = next(unread, None)
            e = write_logits(None) if e is None else e
            return e if shift is None else np.subtract(e, shift, out=e)

        self.sums.update(shifted, value, ones)


def _attend_group(call: BoundCall, group: Limits, sizes: OnePassTileSizes, largest: int) -> list[_Block]:
    """Return the blocks of a range of queries after a pass over the keys, for readouts of the `largest` weights."""
    normalizer = call.normalizer
    by_selection = selects(normalizer)
    count = normalizer.top_k if by_selection and normalizer.top_k else largest + SPARE_KEYS if largest else 0
    logits = block_logits(call, prepared=not by_selection)
    blocks = []
    for start, stop in ranges(group[1] - group[0], sizes.rows):
        rows = (group[0] + start, group[0] + stop)
        sums = selected = None
        if not by_selection:
            sums = ExponentialAccumulator(call.batch, rows[1] - rows[0], call.value.shape[-1], logits.dtype, logits.exp)
        if count:
            selected = RunningTopK((*call.batch, rows[1] - rows[0]), min(count, call.tile.k_total), logits.dtype)
        blocks.append(_Block(rows, logits.project_queries(rows) if call.tile.k_total else None, sums, selected))
    buffer = np.empty(math.prod(call.batch) * sizes.rows * sizes.cols, dtype=logits.dtype)
    ones = np.ones((sizes.cols, 1), dtype=logits.dtype)
    for cols in ranges(call.tile.k_total, sizes.cols):
        checkpoint()
        keys: np.ndarray | None = None
        value: np.ndarray | None = None
        for block in blocks:
            non_finite = block.sums is not None and block.sums.non_finite
            if block.queries is None or non_finite or block.rows[0] == block.rows[1]:
                continue
            tile = call.tile.restrict(block.rows, cols)
            coverage, mask = restrict_mask(call.mask, tile)
            if coverage == "none":
                continue
            if keys is None or value is None:  # project these keys for the first block that may attend to them
                keys, value = logits.project_keys(cols, sizes.rows), np.asarray(call.values(cols))
            # Delete the function, which would keep these keys alive while the next are projected.
            write = partial(_write_logits, logits, block.queries, keys, mask, tile, buffer)
            block.update(write, value, ones, cols[0])
            del write
    return blocks


def _write_logits(
    logits: BlockLogits,
    queries: ProjectedQueries,
    keys: Shaped[np.ndarray, " ..."],
    mask: Mask | None,
    tile: Tile,
    buffer: Float[np.ndarray, " size"],
    shift: Float[np.ndarray, "*batch q 1"] | None,
) -> Float[np.ndarray, "*batch q k"]:
    """Write the logits of a tile minus the shift, −inf where a key is masked, to `buffer` and return them."""
    shape = (*tile.batch, tile.cols[1] - tile.cols[0], tile.rows[1] - tile.rows[0])
    e: np.ndarray = buffer[: math.prod(shape)].reshape(shape).swapaxes(-1, -2)
    logits.write(queries, keys, tile.rows, tile.cols, shift, e)
    if mask is not None:
        # In the order of the buffer, so that both are read along the same axis.
        allowed = np.asarray(mask.allowed(tile, e)).swapaxes(-1, -2)
        np.fmin(e, excluding(np.ascontiguousarray(allowed), e.dtype).swapaxes(-1, -2), out=e)
    return e


def _results(
    call: BoundCall, block: _Block, sizes: OnePassTileSizes, readouts: Sequence[Readout]
) -> Iterator[tuple[Limits, OutputArray, tuple[ReadoutResult, ...]]]:
    """Yield ranges of queries of a block with their output and their readouts."""
    found = _finalize_selected(call, block) if block.sums is None else _finalize_sums(call, block, sizes, readouts)
    if found is not None:
        output, weights = found
        read: tuple[ReadoutResult, ...] = ()
        if weights is not None and block.selected is not None:
            read = tuple(readout.of_candidates(weights, block.selected.index) for readout in readouts)
        yield block.rows, output, read
        return
    # An input is not finite, or weights are equal where logits differ: from all logits, of a few queries at a time.
    call, step = call.with_all_cast(), max(1, sizes.rows * sizes.cols // max(1, call.tile.k_total))
    for start, stop in ranges(block.rows[1] - block.rows[0], step):
        rows = (block.rows[0] + start, block.rows[0] + stop)
        few, read = weigh_rows(call, rows, row_logits(call, rows, sizes.cols), [readout.read for readout in readouts])
        assert few is not None
        yield rows, few, read


def _finalize_sums(
    call: BoundCall, block: _Block, sizes: OnePassTileSizes, readouts: Sequence[Readout]
) -> tuple[Array, Array | None] | None:
    """Return the output of a block and the weights of its selected keys, or None if these do not suffice."""
    assert block.sums is not None
    sums, selected, normalizer = block.sums.result(), block.selected, call.normalizer
    tile = call.tile.restrict(block.rows, (0, 0))
    if sums is None:
        return None if readouts else (attend_rows(call, block.rows, sizes.cols)[0], None)
    output, summary = normalizer.finalize(sums, tile, 0.0)
    if selected is None:
        return output, None
    weights = normalizer.tile_weights(selected.rank / selected.rank.dtype.type(block.sums.exp.factor), summary, tile)
    largest = max(readout.largest or 0 for readout in readouts)
    count = selected.rank.shape[-1]
    enough = count == call.tile.k_total or include_largest(np.asarray(weights), selected.rank, largest)
    return (output, weights) if enough else None


def _finalize_selected(call: BoundCall, block: _Block) -> tuple[Array, Array | None] | None:
    """Return the output of a block of which only the selected keys have weight, and these weights."""
    selected = block.selected
    assert selected is not None
    logits, index = selected.rank, selected.index
    if (logits == np.inf).any():
        return None
    tile = call.tile.restrict(block.rows, (0, call.tile.k_total))
    normalizer = call.normalizer.simplify(logits.shape[-1])
    weights = normalizer.candidate_weights(logits, logits, tile)
    values = np.broadcast_to(np.asarray(call.value), (*call.batch, *call.value.shape[-2:]))[..., None, :, :]
    of_keys = np.take_along_axis(values, np.maximum(index, 0)[..., None], axis=-2)
    top = TopKeys(logits, index, logits, cast(of_keys, call.dtype), logits.shape[-1])
    return weigh_top_keys(weights, top, tile, call.dropout, normalizer.support(logits, weights)), weights


def selects(normalizer: Normalizer) -> bool:
    """Return whether only the keys of the largest logits have weight."""
    return normalizer.top_k is not None and not normalizer.stochastic
