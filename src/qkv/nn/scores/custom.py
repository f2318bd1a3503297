"""A function of yours as a score, with learned parameters.

logit(q, k) = function(query, key, *parameters)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from qkv import scores
from qkv.nn.scores.base import LearnedScore

__all__ = ["Custom"]


class Custom(LearnedScore):
    """`scores.Custom` with learned parameters, the same for all heads.

    Start: at the numbers given.

    Args:
        query_width, key_width, heads: whatever the function makes of them; it decides.
        function: `(query (*batch, q, query_width), key (*batch, k, key_width), *parameters)` ->
            `(*batch, q, k)`; each logit depends on its own query and key alone.
        parameters: tensors to start from, handed to the function after the key.
        elements: as in `scores.Custom`.
        device, dtype: of the parameters; those of the tensors where None.

    Example:
        >>> far = Custom(1, function=lambda q, k, s: -s * (q - k.mT) ** 2, parameters=(torch.ones(()),))
        >>> far()(torch.tensor([[1.0]]), torch.tensor([[3.0]])).item(), [n for n, _ in far.named_parameters()]
        (-4.0, ['parameters_given.0'])
    """

    def __init__(
        self,
        query_width: int,
        key_width: int | None = None,
        *,
        function: Callable[..., torch.Tensor],
        parameters: tuple[torch.Tensor, ...] = (),
        elements: int | None = None,
        heads: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(query_width, key_width, heads=heads, device=device, dtype=dtype)
        self.function, self.elements = function, elements
        self.starts = tuple(x.detach().clone() for x in parameters)
        self.parameters_given = torch.nn.ParameterList(
            [torch.nn.Parameter(x.clone().to(device=device, dtype=dtype)) for x in self.starts]
        )

    def reset_parameters(self) -> None:
        """As the class says."""
        with torch.no_grad():
            for parameter, start in zip(self.parameters_given, self.starts, strict=True):
                parameter.copy_(start)

    def forward(self) -> scores.Score:
        """The score."""
        return scores.Custom(self.function, (*self.parameters_given,), self.elements)
