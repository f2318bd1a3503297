"""Kernel for attention over keys and values that are stored in several chunks, without concatenating them.

A key-value cache grows by chunks (`nn.KeyValueCache`), and copying them into one array at every decoding step would
take as long as the step itself. In decoding, few queries attend to many keys, so whole rows of logits are small
compared to the keys. Logits are computed chunk by chunk, weights from whole rows, and the output is summed over chunks:

    l = [l₁ … l_p]        w = normalize(l)        output = Σ_p w_p V_p

Every normalizer is therefore supported, including those that need whole rows. If whole rows exceed the memory limit,
the chunks are concatenated, and the planner chooses among all kernels.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import ClassVar, Literal

import torch

from qkv.core.arrays import cast, namespace
from qkv.core.equation import BoundCall, TorchCall, apply_dropout, bind_call, masked_logits
from qkv.core.guard import apply_weights
from qkv.core.tile import Tile
from qkv.core.typing import Array, DType, Float, KeyArray, Num, PairTensor, QueryArray, Shaped, Tensor
from qkv.kernels.runtime.closure_gradients import refuse_closure_gradients
from qkv.kernels.runtime.tile_loop import Limits, fully_masked, row_weights
from qkv.kernels.runtime.tile_sizes import ROW_BLOCK_BUDGET, row_block_arrays, row_block_size
from qkv.masks.base import restrict_mask
from qkv.plan.budget import fit_to_budget
from qkv.plan.checks import check_problem, read_problem, read_seed
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.plan import Plan
from qkv.plan.planner import plan_problem
from qkv.plan.problem import Problem
from qkv.plan.spec import Spec
from qkv.readouts import Readout
from qkv.scores.forms import Product, ScaledProduct


# Not frozen: a frozen class takes four times as long to construct, and every decoding step makes two.
@dataclass(slots=True)
class ChunkedTensor:
    """Keys or values `(*batch, k, width)` that are stored as several PyTorch tensors along the key axis.

    Attributes:
        chunks: tensors `(*batch, k_i, width)`.
        scales: scales `(*batch, k_i, 1)` of each int8 chunk, by which its elements are multiplied; None for chunks
            that are not quantized.
        dtype: dtype of the elements after dequantization.
        finite: whether all elements are known to be finite.
    """

    chunks: tuple[Num[Tensor, "*batch _ width"], ...]
    scales: tuple[Float[Tensor, "*batch _ 1"] | None, ...]
    dtype: DType
    finite: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the concatenated array."""
        first = self.chunks[0].shape
        return (*first[:-2], sum(x.shape[-2] for x in self.chunks), first[-1])

    @property
    def ndim(self) -> int:
        """Number of axes of the concatenated array."""
        return len(self.shape)

    @property
    def ranges(self) -> list[Limits]:
        """Start and stop of the rows of each chunk in the concatenated array."""
        return list(pairwise(accumulate((x.shape[-2] for x in self.chunks), initial=0)))

    def dequantized(self, n: int) -> Num[Tensor, "*batch k width"]:
        """Return chunk `n`, multiplied by its scale if the chunk is quantized."""
        scale = self.scales[n]
        return self.chunks[n] if scale is None else self.chunks[n].to(self.dtype).mul_(scale)

    def concat(self) -> Num[Tensor, "*batch k width"]:
        """Return all chunks, dequantized and concatenated into one tensor."""
        return torch.cat([self.dequantized(n) for n in range(len(self.chunks))], dim=-2)

    def first_columns(self, width: int) -> ChunkedTensor:
        """Return the first `width` columns, as views of the chunks: values that are a part of the keys."""
        return ChunkedTensor(tuple([x[..., :width] for x in self.chunks]), self.scales, self.dtype, self.finite)

    def placeholder(self) -> Num[Tensor, "*batch k width"]:
        """Return a tensor of the same shape and dtype that stores a single element, for planning."""
        return self.chunks[0].new_zeros((), dtype=self.dtype).expand(self.shape)

    def unsqueeze(self, axis: int) -> ChunkedTensor:
        """Return the chunked tensor with an additional batch axis of length 1.

        Args:
            axis: position of the new axis, counted from the end.

        Raises:
            IndexError: the axis is not negative, or is not a batch axis.
        """
        if not -self.ndim - 1 <= axis < -2:
            raise IndexError(
                f"axis must be between {-self.ndim - 1} and -3, got {axis}. Count the new batch axis from the end."
            )
        scales = (None if x is None else x.unsqueeze(axis) for x in self.scales)
        chunks = tuple(x.unsqueeze(axis) for x in self.chunks)
        return dataclasses.replace(self, chunks=chunks, scales=tuple(scales))


