"""Computation of Σ_h v_h tanh(a_h + b_h) for all pairs by matrix products and few divisions.

The hidden units are divided into groups of g units. The sum over a group is a mean over the 2^g sign patterns ε,

    Σ_h v_h tanh(a_h + b_h) = Σ_ε (Σ_h v_h ε_h) p_ε / Σ_ε p_ε        p_ε = e^{ε·a} e^{ε·b}

because tanh s is the mean of ±1 with weights e^{±s}. Numerator and denominator are inner products of 2^g elements that
depend on the query alone with 2^g elements that depend on the key alone. Two matrix products and one division replace g
evaluations of tanh. The terms of the denominator are positive, so no precision is lost by cancellation, and the error
is that of a rounded tanh. For g = 1 this is the identity tanh(a + b) = 1 − 2/(1 + e^{2a} e^{2b}).

The gradient needs 1 − tanh² and tanh of each unit. Each unit then has two sign variables, whose sums divided by 2 are
patterns x in {+1, 0, −1}^g:

    q_x = c_x e^{2 x·(a + b)} / (Σ_ε p_ε)²        c_x = 2^(zeros of x)
    1 − tanh² = 2 Σ_{x: x_h = 0} q_x              tanh = Σ_x x_h q_x

These are matrix products too, with one division for g units and without cancellation in 1 − tanh².

Patterns of a query or a key may be multiplied by any factor, which cancels in the quotient. The stored pattern is
e^{ε·a − Σ|a|}, the product of e^{−2|a_h|} over the units where ε and a differ in sign: it is at most 1, and exact for
an infinite a. The denominator Σ p can underflow if a and b are far from 0 and of opposite sign. A group is therefore
expanded only if the sum of min(max|a|, max|b|) over its units is within a limit, which is an O((q + k) h) check after
the narrower of a and b was centered at 0 for each unit (a + c, b − c).
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
"""Numbers of units in a group, the fastest first, for 1 sign variable per unit (logits) and 2 (gradients)."""

STEP_BYTES = {1: 1 << 19, 2: 1 << 20}
"""Largest size in bytes of the matrix products of a group that are computed at once, by sign variables per unit."""


@dataclass(frozen=True)
class _ExponentRange:
    """Limits on the binary exponents of the numbers in a tanh sign expansion, for a floating-point dtype.

    Attributes:
        spread: largest range of the exponent of the denominator Σ p.
        drop: distance of exponents from the largest pattern of a row, beyond which a pattern is set to 0. Otherwise
            products of two patterns could be subnormal, which is slow. Such patterns are negligible, because they are
            smaller than the denominator by more than the precision of the dtype.
        scale: exponent of the largest pattern.
    """

    spread: int
    drop: int
    scale: int


_EXPONENT_RANGES = {4: _ExponentRange(spread=80, drop=106, scale=43), 8: _ExponentRange(spread=500, drop=555, scale=44)}
"""Exponent ranges of float32 and float64, by the bytes of an element."""


def expansion_limit(itemsize: int, draws: int = 2) -> float:
    """Return the largest sum of min(max|a_h|, max|b_h|) over a group of hidden units that can be expanded.

    a_h and b_h are the projections of the queries and of the keys.

    Args:
        itemsize: bytes of an element.
        draws: number of sign variables per unit: 1 for logits, 2 for gradients. A single unit within the limit for 2
            can always be expanded.
    """
    return _EXPONENT_RANGES[itemsize].spread * math.log(2) / 2 / draws


@dataclass(frozen=True, eq=False)
class _RowPatterns:
    """Exponentials of all sign patterns for a block of rows that is small enough for the processor cache.

    Args:
        limits: range of the rows within the tile.
        patterns: patterns `(groups, patterns, rows)`. With two sign variables per unit, each is multiplied by its
            multiplicity c_x.
        factors: for each group, the left factor of the matrix product with the patterns of the keys.
        zero_sums: for each group, the patterns in which a unit has the mean 0, from which gradients are computed.
    """

    limits: Limits
    patterns: Tensor
    factors: list[Tensor]
    zero_sums: list[Tensor]


@dataclass(frozen=True, eq=False)
class TanhExpansion:
    """Tanh sign expansion of groups of hidden units of an additive score.

    The object is immutable and can be shared by threads.

    Projections are not copied. Patterns are computed per tile, except that the patterns of few keys are computed once
    for all tiles.

    Args:
        left: projected queries of the call, `(q, units)`.
        right: projected keys of the call, `(k, units)`.
        order: index of the unit in each slot, group after group. A group has g slots, of which some may be empty.
        filled: indices of the slots that hold a unit.
        empty: indices of the empty slots.
        center: shift of each slot, `(slots, 1)`, which is added to `left` and subtracted from `right`.
        vector: vector v of the score by slots, `(groups, g, 1)`, 0 in empty slots.
        draws: number of sign variables per unit: 1 for logits, 2 for gradients.
        sign: mean of the sign variables of each unit in each pattern, `(g, patterns)`.
    """

    left: Tensor
    right: Tensor
    order: Tensor
    filled: Tensor
    empty: list[int]
    center: Tensor
    vector: Tensor
    draws: int
    sign: Tensor

    @property
    def group_size(self) -> int:
        """Number of hidden units in a group."""
        return int(self.sign.shape[0])

    @cached_property
    def numerator_scale(self) -> float:
        """Power of two near max|v|. The vector v is divided by it so that the numerator does not overflow."""
        most = float(self.vector.abs().max())
        return 2.0 ** round(math.log2(most)) if most > 0 else 1.0

    @cached_property
    def numerator_weights(self) -> Float[Tensor, "groups patterns 1"]:
        """Coefficients of the sign patterns in the numerator."""
        return self.sign.T @ (self.vector / self.numerator_scale)

    @cached_property
    def zero_patterns(self) -> list[int]:
        """Indices of the patterns in which the sign variables of a hidden unit have the mean 0."""
        return [at for at, zeros in enumerate((self.sign == 0).sum(dim=0).tolist()) if zeros]

    @cached_property
    def key_patterns(self) -> Float[Tensor, "groups patterns k"] | None:
        """Exponentials of the sign patterns of all keys, or None if they are too large.

        The largest size is `MAX_PATTERN_BYTES`.
        """
        numbers = len(self.vector) * self.sign.shape[1] * len(self.right)
        if numbers * self.right.element_size() > MAX_PATTERN_BYTES:
            return None
        with borrow_workspace() as workspace:
            shape = (len(self.vector), self.sign.shape[1], len(self.right))
            return self._patterns(self.right, -1, workspace, out=self.right.new_empty(shape))

    def add_logits(self, rows: Limits, cols: Limits, out: Float[Tensor, "q k"], workspace: Workspace) -> None:
        """Add the sum of v_h tanh(a_h + b_h) over the expanded hidden units to the logits `out` of a tile.

        The expansion must have 1 sign variable per unit. Consecutive tiles of the same rows and workspace share the
        patterns of these rows.
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
                target.addcdiv_(numerator, denominator, value=self.numerator_scale)

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
        """Add the gradients of a tile to `d_left`, `d_right` and `d_vector`, in place.

        The expansion must have 2 sign variables per unit. With z = dL/dS / (Σp)², sums over the keys factor into
        Σ_j dL/dS q_x = (pattern of the query) · Σ_j z · (pattern of the key), and sums over the queries likewise.
        """
        import torch

        bits = _EXPONENT_RANGES[gradient.element_size()]
        # Scale 1/(Σp)², which is between 2^(−2·scale) and 2^(spread − 2·scale), to magnitudes around 1.
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

    def _add(self, grouped: Float[Tensor, "groups g n"], target: Float[Tensor, "n hidden"]) -> None:
        """Add gradients ordered by slots to `target`, whose columns are ordered by hidden units."""
        target.index_add_(1, self.order[self.filled], grouped.flatten(0, 1)[self.filled].T)

    def _tile_keys(self, cols: Limits, workspace: Workspace) -> list[Float[Tensor, "patterns k"]]:
        """Return the exponentials of the sign patterns of a range of keys, one array for each group."""
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

    def _row_blocks(self, rows: Limits, width: int, workspace: Workspace) -> list[_RowPatterns]:
        """Return the exponentials of the sign patterns of a range of queries, in blocks that fit the cache.

        The next tile with the same queries uses the same blocks.
        """
        step = max(16, STEP_BYTES[self.draws] // (2 * max(1, width) * self.left.element_size()))
        name = ("rows", self.draws)
        owner, blocks = cast("tuple[object, list[_RowPatterns]]", workspace.cache.get(name, ((), [])))
        if owner != (self, rows, step):
            side = self.left[slice(*rows)]
            shape = (len(self.vector), self.sign.shape[1], len(side))
            patterns = self._patterns(side, 1, workspace, workspace.take(f"row patterns {self.draws}", shape, side))
            limits = [(at, min(at + step, len(side))) for at in range(0, len(side), step)]
            blocks = [self._row_block(patterns[..., slice(*some)], some, workspace) for some in limits]
            workspace.cache[name] = ((self, rows, step), blocks)
        return blocks

    def _row_block(
        self, patterns: Float[Tensor, "groups patterns rows"], limits: Limits, workspace: Workspace
    ) -> _RowPatterns:
        import torch

        if self.draws == 2:
            return _RowPatterns(limits, patterns, list(patterns.mT), list(patterns[:, self.zero_patterns]))
        groups, count, rows = patterns.shape
        fraction = workspace.take(f"factors from {limits[0]}", (groups, count, 2 * rows), patterns)
        fraction[..., :rows].copy_(patterns)
        torch.mul(patterns, self.numerator_weights, out=fraction[..., rows:])
        return _RowPatterns(limits, patterns, list(fraction.mT), [])

    def _patterns(
        self,
        side: Float[Tensor, "n hidden"],
        sign: int,
        workspace: Workspace,
        out: Float[Tensor, "groups patterns n"],
    ) -> Float[Tensor, "groups patterns n"]:
        """Compute e^{ε·a − Σ|a|} for projections a and all sign patterns ε, and set negligible elements to 0.

        Args:
            side: projected queries or keys.
            sign: 1 for queries, −1 for keys, to which the opposite shift is applied. With two sign variables per unit,
                the patterns of queries are multiplied by the multiplicity c_x.
            workspace: buffers of the worker.
            out: output array, which is returned.
        """
        import torch

        groups, size = self.vector.shape[:2]
        count = len(side)
        bits = _EXPONENT_RANGES[side.element_size()]
        twice = workspace.take("twice", (groups * size, count), side)
        torch.add(side.index_select(1, self.order).T, self.center, alpha=sign, out=twice)
        if self.empty:
            twice[self.empty] = 0
        twice = twice.mul_(2).view(groups, size, count)
        # The exponent is reduced where the sign ε of a unit differs from the sign of a. NaN is preserved.
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


def _write_products(parts: list[Float[Tensor, "groups _ rows"]], out: Float[Tensor, "groups patterns rows"]) -> None:
    """Write the outer products of arrays along their second axes to `out`.

    The products are in row-major order.
    """
    import torch

    if len(parts) == 1:
        out.copy_(parts[0])
        return
    # Multiply the parts in two halves, so that the last product dominates the work.
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
    center: Float[Tensor, " hidden"],
    vector: Float[Tensor, " hidden"],
    units: list[int],
    half_ranges: list[float],
    draws: int,
) -> TanhExpansion:
    """Return the tanh sign expansion of hidden units, in groups as large as their ranges allow.

    Args:
        left: projected queries.
        right: projected keys.
        center: shift of each unit, which is added to `left` and subtracted from `right`.
        vector: vector v of the score, which must be finite at `units`.
        units: indices of the hidden units to expand.
        half_ranges: min(max|a_h|, max|b_h|) of each of these units after centering, within `expansion_limit`.
        draws: number of sign variables per unit: 1 for logits, 2 for gradients.
    """
    import torch

    size, slots = _group_units(half_ranges, expansion_limit(left.element_size(), draws), GROUP_SIZES[draws])
    empty = [n for n, at in enumerate(slots) if at >= len(units)]
    filled = torch.tensor([n for n, at in enumerate(slots) if at < len(units)], device=left.device)
    order = torch.tensor([units[at] if at < len(units) else units[0] for at in slots], device=left.device)
    weights = vector[order]
    weights[empty] = 0
    sign = _sign_means(size, draws, left.dtype, left.device)
    grouped = weights.reshape(len(slots) // size, size, 1)
    return TanhExpansion(left, right, order, filled, empty, center[order][:, None], grouped, draws, sign)


@cache
def _sign_means(size: int, draws: int, dtype: DType, device: torch.device) -> Float[Tensor, "size patterns"]:
    """Return all combinations of means of `draws` sign variables for `size` hidden units."""
    import torch

    values = [1.0, -1.0] if draws == 1 else [1.0, 0.0, -1.0]
    with torch.inference_mode(False):
        return torch.tensor(list(product(values, repeat=size)), dtype=dtype, device=device).T


def _group_units(half_ranges: list[float], most: float, sizes: tuple[int, ...]) -> tuple[int, list[int]]:
    """Return the group size and the hidden unit in each slot. Units of large and small range share a group.

    Indices beyond the number of units denote empty slots.
    """
    for size in sizes:
        count = -(-len(half_ranges) // size)
        extended = half_ranges + [0.0] * (count * size - len(half_ranges))
        ranked = sorted(range(count * size), key=lambda h: -extended[h])
        rounds = [ranked[at : at + count] for at in range(0, count * size, count)]
        groups = list(zip(*[r[::-1] if turn % 2 else r for turn, r in enumerate(rounds)], strict=True))
        if size == sizes[-1] or all(sum(extended[h] for h in group) <= most for group in groups):
            break
    return size, [h for group in groups for h in group]
