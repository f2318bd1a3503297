"""Position encodings: sinusoidal, learned and rotary.

Attention itself ignores order: permuting keys and values together changes nothing. A position encoding is added to
each token (`Sinusoidal`, `Learned`), or rotates queries and keys so that their inner product depends on their distance
(`Rotary`). Alternatives are scores that depend on distances (`scores.ALiBi`, `scores.RelativePosition`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.core.checks import check_integers
from qkv.core.typing import Float, Int
from qkv.errors import OptionError, ShapeError
from qkv.nn.checks import check_width
from qkv.nn.rotary import Rotary, Rotary2D, token_positions
from qkv.nn.rotary_scaling import LinearScaling, Llama3Scaling, LongRoPE, NTKScaling, RotaryScaling, YaRN

__all__ = [
    "Learned",
    "LinearScaling",
    "Llama3Scaling",
    "LongRoPE",
    "NTKScaling",
    "Rotary",
    "Rotary2D",
    "RotaryScaling",
    "Sinusoidal",
    "YaRN",
    "position_ids",
    "sinusoidal_table",
]


def sinusoidal_table(
    length: int, width: int, *, start: int = 0, base: float = 10_000.0
) -> Float[Tensor, "length width"]:
    """Return the sinusoidal position table, `(length, width)` in float64.

        table[p, 2i] = sin(p / base^(2i / width))        table[p, 2i + 1] = cos(p / base^(2i / width))

    Row p + d is a rotation of row p that depends on d alone.

    Args:
        length: number of positions.
        width: width of a token; an odd width ends with a sine.
        start: first position.
        base: wavelengths range from 2π to base · 2π.

    Raises:
        OptionError: if the length is negative, or the width or base is not positive.

    Source: Vaswani et al. (2017), Attention is all you need, section 3.5, https://arxiv.org/abs/1706.03762.

    Example:
        >>> sinusoidal_table(3, 4).round(decimals=4)
        tensor([[ 0.0000,  1.0000,  0.0000,  1.0000],
                [ 0.8415,  0.5403,  0.0100,  1.0000],
                [ 0.9093, -0.4161,  0.0200,  0.9998]], dtype=torch.float64)
    """
    check_integers(0, length=length)
    return _sines_and_cosines(torch.arange(start, start + length), width, base)


def position_ids(start: Int[Tensor, "*batch"], length: int) -> Int[Tensor, "*batch length"]:
    """Return the positions start, start + 1, … of `length` tokens for each batch element, `(*batch, length)`.

    Example:
        >>> position_ids(torch.tensor([0, 5]), 3)
        tensor([[0, 1, 2],
                [5, 6, 7]])
    """
    return start[..., None] + torch.arange(length, device=start.device)


class Sinusoidal(nn.Module):
    """Module that adds sinusoidal position vectors to tokens, without parameters and for any sequence length.

    Args:
        width: width of a token.
        length: number of positions in the stored table; vectors of later positions are computed in each call.
        base: as in `sinusoidal_table`.

    Shapes:
        x `(*batch, n, width)` -> `(*batch, n, width)`

    Raises:
        ShapeError: in a call with tokens of another width.

    Source: as `sinusoidal_table`.

    Example:
        >>> add = Sinusoidal(4)
        >>> add(torch.zeros(1, 2, 4)).round(decimals=4)
        tensor([[[0.0000, 1.0000, 0.0000, 1.0000],
                 [0.8415, 0.5403, 0.0100, 1.0000]]])
        >>> bool((add(torch.zeros(1, 1, 4), positions=1) == add(torch.zeros(1, 2, 4))[:, 1:]).all())
        True
    """

    table: Float[Tensor, "length width"]

    def __init__(self, width: int, length: int = 1024, *, base: float = 10_000.0) -> None:
        super().__init__()
        self.width, self.base = width, base
        # Not in the state dict: the table is constant, and its length only affects speed.
        self.register_buffer("table", sinusoidal_table(length, width, base=base).float(), persistent=False)

    def reset_parameters(self) -> None:
        """Compute the table again, as needed for a module that was built on the meta device."""
        values = _sines_and_cosines(torch.arange(self.table.shape[0], device=self.table.device), self.width, self.base)
        self.table.copy_(values)

    def forward(
        self, x: Float[Tensor, "*batch n width"], positions: int | Int[Tensor, "*#batch n"] = 0
    ) -> Float[Tensor, "*batch n width"]:
        """Return the tokens plus the sinusoidal vectors of their positions.

        Args:
            x: tokens.
            positions: position of the first token, or integers `(n,)` or `(*batch, n)`.
        """
        check_width("x", x, self.width)
        if isinstance(positions, int) and x.dtype in _TABLE_DTYPES:
            stop = positions + x.shape[-2]
            if positions >= 0 and stop <= self.table.shape[0]:
                return x + self.table[positions:stop].to(x.dtype)
        return x + _sines_and_cosines(token_positions(x, positions), self.width, self.base).to(x.dtype)

    def extra_repr(self) -> str:
        """Return the width and the base as text for `print`."""
        return f"width={self.width}, base={self.base:g}"


_TABLE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes for which the float32 table is precise enough."""


