"""Squeeze-and-excitation as attention over channels.

    squeeze       z_c = mean of channel c over its positions          a constant score under Mean
    excitation    g = σ(W₂ relu(W₁ z + b₁) + b₂)          logits of the channels under Sigmoid
    scale         y_c = g_c · x_c          each channel attends to itself alone: the mask Window(0, 0)

Source: Hu, Shen, Sun (2018), Squeeze-and-excitation networks, section 3, https://arxiv.org/abs/1709.01507.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.core.typing import Float
from qkv.errors import OptionError, ShapeError


class SqueezeExcitation(nn.Module):
    """Module that multiplies each channel by a gate computed from the means of all channels.

    Args:
        channels: number of channels.
        reduction: the number of hidden units is channels / reduction, rounded, at least 1.
        bias: whether the linear layers have a bias.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Shapes:
        x `(batch, channels, *positions)`, with any number of position axes -> the same

    Raises:
        OptionError: if `channels` or `reduction` is below 1.
        ShapeError: in a call with another number of channels.

    Source: see the module docstring; parameters are initialized as those of `torch.nn.Linear`.

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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if channels < 1 or reduction < 1:
            raise OptionError(
                f"channels and reduction must be at least 1, got channels={channels}, reduction={reduction}. "
                "Pass, for example, channels=64, reduction=16."
            )
        hidden = max(1, round(channels / reduction))
        self.channels = channels
        self.inward = nn.Linear(channels, hidden, bias=bias, device=device, dtype=dtype)
        self.outward = nn.Linear(hidden, channels, bias=bias, device=device, dtype=dtype)

    def forward(self, x: Float[Tensor, "batch channels *positions"]) -> Float[Tensor, "batch channels *positions"]:
        """Return `x` with each channel multiplied by its gate."""
        gates = self.gates(x)
        return x * gates[(..., *(None,) * (x.ndim - 2))]

    def gates(self, x: Float[Tensor, "batch channels *positions"]) -> Float[Tensor, "batch channels"]:
        """Return the gate of each channel, a number between 0 and 1, `(batch, channels)`."""
        return self.logits(x).sigmoid()

    def logits(self, x: Float[Tensor, "batch channels *positions"]) -> Float[Tensor, "batch channels"]:
        """Return the logit of each channel's gate, `(batch, channels)`."""
        if x.ndim < 3 or x.shape[1] != self.channels:
            raise ShapeError(
                f"x must have shape (batch, {self.channels}, *positions) with at least one position axis, got "
                f"{tuple(x.shape)}. "
                "Move the channels to axis 1."
            )
        logits: Tensor = self.outward(torch.relu(self.inward(x.flatten(2).mean(-1))))
        return logits
