"""Decorator of the functions that run a call, which replaces errors of array libraries by errors about arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from qkv.core.torch_names import refuse_torch_names
from qkv.errors import KindError, OptionError
from qkv.plan.array_checks import check_arrays
from qkv.plan.cost import memory_bytes
from qkv.plan.kernel_protocol import Kernel

__all__ = ["explain_errors"]

F = TypeVar("F", bound=Callable[..., Any])

_REMEDIES = {
    "attn_mask": "Pass mask=masks.Pairs(attn_mask) for booleans, where True allows a pair, or "
    "score=scores.Biased(scores.ScaledDot(), attn_mask) for numbers.",
    "is_causal": "Pass mask=masks.Causal() instead.",
    "dropout_p": "Pass dropout instead.",
    "scale": "Pass score=scores.Dot(scale) instead.",
    "key_padding_mask": "Pass mask=masks.Keys(~key_padding_mask), or nn.torch_masks for modules of qkv.nn.",
    "need_weights": "Call qkv.observe with readouts=[readouts.Dense()] to read the weights.",
}
"""What to pass instead of each argument of PyTorch's attention function and modules."""


def explain_errors(function: F) -> F:
    """Decorate a function of query, key, value and options so that its errors name the argument at fault.

    Names of PyTorch's arguments are refused with what to pass instead.
    """

    @wraps(function)
    def call(query: Any, key: Any, value: Any, **options: Any) -> Any:
        try:
            return function(query, key, value, **options)
        except (TypeError, AttributeError, RuntimeError):
            refuse_torch_names(function.__name__, options, _REMEDIES)
            _explain_failure(query, key, value, options.get("kernel"), options.get("memory", 1))
            raise

    return cast("F", call)


def _explain_failure(query: object, key: object, value: object, kernel: str | Kernel | None, memory: int | str) -> None:
    """Raise an error that names the argument because of which a call failed; return if the arguments are valid.

    A call checks its arguments before its plan is cached, and another call with the same signature does not check them
    again. This function is therefore called when an array library has raised an error.

    Raises:
        KindError: an array is not dense, has no data, or holds other elements than real numbers.
        OptionError: the kernel is not a name or a `Kernel`, or the memory limit is not an amount of memory.
    """
    check_arrays(query, key, value)
    if not (kernel is None or isinstance(kernel, (str, Kernel))):
        raise OptionError(f'kernel must be a name, a Kernel or None, got {kernel!r}. Pass a name, such as "tiled".')
    memory_bytes(memory)
    for name, x in (("query", query), ("key", key), ("value", value)):
        if getattr(x, "is_meta", False):
            raise KindError(
                f"{name} must hold data, got a tensor on the device meta. Call qkv.explain for a plan without data."
            )
