"""Σ_h v_h tanh(a_h + b_h) of all pairs by matrix products: one division for several hidden units.

Take units in groups of g. The sum of a group is a mean over the 2^g patterns ε of its signs,

    Σ_h v_h tanh(a_h + b_h) = Σ_ε (Σ_h v_h ε_h) p_ε / Σ_ε p_ε        p_ε = e^{ε·a} e^{ε·b}

because tanh s is the mean of ±1 under the weights e^{±s}. Above and below the bar stand inner products of 2^g
numbers of the query alone with 2^g numbers of the key alone: two matrix products and one division for g
units, where tanh would be taken g times. Nothing cancels below the bar: the error is that of rounded tanh.
With g = 1 this is the identity tanh(a + b) = 1 − 2/(1 + e^{2a} e^{2b}).

The gradient needs 1 − tanh² and tanh of each unit. Every sign is drawn twice, with sums x in {+1, 0, −1}^g:

    q_x = c_x e^{2 x·(a + b)} / (Σ_ε p_ε)²        c_x = 2^(zeros of x)
    1 − tanh² = 2 Σ_{x: x_h = 0} q_x              tanh = Σ_x x_h q_x

again matrix products, with one division for g units, and no cancellation in 1 − tanh².

Each query may be scaled by itself, and each key. So what is kept is e^{ε·a − Σ|a|}, the product of
e^{−2|a_h|} over the units where ε and a differ in sign: at most 1, and right for an infinite a. What can
vanish is Σ p, where a and b are far from 0 and of opposite sign: a group may stand where the sum of its
units' min(max|a|, max|b|) is within a limit, an O((q + k) h) check, made after the narrower side of each unit
was moved to 0 (a + c, b − c).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from typing import Any

from qkv.core.typing import Tensor
from qkv.kernels.runtime.tile_sizes import MAX_PATTERN_BYTES
from qkv.kernels.runtime.workers import Workspace, borrow_workspace

__all__ = ["TILE", "Signs", "limit", "make_signs"]

SIZES = {1: (4, 3, 2), 2: (2, 1)}
"""Units to a group, the fastest first, where signs are drawn once (the logits) and twice (their gradient)."""

TILE = {1: 1 << 19, 2: 1 << 20}
"""Bytes of the two products of a group, for each number of draws; what they are added to is half as large."""


@dataclass(frozen=True)
class Range:
    """How the exponents of a dtype are spent, in bits.

    A pattern more than `drop` below the largest of its row is set to 0, so that no product of two is
    subnormal, which is slow. It may be: what counts in a pair is within `spread` and the digits of the dtype.
    """

    spread: int
    drop: int
    scale: int


RANGES = {4: Range(spread=80, drop=106, scale=43), 8: Range(spread=500, drop=555, scale=44)}


def limit(itemsize: int) -> float:
    """The largest min(max|a_h|, max|b_h|) of a unit whose gradient fits, for numbers of so many bytes."""
    return _most(itemsize, 2)


def _most(itemsize: int, draws: int) -> float:
    return RANGES[itemsize].spread * math.log(2) / 2 / draws


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows of a tile, few enough for the cache, and their patterns.

    Args:
        limits: first row within the tile, and the one after the last.
        patterns: `(groups, patterns, rows)`; with two draws each times the orders in which it comes.
        meeting: what meets the keys, for each group a matrix with as many columns as there are patterns.
        sloped: for each group the patterns with a 0 in them, of which the gradient of a key is made.
    """

    limits: tuple[int, int]
    patterns: Tensor
    meeting: list[Tensor]
    sloped: list[Tensor]


