"""Definition of custom autograd functions of PyTorch on first use, because PyTorch is optional."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

__all__ = ["autograd_function"]


@cache
def autograd_function(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return the `apply` function of a `torch.autograd.Function` with the methods `forward` and `backward`.

    Args:
        forward: function of the context and the arguments.
        backward: function of the context and the gradients of the outputs; returns the gradient of each argument.
    """
    import torch

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type(forward.__name__.strip("_"), (torch.autograd.Function,), methods)
    return cast("Callable[..., Any]", function.apply)
