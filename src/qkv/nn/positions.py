"""Where a token stands, told to a model: sinusoidal, learned and rotary positions (mission C14).

Attention by itself does not know an order: permute keys and values alike and nothing changes. A position is
added to each token (`Sinusoidal`, `Learned`), or turns query and key so that their product depends on how
far apart they are (`Rotary`). Scores that look at distances (`scores.ALiBi`, `scores.RelativePosition`) are
the other way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from qkv.errors import KindError, OptionError, ShapeError

__all__ = ["Learned", "Rotary", "Sinusoidal", "sinusoidal_table", "position_ids"]


def sinusoidal_table(length: int, width: int, *, start: int = 0, base: float = 10_000.0) -> Tensor:
    """The table of sines and cosines, `(length, width)`, float64.

        table[p, 2i] = sin(p / base^(2i / width))        table[p, 2i + 1] = cos(p / base^(2i / width))

    Position p + d is a rotation of position p that depends on d alone.

    Args:
        length: how many positions.
        width: of a token; an odd one ends with a sine.
        start: the first position.
        base: wave lengths go from 2π to base · 2π.

    Raises:
        OptionError: a length, width or base that is not positive.

    Source: Vaswani et al. (2017), Attention is all you need, section 3.5, https://arxiv.org/abs/1706.03762.

    Example:
        >>> sinusoidal_table(3, 4).round(decimals=4)
        tensor([[ 0.0000,  1.0000,  0.0000,  1.0000],
                [ 0.8415,  0.5403,  0.0100,  1.0000],
                [ 0.9093, -0.4161,  0.0200,  0.9998]], dtype=torch.float64)
    """
    _whole("sinusoidal_table", "length", length, 0)
    return _waves(torch.arange(start, start + length), width, base)


def position_ids(start: Tensor, length: int) -> Tensor:
    """Positions `(*batch, length)` of tokens that follow each other, from the first of each batch element.

    Example:
        >>> position_ids(torch.tensor([0, 5]), 3)
        tensor([[0, 1, 2],
                [5, 6, 7]])
    """
    return start[..., None] + torch.arange(length, device=start.device)


class Sinusoidal(nn.Module):
    """Adds the table of sines and cosines to tokens; it has no parameters and no longest length.

    Args:
        width: of a token.
        length: how many positions are kept; tokens beyond it get theirs computed at each call.
        base: as in `sinusoidal_table`.

    Shapes:
        x `(*batch, n, width)` -> `(*batch, n, width)`

    Raises:
        ShapeError: tokens of another width.

    Source: as `sinusoidal_table`.

    Example:
        >>> add = Sinusoidal(4)
        >>> add(torch.zeros(1, 2, 4)).round(decimals=4)
        tensor([[[0.0000, 1.0000, 0.0000, 1.0000],
                 [0.8415, 0.5403, 0.0100, 1.0000]]])
        >>> bool((add(torch.zeros(1, 1, 4), positions=1) == add(torch.zeros(1, 2, 4))[:, 1:]).all())
        True
    """

    table: Tensor

    def __init__(self, width: int, length: int = 1024, *, base: float = 10_000.0) -> None:
        super().__init__()
        self.width, self.base = width, base
        # Not in the state: it is the same for everyone, and its length is a matter of speed alone.
        self.register_buffer("table", sinusoidal_table(length, width, base=base).float(), persistent=False)

    def reset_parameters(self) -> None:
        """Make the table again, where it was made on the meta device."""
        waves = _waves(torch.arange(self.table.shape[0], device=self.table.device), self.width, self.base)
        self.table.copy_(waves)

    def forward(self, x: Tensor, positions: int | Tensor = 0) -> Tensor:
        """x + table[positions]

        Args:
            x: tokens.
            positions: of the first token, those after it follow; or integers `(n,)` or `(*batch, n)`.
        """
        _width("Sinusoidal", x, self.width)
        if isinstance(positions, int) and x.dtype in _KEPT:
            stop = positions + x.shape[-2]
            if positions >= 0 and stop <= self.table.shape[0]:
                return x + self.table[positions:stop].to(x.dtype)
        return x + _waves(_placed(x, positions), self.width, self.base).to(x.dtype)

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"width={self.width}, base={self.base:g}"


_KEPT = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes for which the table is kept finely enough."""