@dataclass(frozen=True, eq=False)
class Signs:
    """Both sides and how their hidden units are grouped: read-only, for any number of threads.

    Nothing of the length of a side is copied but the patterns of the keys, where they are few: what is made
    of queries and keys is made for the tiles that want it.

    Args:
        left: `(q, units)`, the call's own.
        right: `(k, units)`, likewise.
        order: which unit stands at each place of the groups, group after group; places beyond their number
            hold zeros.
        filled: the places that hold a unit; the others are `empty`.
        move: what is added to the left and taken from the right, at each place, `(places, 1)`.
        vector: v, `(groups, g, 1)`.
        draws: of every sign: 1 gives the logits, 2 their gradient.
        sign: the patterns, `(g, patterns)`.
    """

    left: Tensor
    right: Tensor
    order: Tensor
    filled: Tensor
    empty: list[int]
    move: Tensor
    vector: Tensor
    draws: int
    sign: Tensor

    @cached_property
    def unit(self) -> float:
        """A power of two near max|v|: with v over it, what stands above the bar is in range where Σp is."""
        most = float(self.vector.abs().max())
        return 2.0 ** round(math.log2(most)) if most > 0 else 1.0

    @cached_property
    def above(self) -> Tensor:
        """What each pattern counts above the bar, `(groups, patterns, 1)`."""
        return self.sign.T @ (self.vector / self.unit)

    @cached_property
    def sloped(self) -> list[int]:
        """The patterns with a 0 in them."""
        return [at for at, zeros in enumerate((self.sign == 0).sum(dim=0).tolist()) if zeros]

    @cached_property
    def keys(self) -> Tensor | None:
        """The patterns of all keys, `(groups, patterns, k)`; None where they are many: then tile by tile."""
        numbers = len(self.vector) * self.sign.shape[1] * len(self.right)
        if numbers * self.right.element_size() > MAX_PATTERN_BYTES:
            return None
        with borrow_workspace() as room:
            shape = (len(self.vector), self.sign.shape[1], len(self.right))
            return self._patterns(self.right, -1, room, out=self.right.new_empty(shape))

    def add_logits(self, rows: tuple[int, int], cols: tuple[int, int], out: Tensor, room: Workspace) -> None:
        """Add the logits of a tile to `out` `(rows, cols)`. One draw."""
        import torch

        keys, wide = self._keys(cols, room), cols[1] - cols[0]
        for block in self._blocks(rows, wide, room):
            to = out[slice(*block.limits)]
            many = len(to)
            fraction = room.take("fraction", (2 * many, wide), out)
            below, above = fraction[:many], fraction[many:]
            for both, key in zip(block.meeting, keys, strict=True):
                torch.mm(both, key, out=fraction)
                to.addcdiv_(above, below, value=self.unit)

    def add_gradient(
        self,
        rows: tuple[int, int],
        cols: tuple[int, int],
        gradient: Tensor,
        to: tuple[Tensor, ...],
        room: Workspace,
    ) -> None:
        """Add what a tile gives to the gradients of left `(q, h)`, right `(k, h)`, vector `(h,)`. Two draws.

        With z = dL/dS / (Σp)²: Σ_j dL/dS q_x = (pattern of the query) Σ_j z (pattern of the key); so over i.
        """
        import torch

        d_left, d_right, d_vector = to
        bits = RANGES[gradient.element_size()]
        # Makes of 1/(Σp)², between 2^−2·scale and 2^(spread − 2·scale), a number around 1.
        lift = 2.0 ** (2 * bits.scale - bits.spread // 2)
        keys, wide = self._keys(cols, room), cols[1] - cols[0]
        groups, patterns = len(self.vector), self.sign.shape[1]
        slope = (self.sign == 0).to(gradient.dtype) * (2 / lift)
        to_keys = room.take("to_keys", (groups, len(self.sloped), wide), gradient).zero_()
        for block in self._blocks(rows, wide, room):
            start, stop = block.limits
            share = room.take("share", (stop - start, wide), gradient)
            turned = share.T
            lifted = room.take("gradient", (stop - start, wide), gradient)
            torch.mul(gradient[start:stop], lift, out=lifted)
            to_rows = room.take("to_rows", (groups, patterns, stop - start), gradient)
            for left, key, row, at_rows, at_keys in zip(
                block.meeting, keys, block.sloped, to_rows, to_keys, strict=True
            ):
                torch.mm(left, key, out=share)
                torch.div(lifted, share, out=share)
                torch.mm(key, turned, out=at_rows)
                at_keys.addmm_(row, share)
            to_rows.mul_(block.patterns)
            of_vector = self.sign / lift @ to_rows.sum(dim=-1, keepdim=True)
            self._add(of_vector, d_vector[None])
            self._add(slope @ to_rows * self.vector, d_left[rows[0] + start : rows[0] + stop])
        for at, key in zip(to_keys, keys, strict=True):
            at.mul_(key[self.sloped])
        self._add(slope[:, self.sloped] @ to_keys * self.vector, d_right[slice(*cols)])

    def _add(self, grouped: Tensor, target: Tensor) -> None:
        """Add what stands group after group, `(groups, g, n)`, to the units of `target` `(n, h)`."""
        target.index_add_(1, self.order[self.filled], grouped.flatten(0, 1)[self.filled].T)

    def _keys(self, cols: tuple[int, int], room: Workspace) -> list[Tensor]:
        """The patterns of the keys of a tile, for each group."""
        if self.keys is None:
            side = self.right[slice(*cols)]
            shape = (len(self.vector), self.sign.shape[1], len(side))
            return list(self._patterns(side, -1, room, out=room.take(f"patterns {self.draws}", shape, side)))
        name = ("keys", self.draws, *cols)
        seen: Any
        found: list[Tensor]
        seen, found = room.held.get(name, (None, []))
        if seen is not self:
            found = list(self.keys[..., slice(*cols)])
            room.held[name] = (self, found)
        return found

    def _blocks(self, rows: tuple[int, int], wide: int, room: Workspace) -> list[Block]:
        """The rows of a tile with their patterns; they serve all tiles beside it."""
        step = max(16, TILE[self.draws] // (2 * max(1, wide) * self.left.element_size()))
        seen: Any
        blocks: list[Block]
        seen, blocks = room.held.get(("blocks", self.draws), ((), []))
        if seen != (self, rows, step):
            side = self.left[slice(*rows)]
            shape = (len(self.vector), self.sign.shape[1], len(side))
            every = self._patterns(side, 1, room, out=room.take(f"rows {self.draws}", shape, side))
            limits = [(at, min(at + step, len(side))) for at in range(0, len(side), step)]
            blocks = [self._block(every[..., slice(*some)], some, room) for some in limits]
            room.held["blocks", self.draws] = ((self, rows, step), blocks)
        return blocks

    def _block(self, patterns: Tensor, limits: tuple[int, int], room: Workspace) -> Block:
        import torch

        if self.draws == 2:
            return Block(limits, patterns, list(patterns.mT), list(patterns[:, self.sloped]))
        groups, many, rows = patterns.shape
        both = room.take(f"rows from {limits[0]}", (groups, many, 2 * rows), patterns)
        both[..., :rows].copy_(patterns)
        torch.mul(patterns, self.above, out=both[..., rows:])
        return Block(limits, patterns, list(both.mT), [])

    def _patterns(self, side: Tensor, turn: int, room: Workspace, out: Tensor) -> Tensor:
        """e^{ε·a − Σ|a|} for all sums of draws: `(n, units)` -> `(groups, patterns, n)`, the far ones 0.

        Args:
            side: some queries or keys.
            turn: 1 for queries, −1 for keys, which are moved the other way. Of two draws queries count those
                that come in two orders, +− and −+, twice.
            room: where buffers are kept.
            out: where to write.
        """
        import torch

        groups, size = self.vector.shape[:2]
        many = len(side)
        bits = RANGES[side.element_size()]
        twice = room.take("twice", (groups * size, many), side)
        torch.add(side.index_select(1, self.order).T, self.move, alpha=turn, out=twice)
        if self.empty:
            twice[self.empty] = 0
        twice = twice.mul_(2).view(groups, size, many)
        # What +1 costs where a < 0, what −1 costs where a > 0. A NaN costs NaN.
        cost = room.take("cost", (groups, size, self.draws + 1, many), side)
        torch.clamp(twice, max=0, out=cost[:, :, 0])
        torch.clamp(twice, min=0, out=cost[:, :, -1]).neg_()
        if self.draws == 2:
            cost[:, :, ::2] *= 2
            torch.abs(twice, out=cost[:, :, 1]).neg_()
        cost.exp_()
        cost[:, 0] *= 2.0**bits.scale
        if self.draws == 2 and turn == 1:
            cost[:, :, 1] *= 2
        _products(list(cost.unbind(1)), out)
        return torch.threshold_(out, 2.0 ** (bits.scale - bits.drop), 0.0)


def _products(parts: list[Tensor], out: Tensor) -> None:
    """All products of one number of each part, `(groups, n₁, rows)` …, the first part slowest, into `out`."""
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
    torch.mul(one[:, :, None], other[:, None], out=out.unflatten(1, shape[1:3]))


def make_signs(
    left: Tensor,
    right: Tensor,
    move: Tensor,
    vector: Tensor,
    units: list[int],
    reach: list[float],
    draws: int,
) -> Signs:
    """Groups of the largest size that the range allows.

    Args:
        left: `(q, h)`.
        right: `(k, h)`.
        move: what centres them, added to the left and taken from the right, `(h,)`.
        vector: `(h,)`.
        units: the hidden units to take; the vector is finite there.
        reach: min(max|a_h|, max|b_h|) of each of them, centred, within `limit`.
        draws: 1 for the logits, 2 for their gradient.
    """
    import torch

    size, placed = _groups(reach, _most(left.element_size(), draws), SIZES[draws])
    empty = [n for n, at in enumerate(placed) if at >= len(units)]
    filled = torch.tensor([n for n, at in enumerate(placed) if at < len(units)], device=left.device)
    order = torch.tensor([units[at] if at < len(units) else units[0] for at in placed], device=left.device)
    counts = vector[order]
    counts[empty] = 0
    sign = _sums_of_signs(size, draws, left.dtype, left.device)
    grouped = counts.reshape(len(placed) // size, size, 1)
    return Signs(left, right, order, filled, empty, move[order][:, None], grouped, draws, sign)


@cache
def _sums_of_signs(size: int, draws: int, dtype: Any, device: Any) -> Tensor:
    """All that so many draws of each sign can add up to, `(size, patterns)`."""
    import torch

    values = [1.0, -1.0] if draws == 1 else [1.0, 0.0, -1.0]
    with torch.inference_mode(False):
        return torch.tensor(list(product(values, repeat=size)), dtype=dtype, device=device).T


def _groups(reach: list[float], most: float, sizes: tuple[int, ...]) -> tuple[int, list[int]]:
    """Units to a group, and the unit at each place, wide among narrow; a number past the last: none."""
    for size in sizes:
        count = -(-len(reach) // size)
        extended = reach + [0.0] * (count * size - len(reach))
        ranked = sorted(range(count * size), key=lambda h: -extended[h])
        rounds = [ranked[at : at + count] for at in range(0, count * size, count)]
        groups = list(zip(*[r[::-1] if turn % 2 else r for turn, r in enumerate(rounds)], strict=True))
        if size == sizes[-1] or all(sum(extended[h] for h in group) <= most for group in groups):
            break
    return size, [h for group in groups for h in group]
