"""Keys and values in pieces: the answer over arrays that lie one after another and are never put together.

A cache grows by pieces (`nn.KeyValueCache`); copying them into one array at every step of decoding would
cost as much as the step. Few queries meet many keys there, so their whole rows of logits are small beside
the keys: logits are made piece by piece, weights are taken of the whole row, and each piece adds its part of
the output.

    l = [l₁ … l_p]        w = normalize(l)        output = Σ_p w_p V_p

So every normalizer runs as it does anywhere, also those that must see whole rows. Where rows are not small
beside the memory allowed, the pieces are put together, and the planner chooses among all kernels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from qkv.core.arrays import cast, namespace
from qkv.core.equation import BoundCall, bind_call, drop, masked_logits
from qkv.core.guard import apply_weights
from qkv.core.tile import Tile
from qkv.core.typing import Tensor
from qkv.kernels.runtime.closure_gradients import refuse_closure_gradients
from qkv.kernels.runtime.tile_loop import fully_masked, row_weights
from qkv.kernels.runtime.tile_sizes import ROW_BLOCK_BUDGET, row_block_arrays, row_block_size
from qkv.plan.checks import check_problem, read_problem
from qkv.plan.cost import Cost
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.plan import Plan
from qkv.plan.planner import plan_problem
from qkv.plan.problem import Problem
from qkv.plan.spec import Spec
from qkv.readouts import Readout

__all__ = ["CHUNKED_KERNEL", "ChunkedCall", "ChunkedKernel", "ChunkedTensor", "attend_chunked", "concat_chunks"]

Limits = tuple[int, int]


@dataclass(frozen=True)
class ChunkedTensor:
    """Keys, or values, `(*batch, n, width)`, in PyTorch arrays that lie one after another along n.

    Attributes:
        arrays: each `(*batch, n_i, width)`.
        scales: each None, or `(*batch, n_i, 1)` by which the numbers of an int8 array are multiplied.
        dtype: in which they are read.
        clean: all numbers are known to be finite.
    """

    arrays: tuple[Tensor, ...]
    scales: tuple[Tensor | None, ...]
    dtype: Any
    clean: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """As if they were one array."""
        first = self.arrays[0].shape
        return (*first[:-2], sum(x.shape[-2] for x in self.arrays), first[-1])

    @property
    def ndim(self) -> int:
        """As if they were one array."""
        return len(self.shape)

    @property
    def limits(self) -> list[Limits]:
        """First and one past the last row of each piece."""
        found, start = [], 0
        for x in self.arrays:
            found.append((start, start + x.shape[-2]))
            start = found[-1][1]
        return found

    def chunk(self, n: int) -> Any:
        """One of the arrays, as numbers of the dtype."""
        scale = self.scales[n]
        return self.arrays[n] if scale is None else self.arrays[n].to(self.dtype).mul_(scale)

    def concat(self) -> Any:
        """One array: a copy."""
        import torch

        return torch.cat([self.chunk(n) for n in range(len(self.arrays))], dim=-2)

    def placeholder(self) -> Any:
        """An array of the shape without memory: what facts are read from."""
        return self.arrays[0].new_zeros((), dtype=self.dtype).expand(self.shape)

    def unsqueeze(self, axis: int) -> ChunkedTensor:
        """With a batch axis of length 1, counted from the end as in the array."""
        if not -self.ndim - 1 <= axis < -2:
            raise IndexError(f"axis {axis} is no batch axis of {self.ndim} axes, counted from the end.")
        scales = (None if x is None else x.unsqueeze(axis) for x in self.scales)
        arrays = tuple(x.unsqueeze(axis) for x in self.arrays)
        return dataclasses.replace(self, arrays=arrays, scales=tuple(scales))


def concat_chunks(x: Any) -> Any:
    """One array: pieces put together, anything else as it is."""
    return x.concat() if isinstance(x, ChunkedTensor) else x


def attend_chunked(
    query: Tensor,
    key: ChunkedTensor,
    value: ChunkedTensor,
    asked: tuple[Any, ...],
    readouts: Sequence[Readout] = (),
    memory: int | str = "512 MiB",
    seed: int | None = None,
) -> tuple[Result, Plan] | None:
    """The answer over the pieces; None where they had better be put together.

    Args:
        query: `(*batch, q, width)`.
        key, value: cut into pieces at the same rows.
        asked: score, normalizer, mask, positions, dropout, as in `qkv.attend`.
        readouts, memory, seed: as in `qkv.observe`.

    Raises:
        As `qkv.attend`.
    """
    import torch

    stand_ins = key.placeholder(), value.placeholder()
    problem = read_problem(query, *stand_ins, Spec(*asked), tuple(readouts), memory)
    check_problem(problem)
    if CHUNKED_KERNEL.refuse(problem) is not None or CHUNKED_KERNEL.cost(problem).peak > problem.memory:
        return None
    # Not kept: every step of decoding has another length.
    plan = plan_problem(problem, (CHUNKED_KERNEL,))
    problem, spec = plan.problem, plan.problem.spec
    if seed is None and (spec.dropout or problem.normalizer.stochastic):
        seed = int(torch.randint(2**62, ()).item())
    with torch.autocast(query.device.type, enabled=False):
        call = bind_call(
            query,
            *stand_ins,
            score=spec.score,
            normalizer=spec.normalizer,
            mask=spec.mask,
            positions=spec.positions,
            dropout=spec.dropout,
            seed=seed,
            cast_tiles=True,
            axes=problem.axes,
        )
        # Known since they were kept: asking every key at every step would read all of them once more.
        clean = key.clean and bool(query.isfinite().all()), value.clean
        result = CHUNKED_KERNEL.run(ChunkedCall.of(call, (key, value), clean), problem)
    return result, plan.with_guards_taken(result.guards)


@dataclass(frozen=True)
class ChunkedCall(BoundCall):
    """A call whose keys and values lie in pieces, and whose tiles are whole pieces."""

    pieces: tuple[ChunkedTensor, ChunkedTensor] | None = None

    @classmethod
    def of(cls, call: BoundCall, pieces: tuple[ChunkedTensor, ChunkedTensor], clean: tuple[bool, bool]) -> ChunkedCall:
        """The call, over these pieces; `clean`: query and keys, and values, are known to be finite."""
        given = {field.name: getattr(call, field.name) for field in dataclasses.fields(call)}
        return cls(**{**given, "pieces": pieces, "finite": clean})

    def first_pair(self) -> BoundCall:
        """A call of one query and one key, in the dtype of accumulation."""
        key = self.key[..., :1, :] if self.score.keeps_dtype else cast(self.key[..., :1, :], self.dtype)
        return dataclasses.replace(self, query=self.queries((0, 1)), key=key)

    def unmasked(self) -> ChunkedCall:
        """The call without its mask, which allows everything."""
        assert self.pieces is not None
        call = dataclasses.replace(self, mask=None)
        return self.of(call, self.pieces, (self.finite_sides, self.finite_value))

    def part(self, side: int, n: int) -> Any:
        """A piece of the keys (0) or values (1), in the dtype of accumulation."""
        assert self.pieces is not None
        piece = self.pieces[side].chunk(n)
        return piece if side == 0 and self.score.keeps_dtype else cast(piece, self.dtype)


class ChunkedKernel(Kernel):
    """Rows of logits from pieces of the keys, weights of whole rows, output from pieces of the values."""

    name: ClassVar[str] = "chunked"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    guards: ClassVar[tuple[str, ...]] = ("if all that was kept is finite: plain products, else by selection",)
    casts_tiles: ClassVar[bool] = True

    def refuse(self, problem: Problem) -> str | None:
        """Where whole rows of all queries do not fit a strip."""
        if sentence := self.refuse_library(problem):
            return sentence
        if row_block_size(problem, ROW_BLOCK_BUDGET, row_block_arrays(problem)) < problem.axes.q:
            return f"the rows of {problem.axes.q} queries are too many numbers to be kept at once"
        return None

    def describe(self, problem: Problem) -> str:
        """That nothing is copied."""
        return "keys and values stay in the pieces they came in"

    def cost(self, problem: Problem) -> Cost:
        """Keys and values are read once; a few arrays of all pairs, which are few."""
        pairs = problem.axes.pairs
        peak = pairs * problem.itemsize * row_block_arrays(problem) + problem.untiled_bytes
        return Cost(pairs * problem.flop_per_pair, problem.input_bytes + 2 * peak, peak, 3e-4)

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Logits, weights, output, readouts."""
        assert isinstance(call, ChunkedCall)
        assert call.pieces is not None
        limits = call.pieces[0].limits
        refuse_closure_gradients(call.first_pair())
        if call.mask is not None and call.mask.coverage(call.tile) == "all":  # a last query under Causal
            call = call.unmasked()
        tile, normalizer = call.tile, call.normalizer
        query, score = call.queries(tile.rows), call.score
        plain = score.is_scaled_dot and call.mask is None
        if score.is_scaled_dot:  # the keys are taken as they are, so the side of the queries is made once
            query, _, scale = score.scaled_lift(query, query, tile)
            query = query if scale == 1 else query * scale
        if plain:
            found = [_product(query, call.part(0, n).mT) for n in range(len(limits))]
        else:
            found = [_logits(call, query, n, cols) for n, cols in enumerate(limits)]
        logits = namespace(query).concat(found, axis=-1)
        if tuple(logits.shape[:-2]) != call.batch:
            logits = logits.expand(*call.batch, *logits.shape[-2:])
        if plain and call.finite_sides and _is_plain_softmax(normalizer):
            weights = (logits * normalizer.scale).softmax(-1)
        else:
            weights = row_weights(normalizer, logits, tile)
        dropped = drop(weights, tile, call.dropout)
        support = None if call.finite_value else normalizer.support(logits, weights)
        output = None
        for n, (start, stop) in enumerate(limits):
            read = None if support is None else support[..., start:stop]
            part = _weigh(dropped[..., start:stop], call.part(1, n), read, call.finite_value)
            output = part if output is None else output.add_(part)
        readouts = tuple(
            readout.finalize(readout.read(logits, weights, normalizer, tile), tile) for readout in problem.readouts
        )
        guards = ("all finite: plain products" if call.finite_value else "not all finite: by selection",)
        return Result(cast(output, call.out_dtype), readouts, guards)


