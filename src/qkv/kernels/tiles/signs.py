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
from functools import cached_property
from itertools import product
from typing import Any

from qkv.core.arrays import Array
from qkv.kernels.tiles.workers import Room

__all__ = ["TILE", "Signs", "limit", "make_signs"]

SIZES = {1: (4, 3, 2), 2: (2, 1)}
"""Units to a group, the fastest first, where signs are drawn once (the logits) and twice (their gradient)."""

TILE = 1 << 20
"""Bytes of the two products of a group: with what is added to, they stay in the second-level cache."""

WHOLE = 32 << 20
"""Bytes up to which the patterns of all keys are kept; beyond, those of a tile are made for each tile."""


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
        patterns: `(groups, patterns, rows)`.
        meeting: what meets the keys, a matrix with as many columns as there are patterns for each group.
        sloped: the patterns with a 0 in them, of which the gradient of a key is made.
    """

    limits: tuple[int, int]
    patterns: Array
    meeting: list[Array]
    sloped: list[Array]


@dataclass(frozen=True, eq=False)
class Signs:
    """Both sides in groups of hidden units: read-only, for any number of threads.

    Args:
        left: `(groups, g, q)`, centred.
        right: `(groups, g, k)`, centred.
        vector: v, `(groups, g, 1)`.
        draws: of every sign: 1 gives the logits, 2 their gradient.
        sign: the patterns, `(g, patterns)`.
        places: where in the groups each hidden unit stands, `(units,)`.
        keys: the patterns of all keys, `(groups, patterns, k)`, or None where they are made tile by tile.
    """

    left: Array
    right: Array
    vector: Array
    draws: int
    sign: Array
    places: Array
    keys: Array | None

    @cached_property
    def unit(self) -> float:
        """A power of two near max|v|: with v over it, what stands above the bar is in range where Σp is."""
        most = float(self.vector.abs().max())
        return 2.0 ** round(math.log2(most)) if most > 0 else 1.0

    @cached_property
    def sloped(self) -> list[int]:
        """The patterns with a 0 in them."""
        return [at for at, zeros in enumerate((self.sign == 0).sum(dim=0).tolist()) if zeros]

    def add_logits(self, rows: tuple[int, int], cols: tuple[int, int], out: Array, room: Room) -> None:
        """Add the logits of a tile to `out` `(rows, cols)`. One draw."""
        import torch

        keys = self._keys(cols)
        for block in self._blocks(rows, keys.shape[-1], room):
            to = out[slice(*block.limits)]
            fraction = room.take("fraction", (2 * len(to), keys.shape[-1]), out)
            below, above = fraction[: len(to)], fraction[len(to) :]
            for both, key in zip(block.meeting, keys, strict=True):
                torch.mm(both, key, out=fraction)
                to.addcdiv_(above, below, value=self.unit)

    def add_gradient(
        self, rows: tuple[int, int], cols: tuple[int, int], gradient: Array, to: tuple[Array, ...], room: Room
    ) -> None:
        """Add what a tile gives to the gradients of left `(q, h)`, right `(k, h)`, vector `(h,)`. Two draws.

        With z = dL/dS / (Σp)²: Σ_j dL/dS q_x = (pattern of the query) Σ_j z (pattern of the key); so over i.
        """
        import torch

        d_left, d_right, d_vector = to
        bits = RANGES[gradient.element_size()]
        # Makes of 1/(Σp)², between 2^−2·scale and 2^(spread − 2·scale), a number around 1.
        lift = 2.0 ** (2 * bits.scale - bits.spread // 2)
        keys = self._keys(cols)
        groups, patterns, wide = keys.shape
        slope = (self.sign == 0).to(keys.dtype) * (2 / lift)
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
            d_vector += self._ordered(self.sign / lift @ to_rows.sum(dim=-1, keepdim=True))[0]
            d_left[rows[0] + start : rows[0] + stop] += self._ordered(slope @ to_rows * self.vector)
        to_keys.mul_(keys[:, self.sloped])
        d_right[slice(*cols)] += self._ordered(slope[:, self.sloped] @ to_keys * self.vector)

    def _ordered(self, grouped: Array) -> Array:
        """From group after group `(groups, g, n)` to the order of the call, `(n, units)`."""
        return grouped.flatten(0, 1)[self.places].T

    def _keys(self, cols: tuple[int, int]) -> Array:
        if self.keys is None:
            return _patterns(self.right[..., slice(*cols)], self.draws)
        return self.keys[..., slice(*cols)]

    def _blocks(self, rows: tuple[int, int], wide: int, room: Room) -> list[Block]:
        """The rows of a tile with their patterns; they serve all tiles beside it."""
        import torch

        step = max(16, TILE // (2 * max(1, wide) * self.left.element_size()))
        seen: Any
        blocks: list[Block]
        seen, blocks = room.held.get(("blocks", self.draws), ((), []))
        if seen != (self, rows, step):
            blocks = []
            for start in range(0, rows[1] - rows[0], step):
                stop = min(start + step, rows[1] - rows[0])
                found = _patterns(self.left[..., rows[0] + start : rows[0] + stop], self.draws)
                if self.draws == 1:
                    meeting = torch.cat([found, found * (self.sign.T @ (self.vector / self.unit))], dim=-1)
                else:
                    # 0 comes in two orders, +− and −+.
                    meeting = found = found * 2.0 ** (self.sign == 0).sum(dim=0)[:, None]
                blocks.append(
                    Block((start, stop), found, list(meeting.mT.contiguous()), list(found[:, self.sloped]))
                )
            room.held["blocks", self.draws] = ((self, rows, step), blocks)
        return blocks


def _patterns(side: Array, draws: int) -> Array:
    """e^{ε·a − Σ|a|} for all sums of draws: `(groups, g, n)` -> `(groups, patterns, n)`, the far ones 0."""
    import torch

    bits = RANGES[side.element_size()]
    twice = side * 2
    # What +1 costs where a < 0, what −1 costs where a > 0. A NaN costs NaN.
    plus, minus = twice.clamp(max=0), (-twice).clamp(max=0)
    steps = [plus, minus] if draws == 1 else [plus * 2, -twice.abs(), minus * 2]
    cost = torch.stack(steps, dim=2).exp_()
    found = cost[:, 0] * 2.0**bits.scale
    for unit in range(1, side.shape[1]):
        found = (found[:, :, None] * cost[:, unit, None]).flatten(1, 2)
    return found.masked_fill_(found < 2.0 ** (bits.scale - bits.drop), 0)


def make_signs(left: Array, right: Array, vector: Array, reach: list[float], draws: int) -> Signs:
    """Groups of the largest size that the range allows.

    Args:
        left: `(h, q)`, centred.
        right: `(h, k)`, centred.
        vector: `(h,)`, finite.
        reach: min(max|a_h|, max|b_h|) of each hidden unit, each within `limit`.
        draws: 1 for the logits, 2 for their gradient.
    """
    import torch

    size, order = _groups(reach, _most(left.element_size(), draws), SIZES[draws])
    at = torch.tensor(order, device=left.device)
    more = len(order) - len(reach)
    grouped = [
        torch.nn.functional.pad(x, (0, 0, 0, more))[at].reshape(len(order) // size, size, x.shape[1])
        for x in (left, right, vector[:, None])
    ]
    values = [1.0, -1.0] if draws == 1 else [1.0, 0.0, -1.0]
    sign = torch.tensor(list(product(values, repeat=size)), dtype=left.dtype, device=left.device).T
    whole = len(order) // size * sign.shape[1] * right.shape[1] * right.element_size()
    return Signs(
        left=grouped[0],
        right=grouped[1],
        vector=grouped[2],
        draws=draws,
        sign=sign,
        places=torch.argsort(at)[: len(reach)],
        keys=_patterns(grouped[1], draws) if whole <= WHOLE else None,
    )


def _groups(reach: list[float], most: float, sizes: tuple[int, ...]) -> tuple[int, list[int]]:
    """Units to a group, and the units, group after group, wide among narrow; past the last is padding."""
    for size in sizes:
        count = -(-len(reach) // size)
        extended = reach + [0.0] * (count * size - len(reach))
        ranked = sorted(range(count * size), key=lambda h: -extended[h])
        rounds = [ranked[at : at + count] for at in range(0, count * size, count)]
        groups = list(zip(*[r[::-1] if turn % 2 else r for turn, r in enumerate(rounds)], strict=True))
        if size == sizes[-1] or all(sum(extended[h] for h in group) <= most for group in groups):
            break
    return size, [h for group in groups for h in group]
