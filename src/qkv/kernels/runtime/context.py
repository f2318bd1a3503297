"""Contexts that set a context variable, disable PyTorch's autocast, select a GPU, and undo settings of PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from qkv.core.typing import Shaped, Tensor

Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")


@contextmanager
def set_context(variable: ContextVar[Value | None], value: Value) -> Iterator[Value]:
    """Set a context variable, and restore its previous value at the end of the `with` statement."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


def no_autocast(reference: Shaped[Tensor, "*_"]) -> AbstractContextManager[object]:
    """Return a context in which operators on the device of `reference` keep the dtypes of their arguments."""
    return _no_autocast(reference.device.type)


def _no_autocast(device: str) -> AbstractContextManager[object]:
    import torch

    # Without autocast this takes 1 µs, and entering `torch.autocast` 20 µs.
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def on_device(reference: Shaped[Tensor, "*_"]) -> AbstractContextManager[object]:
    """Return a context in which the GPU of `reference` is the current one, where Triton launches its programs."""
    import torch

    return torch.cuda.device(reference.device) if reference.is_cuda else nullcontext()


def with_torch_defaults(function: Callable[Arguments, Value]) -> Callable[Arguments, Value]:
    """Return a function that runs with the default device and modes of PyTorch, for data of other libraries.

    Its tensors are on the CPU and can have gradients, and nothing is cast. The default dtype is not restored, because
    other threads have the same: such a function states the dtypes of its tensors.
    """

    @functools.wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Value:
        import torch

        # As a context, a device slows down every operator.
        device = nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
        tracked = torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()
        with device, tracked, _no_autocast("cpu"):
            return function(*args, **kwargs)

    return run