CHUNKED_KERNEL = ChunkedKernel()
"""It is not among `KERNELS`: calls of `attend` come with whole arrays."""


def _is_plain_softmax(normalizer: Any) -> bool:
    """Softmax without a sink, of finite logits: the library's own does it."""
    return normalizer.log_sum_exp and normalizer.shift_invariant and normalizer.scale is not None


def _logits(call: ChunkedCall, query: Tensor, n: int, cols: Limits) -> Tensor:
    """`(*batch, q, n_i)` of one piece, −inf where a key is excluded."""
    tile, score, mask = call.tile.restrict(call.tile.rows, cols), call.score, call.mask
    if mask is not None:
        cover = mask.coverage(tile)
        if cover == "none":
            return fully_masked(call, call.tile.rows, cols[1] - cols[0])
        mask = mask.slice(slice(*tile.rows), slice(*cols)) if cover == "part" else None
    if score.arrays():
        score = score.slice(slice(*tile.rows), slice(*cols))

    def compare(query: Tensor, key: Tensor, tile: Tile) -> Tensor:
        if score.is_scaled_dot:
            return _product(query, key.mT)
        if not score.is_inner_product:
            return score.logits(query, key, tile)
        left, right = score.project(query, key, tile)
        return _product(left, right.mT)

    reference, clean = query.new_zeros(0, dtype=call.dtype), mask is None or call.finite_sides
    return masked_logits(compare, mask, query, call.part(0, n), tile, reference, clean)


def _weigh(weights: Tensor, value: Tensor, support: Tensor | None, clean: bool) -> Tensor:
    return _product(weights, value) if clean else apply_weights(weights, value, support, clean)


def _product(left: Tensor, right: Tensor) -> Any:
    """left @ right. Heads that share a key become more rows of it: a broadcast would copy the keys."""
    if left.ndim < 4 or right.ndim != left.ndim or right.shape[-3] != 1 or left.shape[-3] == 1:
        return left @ right
    *batch, group, q, width = left.shape
    return (left.reshape(*batch, 1, group * q, width) @ right).reshape(*batch, group, q, right.shape[-1])
