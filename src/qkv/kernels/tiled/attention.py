"""Autograd function that computes a call tile by tile and recomputes the weights of each tile in backward.

Forward saves the output and the normalizer's summary of each query:

    forward:   output and, for softmax, the shift and total of each row
    backward:  dL/dw_ij = do_i · v_j        dL/dl = the normalizer's gradient, with Σ_j w_ij dL/dw_ij = do_i · o_i
               dL/dv_j += Σ_i w_ij do_i     dL/dq, dL/dk and the score's arrays from dL/dl, tile by tile

Softmax is computed by `softmax.py`, other normalizers by `GenericTiles`. Second derivatives are computed by running the
call again in row blocks (`kernels/runtime/differentiable_rows.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from qkv.core.autograd_function import autograd_function_class
from qkv.core.batch import BatchIndex, batch_indices, take_batch
from qkv.core.equation import TorchCall, apply_dropout
from qkv.core.guard import zero_nonfinite
from qkv.core.partial import PartialResult
from qkv.core.tile import Tile, take_range
from qkv.core.typing import Num, OutputTensor, RowTensor, Shaped, Tensor
from qkv.kernels.runtime.differentiable_rows import DifferentiableRows
from qkv.kernels.runtime.gradients import block_tensors, call_tensors, leaves_of, traced_logits
from qkv.kernels.runtime.saved_statistics import SAVED
from qkv.kernels.runtime.tile_loop import Limits, attend_rows, partial_rows, ranges, visible_tiles
from qkv.kernels.runtime.tile_sizes import TileSizes
from qkv.kernels.runtime.workers import worker
from qkv.kernels.runtime.workspace import Workspace
from qkv.kernels.tiled.logits.base import Gradients, accumulate_logits, tensors_of
from qkv.kernels.tiled.readouts import ReadoutCollector
from qkv.kernels.tiled.softmax import SoftmaxTiles, logit_bound, supports_softmax


class OutputBuffers:
    """Arrays for the results of all queries of a call, to which one range of queries is written at a time.

    Attributes:
        arrays: tensors `(*batch, q, width)`, allocated by the first write.
    """

    def __init__(self, tile: Tile) -> None:
        self._tile = tile
        self.arrays: list[Tensor] = []

    def write(self, index: BatchIndex, rows: Limits, arrays: Sequence[Num[Tensor, "*batch q _"]]) -> None:
        """Copy `arrays`, the results of a range of queries of some batch elements, to the buffers."""
        if not self.arrays:
            lead = (*self._tile.batch, self._tile.q_total)
            self.arrays = [x.new_empty((*lead, x.shape[-1])) for x in arrays]
        # Copy in place: new small arrays between large temporaries would fragment the heap.
        for whole, x in zip(self.arrays, arrays, strict=True):
            take_range(take_batch(whole, index, 2), rows).copy_(x)


@dataclass
class GenericTiles:
    """Forward and backward pass over tiles for any normalizer that can be accumulated tile by tile.

    Args:
        call: the call, or some of its batch elements.
        cols: number of keys in a tile.
    """

    call: TorchCall
    cols: int

    def guard_notes(self) -> tuple[str, ...]:
        """Return an empty tuple, because no fast path of this class depends on the data."""
        return ()

    def forward(self, rows: Limits, workspace: Workspace) -> tuple[Num[Tensor, "*batch q _"], ...]:
        """Return the output of a range of queries, followed by the arrays of the normalizer's summary."""
        output, summary = attend_rows(self.call, rows, self.cols)
        return cast("tuple[Tensor, ...]", (output, *summary))

    def partial(self, rows: Limits, workspace: Workspace) -> PartialResult:
        """Return the partial result of a range of queries over all keys of the call."""
        return partial_rows(self.call, rows, self.cols)

    def backward(
        self,
        rows: Limits,
        summary: tuple[Num[Tensor, "*batch q _"], ...],
        row_dot: RowTensor,
        gradient: OutputTensor,
        gradients: Gradients,
        workspace: Workspace,
        logits_needed: bool,
    ) -> None:
        """Add the gradients from a range of queries to `gradients`, as `SoftmaxTiles.backward` does."""
        call = self.call
        value = call.value if call.finite_value else cast("Tensor", zero_nonfinite(call.value))
        for cols in visible_tiles(call, rows, self.cols):
            tile, leaves = call.tile.restrict(rows, cols), leaves_of(block_tensors(call, rows, cols))
            with torch.enable_grad():
                logits, normalizer = traced_logits(call, rows, cols, leaves)
                if logits is None:
                    continue
                prepared = cast("Tensor", normalizer.prepare(logits))
            constant = prepared.detach()
            weights = cast("Tensor", call.normalizer.tile_weights(constant, summary, tile))
            target = gradients.values(cols)
            target += (apply_dropout(weights, tile, call.dropout).mT @ gradient).sum_to_size(target.shape)
            if not (logits_needed and normalizer.differentiable and prepared.requires_grad):
                continue
            d_weights = apply_dropout(gradient @ take_range(value, cols).mT, tile, call.dropout)
            d_logits = cast(
                "Tensor", call.normalizer.logit_gradient(constant, weights, d_weights, row_dot, summary, tile)
            )
            accumulate_logits(prepared, d_logits, leaves, block_tensors(gradients, rows, cols))


