"""Expansion of Σ_h v_h tanh(a_h + b_h) over all pairs into matrix products: one division for several hidden units.

Take the units in groups of g. The sum of a group is a mean over the 2^g patterns ε of its signs,

    Σ_h v_h tanh(a_h + b_h) = Σ_ε (Σ_h v_h ε_h) p_ε / Σ_ε p_ε        p_ε = e^{ε·a} e^{ε·b}

because tanh s is the mean of ±1 under the weights e^{±s}. Numerator and denominator are inner products of 2^g numbers
of the query alone with 2^g numbers of the key alone: two matrix products and one division for g units, in place of g
evaluations of tanh. Nothing cancels in the denominator, so the error is that of rounded tanh. With g = 1 this is the
identity tanh(a + b) = 1 − 2/(1 + e^{2a} e^{2b}).

The gradient needs 1 − tanh² and tanh of each unit. Every sign is drawn twice, with sums x in {+1, 0, −1}^g:

    q_x = c_x e^{2 x·(a + b)} / (Σ_ε p_ε)²        c_x = 2^(zeros of x)
    1 − tanh² = 2 Σ_{x: x_h = 0} q_x              tanh = Σ_x x_h q_x

again matrix products, with one division for g units, and no cancellation in 1 − tanh².

Each query and each key may be scaled by a number of its own. So e^{ε·a − Σ|a|} is stored, the product of e^{−2|a_h|}
over the units where ε and a differ in sign: it is at most 1, and exact for an infinite a. The denominator Σ p can
vanish where a and b are far from 0 and of opposite sign: a group is allowed if the sum of its units' min(max|a|,
max|b|) is within a limit, an O((q + k) h) check, made after the narrower side of each unit was centred at 0
(a + c, b − c).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from typing import TYPE_CHECKING, cast

from qkv.core.typing import DType, Float, Tensor
from qkv.kernels.runtime.tile_loop import Limits
from qkv.kernels.runtime.tile_sizes import MAX_PATTERN_BYTES
from qkv.kernels.runtime.workspace import Workspace, borrow_workspace

if TYPE_CHECKING:
    import torch

__all__ = ["TanhExpansion", "expand_tanh", "expansion_limit"]


GROUP_SIZES = {1: (4, 3, 2), 2: (2, 1)}
"""Units in a group, the fastest first, for one draw of every sign (the logits) and two (their gradient)."""

STEP_BYTES = {1: 1 << 19, 2: 1 << 20}
"""Bytes of the two products of a group for some rows of a tile, for each number of draws."""


@dataclass(frozen=True)
class ExponentRange:
    """The exponents of a dtype, in bits.

    Attributes:
        spread: range of the denominator Σ p.
        drop: patterns further than this below the largest of their row are set to 0, so that no product of two is
            subnormal, which is slow. They are negligible: the patterns of a pair that matter lie within `spread` and
            the digits of the dtype.
        scale: exponent of the largest pattern.
    """

    spread: int
    drop: int
    scale: int


EXPONENT_RANGES = {4: ExponentRange(spread=80, drop=106, scale=43), 8: ExponentRange(spread=500, drop=555, scale=44)}
"""The ranges of float32 and float64, by bytes of a number."""


def expansion_limit(itemsize: int, draws: int = 2) -> float:
    """Return the largest sum of min(max|a_h|, max|b_h|) over the units of a group that can be expanded.

    Args:
        itemsize: bytes of a number.
        draws: 1 for the logits, 2 for their gradient. One unit within the limit of 2 can always be expanded.
    """
    return EXPONENT_RANGES[itemsize].spread * math.log(2) / 2 / draws


@dataclass(frozen=True, eq=False)
class RowPatterns:
    """Some rows of a tile, few enough for the cache, and their patterns.

    Args:
        limits: first row within the tile, and one past the last.
        patterns: `(groups, patterns, rows)`; with two draws each times the number of orders in which it is drawn.
        factors: left factors of the products with the keys, a matrix with one column per pattern for each group.
        zero_sums: for each group the patterns with a 0 in them, of which the gradient of a key consists.
    """

    limits: Limits
    patterns: Tensor
    factors: list[Tensor]
    zero_sums: list[Tensor]


@dataclass(frozen=True, eq=False)
class TanhExpansion:
    """Hidden units in groups, with both projections; read-only, so that threads can share it.

    Projections are not copied. Patterns are computed for the tiles that need them, except those of few keys, which
    are computed once for all tiles.

    Args:
        left: `(q, units)`, the projected queries of the call.
        right: `(k, units)`, the projected keys of the call.
        order: index of the unit in each slot of the groups, group after group; slots beyond their number hold zeros.
        filled: slots that hold a unit.
        empty: the other slots.
        centre: what is added to the left and subtracted from the right, in each slot, `(slots, 1)`.
        vector: v, `(groups, g, 1)`.
        draws: of every sign: 1 for the logits, 2 for their gradient.
        sign: the patterns, `(g, patterns)`.
    """

    left: Tensor
    right: Tensor
    order: Tensor
    filled: Tensor
    empty: list[int]
    centre: Tensor
    vector: Tensor
    draws: int
    sign: Tensor

    @property
    def group_size(self) -> int:
        """Number of units in a group."""
        return int(self.sign.shape[0])

    @cached_property
    def unit(self) -> float:
        """Power of two near max|v|: the numerator of v divided by it is in range wherever Σ p is."""
        most = float(self.vector.abs().max())
        return 2.0 ** round(math.log2(most)) if most > 0 else 1.0

    @cached_property
    def numerator_weights(self) -> Tensor:
        """Coefficient of each pattern in the numerator, `(groups, patterns, 1)`."""
        return self.sign.T @ (self.vector / self.unit)

    @cached_property
    def zero_patterns(self) -> list[int]:
        """Indices of the patterns with a 0 in them."""
        return [at for at, zeros in enumerate((self.sign == 0).sum(dim=0).tolist()) if zeros]

    @cached_property
    def key_patterns(self) -> Tensor | None:
        """Patterns of all keys, `(groups, patterns, k)`; None if they are too many to be stored."""
        numbers = len(self.vector) * self.sign.shape[1] * len(self.right)
        if numbers * self.right.element_size() > MAX_PATTERN_BYTES:
            return None
        with borrow_workspace() as workspace:
            shape = (len(self.vector), self.sign.shape[1], len(self.right))
            return self._patterns(self.right, -1, workspace, out=self.right.new_empty(shape))

    def add_logits(self, rows: Limits, cols: Limits, out: Float[Tensor, "q k"], workspace: Workspace) -> None:
        """Add the logits of a tile to `out`. The expansion must have one draw.

        Tiles with the same rows, one after the other with the same workspace, share the patterns of their rows.
        """
        import torch

        keys, width = self._tile_keys(cols, workspace), cols[1] - cols[0]
        for block in self._row_blocks(rows, width, workspace):
            target = out[slice(*block.limits)]
            count = len(target)
            fraction = workspace.take("fraction", (2 * count, width), out)
            denominator, numerator = fraction[:count], fraction[count:]
            for factor, key in zip(block.factors, keys, strict=True):
                torch.mm(factor, key, out=fraction)
                target.addcdiv_(numerator, denominator, value=self.unit)

    def add_gradient(
        self,
        rows: Limits,
        cols: Limits,
        gradient: Float[Tensor, "rows cols"],
        d_left: Float[Tensor, "q hidden"],
        d_right: Float[Tensor, "k hidden"],
        d_vector: Float[Tensor, " hidden"],
        workspace: Workspace,
    ) -> None:
        """Add the gradients of a tile, given that of its logits. The expansion must have two draws.

        With z = dL/dS / (Σp)²: Σ_j dL/dS q_x = (pattern of the query) Σ_j z (pattern of the key), and likewise over i.
        """
        import torch

        bits = EXPONENT_RANGES[gradient.element_size()]
        # Scales 1/(Σp)², between 2^−2·scale and 2^(spread − 2·scale), to numbers around 1.
        lift = 2.0 ** (2 * bits.scale - bits.spread // 2)
        keys, width = self._tile_keys(cols, workspace), cols[1] - cols[0]
        groups, patterns = len(self.vector), self.sign.shape[1]
        slope = (self.sign == 0).to(gradient.dtype) * (2 / lift)
        d_keys = workspace.take("d_keys", (groups, len(self.zero_patterns), width), gradient).zero_()
        for block in self._row_blocks(rows, width, workspace):
            start, stop = block.limits
            share = workspace.take("share", (stop - start, width), gradient)
            share_t = share.T
            lifted = workspace.take("gradient", (stop - start, width), gradient)
            torch.mul(gradient[start:stop], lift, out=lifted)
            d_rows = workspace.take("d_rows", (groups, patterns, stop - start), gradient)
            for factor, key, zero_sum, d_group_rows, d_group_keys in zip(
                block.factors, keys, block.zero_sums, d_rows, d_keys, strict=True
            ):
                torch.mm(factor, key, out=share)
                torch.div(lifted, share, out=share)
                torch.mm(key, share_t, out=d_group_rows)
                d_group_keys.addmm_(zero_sum, share)
            d_rows.mul_(block.patterns)
            self._add(self.sign / lift @ d_rows.sum(dim=-1, keepdim=True), d_vector[None])
            self._add(slope @ d_rows * self.vector, d_left[rows[0] + start : rows[0] + stop])
        for d_group_keys, key in zip(d_keys, keys, strict=True):
            d_group_keys.mul_(key[self.zero_patterns])
        self._add(slope[:, self.zero_patterns] @ d_keys * self.vector, d_right[slice(*cols)])

    def _add(self, grouped: Tensor, target: Tensor) -> None:
        """Add gradients in the order of the slots, `(groups, g, n)`, to the units of `target` `(n, h)`."""
        target.index_add_(1, self.order[self.filled], grouped.flatten(0, 1)[self.filled].T)

    def _tile_keys(self, cols: Limits, workspace: Workspace) -> list[Tensor]:
        """Return the patterns of a tile's keys for each group."""
        if self.key_patterns is None:
            side = self.right[slice(*cols)]
            shape = (len(self.vector), self.sign.shape[1], len(side))
            return list(self._patterns(side, -1, workspace, workspace.take(f"key patterns {self.draws}", shape, side)))
        name = ("keys", self.draws, *cols)
        owner, keys = cast("tuple[object, list[Tensor]]", workspace.cache.get(name, (None, [])))
        if owner is not self:
            keys = list(self.key_patterns[..., slice(*cols)])
            workspace.cache[name] = (self, keys)
        return keys

    def _row_blocks(self, rows: Limits, width: int, workspace: Workspace) -> list[RowPatterns]:
        """Return the rows of a tile with their patterns, which all tiles of these rows share."""
        step = max(16, STEP_BYTES[self.draws] // (2 * max(1, width) * self.left.element_size()))
        name = ("rows", self.draws)
        owner, blocks = cast("tuple[object, list[RowPatterns]]", workspace.cache.get(name, ((), [])))
        if owner != (self, rows, step):
            side = self.left[slice(*rows)]
            shape = (len(self.vector), self.sign.shape[1], len(side))
            patterns = self._patterns(side, 1, workspace, workspace.take(f"row patterns {self.draws}", shape, side))
            limits = [(at, min(at + step, len(side))) for at in range(0, len(side), step)]
            blocks = [self._row_block(patterns[..., slice(*some)], some, workspace) for some in limits]
            workspace.cache[name] = ((self, rows, step), blocks)
        return blocks

    def _row_block(self, patterns: Tensor, limits: Limits, workspace: Workspace) -> RowPatterns:
        import torch

        if self.draws == 2:
            return RowPatterns(limits, patterns, list(patterns.mT), list(patterns[:, self.zero_patterns]))
        groups, count, rows = patterns.shape
        fraction = workspace.take(f"factors from {limits[0]}", (groups, count, 2 * rows), patterns)
        fraction[..., :rows].copy_(patterns)
        torch.mul(patterns, self.numerator_weights, out=fraction[..., rows:])
        return RowPatterns(limits, patterns, list(fraction.mT), [])

    def _patterns(self, side: Tensor, sign: int, workspace: Workspace, out: Tensor) -> Tensor:
        """Write e^{ε·a − Σ|a|} for all sums of draws, `(n, units)` -> `(groups, patterns, n)`; the smallest are 0.

        Args:
            side: some queries or keys.
            sign: 1 for queries, −1 for keys, which are centred in the other direction. With two draws, queries count
                twice the sums that come in two orders, +− and −+.
            workspace: buffers of the worker.
            out: where to write.
        """
        import torch

        groups, size = self.vector.shape[:2]
        count = len(side)
        bits = EXPONENT_RANGES[side.element_size()]
        twice = workspace.take("twice", (groups * size, count), side)
        torch.add(side.index_select(1, self.order).T, self.centre, alpha=sign, out=twice)
        if self.empty:
            twice[self.empty] = 0
        twice = twice.mul_(2).view(groups, size, count)
        # The exponent lost by +1 where a < 0, and by −1 where a > 0. NaN stays NaN.
        loss = workspace.take("loss", (groups, size, self.draws + 1, count), side)
        torch.clamp(twice, max=0, out=loss[:, :, 0])
        torch.clamp(twice, min=0, out=loss[:, :, -1]).neg_()
        if self.draws == 2:
            loss[:, :, ::2] *= 2
            torch.abs(twice, out=loss[:, :, 1]).neg_()
        loss.exp_()
        loss[:, 0] *= 2.0**bits.scale
        if self.draws == 2 and sign == 1:
            loss[:, :, 1] *= 2
        _write_products(list(loss.unbind(1)), out)
        return torch.threshold_(out, 2.0 ** (bits.scale - bits.drop), 0.0)


def _write_products(parts: list[Tensor], out: Tensor) -> None:
    """Write all products of one number of each part, `(groups, n₁, rows)` …, with the first part slowest, to `out`."""
    import torch

    if len(parts) == 1:
        out.copy_(parts[0])
        return
    # In halves: most of the work is the last product.
    halves = []
    for half in (parts[: len(parts) // 2], parts[len(parts) // 2 :]):
        joined = half[0]
        for part in half[1:]:
            joined = (joined[:, :, None] * part[:, None]).flatten(1, 2)
        halves.append(joined)
    one, other = halves
    shape = (one.shape[0], one.shape[1], other.shape[1], one.shape[2])
    torch.mul(one[:, :, None], other[:, None], out=out.view(shape))


def expand_tanh(
    left: Float[Tensor, "q hidden"],
    right: Float[Tensor, "k hidden"],
    centre: Float[Tensor, " hidden"],
    vector: Float[Tensor, " hidden"],
    units: list[int],
    reach: list[float],
    draws: int,
) -> TanhExpansion:
    """Group hidden units as large as their range allows.

    Args:
        left: projected queries.
        right: projected keys.
        centre: what is added to the left and subtracted from the right.
        vector: v, finite at `units`.
        units: indices of the hidden units to expand.
        reach: min(max|a_h|, max|b_h|) of each of them after centring, within `expansion_limit`.
        draws: 1 for the logits, 2 for their gradient.
    """
    import torch

    size, slots = _group_units(reach, expansion_limit(left.element_size(), draws), GROUP_SIZES[draws])
    empty = [n for n, at in enumerate(slots) if at >= len(units)]
    filled = torch.tensor([n for n, at in enumerate(slots) if at < len(units)], device=left.device)
    order = torch.tensor([units[at] if at < len(units) else units[0] for at in slots], device=left.device)
    weights = vector[order]
    weights[empty] = 0
    sign = _sign_sums(size, draws, left.dtype, left.device)
    grouped = weights.reshape(len(slots) // size, size, 1)
    return TanhExpansion(left, right, order, filled, empty, centre[order][:, None], grouped, draws, sign)


@cache
def _sign_sums(size: int, draws: int, dtype: DType, device: torch.device) -> Tensor:
    """Return all sums of so many draws of each sign, `(size, patterns)`."""
    import torch

    values = [1.0, -1.0] if draws == 1 else [1.0, 0.0, -1.0]
    with torch.inference_mode(False):
        return torch.tensor(list(product(values, repeat=size)), dtype=dtype, device=device).T


def _group_units(reach: list[float], most: float, sizes: tuple[int, ...]) -> tuple[int, list[int]]:
    """Return the units in a group and the unit in each slot, wide beside narrow; indices past the last are empty."""
    for size in sizes:
        count = -(-len(reach) // size)
        extended = reach + [0.0] * (count * size - len(reach))
        ranked = sorted(range(count * size), key=lambda h: -extended[h])
        rounds = [ranked[at : at + count] for at in range(0, count * size, count)]
        groups = list(zip(*[r[::-1] if turn % 2 else r for turn, r in enumerate(rounds)], strict=True))
        if size == sizes[-1] or all(sum(extended[h] for h in group) <= most for group in groups):
            break
    return size, [h for group in groups for h in group]
