"""Finds gradients that would silently be missing: what a score closes over is seen by no backward pass."""

from __future__ import annotations

from qkv.core.equation import BoundCall, side
from qkv.errors import GradientError

__all__ = ["refuse_closure_gradients"]


def refuse_closure_gradients(call: BoundCall) -> None:
    """Raise where the score of constants requires a gradient: it closes over a parameter.

    Raises:
        GradientError: it does.
    """
    import torch

    tile = call.tile.restrict((0, 1), (0, 1))
    if not torch.is_grad_enabled() or call.tile.q_total == 0 or call.tile.k_total == 0:
        return
    score = call.score.map_arrays(lambda array: array.detach()).slice(slice(0, 1), slice(0, 1))
    logits = score.logits(side(call.query, (0, 1)).detach(), side(call.key, (0, 1)).detach(), tile)
    if isinstance(logits, torch.Tensor) and logits.requires_grad:
        raise GradientError(
            f"{call.score} closes over something that requires a gradient, which would get none. Hand it "
            f"over: Custom(function, parameters=(…,)) calls function(query, key, *parameters); in a score of "
            f"your own make it a field."
        )