class Learned(nn.Module):
    """Module that adds a learned vector for each position to the tokens.

    Args:
        length: number of positions.
        width: width of a token.
        device: device of the table.
        dtype: dtype of the table.

    Shapes:
        x `(*batch, n, width)` -> `(*batch, n, width)`

    Raises:
        ShapeError: in a call with more tokens than positions, or tokens of another width.

    Source: Gehring et al. (2017), Convolutional sequence to sequence learning, section 3.1,
    https://arxiv.org/abs/1705.03122; initialized from a normal distribution with standard deviation 0.02 as in
    Devlin et al. (2019), BERT.

    Example:
        >>> add = Learned(16, 4)
        >>> bool((add(torch.zeros(2, 3, 4))[1] == add.table[:3]).all())
        True
    """

    def __init__(
        self, length: int, width: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        check_integers(length=length, width=width)
        self.table = nn.Parameter(torch.empty(length, width, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sample the table from a normal distribution with standard deviation 0.02."""
        nn.init.normal_(self.table, std=0.02)

    def forward(
        self, x: Float[Tensor, "*batch n width"], positions: int | Int[Tensor, "*#batch n"] = 0
    ) -> Float[Tensor, "*batch n width"]:
        """Return the tokens plus the learned vectors of their positions; `positions` is as in `Sinusoidal.forward`."""
        length, width = self.table.shape
        check_width("x", x, width)
        if isinstance(positions, int):
            stop = positions + x.shape[-2]
            if positions < 0 or stop > length:
                raise ShapeError(
                    f"positions must be from 0 to {length - 1}, got {positions} to {stop - 1}. Use a larger length, "
                    "or use Sinusoidal or Rotary, which have no limit."
                )
            return x + self.table[positions:stop]
        try:  # unlike an index into the table, an embedding refuses negative positions
            return x + nn.functional.embedding(token_positions(x, positions), self.table)
        except IndexError:
            raise ShapeError(
                f"positions must be from 0 to {length - 1}, got {int(positions.min())} to {int(positions.max())}. "
                "Use a larger length, or use Sinusoidal or Rotary, which have no limit."
            ) from None

    def extra_repr(self) -> str:
        """Return the length and the width of the table as text for `print`."""
        return f"length={self.table.shape[0]}, width={self.table.shape[1]}"


def _sines_and_cosines(
    positions: Int[Tensor, "*positions"], width: int, base: float
) -> Float[Tensor, "*positions width"]:
    """Return sines and cosines of position / base^(2i / width), alternating, `(*positions, width)` in float64."""
    check_integers(width=width)
    if base <= 0:
        raise OptionError(f"base must be positive, got {base}.")
    rates = torch.arange(0, width, 2, device=positions.device, dtype=torch.float64) / width
    angles = positions[..., None] * base**-rates
    return torch.stack([torch.sin(angles), torch.cos(angles)], dim=-1).flatten(-2)[..., :width]