def concat_chunks(x: Num[Tensor, "*batch k width"] | ChunkedTensor) -> Num[Tensor, "*batch k width"]:
    """Return the concatenated chunks of `x` if it is a `ChunkedTensor`, else `x` unchanged."""
    return x.concat() if isinstance(x, ChunkedTensor) else x


def attend_chunked(
    query: Float[Tensor, "*batch q width"],
    key: ChunkedTensor,
    value: ChunkedTensor,
    spec: Spec,
    readouts: Sequence[Readout] = (),
    memory: int | str | None = None,
    seed: int | None = None,
) -> tuple[Result, Plan] | None:
    """Compute a call with chunked keys and values, and return the result and the plan.

    Return None if whole rows of logits would exceed the memory limit, or if the logits of the score cancel, which a
    check of all keys decides; the caller should then concatenate the chunks.

    Args:
        query: queries.
        key: keys.
        value: values, in chunks of the same lengths as those of the keys.
        spec: score, normalizer, mask, positions and dropout.
        readouts: readouts of the weights, as in `qkv.observe`.
        memory: memory limit, as in `qkv.observe`.
        seed: seed of random numbers, as in `qkv.observe`.

    Raises:
        QkvError: the call is invalid; see `qkv.attend`.
    """
    if spec.score is not None and spec.score.cancels:
        return None
    placeholders = key.placeholder(), value.placeholder()
    problem = read_problem(query, *placeholders, spec, tuple(readouts), memory)
    check_problem(problem)
    if _CHUNKED_KERNEL.refuse(problem) is not None or fit_to_budget(_CHUNKED_KERNEL, problem) is None:
        return None
    # Plans are not cached, because the number of keys changes at every decoding step.
    plan = plan_problem(problem, (_CHUNKED_KERNEL,))
    problem, spec = plan.problem, plan.problem.spec
    with torch.autocast(query.device.type, enabled=False):
        call = bind_call(
            query,
            *placeholders,
            score=problem.score,
            normalizer=problem.normalizer,
            mask=spec.mask,
            positions=spec.positions,
            dropout=spec.dropout,
            seed=read_seed(problem, seed),
            cast_tiles=True,
            axes=problem.axes,
        )
        # Chunks were checked when they were appended. Checking at every step would read all of them again.
        finite = key.finite and bool(query.isfinite().all()), value.finite
        result = _CHUNKED_KERNEL.run(ChunkedCall.of(call, key, value, finite), problem)
    return result, plan.with_guards_taken(result.guards)


@dataclass(frozen=True, kw_only=True)
class ChunkedCall(TorchCall):
    """Bound call with chunked keys and values. Each of its tiles covers all keys of one chunk."""

    chunked: tuple[ChunkedTensor, ChunkedTensor]

    @classmethod
    def of(cls, call: BoundCall, key: ChunkedTensor, value: ChunkedTensor, finite: tuple[bool, bool]) -> ChunkedCall:
        """Return a call with chunked keys and values; `finite` states it of both sides, and of the values."""
        fields = {field.name: getattr(call, field.name) for field in dataclasses.fields(call)}
        return cls(**{**fields, "chunked": (key, value), "finite": finite})

    def first_pair(self) -> BoundCall:
        """Return the call restricted to the first query and the first key, in the dtype of accumulation."""
        key = self.key[..., :1, :] if self.score.keeps_dtype else cast(self.key[..., :1, :], self.dtype)
        return dataclasses.replace(self, query=self.queries((0, 1)), key=key)

    def chunk(self, side: Literal[0, 1], n: int) -> Num[Tensor, "*batch k width"]:
        """Return chunk `n` of the keys (side 0) or of the values (side 1), in the dtype of accumulation.

        Keys keep their dtype if the score requires it.
        """
        chunk = self.chunked[side].dequantized(n)
        return chunk if side == 0 and self.score.keeps_dtype else typing.cast("Tensor", cast(chunk, self.dtype))


