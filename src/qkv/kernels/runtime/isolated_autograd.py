"""What is made of each side of a call is differentiated here, in a state of its own.

Autograd would differentiate a projection in the state of whoever calls `backward()`: under autocast in half
precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qkv.core.arrays import requires_gradient
from qkv.core.equation import BoundCall
from qkv.core.typing import Tensor

__all__ = ["isolated_autograd", "project_call"]


def project_call(call: BoundCall) -> BoundCall:
    """The call, of what its score makes of each side."""

    def sides(query: Tensor, key: Tensor, *arrays: Tensor) -> tuple[Tensor, Tensor]:
        left, right = call.score.replace_arrays(arrays).project(query, key, call.tile)
        return left, right

    return call.with_projections(*isolated_autograd(sides, call.query, call.key, *call.score.arrays()))


def isolated_autograd(function: Callable[..., Sequence[Tensor]], *tensors: Tensor) -> list[Tensor]:
    """`function(*tensors)`, differentiable as often as it is.

    Args:
        function: gives tensors, some of which may be those it was given.
        tensors: all that a gradient may be wanted of.
    """
    import torch

    if not (torch.is_grad_enabled() and any(requires_gradient(x) for x in tensors)):
        return list(function(*tensors))
    # A tensor of its own for each, because one may be given in several places.
    own = [x.detach().requires_grad_(x.requires_grad) for x in tensors]
    made: list[Any] = list(function(*own))
    for n, x in enumerate(made):
        for given, mine in zip(tensors, own, strict=True):
            if x is mine:
                made[n] = given
    new = [n for n, x in enumerate(made) if not any(x is given for given in tensors)]
    if new:

        def of_new(*tensors: Tensor) -> list[Tensor]:
            found = function(*tensors)
            return [found[n] for n in new]

        joined = _function()(of_new, ([made[n] for n in new], own), *tensors)
        for n, x in zip(new, joined, strict=True):
            made[n] = x
    return made


def _function() -> Any:
    """The autograd function, made when torch is there."""
    global _APPLY
    if _APPLY is None:
        import torch

        class Apart(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, function: Any, kept: Any, *tensors: Tensor) -> Any:
                ctx.save_for_backward(*tensors)
                ctx.set_materialize_grads(False)
                ctx.function, ctx.kept = function, kept
                return tuple(x.detach() for x in kept[0])

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Any:
                twice = torch.is_grad_enabled()
                wanted = ctx.needs_input_grad[2:]
                with torch.enable_grad(), torch.autocast(ctx.saved_tensors[0].device.type, enabled=False):
                    made, own = ctx.kept or (None, None)
                    if twice:
                        own = [x.view_as(x) for x in ctx.saved_tensors]
                        made = ctx.function(*own)
                    elif made is None:  # the graph was asked before
                        own = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
                        made = ctx.function(*own)
                    else:
                        ctx.kept = None
                    found = iter(_gradients(made, own, gradients, wanted, twice))
                return (None, None, *(next(found) if needed else None for needed in wanted))

        _APPLY = Apart.apply
    return _APPLY


_APPLY: Any = None


def _gradients(made: Any, own: Any, gradients: Any, wanted: Sequence[bool], twice: bool) -> Sequence[Any]:
    """Those of all that want one."""
    import torch

    leaves = [x for x, needed in zip(own, wanted, strict=True) if needed]
    pairs = [(x, g) for x, g in zip(made, gradients, strict=True) if g is not None and x.requires_grad]
    if not pairs:
        return [None] * len(leaves)
    outputs, given = [x for x, _ in pairs], [g for _, g in pairs]
    return torch.autograd.grad(outputs, leaves, given, allow_unused=True, create_graph=twice)
