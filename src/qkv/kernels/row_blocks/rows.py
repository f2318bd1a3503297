"""The fast way of the row-block kernel: one batch element and some queries at a time, forward and backward.

Of each strip of whole rows, only the keys that reach the normalizer's floor are kept (`candidates.py`); the
output is a sum of their values, and the gradient touches only their keys and values. Between forward and
backward a few keys per query are remembered. Where many keys reach the floor, the strip is weighed whole, and
its logits are computed again in backward:

    dL/dw_ij = do_i · v_j        dL/dv_j += Σ_i w_ij do_i        dL/dl: by the normalizer, on what was kept
    dL/dl = dL/dleft · right ... for a product of sides; else the strip's score, by autograd
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from qkv.core.arrays import requires_gradient
from qkv.core.batch import BatchIndex, batch_indices, take_batch
from qkv.core.equation import BoundCall, drop, side
from qkv.core.typing import Tensor
from qkv.kernels.row_blocks.autograd import RowBlocks, double_backward
from qkv.kernels.row_blocks.candidates import Candidates, columns_allowed, find_kept, strip_logits, strip_width
from qkv.kernels.row_blocks.rows_backward import Backward, joined, kept_weights, sum_of_rows
from qkv.kernels.row_blocks.thresholds import put_sparse_weights
from qkv.kernels.runtime.tile_loop import ranges

__all__ = ["Rows", "attend_kept", "attend_strip"]

Limits = tuple[int, int]

FINISHED = 512
"""Queries whose kept keys are weighed at once."""


@dataclass(frozen=True)
class Rows:
    """A call whose rows are taken whole; query and key may be the sides of its score.

    Attributes:
        call: the call; its values are known to be finite.
        rows: queries in a strip.
        tile: keys compared at once, where the score is no product.
        most: kept keys per query, above which a strip is weighed whole.
        again: queries in a strip where the gradient itself is to be differentiated.
    """

    call: BoundCall
    rows: int
    tile_keys: int
    most: int
    again: int

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that a gradient may be wanted of."""
        call = self.call
        return (call.query, call.key, call.value, *call.score.arrays(), *call.normalizer.arrays())

    def attend(self) -> Tensor:
        """The output."""
        if any(requires_gradient(x) for x in self.tensors):
            return _function().apply(self, *self.tensors)
        return self.forward([])

    def places(self) -> Iterator[tuple[BatchIndex, Limits]]:
        """Batch element and queries of each strip."""
        for index in batch_indices(self.call.batch, 1):
            for limits in ranges(self.call.tile.q_total, self.rows):
                yield index, limits

    def room(self) -> Any:
        """For the logits of a strip."""
        tile = self.call.tile
        rows = min(self.rows, tile.q_total)
        return self.call.value.new_empty(rows * strip_width(tile.k_total))

    def forward(self, kept: list[Candidates | None]) -> Tensor:
        """The output; of each strip, what it kept is put into the list."""
        call, room = self.call, self.room()
        out = call.value.new_zeros((*call.batch, call.tile.q_total, call.value.shape[-1]))
        for index in batch_indices(call.batch, 1):
            one, of_one = call.select_batch(index), take_batch(out, index, 2)
            waiting: list[Candidates] = []
            first = 0
            for rows in ranges(call.tile.q_total, self.rows):
                found = attend_strip(one, rows, side(of_one, rows), room, self.tile_keys, self.most)
                if found is not None:
                    first = first if waiting else rows[0]
                    waiting.append(found)
                # What is done for few keys costs less for many queries at once.
                if waiting and (found is None or rows[1] - first >= FINISHED or rows[1] == call.tile.q_total):
                    done = (first, rows[0] if found is None else rows[1])
                    kept += attend_kept(one, done, waiting, side(of_one, done))
                    waiting = []
                if found is None:
                    kept.append(None)
        return out


def attend_strip(call: BoundCall, rows: Limits, out: Any, room: Any, tile_keys: int, most: int) -> Candidates | None:
    """The keys that some queries keep; or None, and their output in `out`, where they were weighed whole.

    It writes nothing but `out` and `room`: strips may run at the same time.
    """
    cols = columns_allowed(call, rows)
    if cols[0] == cols[1]:
        return None
    strip = strip_logits(call, rows, cols, room, tile_keys, ranked=most > 0)
    kept = find_kept(strip, call.normalizer, most)
    if kept is None:
        tile = call.tile.restrict(rows, cols)
        normalizer = call.normalizer
        if normalizer.power is not None:
            weights = put_sparse_weights(strip.keys, normalizer.power, normalizer.scale, strip.largest)
        else:
            weights = normalizer.weights(strip.keys, tile)
        out.copy_(drop(weights, tile, call.dropout) @ side(call.value, cols))
    return kept


def attend_kept(call: BoundCall, rows: Limits, strips: list[Candidates], out: Any) -> list[Candidates | None]:
    """Output of consecutive strips from the keys they keep; and what backward needs of each."""
    kept = joined(strips)
    weights = kept_weights(call, kept, kept.logits, rows)
    tile = call.tile.restrict(rows, (0, call.tile.k_total))
    out.copy_(sum_of_rows(kept.index, call.value, drop(weights, tile, call.dropout, keys=kept.index)))
    if call.normalizer.differentiable:
        return list(strips)
    # One key has the weight, and no gradient asks how it came to it.
    best = weights.argmax(dim=-1, keepdim=True)
    weight, index = weights.gather(-1, best), kept.index.gather(-1, best)
    lengths = [len(strip.index) for strip in strips]
    pairs = zip(index.split(lengths), weight.split(lengths), strict=True)
    return [Candidates(of_index, of_weight, of_weight) for of_index, of_weight in pairs]


_FUNCTION: Any = None


def _function() -> Any:
    """The autograd function, made when torch is there."""
    global _FUNCTION
    if _FUNCTION is None:
        import torch

        class Attend(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, rows: Rows, *tensors: Any) -> Any:
                ctx.rows, ctx.kept = rows, []
                ctx.save_for_backward(*tensors)
                with torch.autocast(rows.call.value.device.type, enabled=False):
                    return rows.forward(ctx.kept)

            @staticmethod
            def backward(ctx: Any, gradient: Any) -> Any:
                rows: Rows = ctx.rows
                found: Any
                if torch.is_grad_enabled():  # the gradient itself will be differentiated
                    strips = RowBlocks(rows.call, (), rows.again, with_output=True)
                    found = double_backward(strips, ctx.saved_tensors, [gradient])
                else:
                    with torch.autocast(gradient.device.type, enabled=False):
                        found = Backward(rows, ctx.saved_tensors, gradient, ctx.needs_input_grad[1:]).run(ctx.kept)
                wanted = ctx.needs_input_grad[1:]
                return (None, *(g if w else None for g, w in zip(found, wanted, strict=True)))

        _FUNCTION = Attend
    return _FUNCTION
