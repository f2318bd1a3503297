"""Autograd function of a sharded call: the keys of all ranks pass each rank once in forward and once in backward.

    forward     each rank merges the partial results of its queries with the keys that pass
    backward    the gradients of the keys travel with them, and arrive at their rank after a full turn; those of queries
                and of arrays of parts stay

The weights of a tile are computed again from the summary of each query over all keys, as in `kernels/tiled`.

Source: Liu, Zaharia, Abbeel (2023), Ring attention with blockwise transformers, https://arxiv.org/abs/2310.01889.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch

from qkv.core.autograd_function import autograd_function_class
from qkv.core.equation import TorchCall
from qkv.core.partial import PartialResult
from qkv.core.tile import take_range
from qkv.core.typing import Array, OutputTensor, RowTensor, Shaped, Tensor
from qkv.errors import GradientError
from qkv.kernels.runtime.gradients import call_tensors
from qkv.kernels.runtime.tile_loop import Limits, partial_rows
from qkv.kernels.tiled.attention import add_row_gradients, partial_result, tile_elements, tile_gradients
from qkv.kernels.tiled.softmax import logit_bound, supports_softmax
from qkv.normalizers import Normalizer
from qkv.ring.local_parts import slice_part, travels
from qkv.ring.shards import Block, Shards
from qkv.ring.sparse_weights import KnownThreshold, find_thresholds

if TYPE_CHECKING:
    from qkv.core.autograd_function import Context

    class _Context(Context):
        call: TorchCall
        shards: Shards
        found: _Found


@dataclass
class _Found:
    """Results of the forward pass for each chunk of queries of a rank, besides the output.

    Attributes:
        normalizers: the normalizer of the chunk, with the thresholds of its rows if it is sparse.
        summaries: the normalizer's summary of all keys of each query.
        bound: upper bound of the magnitude of the logits of this rank.
    """

    normalizers: list[Normalizer]
    summaries: list[tuple[Tensor, ...]] = field(default_factory=list)
    bound: float = 0.0


def ring_attention() -> Callable[..., OutputTensor]:
    """Return the differentiable function that computes the output of the queries of this rank.

    Its arguments are the call of this rank, the shards, and the tensors of the call (`call_tensors`).
    """
    apply: Callable[..., Tensor] = autograd_function_class(_attend, _backward).apply
    return apply


def _attend(ctx: _Context, call: TorchCall, shards: Shards, *tensors: Shaped[Tensor, "*_"]) -> OutputTensor:
    output, found = _forward(call, shards)
    ctx.save_for_backward(output, *tensors)
    ctx.call, ctx.shards, ctx.found = call, shards, found
    return output


def _forward(call: TorchCall, shards: Shards) -> tuple[OutputTensor, _Found]:
    """Return the output of the queries of this rank, and the statistics that the backward pass needs."""
    rows = shards.own_rows()
    found = _Found([call.normalizer] * len(rows))
    if call.normalizer.power is not None:
        found.normalizers = list(find_thresholds(call, shards))
    partials: list[PartialResult | None] = [None] * len(rows)
    for _, _, blocks in shards.visits(call):
        for block in blocks:
            part = _with_normalizer(block, found)
            if supports_softmax(part):
                found.bound = max(found.bound, bound := logit_bound(part))
            else:
                bound = math.inf
            more = partial_result(part, shards.sizes, tile_elements(part, shards.sizes, bound=bound))
            old = partials[block.number]
            partials[block.number] = more if old is None else old.merge(more)
    output = call.value.new_zeros((*call.batch, call.tile.q_total, call.value.shape[-1]))
    for limits, partial, normalizer in zip(rows, partials, found.normalizers, strict=True):
        chunk = _chunk(call, limits, normalizer)
        if partial is None:
            partial = partial_rows(chunk, (0, limits[1] - limits[0]), 1)
        result, summary = normalizer.finalize(partial, chunk.tile, call.dropout)
        take_range(output, limits).copy_(cast("Tensor", result))
        found.summaries.append(cast("tuple[Tensor, ...]", summary))
    return output, found


def _chunk(call: TorchCall, rows: Limits, normalizer: Normalizer) -> TorchCall:
    """Return the call of a chunk of queries without keys."""
    tile = dataclasses.replace(
        call.tile, rows=(0, rows[1] - rows[0]), cols=(0, 0), q_total=rows[1] - rows[0], k_total=0
    )
    key, value = (take_range(x, (0, 0)) for x in (call.key, call.value))
    return dataclasses.replace(
        call, query=take_range(call.query, rows), key=key, value=value, tile=tile, normalizer=normalizer, mask=None
    )


def _with_normalizer(block: Block, found: _Found) -> TorchCall:
    return dataclasses.replace(block.call, normalizer=found.normalizers[block.number])


def _backward(ctx: _Context, gradient: OutputTensor) -> tuple[Shaped[Tensor, "*_"] | None, ...]:
    if torch.is_grad_enabled():
        raise GradientError(
            "create_graph must be False for sharded attention, which has first derivatives only, got True. Compute "
            "higher derivatives in one process with qkv.attend."
        )
    output, *tensors = ctx.saved_tensors
    needed = ctx.needs_input_grad[2:]
    with torch.autocast(output.device.type, enabled=False):
        call = ctx.call.with_arrays([x.detach() for x in tensors])
        logits_needed = any(needed[:2]) or any(needed[3:])
        gradients = _Gradients(call, ctx.shards, ctx.found, output, gradient, logits_needed).run()
    return (None, None, *(g if n else None for g, n in zip(gradients, needed, strict=True)))


@dataclass
class _Gradients:
    """Backward pass of one rank.

    Attributes:
        call: the call, with arrays that require no gradient.
        shards: the shards.
        found: results of the forward pass.
        output: the output of the queries of this rank.
        gradient: gradient of the output.
        logits_needed: whether any input of this rank besides the values requires a gradient.
    """

    call: TorchCall
    shards: Shards
    found: _Found
    output: Tensor
    gradient: Tensor
    logits_needed: bool

    def run(self) -> list[Shaped[Tensor, "*_"]]:
        """Return the gradients of the tensors of the call."""
        zeros = cast("Callable[[Array], Array]", torch.zeros_like)
        call, shards, ring = self.call, self.shards, self.shards.ring
        finite = self.output.isfinite()
        if not call.finite_value:
            self.output, self.gradient = self.output.where(finite, 0.0), self.gradient.where(finite, 0.0)
        total = dataclasses.replace(
            call,
            query=call.query.new_zeros(call.query.shape),
            score=call.score.map_arrays(zeros),
            normalizer=call.normalizer.map_arrays(zeros),
        )
        rows = shards.own_rows()
        dots = [self._row_dot(n, limits) for n, limits in enumerate(rows)]
        pending, arrived = None, []
        for owner, tensors, blocks in shards.visits(call):
            sums = [x.new_zeros(x.shape) for x in self._differentiable(tensors)]
            for block in blocks:
                self._add(block, dots[block.number], total, sums)
            if pending is not None:
                for x, y in zip(sums, pending.wait(), strict=True):
                    x += y
            if ring.size > 1:
                shapes = self._differentiable(shards.shapes(call, tensors, owner - 1))
                pending = ring.send_to_next(sums, shapes, len(tensors))
            arrived = sums
        if pending is not None:
            arrived = pending.wait()
        gradients = call_tensors(total)
        for n in range(len(rows)):
            if not isinstance(self.found.normalizers[n], KnownThreshold):
                add_row_gradients(call, gradients, self.found.summaries[n], dots[n])
        gradients[1], gradients[2] = arrived[0], arrived[1]
        if not call.finite_value:
            gradients[2] = gradients[2].masked_fill(~call.value.isfinite(), 0.0)
        own = [n for n, (_, names) in enumerate(call.score.array_fields()) if travels(names)]
        for n, x in zip(own, arrived[2:], strict=True):
            gradients[3 + n] = x
        return gradients

    def _differentiable(self, items: Sequence[object]) -> list:  # type: ignore[type-arg]
        """Return the items of the travelling tensors that have a gradient: keys, values and arrays of the score."""
        count = sum(travels(names) for _, names in self.call.score.array_fields())
        return list(items[: 2 + count])

    def _row_dot(self, number: int, rows: Limits) -> RowTensor:
        """Return Σ weight · gradient of the weight over all keys of each query of a chunk."""
        sparse = isinstance(self.found.normalizers[number], KnownThreshold)
        mean = self.found.summaries[number][0] if sparse else take_range(self.output, rows)
        return (take_range(self.gradient, rows) * mean).sum(dim=-1, keepdim=True)

    def _add(self, block: Block, row_dot: RowTensor, total: TorchCall, sums: list[Shaped[Tensor, "*_"]]) -> None:
        """Add the gradients of a block to those of this rank's tensors and of the travelling tensors."""
        part, sizes = _with_normalizer(block, self.found), self.shards.sizes
        query, key, value, *arrays = tile_gradients(
            part,
            tile_elements(part, sizes, bound=self.found.bound),
            sizes,
            self.found.summaries[block.number],
            row_dot,
            take_range(self.gradient, block.rows),
            self.logits_needed,
        )
        targets = [
            take_range(total.query, block.rows),
            take_range(sums[0], block.cols),
            take_range(sums[1], block.cols),
        ]
        queue = sums[2:]
        score = total.score._map(lambda x, names: queue.pop(0) if travels(names) else x)
        of_parts = [slice_part(score, block.rows, block.cols, block.whole_cols), total.normalizer]
        if isinstance(part.normalizer, KnownThreshold):
            of_parts.pop()
        targets += [cast("Tensor", x) for each in of_parts for x in each.arrays()]
        for target, x in zip(targets, [query, key, value, *arrays], strict=False):
            target += x
