"""Check for scores that close over tensors, because the backward pass would omit the gradients of such tensors."""

from __future__ import annotations

from typing import cast

from qkv.core.arrays import is_array
from qkv.core.equation import BoundCall, take_range
from qkv.core.parts import Part
from qkv.core.typing import Array, Shaped, Tensor
from qkv.errors import GradientError
from qkv.scores import Score

__all__ = ["may_close_over_tensors", "refuse_closure_gradients"]

_OWN = "qkv.scores."
"""Prefix of the modules whose scores hold all their tensors in fields."""


def refuse_closure_gradients(call: BoundCall) -> None:
    """Raise a `GradientError` if the score of a call closes over a tensor that requires a gradient.

    The score is evaluated on one pair of query and key, with its inputs and its own arrays detached: the logit must
    then require no gradient.

    Raises:
        GradientError: the score closes over a tensor that requires a gradient.
    """
    import torch

    tile = call.tile.restrict((0, 1), (0, 1))
    if not torch.is_grad_enabled() or call.tile.q_total == 0 or call.tile.k_total == 0:
        return
    if not any(_may_close_over_arrays(part) for part in call.score.parts()):
        return
    score = call.score.map_arrays(_detach).slice(slice(0, 1), slice(0, 1))
    logits = score.logits(_detach(take_range(call.query, (0, 1))), _detach(take_range(call.key, (0, 1))), tile)
    if isinstance(logits, torch.Tensor) and logits.requires_grad:
        raise GradientError(
            f"score {call.score} must not close over a tensor that requires a gradient, because no gradient would "
            f"reach the tensor. Pass the tensor as Custom(function, parameters=(…,)), which calls function(query, key, "
            f"*parameters), or make it a field of your score class."
        )


def _may_close_over_arrays(part: Part) -> bool:
    """Return whether a part may use arrays that are not its fields: classes of users, and parts that call a function.

    The classes of this package use their fields alone.
    """
    if not type(part).__module__.startswith("qkv.scores."):
        return True
    return any(callable(x) and not isinstance(x, Part) for x in vars(part).values())


def may_close_over_tensors(score: Score) -> bool:
    """Return whether `refuse_closure_gradients` may raise an error for a score.

    It cannot for scores of this package without functions of the caller.
    """
    return any(
        not type(part).__module__.startswith(_OWN) or any(callable(x) and not is_array(x) for x in vars(part).values())
        for part in score.parts()
    )


def _detach(x: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
    return cast("Tensor", x).detach()
