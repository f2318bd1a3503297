"""Sparsemax and 1.5-entmax over keys that move around a ring, in two passes.

    pass 1    the logits that can have weight, from which each row's maximum m and threshold τ follow exactly
    pass 2    weights max(0, s (l − m) − τ)^p, which sum over tiles like those of `Sum`

The threshold of some of the keys is a lower bound of the threshold of all, so a key below it has no weight in the
whole row, and each tile drops more candidates. If a row has more candidates than `_MAX_CANDIDATES`, all ranks continue
with Newton's method, one pass around the ring per step, in memory that does not depend on the number of candidates.

The gradient of a logit is p s·slope (dw − Σ slope dw / Σ slope) with slope 1 (p = 1) or √w (p = 2) on the support (see
`kernels/runtime/sparse_weights.py`). Since dw_j = do · v_j, its row sum is do · Σ slope_j v_j, which pass 2 accumulates
beside the output, so that backward needs one pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from qkv.core.arrays import namespace, where
from qkv.core.batch import BatchIndex, batch_indices, take_batch
from qkv.core.equation import TorchCall, apply_dropout
from qkv.core.guard import apply_weights
from qkv.core.partial import PartialResult, WeightedSums, nonzero
from qkv.core.parts import array_field
from qkv.core.tile import Tile, take_range
from qkv.core.typing import Array, Float, OutputArray, PairArray, PairTensor, RowArray, Tensor, ValueArray
from qkv.kernels.runtime.sparse_weights import newton_threshold
from qkv.kernels.runtime.tile_loop import Limits, ranges, visible_tiles
from qkv.normalizers.base import Normalizer, Summary, excluded
from qkv.ring.shards import Shards

_MAX_CANDIDATES = 1024
"""Largest number of candidates per query that a rank holds: 8 KiB in float64."""
_MAX_STEPS = 60
"""Largest number of Newton steps."""


@dataclass(frozen=True, eq=False)
class KnownThreshold(Normalizer):
    """Normalizer with weights max(0, scale · (logit − maximum) − τ)^power, whose maximum and τ are known for each row.

    The values of a partial result are followed by the sums Σ slope v, from which the gradient follows.
    """

    maximum: Array = array_field("q", "column")
    tau: Array = array_field("q", "column")
    exponent: float = 2
    factor: float = 0.5

    def weights(self, logits: PairArray, tile: Tile | None = None) -> PairArray:
        """Return the weights of the keys of a tile."""
        return self._above(logits, tile) ** self.exponent

    def accumulate(
        self, logits: PairArray, value: ValueArray, tile: Tile, dropout: float, finite: bool
    ) -> WeightedSums:
        """Return Σ slope, and Σ w v followed by Σ slope v, of the keys of a tile."""
        xp, above = namespace(logits), self._above(logits, tile)
        slope = self._slope(above)
        sums = [
            apply_weights(apply_dropout(x, tile, dropout), value, lambda: above > 0, finite)
            for x in (above**self.exponent, slope)
        ]
        return WeightedSums(xp.sum(slope, axis=-1, keepdims=True), xp.concat(sums, axis=-1))

    def finalize(self, partial: PartialResult, tile: Tile, dropout: float) -> tuple[OutputArray, Summary]:
        """Return the output, and as the summary Σ slope v / Σ slope, whose product with do is that of the row."""
        assert isinstance(partial, WeightedSums)
        width = partial.weighted.shape[-1] // 2
        return partial.weighted[..., :width], (partial.weighted[..., width:] / nonzero(partial.total),)

    def tile_weights(self, logits: PairArray, summary: Summary, tile: Tile) -> PairArray:
        """Return the weights of the keys of a tile."""
        return self.weights(logits, tile)

    def logit_gradient(
        self,
        logits: PairArray,
        weights: PairArray,
        weight_gradient: PairArray,
        row_dot: RowArray,
        summary: Summary,
        tile: Tile,
    ) -> PairArray:
        """Return the gradient of the logits; `row_dot` is Σ slope dw / Σ slope."""
        slope = self._slope(self._above(logits, tile))
        return slope * (weight_gradient - row_dot) * (self.exponent * self.factor)

    def _above(self, logits: PairArray, tile: Tile | None) -> PairArray:
        maximum, tau = (_rows(x, tile) for x in (self.maximum, self.tau))
        out = excluded(logits)
        z = (where(out, 0.0, logits) - maximum) * self.factor - tau
        return where(out | (z < 0), 0.0, z)

    def _slope(self, above: PairArray) -> PairArray:
        return above if self.exponent == 2 else where(above > 0, 1.0, above)


def newton_step(sums: WeightedSums, power: float) -> tuple[RowArray, RowArray]:
    """Return by how much the p-norm of max(0, z − τ) of each row exceeds 1, and the Newton step of τ; 0 without keys.

    The sums are Σ slope, and Σ max(0, z − τ)^p as the first weighted value.
    """
    total = sums.weighted[..., :1]
    norm = namespace(total).sqrt(total) if power == 2 else total
    excess = where(norm > 0, norm - 1, 0.0)
    return excess, excess * (norm if power == 2 else 1) / where(sums.total > 0, sums.total, 1.0)


def _rows(x: RowArray, tile: Tile | None) -> Float[Array, "*batch rows 1"]:
    """Return the rows of a tile, also of a compiled JAX loop, whose first row is known at run time."""
    if tile is None:
        return x
    if tile.dynamic_start is None:
        return take_range(x, tile.rows)
    import jax

    rows: Array = jax.lax.dynamic_slice_in_dim(x, tile.dynamic_start[0], tile.rows[1], x.ndim - 2)
    return rows


_Task = tuple[int, str, Limits]
"""Number of the chunk of queries, batch elements as text (slices have no hash), and range of queries."""


@dataclass
class _Row:
    """Candidates and bounds of the thresholds for a range of queries.

    Attributes:
        index: index of the batch elements.
        candidates: logits of the keys that can have weight, in descending order; −inf for missing ones.
        maximum: largest logit, 0 for a row without keys.
        tau: lower bound of the threshold.
    """

    index: BatchIndex
    candidates: Tensor
    maximum: Tensor
    tau: Tensor


def find_thresholds(call: TorchCall, shards: Shards) -> list[KnownThreshold]:
    """Return, for each chunk of queries of this rank, a normalizer with the maximum and threshold of each row."""
    import torch

    power, scale = call.normalizer.power, call.normalizer.scale
    assert power is not None
    assert scale is not None
    search = _Search(call, shards, power, scale)
    with torch.no_grad():
        found = search.run()
    normalizers = []
    for number, (start, stop) in enumerate(shards.own_rows()):
        maximum, tau = (call.value.new_zeros((*call.batch, stop - start, 1)) for _ in range(2))
        for (chunk, _, rows), row in found.items():
            if chunk == number:
                take_range(take_batch(maximum, row.index, 2), rows).copy_(row.maximum)
                take_range(take_batch(tau, row.index, 2), rows).copy_(row.tau)
        normalizers.append(KnownThreshold(maximum, tau, power, scale))
    return normalizers


@dataclass
class _Search:
    """Search for the threshold of each row of the queries of this rank."""

    call: TorchCall
    shards: Shards
    power: float
    scale: float

    def run(self) -> dict[_Task, _Row]:
        """Return the maximum and threshold of each range of queries."""
        rows: dict[_Task, _Row] = {}
        overflow = self.call.value.new_zeros(())
        for task, index, logits in self._tiles():
            rows[task] = self._with_tile(rows.get(task), index, logits, overflow)
        if float(self.shards.ring.maximum(overflow)):
            self._refine(rows)
        return rows

    def _with_tile(self, row: _Row | None, index: BatchIndex, logits: Tensor, overflow: Tensor) -> _Row:
        """Return the state of a range of queries after a tile; set `overflow` to 1 if candidates had to be dropped."""
        import torch

        joint = logits if row is None else torch.cat([row.candidates, logits], dim=-1)
        highest = joint.amax(dim=-1, keepdim=True)
        maximum = highest.masked_fill(highest == -torch.inf, 0.0)
        z = (joint - maximum) * self.scale
        tau = newton_threshold(z, torch.full_like(maximum, -1.0), torch.empty_like(z), self.power)
        # The slack covers the rounding of τ, which is a lower bound otherwise; NaN is a candidate.
        slack = 16 * torch.finfo(z.dtype).eps * (1 + maximum.abs() * self.scale)
        count = int((~(z <= tau - slack)).sum(dim=-1).amax()) if z.numel() else 0
        if count > _MAX_CANDIDATES:
            count = _MAX_CANDIDATES
            overflow.fill_(1.0)
        return _Row(index, joint.topk(count, dim=-1).values, maximum, tau)

    def _refine(self, rows: dict[_Task, _Row]) -> None:
        """Improve the thresholds by Newton steps over all keys until no row of any rank changes.

        The steps approach the threshold from below, as in `kernels/runtime/sparse_weights.py`.
        """
        import torch

        eps = torch.finfo(self.call.value.dtype).eps
        for _ in range(_MAX_STEPS):
            sums: dict[_Task, WeightedSums] = {}
            for task, _, logits in self._tiles():
                above = ((logits - rows[task].maximum) * self.scale - rows[task].tau).clamp_(min=0)
                slope = above if self.power == 2 else (above > 0).to(above.dtype)
                more = WeightedSums(slope.sum(-1, keepdim=True), (above**self.power).sum(-1, keepdim=True))
                sums[task] = sums[task].merge(more) if task in sums else more
            changed = self.call.value.new_zeros(())
            for task, found in sums.items():
                excess, step = (cast("Tensor", x) for x in newton_step(found, self.power))
                if excess.numel() and float(excess.abs().amax()) > 8 * eps:
                    new = rows[task].tau + step
                    if not bool((new == rows[task].tau).all()):
                        changed.fill_(1.0)
                    rows[task].tau = new
            if not float(self.shards.ring.maximum(changed)):
                return

    def _tiles(self) -> Iterator[tuple[_Task, BatchIndex, PairTensor]]:
        """Yield task, batch elements and logits of each visible tile of this rank's queries with all keys."""
        sizes = self.shards.sizes
        for _, _, blocks in self.shards.visits(self.call, with_value=False):
            for block in blocks:
                tile = block.call.tile
                for index in batch_indices(tile.batch, sizes.batch):
                    element = block.call.select_batch(index)
                    for rows in ranges(tile.q_total, sizes.rows):
                        for cols in visible_tiles(element, rows, sizes.cols):
                            logits = element.logits(rows, cols)
                            if logits is not None:
                                yield (block.number, repr(index), rows), index, logits
