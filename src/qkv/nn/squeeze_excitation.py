"""Squeeze-and-excitation, read as attention: channels are keys, gates are weights (mission A12).

    squeeze       z_c = mean of channel c over its places          a constant score under Mean
    excitation    g = σ(W₂ relu(W₁ z + b₁) + b₂)          logits of the channels under Sigmoid
    scale         y_c = g_c · x_c          each channel answers for itself alone: the mask Window(0, 0)

Source: Hu, Shen, Sun (2018), Squeeze-and-excitation networks, section 3, https://arxiv.org/abs/1709.01507.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from qkv.errors import OptionError, ShapeError

__all__ = ["SqueezeExcitation"]


class SqueezeExcitation(nn.Module):
    """Weighs each channel by what all channels are on average.

    Args:
        channels: how many.
        reduction: the hidden units are channels / reduction, rounded, at least 1.
        bias: whether the maps have one.
        device, dtype: of the parameters.

    Shapes:
        x `(batch, channels, *places)`, any number of axes of places -> the same

    Raises:
        OptionError: no channels, or a reduction below 1.
        ShapeError: another number of channels.

    Source: as this module; the maps start as those of `torch.nn.Linear`.

    Example:
        >>> block = SqueezeExcitation(32, reduction=8)
        >>> x = torch.randn(2, 32, 7, 7)
        >>> block(x).shape, block.gates(x).shape
        (torch.Size([2, 32, 7, 7]), torch.Size([2, 32]))
    """

    def __init__(
        self,
        channels: int,
        reduction: float = 16,
        *,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if channels < 1 or reduction < 1:
            raise OptionError(
                f"SqueezeExcitation was given {channels} channels and reduction={reduction}. Both must be 1 or more."
            )
        hidden = max(1, round(channels / reduction))
        self.channels = channels
        self.inward = nn.Linear(channels, hidden, bias=bias, device=device, dtype=dtype)
        self.outward = nn.Linear(hidden, channels, bias=bias, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Each channel, times its gate."""
        gates = self.gates(x)
        return x * gates[(..., *(None,) * (x.ndim - 2))]

    def gates(self, x: Tensor) -> Tensor:
        """The weight of each channel, `(batch, channels)`, each between 0 and 1."""
        return self.logits(x).sigmoid()

    def logits(self, x: Tensor) -> Tensor:
        """Logits of the channels, `(batch, channels)`: with them the block is a call of `qkv.attend`."""
        if x.ndim < 3 or x.shape[1] != self.channels:
            raise ShapeError(
                f"x has shape {tuple(x.shape)}; it must be (batch, {self.channels}, *places) with at least "
                "one axis of places."
            )
        logits: Tensor = self.outward(torch.relu(self.inward(x.flatten(2).mean(-1))))
        return logits
