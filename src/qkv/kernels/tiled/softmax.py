"""Forward and backward pass of softmax over the tiles of a call in PyTorch, with in-place operations.

    S = factor · logits      m = running maximum      E = e^(S − m)      total += Σ E      sum += E V
    backward: E again;  dV += Eᵀ (dO / total);  dS = E ⊙ (dO Vᵀ − dO·O) / total

If the logits have a known small bound (`Score.bound`), no maximum is needed, and m = 0.

This loop is a specialization of `core/partial.py`; `tests/kernels/test_tiled.py` compares it with the reference.

Source: Milakov, Gimelshein (2018), Online normalizer calculation for softmax, https://arxiv.org/abs/1805.02867;
Dao et al. (2022), FlashAttention, https://arxiv.org/abs/2205.14135.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch

from qkv.core.arrays import is_array
from qkv.core.batch import BatchIndex
from qkv.core.equation import TorchCall
from qkv.core.ordering import RunningTopK
from qkv.core.partial import ExponentialSums
from qkv.core.random import dropout_rate
from qkv.core.tile import Tile
from qkv.core.typing import Bool, Float, OutputTensor, PairTensor, RowTensor, Tensor
from qkv.kernels.runtime.faster_ops import FasterOps, add_matmul_, faster_ops
from qkv.kernels.runtime.subnormals import LEAST_WEIGHT, divides_among_threads
from qkv.kernels.runtime.tile_loop import Limits, visible_tiles
from qkv.kernels.runtime.tile_readouts import ReadoutAccumulator, accumulate_rows
from qkv.kernels.runtime.workspace import Workspace
from qkv.kernels.tiled.logits.additive import AdditiveLogits
from qkv.kernels.tiled.logits.base import AutogradLogits, Gradients, RowSlices, TileLogits
from qkv.kernels.tiled.logits.gated import GatedLogits
from qkv.kernels.tiled.logits.products import BiasedLogits, DistanceLogits, InnerProductLogits, SoftcapLogits
from qkv.kernels.tiled.readouts import ReadoutCollector
from qkv.masks import Mask
from qkv.scores.forms import Capped, Distance, Gated, Offset, Product, Tanh

_TOLERANCE = 4.0
"""Largest weight outside of the tile of a corrected row, as a multiple of the spacing of numbers near 1."""


class SaturatedRows:
    """Correction of the rows of a range of queries that have all their weight in one tile.

    Args:
        inverse: reciprocal of the total of each row.
    """

    def __init__(self, inverse: RowTensor) -> None:
        self._inverse = inverse
        self._tolerance = _TOLERANCE * torch.finfo(inverse.dtype).eps
        self._visited: Tensor | None = inverse.new_zeros(inverse.shape)

    def correct_(self, d_logits: PairTensor, exponentials: Float[Tensor, "*#batch q k"]) -> None:
        """Subtract, in rows with all their weight in this tile, the weights times the sum of the row's gradients.

        Args:
            d_logits: gradients of the logits of the tile, which are changed in place.
            exponentials: weights of the tile multiplied by the total of each row.
        """
        if self._visited is None:
            return
        mass = exponentials.sum(dim=-1, keepdim=True) * self._inverse
        outside = mass < 1 - self._tolerance
        if not bool(outside.all()):
            # All rows at once, because selecting some takes longer. The three passes over the tile are 2 to 4 % of the
            # time of forward and backward, for inner products of width 64 on one core of a server processor.
            residual = (d_logits.sum(dim=-1, keepdim=True) * self._inverse).masked_fill_(outside, 0.0)
            d_logits.addcmul_(exponentials, residual, value=-1.0)
        self._visited += mass
        if not bool((self._visited <= self._tolerance).any()):
            self._visited = None  # every row has weight in a visited tile, so no later tile has all of it


_BOUND = 30.0
"""Largest magnitude of logits without a maximum: e^30 times a value below 1e15, summed over 1e9 keys, fits float32."""
_LARGEST_VALUE = 1e15
_LARGEST_LOGIT = 1e37
_MIN_QUERIES = 256
"""Smallest number of queries for which the bound is computed: for fewer, the maximum of each row costs less."""
_MAX_CACHED_MASKS = 64
_LOG2_E = math.log2(math.e)

_RowSums = tuple[RowTensor, RowTensor, OutputTensor]
"""Shift, total and weighted sum of a range of rows."""
_RowResults = tuple[OutputTensor, RowTensor, RowTensor]
"""Output, shift and total of a range of rows."""


def supports_softmax(call: TorchCall) -> bool:
    """Return whether `SoftmaxTiles` supports a call: a softmax whose masked elements are known to be finite."""
    normalizer = call.normalizer
    return (
        normalizer.log_sum_exp
        and normalizer.online
        and normalizer.scale is not None
        and call.finite_value
        and (call.mask is None or call.finite_sides)
    )


def logit_bound(call: TorchCall) -> float:
    """Return an upper bound of |normalizer.scale · logit| over all pairs of a call, or infinity if none is known.

    The bound is also infinite if values are so large that a weighted sum without a maximum could overflow.
    """
    tile, scale = call.tile, call.normalizer.scale
    assert scale is not None
    if tile.q_total < _MIN_QUERIES:
        return math.inf
    if not call.projected or 0 in (tile.q_total, tile.k_total, *call.query.shape):
        return math.inf
    with torch.no_grad():
        bound = call.score.bound(call.query, call.key)
        low, high = torch.aminmax(call.value) if call.value.numel() else (0.0, 0.0)
        largest = max(-float(low), float(high))
    return math.inf if bound is None or not largest <= _LARGEST_VALUE else float(bound) * scale


def _tile_logits(call: TorchCall, factor: float, ops: FasterOps) -> TileLogits:
    """Return the fastest implementation of the logits of a tile that supports the score of a call.

    Args:
        call: the call, or one of its batch elements.
        factor: factor by which logits are multiplied.
        ops: the faster of equivalent operations on this machine.
    """
    if not call.projected or call.query.dtype != call.value.dtype:
        return AutogradLogits(call, factor, ops)
    match call.score.form:
        case Product():
            return InnerProductLogits(call, factor, ops)
        case Gated():
            return GatedLogits(call, factor, ops)
        case Tanh() if not call.tile.batch:
            return AdditiveLogits(call, factor, ops)
        case Distance(float() as slope) if call.query.shape[:-2] == call.key.shape[:-2]:
            return DistanceLogits(call, factor, ops, slope)
        case Offset(inner=inner):
            return BiasedLogits(call, factor, ops, _tile_logits(replace(call, score=inner), factor, ops))
        case Capped(inner=inner, cap=int() | float() as cap) if isinstance(inner.form, Product):
            return SoftcapLogits(replace(call, score=inner), factor, ops, cap)
    return AutogradLogits(call, factor, ops)


@dataclass
class SoftmaxTiles:
    """Forward and backward pass of softmax over the tiles of one or more batch elements.

    Args:
        call: the call, or some of its batch elements.
        cols: number of keys in a tile.
        bound: upper bound of |scale · logit|.
        index: index of the batch elements in the whole call.
        collector: collector of readouts; None without readouts.
        natural: whether the summary that `backward` receives is that of `Softmax.finalize`, not that of `forward`.
    """

    call: TorchCall
    cols: int
    bound: float
    index: BatchIndex = ()
    collector: ReadoutCollector | None = None
    natural: bool = False

    def __post_init__(self) -> None:
        normalizer = self.call.normalizer
        assert normalizer.scale is not None
        self._maps = [] if self.collector is None else self.collector.element_maps(self.index)
        self._selected: RunningTopK | None = None
        self._ops = faster_ops(self.call.value)
        self.bounded = normalizer.shift_invariant and self.bound <= _BOUND
        # `exp` takes a hundred times as long where its result is nearly 0, and without a bound some results are; `exp2`
        # does not. It needs log₂ e in the factor, except where a sink is compared with the logits themselves or a
        # logit near the largest number would become infinite.
        base2 = self._ops.exp2 or not self.bounded
        self._base2 = base2 and normalizer.shift_invariant and self.bound < _LARGEST_LOGIT
        self._logits = _tile_logits(self.call, normalizer.scale * (_LOG2_E if self._base2 else 1.0), self._ops)
        alone = self.bounded or not divides_among_threads(self.call.value)
        self._least = 0.0 if alone else math.log2(LEAST_WEIGHT)
        # Weights that dropout keeps are divided by the probability of keeping them, once for each row.
        self._dropout_scale = 1.0 / (1.0 - dropout_rate(self.call.dropout))
        self._values = RowSlices(self.call.value)

    def guard_notes(self) -> tuple[str, ...]:
        """Return one phrase for each guard on the data, such as "maximum of each row"."""
        note = f"logits within ±{_BOUND:.0f}: no maximum" if self.bounded else "maximum of each row"
        return (note, *self._logits.guard_notes())

    def forward(self, rows: Limits, workspace: Workspace) -> tuple[Float[Tensor, "*batch q _"], ...]:
        """Return the output, the shift m and the total Σ e^(l − m) of each query in a range."""
        output, shift, total = self._finalize(rows, self._sums(rows, workspace))
        for pooled in self._maps:
            pooled.finalize(shift, total, torch.exp2 if self._base2 else torch.exp)
        if self.collector is not None:
            self.collector.add_log_totals(self.index, rows, lambda: self._log_total(shift, total))
            accumulators = self.collector.accumulators
            if self._selected is not None:
                weights = self._weights(torch.from_numpy(self._selected.rank) - shift, total)
                if not self.collector.select(self.index, rows, self._selected, weights):
                    accumulators = accumulators + self.collector.selections
            if accumulators:
                self._read(accumulators, rows, shift, total, workspace)
        return output, shift, total

    def partial(self, rows: Limits, workspace: Workspace) -> ExponentialSums:
        """Return the partial result of a range of queries over all keys of the call, without the sink."""
        shift, total, weighted = self._sums(rows, workspace)
        if self._base2:
            shift = shift * math.log(2)
        return ExponentialSums(shift.masked_fill(total == 0, -math.inf), total, weighted)

    def _sums(self, rows: Limits, workspace: Workspace, running: bool | None = None) -> _RowSums:
        """Return the shift m, Σ_j e^(l_j − m) and Σ_j e^(l_j − m) v_j of each query in a range.

        The shift is 0 if logits are bounded. Otherwise it is the maximum of the first tile, which is usually near the
        maximum of the row, or with `running` the running maximum; None: this is taken where it is needed.
        """
        if running is None:
            # If logits depend on positions, those of the first tile are often the smallest of a row.
            running = not self.bounded and self.call.score.positional
        value = self.call.value
        shape = (*self.call.tile.batch, rows[1] - rows[0])
        total = value.new_zeros((*shape, 1))
        weighted = value.new_zeros((*shape, value.shape[-1]))
        maximum = value.new_full((*shape, 1), 0.0 if self.bounded else -math.inf)
        shift: Tensor | None = None
        for pooled in self._maps:
            pooled.start(rows)
        selected = self._selected = None if self.collector is None else self.collector.start_selection(rows, value)
        for cols, excluded in self._tiles(rows, workspace):
            # Equal logits of several tiles must stay equal, so that ties go to the first.
            known = None if self.bounded or running or selected is not None else shift
            logits = self._logits.logits(rows, cols, workspace, known)
            if excluded is not None and not self.bounded:
                logits.masked_fill_(excluded, -math.inf)
            if selected is not None:
                ranks = logits.masked_fill(excluded, -math.inf) if excluded is not None and self.bounded else logits
                selected.update(ranks.numpy(), cols[0])
            if not self.bounded:
                if running or shift is None:
                    highest = torch.maximum(maximum, logits.amax(dim=-1, keepdim=True))
                    shift = highest.masked_fill(highest == -math.inf, 0.0)
                    rescale = self._exp_(maximum.sub_(shift))
                    total.mul_(rescale)
                    weighted.mul_(rescale)
                    maximum = highest if running else shift
                if known is None:
                    logits.sub_(shift)
            exponentials = self._exp_(logits)
            if self.bounded and excluded is not None:
                # Mask after `exp`, which takes ten times as long for −inf.
                exponentials.masked_fill_(excluded, 0.0)
            for pooled in self._maps:
                pooled.update(exponentials, cols, shift)
            total += exponentials.sum(dim=-1, keepdim=True)
            dropped = _apply_dropout(exponentials, self._dropout_mask(rows, cols), workspace)
            add_matmul_(weighted, dropped, self._values(cols))
        sums = maximum, total, weighted.mul_(self._dropout_scale)
        return sums if self.bounded or running or _is_moderate(sums) else self._sums(rows, workspace, running=True)

    def _finalize(self, rows: Limits, sums: _RowSums) -> _RowResults:
        """Return the output, the shift and the total of a range of queries, computed from their sums."""
        call = self.call
        maximum, total, weighted = sums
        if call.normalizer.shift_invariant:
            # Like `Softmax.finalize`, for sums that are known to be finite.
            maximum.masked_fill_(maximum == -math.inf, 0.0)
            return weighted.div_(total.masked_fill(total == 0, 1.0)), maximum, total
        tile = call.tile.restrict(rows, (0, 0))
        output, summary = call.normalizer.finalize(ExponentialSums(maximum, total, weighted), tile, call.dropout)
        return cast("_RowResults", (output, *summary))

    def _exp_(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        if self.bounded and not self._base2:
            return x.exp_()
        if not self._base2:
            x.mul_(_LOG2_E)
        return torch.threshold_(x, self._least, -math.inf).exp2_() if self._least else x.exp2_()

    def _weights(self, x: Float[Tensor, "*batch q n"], total: RowTensor) -> Float[Tensor, "*batch q n"]:
        """Replace logits minus the shift of each row by weights, in place."""
        return self._exp_(x).mul_(total.masked_fill(total == 0, 1.0).reciprocal_())

    def _log_total(self, shift: RowTensor, total: RowTensor) -> RowTensor:
        """Return the log-sum-exp of each row, −inf for a fully masked row."""
        return total.log().add_(shift, alpha=math.log(2) if self._base2 else 1.0)

    def _read(
        self,
        accumulators: Sequence[ReadoutAccumulator],
        rows: Limits,
        shift: RowTensor,
        total: RowTensor,
        workspace: Workspace,
    ) -> None:
        """Recompute the weights of a range of queries tile by tile and accumulate readouts from them."""
        call, tile = self.call, self.call.tile

        def weighed() -> Iterator[tuple[PairTensor, PairTensor, Tile]]:
            for cols, excluded in self._tiles(rows, workspace):
                logits = self._logits.logits(rows, cols, workspace)
                weights = workspace.take("weights", tuple(logits.shape), logits)
                torch.sub(logits, shift, out=weights)
                self._weights(weights, total)
                if self._logits.factor != 1:
                    logits.mul_(1 / self._logits.factor)
                if excluded is not None:
                    logits.masked_fill_(excluded, -math.inf)
                    weights.masked_fill_(excluded, 0.0)
                yield logits, weights, tile.restrict(rows, cols)

        all_keys = tile.restrict(rows, (0, tile.k_total))
        accumulate_rows(accumulators, all_keys, weighed(), call.normalizer, shift, self.index)

    def backward(
        self,
        rows: Limits,
        summary: tuple[RowTensor, ...],
        row_dot: RowTensor,
        gradient: OutputTensor,
        gradients: Gradients,
        workspace: Workspace,
        logits_needed: bool,
    ) -> None:
        """Add the gradients from a range of queries to `gradients`.

        The factor `scale` of the normalizer is not included in the gradients of query, key and the score's arrays.

        Args:
            rows: range of the queries.
            summary: shift and total of these queries, as returned by `forward`.
            row_dot: dO · O of each query.
            gradient: gradient dO of the output of each query.
            gradients: arrays to which gradients are added.
            workspace: buffers of the worker.
            logits_needed: whether any input besides the values requires a gradient.
        """
        shift, total = self._own_units(*summary) if self.natural else summary
        inverse = total.masked_fill(total == 0, 1.0).reciprocal_()
        gradient, row_dot = gradient * (inverse * self._dropout_scale), row_dot * inverse
        known = None if self.bounded else shift
        # Logits beyond this differ from those of the forward pass, by which a weight could exceed 1.
        rounded = known is not None and bool(
            (known.abs().nan_to_num(0, 0, 0) * torch.finfo(known.dtype).eps > 1e-3).any()
        )
        saturated = None if self.bounded else SaturatedRows(inverse)
        for cols, excluded in self._tiles(rows, workspace):
            tile = (rows, cols, workspace, known)
            logits, logits_backward = self._logits.trace(*tile) if logits_needed else (self._logits.logits(*tile), None)
            exponentials = self._exp_(logits.clamp_(max=0.0) if rounded else logits)
            if excluded is not None:
                exponentials.masked_fill_(excluded, 0.0)
            mask = self._dropout_mask(rows, cols)
            add_matmul_(gradients.values(cols), _apply_dropout(exponentials, mask, workspace).mT, gradient)
            if logits_backward is None:
                continue
            d_weights = self._ops.matmul_nt(gradient, self._values(cols), workspace, "d_weights")
            d_weights = _apply_dropout(d_weights, mask, workspace)
            d_logits = d_weights.sub_(row_dot).mul_(exponentials)
            if saturated is not None:
                saturated.correct_(d_logits, exponentials)
            logits_backward(d_logits, gradients)

    def _own_units(self, shift: RowTensor, total: RowTensor) -> tuple[RowTensor, RowTensor]:
        """Return a shift and total of natural exponentials as this object computes them."""
        if self.bounded:
            return shift, total * shift.exp()
        return shift * (_LOG2_E if self._base2 else 1.0), total

    def _dropout_mask(self, rows: Limits, cols: Limits) -> Bool[Tensor, "*batch q k"] | None:
        """Return a boolean array that is True for the weights that dropout keeps, or None without dropout."""
        dropout = self.call.dropout
        if not dropout:
            return None
        return cast("Tensor", self.call.tile.restrict(rows, cols).dropout_mask(self.call.value, dropout))

    def _tiles(self, rows: Limits, workspace: Workspace) -> Iterator[tuple[Limits, Bool[Tensor, "*_shape"] | None]]:
        """Yield the key range of each tile that is not fully masked, with an array of its masked pairs or None.

        The boolean array is True for masked pairs; it is None if no pair of the tile is masked.
        """
        mask = self.call.mask
        for cols in visible_tiles(self.call, rows, self.cols, aligned=bool(self._maps)):
            here = self.call.tile.restrict(rows, cols)
            coverage = "all" if mask is None else mask.coverage(here)
            if coverage != "none":
                yield cols, None if mask is None or coverage == "all" else self._excluded(mask, here, workspace)

    def _excluded(self, mask: Mask, here: Tile, workspace: Workspace) -> Bool[Tensor, "*_shape"]:
        """Return a boolean array that is True for the masked pairs of a tile."""
        rows, cols = here.rows, here.cols
        # Under a relative mask, tiles at the same distance from the diagonal share one array.
        name = ("excluded", cols[0] - rows[0], rows[1] - rows[0], cols[1] - cols[0])
        start = None if here.positions is None else here.positions.query_start
        shared = mask.relative and not is_array(start)
        excluded = cast("Tensor | None", workspace.cache.get(name)) if shared else None
        if excluded is None:
            excluded = cast("Tensor", ~mask.slice(slice(*rows), slice(*cols)).allowed(here, self.call.value))
            if shared and len(workspace.cache) < _MAX_CACHED_MASKS:
                workspace.cache[name] = excluded
        return excluded


def _is_moderate(sums: _RowSums) -> bool:
    """Return whether all totals are in [1e-12, 1e12], so that no precision is lost, and all sums are finite."""
    _, total, weighted = sums
    if not total.numel():
        return True
    low, high = torch.aminmax(total)
    return float(low) >= 1e-12 and float(high) <= 1e12 and bool(torch.isfinite(weighted).all())


def _apply_dropout(x: PairTensor, mask: Bool[Tensor, "*batch q k"] | None, workspace: Workspace) -> PairTensor:
    """Return `x` with elements set to 0 where the mask is False. Return `x` itself if the mask is None."""
    if mask is None:
        return x
    out = workspace.take("dropout", tuple(x.shape), x)
    if x.device.type != "cpu":
        return torch.mul(x, mask, out=out)
    # Multiplying by the mask or selecting with it in PyTorch takes three to eight times as long.
    with np.errstate(invalid="ignore"):  # a weight of infinity gives NaN, which is noticed later
        np.multiply(x.numpy(), mask.numpy(), out=out.numpy())
    return out
