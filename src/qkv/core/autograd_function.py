"""Definition of custom autograd functions of PyTorch on first use, because PyTorch is optional."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.autograd.function import FunctionCtx

    class Context(FunctionCtx):
        """Context of an autograd function, to which subclasses add the attributes that `forward` sets."""

        saved_tensors: tuple[Tensor, ...]
        needs_input_grad: tuple[bool, ...]

        def save_for_backward(self, *tensors: Tensor | None) -> None:
            """Save tensors for backward."""

        def set_materialize_grads(self, value: bool) -> None:
            """Set whether missing gradients are passed to backward as zeros instead of None."""


@cache
def autograd_function_class(forward: Callable[..., object], backward: Callable[..., object]) -> Any:
    """Return a `torch.autograd.Function` with the methods `forward` and `backward`, see `autograd_function`.

    Its own `apply` suits long calls: it adds no function of this package to the path of a call.
    """
    import torch

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(forward.__name__.strip("_"), (torch.autograd.Function,), methods)


@cache
def autograd_function(forward: Callable[..., object], backward: Callable[..., object]) -> Callable[..., Any]:
    """Return the `apply` function of a `torch.autograd.Function` with the methods `forward` and `backward`.

    It takes two thirds of the time of PyTorch's `apply`, which passes the arguments through a generator.

    Args:
        forward: function of the context and the arguments.
        backward: function of the context and the gradients of the outputs; returns the gradient of each argument.
    """
    import torch

    function = autograd_function_class(forward, backward)
    apply_transformed, apply_directly = function.apply, super(torch.autograd.Function, function).apply
    is_transformed, unwrap_if_dead = torch._C._are_functorch_transforms_active, torch._C._functorch.unwrap_if_dead
    tensor = torch.Tensor

    def apply(*arguments: object) -> object:
        if is_transformed():
            return apply_transformed(*arguments)
        return apply_directly(*[unwrap_if_dead(x) if isinstance(x, tensor) else x for x in arguments])

    return apply
