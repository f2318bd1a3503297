"""Additive scores by tiles, for the price of matrix products: Σ_h v_h tanh(left_ih + right_jh), its gradient.

What each side contributes is prepared once. Hidden units whose range allows it go in groups of several to a
division (`signs.py`), the others by one tanh per pair and unit, which is right for every range. The choice is
a guard on data, in O((q + k) h), and `Units.says` tells how it went.

Source: Bahdanau, Cho, Bengio (2015), Neural machine translation by jointly learning to align and translate,
appendix A.1.2, https://arxiv.org/abs/1409.0473, for the score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qkv.core.typing import Tensor
from qkv.kernels.runtime.microbenchmarks import routes
from qkv.kernels.runtime.workers import Workspace
from qkv.kernels.tiled.logits.tanh_expansion import Signs, limit, make_signs

__all__ = ["Units", "gradient", "logits", "prepare"]

PLAIN = 1 << 20
"""Bytes of the hidden units of some rows of a tile, where they are taken one by one."""


@dataclass(frozen=True, eq=False)
class Plain:
    """Hidden units one by one, for any range.

    Args:
        left: `(h, q)`, times 2 where the sigmoid is taken.
        right: `(h, k)`, likewise.
        vector: `(h,)`.
        sigmoid: tanh s as 2 σ(2s) − 1, where that is faster.
        units: which hidden units of the call these are, `(h,)`, or None for all.
    """

    left: Tensor
    right: Tensor
    vector: Tensor
    sigmoid: bool
    units: Tensor | None

    def add_logits(self, rows: tuple[int, int], cols: tuple[int, int], out: Tensor, room: Workspace) -> None:
        """Add the logits of a tile to `out` `(rows, cols)`."""
        vector = self.vector * 2 if self.sigmoid else self.vector
        for start, stop, bent in self._bent(rows, cols, PLAIN, room):
            to = out[start:stop]
            to += (vector @ bent.flatten(1)).view(to.shape)
        if self.sigmoid:
            out -= self.vector.sum()

    def add_gradient(
        self,
        rows: tuple[int, int],
        cols: tuple[int, int],
        gradient: Tensor,
        to: tuple[Tensor, ...],
        room: Workspace,
    ) -> None:
        """Add what a tile contributes to the gradients of left `(q, h)`, right `(k, h)` and vector `(h,)`."""
        import torch

        d_left, d_right, d_vector = to
        ones = gradient.new_ones(max(gradient.shape))
        weight = self.vector * 4 if self.sigmoid else self.vector
        to_keys = self.right.new_zeros(len(self.right), cols[1] - cols[0])
        for start, stop, bent in self._bent(rows, cols, PLAIN // 2, room):
            part = gradient[start:stop]
            summed = bent.flatten(1) @ part.flatten()
            self._add(summed * 2 - part.sum() if self.sigmoid else summed, d_vector)
            # tanh' is 1 − t², and 4 (σ − σ²).
            square = room.take("square", bent.shape, bent)
            torch.mul(bent, bent, out=square)
            if self.sigmoid:
                torch.sub(bent, square, out=bent).mul_(part)
            else:
                torch.addcmul(part, square, part, value=-1, out=bent)
            of_rows = (bent @ ones[: bent.shape[2]]) * weight[:, None]
            self._add(of_rows.T, d_left[rows[0] + start : rows[0] + stop])
            to_keys += ones[: bent.shape[1]] @ bent
        self._add((to_keys * weight[:, None]).T, d_right[slice(*cols)])

    def _add(self, found: Tensor, target: Tensor) -> None:
        if self.units is None:
            target += found
        else:
            target.index_add_(-1, self.units, found)

    def _bent(self, rows: tuple[int, int], cols: tuple[int, int], size: int, room: Workspace) -> Any:
        """Some rows at a time, within `size` bytes: their limits, and tanh or sigmoid `(h, rows, cols)`."""
        import torch

        right = self.right[:, None, slice(*cols)]
        step = max(1, size // max(1, right.numel() * right.element_size()))
        for start in range(0, rows[1] - rows[0], step):
            stop = min(start + step, rows[1] - rows[0])
            left = self.left[:, rows[0] + start : rows[0] + stop, None]
            bent = room.take("bent", (len(left), stop - start, right.shape[2]), left)
            torch.add(left, right, out=bent)
            yield start, stop, bent.sigmoid_() if self.sigmoid else bent.tanh_()


@dataclass(frozen=True, eq=False)
class Route:
    """Some hidden units, and what computes them.

    Args:
        forward: gives the logits.
        backward: gives their gradient; None where none was asked for.
    """

    forward: Signs | Plain
    backward: Signs | Plain | None


@dataclass(frozen=True, eq=False)
class Units:
    """Both sides of an additive score, prepared: read-only, for any number of threads.

    Args:
        routes: one, or two where the range of some hidden units is too wide for exponentials.
        says: how the guard on the range went, a sentence for `seen.plan`.
    """

    routes: tuple[Route, ...]
    says: str


def prepare(left: Tensor, right: Tensor, vector: Tensor, train: bool = False) -> Units:
    """Look at the range of each hidden unit, choose a route, do the work of each side: O((q + k) h).

    Args:
        left: W₁ q + b, `(q, h)`, float32 or float64.
        right: W₂ k, `(k, h)`.
        vector: v, `(h,)`.
        train: the gradient is wanted too.

    Example:
        >>> import torch
        >>> from qkv.kernels.runtime.workers import Workspace
        >>> units = prepare(torch.tensor([[0.5], [9.0]]), torch.tensor([[-0.5], [0.5]]), torch.ones(1))
        >>> logits(units, (0, 2), (0, 2), torch.empty(2, 2), Workspace()).round(decimals=3)
        tensor([[0.0000, 0.7620],
                [1.0000, 1.0000]])
        >>> units.says
        'range of 1 of 1 hidden units within exponentials: 4 at a time'
    """
    import torch

    left, right, vector = left.detach(), right.detach(), vector.detach()
    move, reach = _centres(left, right)
    most = limit(left.element_size())
    # A NaN in v would spread in its group; what is huge would not fit above the bar.
    sound = bool((vector.abs() < 2.0**30).all())
    near = [h for h, far in enumerate(reach) if sound and far <= most]
    far = [h for h, far in enumerate(reach) if not (sound and far <= most)]
    found, said = [], []
    if near:
        some = (left, right, move, vector, near, [reach[h] for h in near])
        first = make_signs(*some, draws=1)
        found.append(Route(first, make_signs(*some, draws=2) if train else None))
        said.append(f"within exponentials: {first.sign.shape[0]} at a time")
    if far or not near:
        at = torch.tensor(far, device=left.device) if near else None
        # The sigmoid leaves Σ v to be taken off.
        sigmoid = sound and routes(left).logistic
        sides = [_pick(x.T, at).contiguous() * (2 if sigmoid else 1) for x in (left, right)]
        plain = Plain(sides[0], sides[1], _pick(vector, at), sigmoid, at)
        found.append(Route(plain, plain))
        said.append(f"beyond: {'sigmoid' if sigmoid else 'tanh'} of every pair")
    counts = [str(len(x)) for x in (near, far) if x] or ["0"]
    says = ", ".join(
        f"{count} of {len(reach)} hidden units {sentence}" for count, sentence in zip(counts, said, strict=True)
    )
    return Units(tuple(found), f"range of {says}")


def logits(units: Units, rows: tuple[int, int], cols: tuple[int, int], out: Tensor, room: Workspace) -> Tensor:
    """Write the logits of a tile to `out` `(rows, cols)`, contiguous, and return it.

    Tiles beside each other, one after the other with the same `room`, share what is made of their rows.
    """
    out.zero_()
    for route in units.routes:
        route.forward.add_logits(rows, cols, out, room)
    return out


def gradient(
    units: Units,
    rows: tuple[int, int],
    cols: tuple[int, int],
    d_logits: Tensor,
    to: tuple[Tensor, Tensor, Tensor],
    room: Workspace,
) -> None:
    """Add what a tile contributes to the gradients of left `(q, h)`, right `(k, h)` and vector `(h,)`.

        dL/da_ih = v_h Σ_j dL/dS_ij (1 − tanh²)    dL/db_jh likewise over i    dL/dv_h = Σ_ij dL/dS_ij tanh

    Args:
        units: prepared with `train=True`.
        rows: first query of the tile, and the one after the last.
        cols: the same of its keys.
        d_logits: dL/dS of the tile, `(rows, cols)`.
        to: gradients of left, right and vector of the whole call; added to.
        room: buffers.
    """
    for route in units.routes:
        assert route.backward is not None, "prepare(…, train=True) first"
        route.backward.add_gradient(rows, cols, d_logits, to, room)


def _pick(array: Tensor, units: Tensor | None) -> Tensor:
    return array if units is None else array[units]


def _centres(left: Tensor, right: Tensor) -> tuple[Tensor, list[float]]:
    """What to add to left and take from right, and min(max|left|, max|right|) of each unit after that."""
    import torch

    middles, halves = [], []
    for side in (left, right):
        if not side.shape[0]:
            middles.append(side.new_zeros(side.shape[1]))
            halves.append(side.new_zeros(side.shape[1]))
            continue
        low, high = torch.aminmax(side, dim=0)
        if bool((low + high).isnan().any()):  # the others keep their range beside a NaN
            known = side.masked_fill(side.isnan(), 0)
            low, high = torch.aminmax(known, dim=0)
        # Whole numbers, which a small number can be moved by and keep its digits.
        middle = ((low + high) / 2).round().nan_to_num(0.0, 0.0, 0.0)
        middles.append(middle)
        halves.append(torch.maximum(high - middle, middle - low))
    narrow = halves[1] <= halves[0]
    move = torch.where(narrow, middles[1], -middles[0])
    return move, torch.where(narrow, halves[1], halves[0]).tolist()
