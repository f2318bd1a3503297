"""Detection of gradients that would silently be missing: a score's closure is invisible to the backward pass."""

from __future__ import annotations

from typing import cast

from qkv.core.equation import BoundCall, take_range
from qkv.core.typing import Array, Tensor
from qkv.errors import GradientError

__all__ = ["refuse_closure_gradients"]


def refuse_closure_gradients(call: BoundCall) -> None:
    """Check that the score of one detached pair requires no gradient.

    Raises:
        GradientError: the score closes over a tensor that requires a gradient.
    """
    import torch

    tile = call.tile.restrict((0, 1), (0, 1))
    if not torch.is_grad_enabled() or call.tile.q_total == 0 or call.tile.k_total == 0:
        return
    score = call.score.map_arrays(_detach).slice(slice(0, 1), slice(0, 1))
    logits = score.logits(_detach(take_range(call.query, (0, 1))), _detach(take_range(call.key, (0, 1))), tile)
    if isinstance(logits, torch.Tensor) and logits.requires_grad:
        raise GradientError(
            f"{call.score} must hold its parameters, got a closure over a tensor that requires a gradient, which it "
            f"would not receive. Use Custom(function, parameters=(…,)), which calls function(query, key, *parameters); "
            f"in a score of your own make it a field."
        )


def _detach(x: Array) -> Array:
    return cast("Tensor", x).detach()