if TYPE_CHECKING:
    from qkv.core.autograd_function import Context

    class _Context(Context):
        call: TorchCall
        sizes: TileSizes
        row_block: int
        summaries: int


Elements = Callable[[BatchIndex], SoftmaxTiles | GenericTiles]
"""Function that creates the object that computes the tiles of some batch elements of a call."""


def tiled_attention() -> Callable[..., OutputTensor]:
    """Return the differentiable function that computes the output of a call tile by tile.

    Its arguments are the call, the sizes of the tiles, the number of queries in a row block for second derivatives, a
    list to which notes about guards are appended, and the tensors of the call (`call_tensors`).
    """
    apply: Callable[..., Tensor] = autograd_function_class(_attend, _backward).apply
    return apply


def _attend(
    ctx: _Context, call: TorchCall, sizes: TileSizes, row_block: int, notes: list[str], *tensors: Shaped[Tensor, "*_"]
) -> OutputTensor:
    saved = SAVED.get()
    known = saved.take() if saved is not None else None
    output, *summary = forward(call, sizes, notes) if known is None else (known[0], *known[1])
    if saved is not None:
        saved.note(summary)
    ctx.save_for_backward(output, *summary, *tensors)
    ctx.call, ctx.sizes, ctx.row_block, ctx.summaries = call, sizes, row_block, len(summary)
    return output


def _backward(ctx: _Context, gradient: OutputTensor) -> tuple[Shaped[Tensor, "*_"] | None, ...]:
    output, *rest = ctx.saved_tensors
    summary, tensors = rest[: ctx.summaries], rest[ctx.summaries :]
    needed = ctx.needs_input_grad[4:]
    with torch.autocast(output.device.type, enabled=False):
        if torch.is_grad_enabled():  # the gradient itself will be differentiated
            rows = DifferentiableRows(ctx.call, (), ctx.row_block)
            gradients: Sequence[Tensor | None] = rows.double_backward(tensors, [gradient])
        else:
            call = ctx.call.with_arrays([x.detach() for x in tensors])
            logits_needed = any(needed[:2]) or any(needed[3:])
            gradients = backward(call, ctx.sizes, output, summary, gradient, logits_needed)
    return (None, None, None, None, *(g if n else None for g, n in zip(gradients, needed, strict=True)))


def forward(
    call: TorchCall, sizes: TileSizes, notes: list[str], collector: ReadoutCollector | None = None
) -> list[Num[Tensor, "*batch q _"]]:
    """Return the output of a call, followed by the arrays of the normalizer's summary of each query.

    Args:
        notes: list to which notes about guards are appended.
        collector: collector of readouts during the forward pass; None without readouts.
    """
    out, create = OutputBuffers(call.tile), tile_elements(call, sizes, collector)
    with worker() as workspace:
        for index in batch_indices(call.tile.batch, sizes.batch):
            element = create(index)
            for rows in ranges(call.tile.q_total, sizes.rows):
                out.write(index, rows, element.forward(rows, workspace))
            notes += [note for note in element.guard_notes() if note not in notes]
            del element  # before the arrays of the next are allocated
    return out.arrays


def backward(
    call: TorchCall,
    sizes: TileSizes,
    output: OutputTensor,
    summary: Sequence[Num[Tensor, "*batch q _"]],
    gradient: OutputTensor,
    logits_needed: bool,
) -> list[Shaped[Tensor, "*_"]]:
    """Return the gradients of query, key, value, the score's arrays and the normalizer's arrays.

    Args:
        call: the call, with arrays that require no gradient.
        output: output that `forward` returned.
        summary: arrays of the summary that `forward` returned.
        gradient: gradient of the output. Elements of the output that are not finite are treated as constants.
        logits_needed: whether any input besides the values requires a gradient.
    """
    if not call.finite_value:
        finite = output.isfinite()
        output, gradient = output.where(finite, 0.0), gradient.where(finite, 0.0)
    row_dot = (gradient * output).sum(dim=-1, keepdim=True)
    gradients = tile_gradients(call, tile_elements(call, sizes), sizes, summary, row_dot, gradient, logits_needed)
    add_row_gradients(call, gradients, summary, row_dot)
    return gradients


