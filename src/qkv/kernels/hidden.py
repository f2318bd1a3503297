"""Finds gradients that would silently be missing: what a score closes over is seen by no backward pass."""

from __future__ import annotations

from qkv.core.equation import Ready, side
from qkv.errors import GradientError

__all__ = ["refuse_hidden_gradients"]


def refuse_hidden_gradients(ready: Ready) -> None:
    """Raise where the score of constants requires a gradient: it closes over a parameter.

    Raises:
        GradientError: it does.
    """
    import torch

    place = ready.place.cut((0, 1), (0, 1))
    if not torch.is_grad_enabled() or ready.place.q_total == 0 or ready.place.k_total == 0:
        return
    score = ready.score.map_arrays(lambda array: array.detach()).slice(slice(0, 1), slice(0, 1))
    logits = score.tile(side(ready.query, (0, 1)).detach(), side(ready.key, (0, 1)).detach(), place)
    if isinstance(logits, torch.Tensor) and logits.requires_grad:
        raise GradientError(
            f"{ready.score} closes over something that requires a gradient, which would get none. Hand it "
            f"over: Custom(function, parameters=(…,)) calls function(query, key, *parameters); in a score of "
            f"your own make it a field."
        )
