"""Differentiation of a call in blocks of whole rows by autograd, for derivatives of any order.

The blocks run under `torch.utils.checkpoint`, which takes about 60 kB of memory per block. The autograd functions of
the other modules compute first derivatives, and call this one if these derivatives must be differentiable themselves
(`create_graph=True`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch

from qkv.core.equation import TorchCall
from qkv.core.typing import Array, Float, Num, PairArray, Shaped, Tensor
from qkv.kernels.runtime.gradients import call_tensors, gradients_of, traced_logits
from qkv.kernels.runtime.tile_loop import Limits, fully_masked, ranges, weigh_rows
from qkv.readouts import Readout, Reduction
from qkv.readouts.base import flatten


@dataclass(frozen=True)
class DifferentiableRows:
    """Call that autograd differentiates in blocks of queries, each with all its keys.

    Attributes:
        call: the call.
        readouts: readouts of the weights.
        rows: number of queries per block, each for all batch elements.
        with_output: whether to compute the output.
    """

    call: TorchCall
    readouts: tuple[Readout, ...]
    rows: int
    with_output: bool = True

    @cached_property
    def result_types(self) -> list[type]:
        """Type of each readout's result, which is an array or a named tuple. `weigh` sets it."""
        return [object] * len(self.readouts)

    def double_backward(
        self, tensors: Sequence[Shaped[Tensor, "*_"]], gradients: Sequence[Num[Tensor, "*_"]]
    ) -> list[Num[Tensor, "*_"] | None]:
        """Return gradients of the tensors of the call that are differentiable themselves.

        Args:
            gradients: gradients of the results.
        """
        # Aliases, because a tensor may be computed from another one, or be given twice: its gradient would count both.
        tensors = [x.view_as(x) for x in tensors]
        call = self.call.with_arrays(tensors)
        results = DifferentiableRows(call, self.readouts, self.rows, self.with_output).checkpointed()
        return gradients_of(results, gradients, tensors, create_graph=True)

    def checkpointed(self) -> list[Num[Tensor, "*_"]]:
        """Return all results of the call under activation checkpointing, with derivatives of any order."""
        from torch.utils.checkpoint import checkpoint

        query, *tensors = call_tensors(self.call)
        call, cols, count = self.call, (0, self.call.tile.k_total), len(self.call.score.arrays())

        def block(
            rows: Limits,
            query: Num[Tensor, "*#batch q query_width"],
            key: Num[Tensor, "*#batch k key_width"],
            value: Float[Tensor, "*#batch k value_width"],
            *arrays: Shaped[Tensor, "*_"],
        ) -> tuple[Num[Tensor, "*_"], ...]:
            score = call.score.replace_arrays(arrays[:count]).slice(slice(*rows), slice(*cols))
            of_score = cast("tuple[Tensor, ...]", score.arrays())
            return tuple(self.weigh(call, rows, cols, [query, key, value, *of_score, *arrays[count:]]))

        # Split the queries once: the gradient of a slice has the size of the whole, so slicing per block is quadratic.
        parts = zip(ranges(call.tile.q_total, self.rows), torch.split(query, self.rows, dim=-2), strict=True)
        whole: list[Any] = []
        for rows, part in parts:
            found = checkpoint(block, rows, part, *tensors, use_reentrant=False)
            whole = whole or [[] for _ in found]
            for n, (x, reduction) in enumerate(zip(found, self.reductions(rows), strict=True)):
                if reduction.op == "set":
                    whole[n].append(x)
                else:
                    initial = cast("Tensor", reduction.allocate(x)) if rows[0] == 0 else whole[n]
                    whole[n] = _merged(initial, reduction, x)
        first = next(ranges(call.tile.q_total, self.rows))
        axes = [-len(reduction.shape) for reduction in self.reductions(first)]
        return [torch.cat(x, dim=axis) if isinstance(x, list) else x for x, axis in zip(whole, axes, strict=True)]

    def weigh(
        self, call: TorchCall, rows: Limits, cols: Limits, tensors: Sequence[Shaped[Tensor, "*_"]]
    ) -> list[Num[Tensor, "*_"]]:
        """Return the differentiable results of a row block that attends to all keys of a range.

        Args:
            call: the call, or one of its batch elements.
            rows: range of the queries.
            cols: range of the keys.
            tensors: tensors of the block, in the order of `block_tensors`.
        """
        with torch.autocast(call.value.device.type, enabled=False):
            traced, normalizer = traced_logits(call, rows, cols, tensors)
            logits: PairArray = fully_masked(call, rows, cols[1] - cols[0]) if traced is None else traced
            call = replace(call, value=tensors[2], normalizer=normalizer)
            output, read = weigh_rows(call, rows, logits, [each.read for each in self.readouts], self.with_output, cols)
        found: list[Array] = [] if output is None else [output]
        for n, result in enumerate(read):
            self.result_types[n] = type(result)
            found += flatten(result)
        return cast("list[Tensor]", found)

    def reductions(self, rows: Limits) -> list[Reduction]:
        """Return how each result of a row block is merged into the result of the call."""
        tile = self.call.tile.restrict(rows, (0, self.call.tile.k_total))
        output = Reduction((tile.q_total, self.call.value.shape[-1]), (slice(*rows), slice(None)))
        read = [reduction for readout in self.readouts for reduction in readout.reductions(tile)]
        return [output, *read] if self.with_output else read


def _merged(whole: Num[Tensor, "*shape"], reduction: Reduction, part: Num[Tensor, "*_piece"]) -> Num[Tensor, "*shape"]:
    """Return a result of the call with the result of a row block merged into it, as a new tensor for autograd."""
    axis, at = -len(reduction.shape), reduction.index[0]
    before, target, after = torch.split(whole, [at.start, at.stop - at.start, reduction.shape[0] - at.stop], dim=axis)
    return torch.cat([before, cast("Tensor", reduction.combine(target, part)), after], dim=axis)