def add_row_gradients(
    call: TorchCall,
    gradients: Sequence[Shaped[Tensor, "*_"]],
    summary: Sequence[Num[Tensor, "*batch q _"]],
    row_dot: RowTensor,
) -> None:
    """Add to the gradients of the normalizer's arrays, the last of `gradients`, what does not flow through logits."""
    row_gradients = call.normalizer.array_gradients(tuple(summary), row_dot)
    arrays = gradients[len(gradients) - len(row_gradients) :]
    for target, row_gradient in zip(arrays, row_gradients, strict=True):
        if row_gradient is not None:
            target = target[..., None, None] if target.ndim else target
            target += cast("Tensor", row_gradient).sum_to_size(target.shape)


def tile_gradients(
    call: TorchCall,
    elements: Elements,
    sizes: TileSizes,
    summary: Sequence[Num[Tensor, "*batch q _"]],
    row_dot: RowTensor,
    gradient: OutputTensor,
    logits_needed: bool,
) -> list[Shaped[Tensor, "*_"]]:
    """Return the gradients of query, key, value and arrays that flow through the logits and values of a call.

    Args:
        call: the call, with arrays that require no gradient.
        elements: function that creates the objects that compute the tiles.
        summary: the normalizer's summary of all keys of each query.
        row_dot: Σ over all keys of weight · gradient of the weight, for each query.
        gradient: gradient of the output.
        logits_needed: whether any input besides the values requires a gradient.
    """
    total = Gradients.zeros(call)
    with worker() as workspace:
        for index in batch_indices(call.tile.batch, sizes.batch):
            element, target = elements(index), total.select_batch(index)
            for rows in ranges(call.tile.q_total, sizes.rows):
                element.backward(
                    rows,
                    tuple(take_range(take_batch(x, index, 2), rows) for x in summary),
                    take_range(take_batch(row_dot, index, 2), rows),
                    take_range(take_batch(gradient, index, 2), rows),
                    target,
                    workspace,
                    logits_needed,
                )
            del element, target  # before the arrays of the next are allocated
    scale = call.normalizer.scale
    if supports_softmax(call) and scale is not None and scale != 1:
        for x in (total.query, total.key, *tensors_of(total.score)):
            if x.is_floating_point():  # a score may hold integer arrays of indices
                x.mul_(scale)
    if not call.finite_value:
        total.value.masked_fill_(~call.value.isfinite(), 0.0)
    gradients = call_tensors(total)
    del total
    for n, x in enumerate(gradients):  # one at a time, so that only one array is copied at any time
        gradients[n] = x.contiguous()
    return gradients


def partial_result(call: TorchCall, sizes: TileSizes, elements: Elements) -> PartialResult:
    """Return the partial result of all queries of a call, which can be merged with those of other keys.

    Args:
        elements: function that creates the objects that compute the tiles.
    """
    out = OutputBuffers(call.tile)
    kind: type[PartialResult]
    with worker() as workspace:
        for index in batch_indices(call.tile.batch, sizes.batch):
            element = elements(index)
            for rows in ranges(call.tile.q_total, sizes.rows):
                found = element.partial(rows, workspace)
                kind = type(found)
                out.write(index, rows, [getattr(found, field.name) for field in dataclasses.fields(found)])  # type: ignore[arg-type]
    return kind(*out.arrays)


def tile_elements(
    call: TorchCall, sizes: TileSizes, collector: ReadoutCollector | None = None, bound: float | None = None
) -> Elements:
    """Return a function that creates the objects that compute the tiles of some batch elements of a call.

    Args:
        call: the call, or a call of some of the keys, whose summary is that of all keys.
        sizes: sizes of the tiles.
        collector: collector of readouts during the forward pass; None without readouts.
        bound: of a call of some of the keys, an upper bound of the magnitude of logits over all keys; otherwise None.
    """
    if not supports_softmax(call):
        return lambda index: GenericTiles(call.select_batch(index), sizes.cols)
    natural = bound is not None
    bound = logit_bound(call) if bound is None else bound

    def create(index: BatchIndex) -> SoftmaxTiles:
        return SoftmaxTiles(call.select_batch(index), sizes.cols, bound, index, collector, natural)

    return create
