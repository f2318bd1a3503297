"""Feed-forward network of a Transformer layer, applied to each token independently."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from qkv.core.checks import check_integers
from qkv.core.typing import Float
from qkv.errors import OptionError

Activation = str | Callable[[Tensor], Tensor]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
}


def init_linear(*linears: nn.Linear | None) -> None:
    """Initialize the weights of linear layers uniformly as in Glorot and Bengio (2010), and their biases with 0."""
    for linear in linears:
        if linear is not None:
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, applied to each token independently.

        output = W₂ dropout(f(W₁ x + b₁)) + b₂          gated: f(W₁ x + b₁) ⊙ (W_G x + b_G) in place of f

    Weights are initialized uniformly as in Glorot and Bengio (2010), biases with 0.

    Args:
        width: width of a token.
        hidden: number of hidden units; None means 4 · width.
        activation: activation f: "relu", "gelu", "silu", or a function.
        gated: whether f is multiplied elementwise by a third linear layer; with "silu" this is SwiGLU.
        dropout: dropout probability of hidden units during training.
        bias: whether the linear layers have a bias.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Shapes:
        x `(*batch, n, width)` -> `(*batch, n, width)`

    Raises:
        OptionError: if the activation is unknown, or a width is not positive.

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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        hidden = 4 * width if hidden is None else hidden
        if isinstance(activation, str) and activation not in _ACTIVATIONS:
            names = ", ".join(map(repr, _ACTIVATIONS))
            raise OptionError(f"activation must be one of {names}, or a function, got {activation!r}. Choose one.")
        check_integers(width=width, hidden=hidden)
        self.activation = activation
        self.inward = nn.Linear(width, hidden, bias, device, dtype)
        self.gate = nn.Linear(width, hidden, bias, device, dtype) if gated else None
        self.outward = nn.Linear(hidden, width, bias, device, dtype)
        self.dropout = nn.Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all parameters again, as in a new module."""
        init_linear(self.inward, self.gate, self.outward)

    def forward(self, x: Float[Tensor, "*batch n width"]) -> Float[Tensor, "*batch n width"]:
        """Return the output of the feed-forward network for each token, `(*batch, n, width)`."""
        f = _ACTIVATIONS[self.activation] if isinstance(self.activation, str) else self.activation
        hidden = f(self.inward(x))
        if self.gate is not None:
            hidden = hidden * self.gate(x)
        output: Tensor = self.outward(self.dropout(hidden))
        return output
