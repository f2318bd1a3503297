"""Autograd function in PyTorch that computes attention in row blocks, with backward and double backward.

Each block computes the whole rows of logits of its queries. If a `CandidateSearch` is given, the output of a block is a
weighted sum over the candidates of each row (`candidates.py`), and worker threads share the blocks; otherwise, or if a
row has too many candidates, it is a sum over all keys. Forward saves only the inputs and the candidates. Backward
differentiates the candidates, or recomputes a block under autograd. Double backward (`create_graph=True`) runs the
blocks under activation checkpointing, which supports derivatives of any order
(`kernels/runtime/differentiable_rows.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, cast

import torch

from qkv.core.arrays import requires_gradient
from qkv.core.autograd_function import autograd_function
from qkv.core.batch import BatchIndex, batch_indices, take_batch
from qkv.core.equation import TorchCall, apply_dropout
from qkv.core.tile import take_range
from qkv.core.typing import Float, Int, Num, OutputTensor, Shaped, Tensor
from qkv.kernels.row_blocks.candidates import (
    Candidates,
    attend_candidates,
    backward_candidates,
    consecutive,
    find_candidates,
    select_candidates,
)
from qkv.kernels.row_blocks.rows import RowLogits, padded_row_logits, row_logits_buffer, visible_range
from qkv.kernels.runtime.differentiable_rows import DifferentiableRows
from qkv.kernels.runtime.gradients import accumulate, block_tensors, call_tensors, leaves_of
from qkv.kernels.runtime.sparse_weights import write_sparse_weights
from qkv.kernels.runtime.subnormals import FlushedSubnormals
from qkv.kernels.runtime.tile_loop import Limits, ranges, row_logits, weigh_rows
from qkv.kernels.runtime.tile_readouts import ReadoutAccumulator
from qkv.kernels.runtime.workers import run_on_workers, split_evenly
from qkv.readouts import Reduction
from qkv.readouts.base import Result, unflatten

if TYPE_CHECKING:
    from qkv.core.autograd_function import Context

    class _Context(Context):
        blocks: RowBlocks
        saved: _Saved


_FORWARD_QUERIES = 512
"""Number of queries whose candidates are processed at once in forward."""
_BACKWARD_CANDIDATES = 2**15
"""Number of candidates processed at once in backward, for each of which the gradient of all keys is updated once."""


@dataclass(frozen=True)
class CandidateSearch:
    """Options of the search for candidates.

    Attributes:
        elements: number of batch elements per block; more than one only if a block has all their queries.
        rows: number of queries per block, of each batch element.
        tile_keys: number of keys per tile of logits, for scores that are not inner products or if `selects` is True.
        max_candidates: largest number of candidates per query. A block with more attends to all keys.
        recomputed_rows: number of queries per block in backward, for blocks that attended to all keys.
        selects: whether the candidates are the keys of the largest logits, which are selected tile by tile.
        workers: largest number of threads that search.
    """

    elements: int
    rows: int
    tile_keys: int
    max_candidates: int
    recomputed_rows: int
    selects: bool
    workers: int


@dataclass
class _Saved:
    """Results of the forward pass over row blocks, and the data that it saves for the backward pass.

    Attributes:
        results: the output and the arrays of the readouts, as a flat list.
        sources: for each result that is a maximum, the number of the block that each element came from; else None.
        candidates: candidates of each block, or None for a block that attended to all keys.
        read: accumulators of the readouts of a search.
    """

    results: list[Num[Tensor, "*_"]] = dataclasses.field(default_factory=list)
    sources: list[Int[Tensor, "*_"] | None] = dataclasses.field(default_factory=list)
    candidates: list[Candidates | None] = dataclasses.field(default_factory=list)
    read: list[ReadoutAccumulator] = dataclasses.field(default_factory=list)

    def add(
        self, block: int, found: Sequence[Num[Tensor, "*_"]], reductions: Sequence[Reduction], index: BatchIndex
    ) -> None:
        """Merge the results of a row block into the results of the call.

        Args:
            found: results of the block.
            reductions: how each result is merged.
            index: index of the block's batch elements in the call.
        """
        if not self.results:
            self.results = [
                cast("Tensor", reduction.allocate(x)) for reduction, x in zip(reductions, found, strict=True)
            ]
            self.sources = [
                torch.zeros_like(whole, dtype=torch.int32) if reduction.op == "max" else None
                for reduction, whole in zip(reductions, self.results, strict=True)
            ]
        for whole, source, x, reduction in zip(self.results, self.sources, found, reductions, strict=True):
            target = _slice(take_batch(whole, index, len(reduction.shape)), reduction)
            if source is not None:
                _slice(source, reduction)[cast("Tensor", reduction.exceeds(target, x))] = block
            # Merge in place: new small arrays between large temporaries would fragment the heap.
            target.copy_(cast("Tensor", reduction.combine(target, x)))


@dataclass(frozen=True)
class RowBlocks(DifferentiableRows):
    """Call that is computed in blocks of queries, each with all its keys or with the candidates that a search finds.

    Attributes:
        search: options of the search for candidates; None if every block attends to all keys. A search requires finite
            values. It computes readouts only without gradients, of the `largest` weights of the keys it selects.
    """

    search: CandidateSearch | None = None

    def attend(self) -> tuple[OutputTensor | None, tuple[Result, ...]]:
        """Return the output, or None if `with_output` is False, and the results of the readouts."""
        tensors = call_tensors(self.call)
        trained = any(requires_gradient(x) for x in tensors)
        with FlushedSubnormals():
            saved = None if trained else self.forward()
        queue = list(autograd_function(_attend, _backward)(self, *tensors)) if saved is None else saved.results
        output = queue.pop(0) if self.with_output else None
        if saved is not None and saved.read:
            return output, tuple(accumulator.result() for accumulator in saved.read)
        results = []
        for readout, result_type in zip(self.readouts, self.result_types, strict=True):
            arrays = tuple(queue.pop(0) for _ in readout.reductions(self.call.tile))
            results.append(readout.finalize(unflatten(arrays, result_type), self.call.tile))
        return output, tuple(results)

    def forward(self) -> _Saved:
        """Compute all row blocks without recording a graph, and return the results and the candidates."""
        saved, shares = _Saved(), self._shares()
        if self.search is not None:
            call = self.call
            saved.results = [call.value.new_zeros((*call.batch, call.tile.q_total, call.value.shape[-1]))]
            saved.sources = [None]
            saved.read = [ReadoutAccumulator(readout, call.tile) for readout in self.readouts]
        candidates: list[list[Candidates | None]] = [[] for _ in shares]

        def on_worker(n: int) -> None:
            buffer = None
            if self.search is not None and not self.search.selects:
                buffer = row_logits_buffer(self.call, self.search.elements * self.search.rows)
            for index, limits in shares[n]:
                candidates[n] += self._forward_element(index, limits, saved, buffer)

        run_on_workers(on_worker, len(shares))
        saved.candidates = [found for share in candidates for found in share]
        return saved

    def _forward_element(
        self, index: BatchIndex, limits: Sequence[Limits], saved: _Saved, buffer: Float[Tensor, " size"] | None
    ) -> list[Candidates | None]:
        """Write the results of consecutive row blocks of some batch elements to `saved`; return their candidates."""
        call = self.call.select_batch(index) if index else self.call
        candidates: list[Candidates | None] = []

        def read(rows: Limits, keys: Tensor, weights: Tensor) -> None:
            for accumulator in saved.read:
                accumulator.add_candidates(weights, keys, rows, index)

        found = ((rows, self._attend(call, index, rows, saved, buffer)) for rows in limits)
        for blocks in consecutive(found, lambda candidates: candidates.index.shape[:-1].numel(), _FORWARD_QUERIES):
            if blocks[0][1] is None:
                candidates.append(None)
            else:
                candidates += attend_candidates(call, blocks, take_batch(saved.results[0], index, 2), read)
        return candidates

    def backward(
        self,
        saved: _Saved,
        tensors: Sequence[Shaped[Tensor, "*_"]],
        gradients: Sequence[Num[Tensor, "*_"]],
        requires_grad: Sequence[bool],
    ) -> list[Shaped[Tensor, "*_"]]:
        """Return the gradients of all tensors of the call, given the gradients of its results.

        Args:
            saved: return value of `forward`, whose results are not used.
            gradients: gradients of the results.
            requires_grad: which of the tensors require a gradient. The gradient of the others is 0.
        """
        forward = replace(self, call=self.call.with_arrays([x.detach() for x in tensors]))
        shares, known = self._shares(), iter(saved.candidates)
        candidates = [[[next(known) for _ in limits] for _, limits in share] for share in shares]
        # Each worker has its own gradients, so that their sum does not depend on the order in which workers finish.
        totals = [[torch.zeros_like(x) for x in tensors] for _ in shares]

        def on_worker(n: int) -> None:
            sums = self.call.with_arrays(totals[n])
            for (index, limits), own in zip(shares[n], candidates[n], strict=True):
                call, element = (x.select_batch(index) if index else x for x in (forward.call, sums))
                found = zip(limits, own, strict=True)
                for blocks in consecutive(found, lambda x: x.index.numel(), _BACKWARD_CANDIDATES):
                    if blocks[0][1] is None:
                        forward._backward_block(call, element, blocks[0][0], index, saved, gradients, requires_grad)
                    elif self.search is not None:
                        of_element = take_batch(gradients[0], index, 2)
                        backward_candidates(call, element, blocks, of_element, requires_grad, self.search.tile_keys)

        run_on_workers(on_worker, len(shares))
        for more in totals[1:]:
            for total, x in zip(totals[0], more, strict=True):
                total += x
        return totals[0]

    def _shares(self) -> list[list[tuple[BatchIndex, list[Limits]]]]:
        """Return the row blocks of each worker: for some batch elements at a time, consecutive ranges of rows."""
        tile, search = self.call.tile, self.search
        if search is None:
            return [[((), list(ranges(tile.q_total, self.rows)))]]
        elements = batch_indices(tile.batch, search.elements)
        tasks = [(index, rows) for index in elements for rows in ranges(tile.q_total, search.rows)]
        workers = 1 if self.readouts else search.workers
        return [
            [(index, [rows for _, rows in own]) for index, own in groupby(share, lambda task: task[0])]
            for share in split_evenly(tasks, workers)
        ]

    def _attend(
        self, call: TorchCall, index: BatchIndex, rows: Limits, saved: _Saved, buffer: Float[Tensor, " size"] | None
    ) -> Candidates | None:
        """Return the candidates of a row block, or None after merging its results over all keys into `saved`."""
        if self.search is None:
            cols = (0, call.tile.k_total)
            found = self.weigh(call, rows, cols, block_tensors(call, rows, cols))
        else:
            cols = visible_range(call, rows)
            if cols[0] == cols[1] and not self.readouts:
                return None
            if buffer is None:
                candidates = select_candidates(call, rows, cols, self.search.tile_keys)
                if candidates is None:
                    self._attend_all_keys(call, index, rows, saved)
                return candidates
            if cols[0] == cols[1]:
                self._attend_all_keys(call, index, rows, saved)
                return None
            block = padded_row_logits(call, rows, cols, buffer, self.search.tile_keys)
            candidates = find_candidates(block, call.normalizer, self.search.max_candidates)
            if candidates is not None:
                return candidates
            if self.readouts:
                self._attend_all_keys(call, index, rows, saved)
                take_range(take_batch(saved.results[0], index, 2), rows).copy_(_attend_all(call, rows, block))
                return None
            found = [_attend_all(call, rows, block)]
        saved.add(rows[0] // self.rows, found, self.reductions(rows), index)
        return None

    def _attend_all_keys(self, call: TorchCall, index: BatchIndex, rows: Limits, saved: _Saved) -> None:
        """Compute the results of a row block from all logits, of a few queries at a time, and write them to `saved`."""
        assert self.search is not None
        for start, stop in ranges(rows[1] - rows[0], self.search.recomputed_rows):
            few = (rows[0] + start, rows[0] + stop)
            output, read = weigh_rows(
                call, few, row_logits(call, few, self.search.tile_keys), [each.per_head.read for each in self.readouts]
            )
            take_range(take_batch(saved.results[0], index, 2), few).copy_(cast("Tensor", output))
            for accumulator, result in zip(saved.read, read, strict=True):
                accumulator.add_result(result, few, index)

    def _backward_block(
        self,
        call: TorchCall,
        sums: TorchCall,
        block: Limits,
        index: BatchIndex,
        saved: _Saved,
        gradients: Sequence[Num[Tensor, "*_"]],
        requires_grad: Sequence[bool],
    ) -> None:
        """Add the gradients of a row block that attended to all keys, by recomputing it under autograd."""
        for start, stop in ranges(
            block[1] - block[0], self.rows if self.search is None else self.search.recomputed_rows
        ):
            rows = (block[0] + start, block[0] + stop)
            cols = (0, call.tile.k_total) if self.search is None else visible_range(call, rows)
            if self.search is not None and cols[0] == cols[1]:
                continue
            leaves = leaves_of(block_tensors(call, rows, cols), requires_grad)
            with torch.enable_grad():
                results = self.weigh(call, rows, cols, leaves)
            shares = []
            for gradient, source, reduction in zip(gradients, saved.sources, self.reductions(rows), strict=True):
                share = _slice(take_batch(gradient, index, len(reduction.shape)), reduction)
                shares.append(
                    share if source is None else share.where(_slice(source, reduction) == rows[0] // self.rows, 0.0)
                )
            accumulate(results, shares, leaves, block_tensors(sums, rows, cols))


def _attend_all(call: TorchCall, rows: Limits, block: RowLogits) -> OutputTensor:
    """Return the output of a row block that attends to all keys. The logits of the block may be overwritten."""
    tile, normalizer = call.tile.restrict(rows, block.cols), call.normalizer
    if normalizer.power is not None and normalizer.scale is not None:
        largest = block.group_max.view(-1, block.group_max.shape[-1])
        weights = write_sparse_weights(block.logits, block.logits, normalizer.power, normalizer.scale, largest)
    else:
        weights = cast("Tensor", normalizer.weights(block.logits, tile))
    return apply_dropout(weights, tile, call.dropout) @ take_range(call.value, block.cols)


def _slice(whole: Num[Tensor, "*_whole"], reduction: Reduction) -> Num[Tensor, "*_piece"]:
    return cast("Tensor", reduction.slice(whole))


def _attend(ctx: _Context, blocks: RowBlocks, *tensors: Shaped[Tensor, "*_"]) -> tuple[Num[Tensor, "*_"], ...]:
    with torch.autocast(blocks.call.value.device.type, enabled=False), FlushedSubnormals():
        saved = blocks.forward()
    results, saved.results = tuple(saved.results), []
    ctx.blocks, ctx.saved = blocks, saved
    ctx.save_for_backward(*tensors)
    ctx.mark_non_differentiable(*(x for x in results if not x.is_floating_point()))
    return results


def _backward(ctx: _Context, *gradients: Num[Tensor, "*_"]) -> tuple[Shaped[Tensor, "*_"] | None, ...]:
    blocks, requires_grad = ctx.blocks, ctx.needs_input_grad[1:]
    found: Sequence[Shaped[Tensor, "*_"] | None]
    with torch.autocast(blocks.call.value.device.type, enabled=False), FlushedSubnormals():
        if torch.is_grad_enabled():
            found = blocks.double_backward(ctx.saved_tensors, gradients)
        else:
            found = blocks.backward(ctx.saved, ctx.saved_tensors, gradients, requires_grad)
    return (None, *(g if needed else None for g, needed in zip(found, requires_grad, strict=True)))
