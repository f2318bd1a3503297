"""Feed-forward: what a layer does with each token by itself, after attention has mixed them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from qkv.errors import OptionError

__all__ = ["Activation", "FeedForward"]

Activation = str | Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
}


class FeedForward(nn.Module):
    """Two linear maps with something between, the same for every token.

        output = W₂ dropout(f(W₁ x + b₁)) + b₂          gated: f(W₁ x + b₁) ⊙ (W_G x + b_G) in place of f

    Maps start uniform as Glorot and Bengio (2010) have it, biases at 0.

    Args:
        width: of a token.
        hidden: units between; 4 · width where None.
        activation: f: "relu", "gelu", "silu", or a function.
        gated: f is multiplied by a third map, unit by unit; with "silu" that is SwiGLU.
        dropout: probability of dropping a hidden unit while training.
        bias: whether maps have one.
        device, dtype: of the parameters.

    Shapes:
        x `(*batch, n, width)` -> the same

    Raises:
        OptionError: no such activation, or a width that is not positive.

    Source: Vaswani et al. (2017), section 3.3, https://arxiv.org/abs/1706.03762; gated: Shazeer (2020), GLU
    variants improve Transformer, https://arxiv.org/abs/2002.05202.

    Example:
        >>> import torch
        >>> FeedForward(8, activation="silu", gated=True)(torch.zeros(2, 3, 8)).shape
        torch.Size([2, 3, 8])
    """

    def __init__(
        self,
        width: int,
        hidden: int | None = None,
        *,
        activation: Activation = "relu",
        gated: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        hidden = 4 * width if hidden is None else hidden
        if isinstance(activation, str) and activation not in ACTIVATIONS:
            names = ", ".join(map(repr, ACTIVATIONS))
            raise OptionError(f"activation is {activation!r}. Give one of {names}, or a function.")
        if width < 1 or hidden < 1:
            raise OptionError(f"FeedForward was given width={width}, hidden={hidden}. Both must be positive.")
        factory_kwargs = {"bias": bias, "device": device, "dtype": dtype}
        self.activation = activation
        self.inward = nn.Linear(width, hidden, **factory_kwargs)
        self.gate = nn.Linear(width, hidden, **factory_kwargs) if gated else None
        self.outward = nn.Linear(hidden, width, **factory_kwargs)
        self.dropout = nn.Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fill all parameters with their initial values."""
        for linear in (self.inward, self.gate, self.outward):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Each token, changed by itself."""
        f = ACTIVATIONS[self.activation] if isinstance(self.activation, str) else self.activation
        hidden = f(self.inward(x))
        if self.gate is not None:
            hidden = hidden * self.gate(x)
        output: Tensor = self.outward(self.dropout(hidden))
        return output
