"""Softmax tile by tile in PyTorch, in place: forward with a running maximum, backward from what it kept.

    S = factor · logits      m = running maximum      E = e^(S − m)      total += Σ E      sum += E V
    backward: E again;  dV += Eᵀ (dO / total);  dS = E ⊙ (dO Vᵀ − dO·O) / total

Where a bound of the logits is known beforehand and small (`Score.bound`), no maximum is needed: m = 0.

Source: Milakov, Gimelshein (2018), Online normalizer calculation for softmax,
https://arxiv.org/abs/1805.02867; Dao et al. (2022), FlashAttention, https://arxiv.org/abs/2205.14135.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.core.arrays import is_array
from qkv.core.batch import BatchIndex
from qkv.core.equation import BoundCall
from qkv.core.online_softmax import ExponentialSums
from qkv.core.random import dropout_rate
from qkv.core.tile import Tile
from qkv.core.typing import Tensor
from qkv.kernels.runtime.microbenchmarks import add_product, routes
from qkv.kernels.runtime.tile_loop import ranges, visible_tiles
from qkv.kernels.runtime.tile_readouts import ReadoutAccumulator
from qkv.kernels.runtime.workers import Workspace
from qkv.kernels.tiled.logits.base import Back, Gradients, Pairs, Slices
from qkv.kernels.tiled.logits.dispatch import pairs_of
from qkv.kernels.tiled.readouts import Seen
from qkv.masks import Mask
from qkv.normalizers.base import Summary

__all__ = ["BOUND", "Exponentials", "bound_of", "is_exponential"]

Limits = tuple[int, int]

BOUND = 30.0
"""Logits within ± this need no maximum: e^30 times a value below 1e15, summed over 1e9 keys, is a float32."""
_LARGEST_VALUE = 1e15
_LARGEST_LOGIT = 1e37
_FEW = 256
"""Queries below which a maximum for each row costs less than the norms of all keys."""
LOG2_E = math.log2(math.e)


def is_exponential(call: BoundCall) -> bool:
    """Whether this file's way is right: weights are e^(scale · logit) over their sum, and nothing read is
    NaN or infinite that might not be.
    """
    normalizer = call.normalizer
    return (
        normalizer.log_sum_exp
        and normalizer.online
        and normalizer.scale is not None
        and call.finite_value
        and (call.mask is None or call.finite_sides)
    )


def bound_of(call: BoundCall) -> float:
    """A number that no |logit| exceeds after the normalizer's scale; infinite where none is known.

    Infinite too where values are so large that a weighted sum without a maximum might overflow.
    """
    import torch

    tile, scale = call.tile, call.normalizer.scale
    if tile.q_total < _FEW:
        # Looking at all keys costs as much as some queries do.
        return math.inf
    if not call.projected or 0 in (tile.q_total, tile.k_total, *call.value.shape, *call.query.shape):
        return math.inf
    with torch.no_grad():
        bound = call.score.bound(call.query, call.key)
        low, high = torch.aminmax(call.value)
        largest = max(-float(low), float(high))
    return math.inf if bound is None or not largest <= _LARGEST_VALUE else float(bound) * scale


def _moderate(sums: tuple[Tensor, Tensor, Tensor]) -> bool:
    """Whether every total is near enough to 1 for its digits to count, and no sum has overflowed."""
    import torch

    _, total, weighted = sums
    if not total.numel():
        return True
    low, high = torch.aminmax(total)
    return float(low) >= 1e-12 and float(high) <= 1e12 and bool(torch.isfinite(weighted).all())


def _only(x: Tensor, kept: Tensor | None, room: Workspace) -> Tensor:
    """`x` where it is kept, 0 elsewhere; in a buffer."""
    import torch

    if kept is None:
        return x
    out = room.take("kept", tuple(x.shape), x)
    if x.device.type != "cpu":
        return torch.mul(x, kept, out=out)
    # PyTorch's own ways of doing this take three to eight times as long.
    np.multiply(x.numpy(), kept.numpy(), out=out.numpy())
    return out


@dataclass
class Exponentials:
    """A call, or some of its batch elements, under softmax.

    Args:
        call: the call.
        cols: keys in a tile.
        bound: no |logit| is larger.
        index: of the batch elements in the whole call.
        seen: what is to be read of the weights.
    """

    call: BoundCall
    cols: int
    bound: float
    index: BatchIndex = ()
    seen: Seen | None = None

    def __post_init__(self) -> None:
        self._blocks = None if self.seen is None else self.seen.blocks(self.index)
        self._routes = routes(self.call.value)
        shift_invariant = self.call.normalizer.shift_invariant
        self.bounded = shift_invariant and self.bound <= BOUND
        # `exp` takes a hundred times as long where its result is nearly 0, and without a bound some are;
        # `exp2` does not. It wants log₂ e in the factor, unless a sink is compared with the logits as they
        # are, or a logit near the largest number would become infinite.
        base2 = self._routes.base2 or not self.bounded
        self._base2 = base2 and shift_invariant and self.bound < _LARGEST_LOGIT
        factor = self.call.normalizer.scale * (LOG2_E if self._base2 else 1.0)
        self._pairs: Pairs = pairs_of(self.call, factor, self._routes)
        # What dropout keeps is raised, once for each row.
        self._raised = 1.0 / (1.0 - dropout_rate(self.call.dropout))
        self._values = Slices(self.call.value)

    def _exponential_(self, x: Tensor) -> Tensor:
        if self._base2:
            return x.exp2_()
        return x.exp_() if self.bounded else x.mul_(LOG2_E).exp2_()

    def notes(self) -> tuple[str, ...]:
        """How the guards on the data went."""
        of_bound = f"logits within ±{BOUND:.0f}: no maximum" if self.bounded else "maximum of each row"
        return (of_bound, *self._pairs.notes())

    def fold(self, rows: Limits, room: Workspace) -> tuple[Tensor, Summary]:
        """Output of some queries, and the shift and total of each."""
        import torch

        # Where logits depend on positions, those of the first tile are often the smallest of a row.
        running = not self.bounded and self.call.score.positional
        sums = self._sums(rows, room, running)
        if not (self.bounded or running or _moderate(sums)):
            sums = self._sums(rows, room, running=True)
        output, summary = self._finished(rows, *sums)
        if self._blocks is not None:
            self._blocks.finish(summary[0], summary[1], torch.exp2 if self._base2 else None)
        if self.seen is not None:
            self.seen.totals(self.index, rows, lambda: self._log_total(summary))
        if self.seen is not None and self.seen.reading is not None:
            self._read(self.seen.reading, rows, summary, room)
        return output, summary

    def _sums(self, rows: Limits, room: Workspace, running: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Shift, total and weighted sum of some queries.

        The shift is 0 where logits are bounded; otherwise the maximum of the first tile, which is near enough
        to that of the whole row as a rule, or where it was not, the maximum so far, `running`.
        """
        import torch

        value = self.call.value
        shape = (*self.call.tile.batch, rows[1] - rows[0])
        total = value.new_zeros((*shape, 1))
        weighted = value.new_zeros((*shape, value.shape[-1]))
        maximum = value.new_full((*shape, 1), 0.0 if self.bounded else -math.inf)
        shift: Tensor | None = None
        if self._blocks is not None:
            self._blocks.begin(rows)
        for cols, out in self._tiles(rows, room):
            known = None if self.bounded or running else shift
            logits = self._pairs.logits(rows, cols, room, known)
            if not self.bounded:
                if out is not None:
                    logits.masked_fill_(out, -math.inf)
                if known is None:
                    highest = torch.maximum(maximum, logits.amax(dim=-1, keepdim=True))
                    shift = highest.masked_fill(highest == -math.inf, 0.0)
                    past = self._exponential_(maximum.sub_(shift))
                    total.mul_(past)
                    weighted.mul_(past)
                    maximum = highest if running else shift
                    logits.sub_(shift)
            exponentials = self._exponential_(logits)
            if self.bounded and out is not None:
                # Afterwards: `exp` of −inf takes ten times as long as of a number.
                exponentials.masked_fill_(out, 0.0)
            if self._blocks is not None:
                self._blocks.absorb(exponentials, cols, shift)
            total += exponentials.sum(dim=-1, keepdim=True)
            kept = self._kept(rows, cols)
            add_product(weighted, _only(exponentials, kept, room), self._values(cols))
        return maximum, total, weighted.mul_(self._raised)

    def _finished(self, rows: Limits, maximum: Tensor, total: Tensor, weighted: Tensor) -> tuple[Tensor, Summary]:
        call = self.call
        if call.normalizer.shift_invariant:
            # As the normalizer's own `finish`, of numbers that are known to be finite.
            maximum.masked_fill_(maximum == -math.inf, 0.0)
            return weighted.div_(total.masked_fill(total == 0, 1.0)), (maximum, total)
        partial, tile = ExponentialSums(maximum, total, weighted), call.tile.restrict(rows, (0, 0))
        output, summary = call.normalizer.finalize(partial, tile, call.dropout)
        return output, summary

    def _log_total(self, summary: Summary) -> Tensor:
        """The logarithm of each query's total; −inf where no key is left."""
        shift, total = summary
        return total.log().add_(shift, alpha=math.log(2) if self._base2 else 1.0)

    def _read(self, reading: ReadoutAccumulator, rows: Limits, summary: Summary, room: Workspace) -> None:
        """The tiles of some queries again, for what wants the weights themselves."""
        import torch

        call, tile = self.call, self.call.tile
        shift, total = summary
        inverse = total.masked_fill(total == 0, 1.0).reciprocal_()
        for cols in ranges(tile.k_total, self.cols):
            here = tile.restrict(rows, cols)
            cover = "all" if call.mask is None else call.mask.coverage(here)
            if cover == "none" and cols[0] > 0:
                reading.skip(here, self.index)
                continue
            logits = self._pairs.logits(rows, cols, room)
            weights = room.take("weights", logits.shape, logits)
            torch.sub(logits, shift, out=weights)
            self._exponential_(weights).mul_(inverse)
            if self._pairs.factor != 1:
                logits.mul_(1 / self._pairs.factor)
            if cover != "all":
                # The first tile is always read: results are made of it, and the sink is counted there.
                out = self._out(call.mask, here, room)
                logits.masked_fill_(out, -math.inf)
                weights.masked_fill_(out, 0.0)
            reading.absorb(logits, weights, call.normalizer, here, self.index)

    def _kept(self, rows: Limits, cols: Limits) -> Tensor | None:
        """Which weights of a tile dropout keeps; None: all."""
        dropout = self.call.dropout
        return self.call.tile.restrict(rows, cols).dropout_mask(self.call.value, dropout) if dropout else None

    def unfold(
        self,
        rows: Limits,
        summary: Summary,
        row_dot: Tensor,
        gradient: Tensor,
        gradients: Gradients,
        room: Workspace,
        logits_wanted: bool,
    ) -> None:
        """Add the gradients that some queries give. Those of the score lack the normalizer's `scale`.

        Args:
            rows: the queries.
            summary: what `fold` gave for them.
            row_dot: Σ dO · O for each.
            gradient: dO of each.
            gradients: where to add.
            room: buffers.
            logits_wanted: whether anything behind the logits wants a gradient; the values always get theirs.
        """
        shift, total = summary
        inverse = total.masked_fill(total == 0, 1.0).reciprocal_()
        gradient, row_dot = gradient * (inverse * self._raised), row_dot * inverse
        for cols, out in self._tiles(rows, room):
            back: Back | None = None
            if logits_wanted:
                logits, back = self._pairs.trace(rows, cols, room, None if self.bounded else shift)
            else:
                logits = self._pairs.logits(rows, cols, room, None if self.bounded else shift)
            exponentials = self._exponential_(logits)
            if out is not None:
                exponentials.masked_fill_(out, 0.0)
            kept = self._kept(rows, cols)
            add_product(gradients.values(cols), _only(exponentials, kept, room).mT, gradient)
            if back is None:
                continue
            of_weights = self._routes.product(gradient, self._values(cols), room, "back")
            if kept is not None:
                of_weights = _only(of_weights, kept, room)
            back(of_weights.sub_(row_dot).mul_(exponentials), gradients)

    def _tiles(self, rows: Limits, room: Workspace) -> Iterator[tuple[Limits, Any]]:
        """Keys of each tile that is not empty, and which of its pairs are out (None: none is)."""
        mask, tile = self.call.mask, self.call.tile
        for cols in visible_tiles(self.call, rows, self.cols, whole=self.seen is not None):
            if mask is None:
                yield cols, None
                continue
            here = tile.restrict(rows, cols)
            cover = mask.coverage(here)
            if cover == "part":
                yield cols, self._out(mask, here, room)
            elif cover == "all":
                yield cols, None

    def _out(self, mask: Mask, here: Tile, room: Workspace) -> Tensor:
        """Which pairs of a tile the mask leaves out."""
        rows, cols = here.rows, here.cols
        # Tiles that stand alike to the diagonal share this.
        name = ("out", cols[0] - rows[0], rows[1] - rows[0], cols[1] - cols[0])
        start = None if here.positions is None else here.positions.query_start
        alike = mask.relative and not is_array(start)
        out = room.held.get(name) if alike else None
        if out is None:
            out = ~mask.slice(slice(*rows), slice(*cols)).allowed(here, self.call.value)
            if alike and len(room.held) < 64:
                room.held[name] = out
        return out