class ChunkedKernel(Kernel):
    """Kernel that computes all logits of a row chunk by chunk, for chunked keys and values."""

    name: ClassVar[str] = "chunked"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    guards: ClassVar[tuple[str, ...]] = (
        "if all keys and values are finite: plain products; else: without masked values",
    )
    casts_tiles: ClassVar[bool] = True

    def limits(self, problem: Problem) -> Iterator[str]:
        """Yield a reason for refusal if the logits of all queries and keys exceed the size of a row block."""
        q = problem.axes.q
        if row_block_size(problem, ROW_BLOCK_BUDGET, row_block_arrays(problem)) < q:
            yield f"whole rows of logits for {q} queries exceed the size of a row block"

    def describe(self, problem: Problem) -> str:
        """Return a phrase for the plan, which states that keys and values are read chunk by chunk."""
        return "keys and values are read chunk by chunk"

    def scratch(self, problem: Problem) -> float:
        """Return the bytes of a few arrays of q · k elements."""
        return problem.axes.pairs * problem.itemsize * row_block_arrays(problem) + problem.cast_bytes

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Compute the output and the readouts of a `ChunkedCall`."""
        assert isinstance(call, ChunkedCall)
        refuse_closure_gradients(call.first_pair())
        if call.mask is not None and call.mask.coverage(call.tile) == "all":  # such as one last query under Causal
            call = dataclasses.replace(call, mask=None)
        tile, normalizer = call.tile, call.normalizer
        logits = _row_logits(call)
        scale = normalizer.scale if normalizer.log_sum_exp and normalizer.shift_invariant else None
        if _is_plain(call) and call.finite_sides and scale is not None:  # PyTorch's softmax gives the weights
            weights = (logits * scale).softmax(-1)
        else:
            weights = typing.cast("Tensor", row_weights(normalizer, logits, tile))
        dropped = apply_dropout(weights, tile, call.dropout)
        support = None if call.finite_value else normalizer.support(logits, weights)
        output = None
        for n, (start, stop) in enumerate(call.chunked[0].ranges):
            weights_of_chunk, values = dropped[..., start:stop], call.chunk(1, n)
            if support is None:
                part = _product(weights_of_chunk, values)
            else:
                own = partial(support.__getitem__, (..., slice(start, stop)))
                part = typing.cast("Tensor", apply_weights(weights_of_chunk, values, own, False))
            output = part if output is None else output.add_(part)
        readouts = tuple(
            readout.finalize(readout.read(logits, weights, normalizer, tile), tile) for readout in problem.readouts
        )
        guards = ("all finite: plain products" if call.finite_value else "not all finite: without masked values",)
        assert output is not None
        return Result(cast(output, call.out_dtype), readouts, guards)


_CHUNKED_KERNEL = ChunkedKernel()
"""The kernel of `attend_chunked`. `KERNELS` does not contain it, because `qkv.attend` takes no chunked keys."""


def _is_plain(call: ChunkedCall) -> bool:
    return isinstance(call.score.form, ScaledProduct) and call.mask is None


def _row_logits(call: ChunkedCall) -> PairTensor:
    """Return the logits of all queries and all keys, −inf where a key is masked."""
    query, score = typing.cast("Tensor", call.queries(call.tile.rows)), call.score
    if isinstance(
        score.form, ScaledProduct
    ):  # multiply the queries by the scale once, so that the keys are used unchanged
        lifted, _, scale = score.scaled_lift(query, query, call.tile)
        query = typing.cast("Tensor", lifted if scale == 1 else lifted * scale)
    if _is_plain(call):
        found = [_product(query, call.chunk(0, n).mT) for n in range(len(call.chunked[0].chunks))]
    else:
        found = [_chunk_logits(call, query, n, cols) for n, cols in enumerate(call.chunked[0].ranges)]
    logits = typing.cast("Tensor", namespace(query).concat(found, axis=-1))
    return logits if tuple(logits.shape[:-2]) == call.batch else logits.expand(*call.batch, *logits.shape[-2:])


def _chunk_logits(call: ChunkedCall, query: Num[Tensor, "*#batch q width"], n: int, cols: Limits) -> PairTensor:
    """Return the logits of all queries and the keys of chunk `n`, −inf where a key is masked."""
    tile, score = call.tile.restrict(call.tile.rows, cols), call.score
    coverage, mask = restrict_mask(call.mask, tile)
    if coverage == "none":
        return typing.cast("Tensor", fully_masked(call, call.tile.rows, cols[1] - cols[0]))
    if score.arrays():
        score = score.slice(slice(*tile.rows), slice(*cols))

    def compare(query: QueryArray, key: KeyArray, tile: Tile) -> Shaped[Array, "*#batch #q #k"]:
        form = score.form
        if not isinstance(form, Product):
            return score.logits(query, key, tile)
        left, right = (query, key) if isinstance(form, ScaledProduct) else score.project(query, key, tile)
        return _product(typing.cast("Tensor", left), typing.cast("Tensor", right).mT)

    reference, finite = query.new_zeros(0, dtype=call.dtype), mask is None or call.finite_sides
    return typing.cast("Tensor", masked_logits(compare, mask, query, call.chunk(0, n), tile, reference, finite))


def _product(left: Num[Tensor, "*#batch n inner"], right: Num[Tensor, "*#batch inner m"]) -> Num[Tensor, "*#batch n m"]:
    """Return left @ right, without copying a key head that several query heads share.

    The queries of the heads that share it become rows of one matrix.
    """
    if left.ndim < 4 or right.ndim != left.ndim or right.shape[-3] != 1 or left.shape[-3] == 1:
        return left @ right
    *batch, group, q, width = left.shape
    return (left.reshape(*batch, 1, group * q, width) @ right).reshape(*batch, group, q, right.shape[-1])
