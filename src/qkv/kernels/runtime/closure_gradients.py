"""Check for scores that close over tensors, because the backward pass would omit the gradients of such tensors."""

from __future__ import annotations

from typing import cast
from weakref import WeakValueDictionary

from qkv.core.arrays import is_array
from qkv.core.equation import BoundCall
from qkv.core.parts import Part
from qkv.core.tile import take_range
from qkv.core.typing import Array, Num, Shaped, Tensor
from qkv.errors import GradientError
from qkv.scores import Score

_SEARCHED: WeakValueDictionary[int, Score] = WeakValueDictionary()
"""Scores by their `id` whose recorded logits have been searched without an error."""

_OWN = "qkv.scores."
"""Prefix of the modules whose scores hold all their tensors in fields."""


def refuse_closure_gradients(call: BoundCall, whole: bool = False) -> None:
    """Raise a `GradientError` if the score of a call closes over a tensor that requires a gradient.

    The score is evaluated on one pair of query and key, with its inputs and its own arrays detached: the logit must
    then require no gradient.

    Args:
        call: the call.
        whole: whether the score is evaluated on all pairs if it raises an error for one, as a function that contains
            an array of all pairs does.

    Raises:
        GradientError: the score closes over a tensor that requires a gradient.
    """
    import torch

    tile = call.tile.restrict((0, 1), (0, 1))
    if not torch.is_grad_enabled() or call.tile.q_total == 0 or call.tile.k_total == 0:
        return
    if not may_close_over_tensors(call.score):
        return
    score, query, key = call.score.map_arrays(_detach), _detach(call.query), _detach(call.key)
    try:
        one = score.slice(slice(0, 1), slice(0, 1))
        logits = one.logits(take_range(query, (0, 1)), take_range(key, (0, 1)), tile)
    except Exception:
        if not whole:
            raise
        logits = score.logits(query, key, call.tile)
    if isinstance(logits, torch.Tensor) and logits.requires_grad:
        raise _error(call)


def refuse_recorded_closures(logits: Num[Tensor, "*#batch #q #k"], call: BoundCall) -> None:
    """Raise a `GradientError` if logits that autograd recorded depend on a tensor that is not one of the call's.

    In contrast to `refuse_closure_gradients` the score is not evaluated again: the graph of the logits is searched up
    to query, key and the arrays of the score, once for each score: the gradients of its other tensors would be right.

    Args:
        logits: logits of the score, whose `project` returns query and key unchanged.

    Raises:
        GradientError: the score closes over a tensor that requires a gradient.
    """
    if not logits.requires_grad or _SEARCHED.get(id(call.score)) is call.score:
        return
    if not may_close_over_tensors(call.score):
        return
    tensors = [x for x in cast("tuple[Tensor, ...]", (call.query, call.key, *call.score.arrays())) if x.requires_grad]
    own = {id(x) for x in tensors}
    reached = {(x.grad_fn, x.output_nr) for x in tensors if x.grad_fn is not None}
    edges = [(logits.grad_fn, logits.output_nr)]
    while edges:
        node, output = edges.pop()
        if node is None or (node, output) in reached:
            continue
        reached.add((node, output))
        # Nodes without further edges accumulate the gradient of a leaf.
        if (leaf := getattr(node, "variable", None)) is not None and id(leaf) not in own:
            raise _error(call)
        edges.extend(node.next_functions)
    if logits.grad_fn is None and id(logits) not in own:
        raise _error(call)
    _SEARCHED[id(call.score)] = call.score


def _error(call: BoundCall) -> GradientError:
    return GradientError(
        f"score {call.score} must not close over a tensor that requires a gradient, because no gradient would reach "
        f"the tensor. Pass the tensor as Custom(function, parameters=(…,)), which calls function(query, key, "
        f"*parameters), or make it a field of your score class."
    )


def _may_close_over_arrays(part: Part) -> bool:
    """Return whether a part may use arrays that are not its fields: classes of users, and parts that call a function.

    The classes of this package use their fields alone.
    """
    if not type(part).__module__.startswith(_OWN):
        return True
    return any(callable(x) and not isinstance(x, Part) and not is_array(x) for x in vars(part).values())


def may_close_over_tensors(score: Score) -> bool:
    """Return whether `refuse_closure_gradients` may raise an error for a score.

    It cannot for scores of this package without functions of the caller.
    """
    return any(_may_close_over_arrays(part) for part in score.parts())


def _detach(x: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
    return cast("Tensor", x).detach()
