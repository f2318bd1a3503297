"""Kernel that computes the output and the readouts of a call on a GPU, by programs written in Triton."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

from qkv.core.equation import TorchCall
from qkv.core.parts import expand_to_pairs
from qkv.core.typing import Float, Int, OutputTensor, ReadoutResult, Tensor
from qkv.kernels.runtime.softmax_limits import softmax_limits
from qkv.kernels.runtime.split_mask import split_mask
from qkv.kernels.triton.kernel import additive_sides, centred_sides, nonfinite_values
from qkv.kernels.triton.program_kernel import (
    Block,
    ProgramKernel,
    batch_elements,
    finite_call,
    pair_biases,
    power_of_two,
    readout_blocks,
)
from qkv.plan.problem import Problem
from qkv.plan.time_model import amounts_of_work, visible_pairs
from qkv.readouts import ColumnSum, Entropy, LogSumExp, MeanDistance, PooledMap, Readout, Top, TopWeights
from qkv.scores.forms import ScaledProduct, Tanh

READ_BY_ROWS = (LogSumExp, Entropy, MeanDistance, TopWeights)
"""Readouts of each query, which are computed in the pass that computes the output."""
_PROGRAMS = 1024
"""Number of programs into which a map is divided, if possible; enough for several on each multiprocessor."""


@dataclass(frozen=True)
class ReadoutLaunch:
    """Sizes of the tiles of the programs, and the options with which they are compiled.

    Attributes:
        offset: position of query 0 under a causal mask; None without one.
        block: tile of the program that computes the output and the readouts of each query.
        cells: tile of the program that computes sums and maxima of cells.
        precision: precision of matrix products, as in `triton.language.dot`.
        mapped: number of the readout whose cells are added up on the way; None if there is none.
    """

    offset: int | None
    block: Block
    cells: Block
    precision: str = "tf32x3"
    mapped: int | None = None


@dataclass(frozen=True)
class _Table:
    """Sums or maxima of the weights of each tile and cell of keys, for each query, relative to running maxima.

    Attributes:
        entries: (element, query, tile, cell).
        maxima: the running maximum of each query at each tile, (element, query, tile).
        lanes: number of cells of a tile, of keys of a cell, and of tiles of a cell, as `cell_lanes` returns them.
    """

    entries: Tensor
    maxima: Tensor
    lanes: tuple[int, int, int]


@dataclass(frozen=True)
class _Sides:
    """Arrays of a call in the form that the programs take, and the factor of the products.

    Axes: `left` and `right` are (element, row, width), or (element, unit, row) for an additive score.
    """

    left: Tensor
    right: Tensor
    vector: Tensor
    flags: Int[Tensor, " element"]
    value: Float[Tensor, "element k value_width"]
    row_bias: Float[Tensor, "element q"]
    key_bias: Float[Tensor, "element k"]
    scale: float
    additive: bool

    @property
    def width(self) -> int:
        """The width of the vectors, or the number of hidden units."""
        return int(self.left.shape[1 if self.additive else 2])

    def options(self, launch: ReadoutLaunch) -> dict[str, object]:
        """Return the compile-time arguments that both programs have."""
        return {
            "ADDITIVE": self.additive,
            "W": self.width,
            "WP": power_of_two(self.width),
            "CAUSAL": launch.offset is not None,
            "PRECISION": launch.precision,
        }

    def select_heads(self, batch: tuple[int, ...], heads: tuple[int, ...]) -> _Sides:
        """Return the arrays of some heads."""
        arrays = self.left, self.right, self.vector, self.flags, self.value, self.row_bias, self.key_bias
        left, right, vector, flags, value, row_bias, key_bias = (_select(x, batch, heads) for x in arrays)
        return _Sides(left, right, vector, flags, value, row_bias, key_bias, self.scale, self.additive)


def attend_with_readouts(
    call: TorchCall, readouts: Sequence[Readout], launch: ReadoutLaunch
) -> tuple[OutputTensor, tuple[ReadoutResult, ...]]:
    """Return the output of a call under softmax, and its readouts, some of which may be of some heads."""
    import torch

    with torch.no_grad():
        sides, allowed = _sides(call)
        output, rows, table = _attend(call, sides, readouts, launch)
        results = tuple(
            _result(call, sides, rows, readout, launch, table if n == launch.mapped else None)
            for n, readout in enumerate(readouts)
        )
        output = output + nonfinite_values(call, allowed, launch.offset)
    return output, results


def _sides(call: TorchCall) -> tuple[_Sides, Tensor]:
    """Return the arrays of the programs, and which keys are allowed."""
    import torch

    if isinstance(call.score.form, Tanh):
        (left, right, vector, value, row_bias, key_bias), allowed = additive_sides(call)
        left, right, flags = centred_sides(left, right, vector)
        vector, value = vector.contiguous(), value.contiguous()
        return _Sides(left, right, vector, flags, value, row_bias, key_bias, 1.0, True), allowed
    from qkv.kernels.fused.call import lift_sides

    batch, keys = call.tile.batch, split_mask(call.mask, call.tile)[0]
    allowed, row_bias, key_bias = pair_biases(call, keys)
    clean = finite_call(call)
    query, key, scale = lift_sides(clean, call.score)
    left, right, value = (batch_elements(x, batch).contiguous() for x in (query, key, clean.value))
    flags = torch.zeros(len(left), dtype=torch.int32, device=value.device)
    return _Sides(left, right, row_bias, flags, value, row_bias, key_bias, scale, False), allowed


def _attend(
    call: TorchCall, sides: _Sides, readouts: Sequence[Readout], launch: ReadoutLaunch
) -> tuple[OutputTensor, dict[type[Readout], Tensor], _Table | None]:
    """Return the output, an array of the elements for each kind of readout of queries, and a table of cells."""
    import torch

    from qkv.kernels.triton.readout_programs import attend_rows

    elements, q = len(sides.value), call.tile.q_total
    k, value_width = sides.value.shape[-2:]
    kinds = {type(readout.per_head) for readout in readouts}
    top = max((readout.per_head.k for readout in readouts if isinstance(readout.per_head, TopWeights)), default=0)
    ranks = power_of_two(top) if top else 0
    new = sides.row_bias.new_empty
    output = torch.empty((elements, q, value_width), dtype=sides.value.dtype, device=sides.value.device)
    log_sum_exp = new((elements, q))
    entropy, distance = (new((elements, q)) if kind in kinds else log_sum_exp for kind in (Entropy, MeanDistance))
    best = torch.empty((elements, q, max(1, ranks)), dtype=torch.int64, device=output.device)
    block = launch.block
    # A tile has at least as many keys as are kept.
    lanes = max(block.keys, ranks)
    sizes = {"BQ": block.queries, "BK": lanes, "num_warps": block.warps}
    table, across, maximum = None, 1, False
    if launch.mapped is not None:
        readout = cast("PooledMap", readouts[launch.mapped])
        across, maximum = readout.sides(q, k)[1], readout.how == "max"
        cells = cell_lanes(k, across, lanes)
        shape = (elements, q, -(-across // cells[0]) * cells[2])
        # Tiles that come after the last key of a causal mask are left out.
        maxima = new(shape) if launch.offset is None else sides.row_bias.new_full(shape, -torch.inf)
        table = _Table(new((*shape, cells[0])), maxima, cells)
    starts = _starts(k, across, output)
    columns, span, parts = (1, lanes, 1) if table is None else table.lanes
    sizes |= {"MAPPED": table is not None, "MAXIMUM": maximum, "C": columns, "CS": span}
    own = {"DV": value_width, "DVP": power_of_two(value_width), "TOPP": ranks}
    own |= {"ENTROPY": Entropy in kinds, "DISTANCE": MeanDistance in kinds}
    position = cast("int", call.tile.offset()) if MeanDistance in kinds else 0
    attend_rows[(-(-q // block.queries), elements)](
        sides.left, sides.right, sides.vector, sides.flags, sides.value, sides.row_bias, sides.key_bias,
        output, log_sum_exp, entropy, distance, best, log_sum_exp if table is None else table.entries,
        log_sum_exp if table is None else table.maxima, starts, q, k, launch.offset or 0, position, sides.scale, across,
        parts,
        **sides.options(launch), **own, **sizes,
    )  # fmt: skip
    rows: dict[type[Readout], Tensor] = {LogSumExp: log_sum_exp, Entropy: entropy}
    rows |= {MeanDistance: distance, TopWeights: best}
    return output.reshape((*call.tile.batch, q, value_width)), rows, table


def _result(
    call: TorchCall, sides: _Sides, rows: dict[type[Readout], Tensor], readout: Readout, launch: ReadoutLaunch,
    table: _Table | None,
) -> ReadoutResult:  # fmt: skip
    """Return the result of a readout, of a pooled map from the table of its cells if there is one."""
    batch, heads, kind = call.tile.batch, readout.head_indices, readout.per_head
    chosen = batch if heads is None else (*batch[:-1], len(heads))
    totals = rows[LogSumExp] if heads is None else _select(rows[LogSumExp], batch, heads)
    if isinstance(kind, READ_BY_ROWS):
        x = rows[type(kind)]
        if isinstance(kind, LogSumExp):
            x = x + _omitted(call, sides)
        x = x if heads is None else _select(x, batch, heads)
        x = x.reshape(*chosen, *x.shape[1:])
        if isinstance(kind, TopWeights):
            return _largest(x, totals.reshape(*chosen, -1), kind.k, call.tile.k_total)
        return x
    if heads is not None:
        sides = sides.select_heads(batch, heads)
    if isinstance(kind, ColumnSum):
        sums = _pool(sides, totals, (1, call.tile.k_total), launch, mean=False, maximum=False)
        return sums.reshape(*chosen, -1)
    assert isinstance(kind, PooledMap)
    shape = kind.sides(call.tile.q_total, call.tile.k_total)
    cells = _pool(sides, totals, shape, launch, mean=kind.how == "mean", maximum=kind.how == "max", table=table)
    return cells.reshape(*chosen, *shape)


def _omitted(call: TorchCall, sides: _Sides) -> Tensor:
    """Return the part of the logits of a query that the programs omit because it cancels in softmax."""
    import torch

    if sides.additive:
        return sides.vector.sum(-1, keepdim=True)
    clean = finite_call(call)
    tile = replace(call.tile, centre=call.score.centre(clean.key))
    term = cast("Tensor | None", call.score.query_term(clean.query, tile))
    if term is None:
        return sides.row_bias.new_zeros(())
    temperature = expand_to_pairs(cast("Tensor | float", call.normalizer.temperature))
    term = cast("Tensor", term / (temperature[..., 0] if isinstance(temperature, torch.Tensor) else temperature))
    return term.expand((*call.tile.batch, call.tile.q_total)).reshape(-1, call.tile.q_total)


def _largest(ranks: Int[Tensor, "*batch q ranks"], totals: Float[Tensor, "*batch q"], k: int, length: int) -> Top:
    """Return the k largest weights, of which the integers hold logits and indices.

    Every weight of a row with a logit of NaN is NaN, and the first keys are the largest.
    """
    import torch

    ranks = ranks[..., : min(k, length)]
    order = (ranks >> 32).to(torch.int32)
    logits = (order ^ ((order >> 31) & 0x7FFFFFFF)).view(torch.float32)
    # Without any key, a row keeps the integers with which it began.
    absent = (logits == -torch.inf) | (ranks == -(2**63) + 1)
    weights = torch.where(absent, 0.0, torch.exp(logits - totals[..., None]))
    keys = torch.where(weights == 0, -1, 0xFFFFFFFF - (ranks & 0xFFFFFFFF))
    invalid = totals.isnan()[..., None]
    weights = torch.where(invalid, totals[..., None], weights)
    keys = torch.where(invalid, torch.arange(keys.shape[-1], device=keys.device), keys)
    more = k - keys.shape[-1]
    return Top(torch.nn.functional.pad(weights, (0, more)), torch.nn.functional.pad(keys, (0, more), value=-1))


def cell_lanes(length: int, cells: int, lanes: int) -> tuple[int, int, int]:
    """Return how many cells a tile holds along an axis, how many entries of each, and how many tiles a cell takes.

    Example:
        >>> cell_lanes(4096, 512, 64), cell_lanes(65_536, 512, 64), cell_lanes(1000, 512, 64)
        ((8, 8, 1), (1, 64, 2), (32, 2, 1))
    """
    widest = -(-length // cells)
    span = 1 << (widest - 1).bit_length()
    if span >= lanes:
        return 1, lanes, -(-widest // lanes)
    return lanes // span, span, 1


def _starts(length: int, cells: int, reference: Tensor) -> Int[Tensor, " edges"]:
    """Return the first entry of each cell of an axis, ⌈cell · length / cells⌉, and the length."""
    import torch

    cell = torch.arange(cells + 1, device=reference.device)
    return ((cell * length + cells - 1) // cells).to(torch.int32)


def _pool(
    sides: _Sides,
    log_sum_exp: Float[Tensor, "element q"],
    shape: tuple[int, int],
    launch: ReadoutLaunch,
    *,
    mean: bool,
    maximum: bool,
    table: _Table | None = None,
) -> Float[Tensor, "element down across"]:
    """Return the sum, the mean or the maximum of the weights in each cell of a map."""
    from qkv.kernels.triton.readout_programs import pool_cells

    elements, q = log_sum_exp.shape
    k = sides.value.shape[-2]
    down, across = shape
    rows, row_span, row_parts = cell_lanes(q, down, launch.cells.queries)
    columns, key_span, key_parts = cell_lanes(k, across, launch.cells.keys) if table is None else table.lanes
    row_groups, key_groups = -(-down // rows), -(-across // columns)
    strips = min(key_groups, -(-_PROGRAMS // (row_groups * elements)))
    groups = -(-key_groups // strips)
    pooled = log_sum_exp.new_empty((elements, down, across))
    starts = _starts(q, down, pooled), _starts(k, across, pooled)
    entries, maxima = (pooled, pooled) if table is None else (table.entries, table.maxima)
    pool_cells[(row_groups, -(-key_groups // groups), elements)](
        sides.left, sides.right, sides.vector, sides.flags, sides.row_bias, sides.key_bias, log_sum_exp.contiguous(),
        entries, maxima, pooled, *starts, q, k, launch.offset or 0, sides.scale, down, across, groups, row_parts,
        key_parts,
        **sides.options(launch), TABLE=table is not None, MEAN=mean, MAXIMUM=maximum,
        R=rows, RS=row_span, C=columns, CS=key_span, num_warps=launch.cells.warps,
    )  # fmt: skip
    return pooled


def _select(x: Tensor, batch: tuple[int, ...], heads: tuple[int, ...]) -> Tensor:
    """Return the elements of an array that belong to some heads; heads are the last batch axis."""
    import torch

    whole = x.reshape((*batch, *x.shape[1:]))
    chosen = torch.stack([whole.select(len(batch) - 1, head) for head in heads], len(batch) - 1)
    return chosen.reshape(-1, *x.shape[1:]).contiguous()


_MAX_WIDTH = 256
_MAX_TOP = 64


@dataclass(frozen=True)
class TritonReadoutsKernel(ProgramKernel):
    """Kernel for readouts of inner products and additive scores under softmax on GPUs, without gradient."""

    name: ClassVar[str] = "triton_readouts"
    computes_readouts: ClassVar[bool] = True

    def limits(self, problem: Problem) -> Iterator[str]:
        axes, score = problem.axes, problem.score
        yield from super().limits(problem)
        if not problem.readouts:
            yield "it computes readouts, and the call has none"
        if problem.gradient:
            yield "it computes readouts without gradient"
        form = score.form
        if not isinstance(form, Tanh) and (form.lift is None or form.inner is not None):
            yield f"{score} is neither an inner product nor an additive score"
        yield from softmax_limits(problem.normalizer)
        if max(_width(problem), axes.value_width) > _MAX_WIDTH:
            yield f"it supports vectors up to {_MAX_WIDTH} wide"
        for readout in problem.readouts:
            yield from _readout_limits(readout, problem)

    def describe(self, problem: Problem) -> str:
        block = self._blocks(problem)[0]
        maps, mapped = _maps(problem), self._mapped(problem) is not None
        maps -= mapped
        more = f"; {maps} more to add weights up from the log-sum-exps" if maps else ""
        if mapped:
            more = f", and the cells of a map, which are added up from a table{more}"
        return (
            f"tiles of {block.queries} queries × {block.keys} keys in registers; one pass for the output and the "
            f"readouts of each query{more}"
        )

    def keeps_dtype(self, problem: Problem) -> bool:
        """Return whether queries and keys need no lift, so that tensor cores multiply them in half precision."""
        if self.interpreted and problem.dtype == "bfloat16":
            return False  # the interpreter multiplies the bits of bfloat16 as integers
        unscaled = isinstance(problem.normalizer.temperature, (int, float))
        return unscaled and isinstance(problem.score.form, ScaledProduct)

    def scratch(self, problem: Problem) -> float:
        """Return the bytes of copies of the inputs, the statistics of each query and the table of a pooled map."""
        axes = problem.axes
        copies = axes.batch_size * ((axes.q + axes.k) * (_width(problem) + 2) * 2 + axes.k * axes.value_width)
        top = max((_top(readout) for readout in problem.readouts), default=0)
        scratch = copies * problem.itemsize + axes.batch_size * axes.q * (12 + 16 * top)
        scratch += 0 if self.keeps_dtype(problem) else problem.cast_bytes
        if (mapped := self._mapped(problem)) is not None:
            scratch += self._table_bytes(problem, mapped)
        return scratch

    def work(self, problem: Problem) -> dict[str, float]:
        """Return the amounts of work; readouts over several queries compute the weights again."""
        passes = 1 + (_maps(problem) - (self._mapped(problem) is not None)) / 2
        return amounts_of_work(problem, visible_pairs(problem, 64, 64) * passes)

    def attend(
        self, call: TorchCall, problem: Problem, offset: int | None, precision: str
    ) -> tuple[OutputTensor, tuple[ReadoutResult, ...]]:
        """Return the output and the readouts of a call."""
        launch = ReadoutLaunch(offset, *self._blocks(problem), precision, self._mapped(problem))
        return attend_with_readouts(call, problem.readouts, launch)

    def _mapped(self, problem: Problem) -> int | None:
        """Return the number of the first pooled map of all heads whose table takes little of the memory budget."""
        for n, readout in enumerate(problem.readouts):
            if isinstance(readout, PooledMap) and self._table_bytes(problem, n) <= problem.memory // 4:
                return n
        return None

    def _table_bytes(self, problem: Problem, number: int) -> int:
        """Return the bytes of the table of a pooled map."""
        axes, readout = problem.axes, cast("PooledMap", problem.readouts[number])
        ranks = max(power_of_two(_top(each)) if _top(each) else 0 for each in problem.readouts)
        across = readout.sides(axes.q, axes.k)[1]
        cells, _, parts = cell_lanes(axes.k, across, max(self._blocks(problem)[0].keys, ranks))
        return axes.batch_size * axes.q * -(-across // cells) * parts * (cells + 1) * 4

    def _blocks(self, problem: Problem) -> tuple[Block, Block]:
        """Return the tiles of both programs."""
        if self.block is not None:
            return (Block(*self.block, 4),) * 2
        half = problem.dtype in ("bfloat16", "float16") and self.keeps_dtype(problem)
        top = any(_top(readout) for readout in problem.readouts)
        return readout_blocks(max(_width(problem), problem.axes.value_width), half, top)


def _width(problem: Problem) -> int:
    """Return the number of hidden units, or the width of the vectors."""
    if isinstance(problem.score.form, Tanh):
        return problem.elements_per_logit
    return int(problem.score.lifted_width(problem.axes.query_width, problem.axes.key_width))


def _maps(problem: Problem) -> int:
    """Return how many readouts are sums or maxima over several queries."""
    return sum(not isinstance(readout.per_head, READ_BY_ROWS) for readout in problem.readouts)


def _top(readout: Readout) -> int:
    return readout.per_head.k if isinstance(readout.per_head, TopWeights) else 0


def _readout_limits(readout: Readout, problem: Problem) -> Iterator[str]:
    kind = readout.per_head
    if not isinstance(kind, (*READ_BY_ROWS, ColumnSum, PooledMap)):
        yield f"it does not compute the readout {readout}"
    if _top(readout) > _MAX_TOP:
        yield f"it keeps up to {_MAX_TOP} keys for each query"
    if isinstance(kind, MeanDistance) and not isinstance(problem.tile.offset(), int):
        yield "the positions of the batch elements differ"