class Learned(nn.Module):
    """Adds a learned vector for each position.

    Args:
        length: how many positions there are.
        width: of a token.
        device, dtype: of the table.

    Shapes:
        x `(*batch, n, width)` -> `(*batch, n, width)`

    Raises:
        ShapeError: more tokens than positions, or tokens of another width.

    Source: Gehring et al. (2017), Convolutional sequence to sequence learning, section 3.1,
    https://arxiv.org/abs/1705.03122; starts normal, deviation 0.02, as in Devlin et al. (2019), BERT.

    Example:
        >>> add = Learned(16, 4)
        >>> bool((add(torch.zeros(2, 3, 4))[1] == add.table[:3]).all())
        True
    """

    def __init__(self, length: int, width: int, *, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        _whole("Learned", "length", length, 1)
        _whole("Learned", "width", width, 1)
        self.table = nn.Parameter(torch.empty(length, width, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal, deviation 0.02."""
        nn.init.normal_(self.table, std=0.02)

    def forward(self, x: Tensor, positions: int | Tensor = 0) -> Tensor:
        """x + table[positions]; `positions` as in `Sinusoidal`."""
        length, width = self.table.shape
        _width("Learned", x, width)
        if isinstance(positions, int):
            stop = positions + x.shape[-2]
            if positions < 0 or stop > length:
                raise ShapeError(
                    f"tokens {positions} to {stop - 1} want a position, {length} were learned. Give a larger "
                    "length, or Sinusoidal or Rotary, which have no end."
                )
            return x + self.table[positions:stop]
        return x + self.table[_placed(x, positions)]

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"length={self.table.shape[0]}, width={self.table.shape[1]}"


class Rotary(nn.Module):
    """Turns pairs of numbers of query and key by an angle that grows with the position.

        (a, b) -> (a cos φ − b sin φ, a sin φ + b cos φ)          φ_i(p) = p · theta^(−2i / rotated)

    The product of a turned query and a turned key depends on the distance of their positions alone. Turn the
    key before it goes to a cache: its position does not change any more.

    Args:
        width: of one head.
        theta: wave lengths go from 2π to theta · 2π.
        rotated: how many of the first numbers of a vector are turned; the rest stays. None: all.
        interleaved: which numbers make a pair. False: number i and number i + rotated/2, the halves, as Llama
            and GPT-NeoX have it. True: 2i and 2i + 1, as the paper and GPT-J have it. Weights trained
            with one convention are wrong with the other.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> the same

    Raises:
        OptionError: a width that cannot be paired.
        ShapeError: vectors of another width, or positions that do not fit.

    Source: Su et al. (2021), RoFormer, section 3.2.2, https://arxiv.org/abs/2104.09864; turned in part:
    Black et al. (2022), GPT-NeoX-20B, section 2.1.1, https://arxiv.org/abs/2204.06745.

    Example:
        >>> turn = Rotary(2)
        >>> q, k = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0]])
        >>> far = [turn.rotate(q, k, torch.tensor([p]), torch.tensor([p + 1])) for p in (0, 50)]
        >>> [round(float(a @ b.mT), 4) for a, b in far]  # cos 1: one step apart, wherever
        [0.5403, 0.5403]
    """

    def __init__(
        self, width: int, *, theta: float = 10_000.0, rotated: int | None = None, interleaved: bool = False
    ) -> None:
        super().__init__()
        _whole("Rotary", "width", width, 1)
        rotated = width if rotated is None else rotated
        _whole("Rotary", "rotated", rotated, 2)
        if rotated % 2 or rotated > width:
            raise OptionError(
                f"Rotary was given rotated={rotated} of width {width}. Numbers are turned in pairs: it must "
                "be even and at most the width."
            )
        if theta <= 0:
            raise OptionError(f"Rotary was given theta={theta}. It must be positive.")
        self.width, self.theta, self.rotated, self.interleaved = width, theta, rotated, interleaved

    def rotate(
        self,
        query: Tensor,
        key: Tensor,
        positions: int | Tensor = 0,
        key_positions: int | Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Query and key, turned.

        Args:
            query, key: vectors.
            positions: of the first query, those after it follow; or integers `(q,)` or `(*batch, q)`. Batch
                axes that are missing are those of the heads: `(b, q)` serves `(b, heads, q, width)`.
            key_positions: of the keys; None: those of the queries.
        """
        if key_positions is not None:
            return self(query, positions), self(key, key_positions)
        if query.shape[-2] != key.shape[-2]:
            raise ShapeError(
                f"{query.shape[-2]} queries and {key.shape[-2]} keys cannot share positions. Give key_positions=…."
            )
        _width("Rotary", key, self.width)
        angles = self.angles(query, positions)
        return self._turned(query, angles), self._turned(key, angles)

    def forward(self, x: Tensor, positions: int | Tensor = 0) -> Tensor:
        """One side alone, turned; arguments as in `rotate`."""
        return self._turned(x, self.angles(x, positions))

    def angles(self, x: Tensor, positions: int | Tensor = 0) -> Tensor:
        """φ, `(n, rotated/2)` or `(*batch, n, rotated/2)`, float64: a far position keeps its digits."""
        _width("Rotary", x, self.width)
        positions = _placed(x, positions)
        rates = torch.arange(0, self.rotated, 2, device=x.device, dtype=torch.float64) / self.rotated
        return positions[..., None] * self.theta**-rates

    def _turned(self, x: Tensor, angles: Tensor) -> Tensor:
        kind = x.dtype if x.dtype == torch.float64 else torch.float32
        cos, sin = torch.cos(angles).to(kind), torch.sin(angles).to(kind)
        while cos.ndim > 2 and cos.ndim < x.ndim:  # one position for all heads
            cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)
        turned, rest = x[..., : self.rotated], x[..., self.rotated :]
        if self.interleaved:
            a, b = turned[..., ::2], turned[..., 1::2]
            both = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
        else:
            a, b = turned.chunk(2, dim=-1)
            both = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
        both = both.to(x.dtype)
        return both if rest.shape[-1] == 0 else torch.cat([both, rest], dim=-1)

    def extra_repr(self) -> str:
        """What `print` shows."""
        pairs = "2i and 2i + 1" if self.interleaved else "halves"
        part = "" if self.rotated == self.width else f", rotated={self.rotated}"
        return f"width={self.width}{part}, theta={self.theta:g}, pairs: {pairs}"


def _waves(positions: Tensor, width: int, base: float) -> Tensor:
    """Sines and cosines by turns, `(*positions, width)`, float64."""
    _whole("sinusoidal_table", "width", width, 1)
    if base <= 0:
        raise OptionError(f"base is {base}. It must be positive.")
    rates = torch.arange(0, width, 2, device=positions.device, dtype=torch.float64) / width
    angles = positions[..., None] * base**-rates
    return torch.stack([torch.sin(angles), torch.cos(angles)], dim=-1).flatten(-2)[..., :width]


def _placed(x: Tensor, positions: int | Tensor) -> Tensor:
    """Positions of tokens `(*batch, n, width)`: `(n,)` or `(*batch, n)`."""
    n = x.shape[-2]
    if isinstance(positions, int):
        return torch.arange(positions, positions + n, device=x.device)
    if not isinstance(positions, Tensor) or positions.is_floating_point() or positions.dtype == torch.bool:
        said = positions.dtype if isinstance(positions, Tensor) else type(positions).__name__
        raise KindError(f"positions are {said}. Give the first one as a whole number, or a tensor of integers.")
    if positions.ndim == 0 or positions.shape[-1] != n:
        raise ShapeError(
            f"positions have shape {tuple(positions.shape)}, there are {n} tokens (shape {tuple(x.shape)}). "
            f"Give ({n},) or (*batch, {n}); of one start per batch element, position_ids(start, {n}) makes them."
        )
    return positions


def _width(owner: str, x: Tensor, width: int) -> None:
    if x.ndim < 2 or x.shape[-1] != width:
        raise ShapeError(
            f"{owner} was made for width {width} and got shape {tuple(x.shape)}. Give (*batch, n, {width})."
        )


def _whole(owner: str, name: str, n: Any, least: int) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < least:
        raise OptionError(f"{owner} was given {name}={n!r}. It must be a whole number from {least}.")
