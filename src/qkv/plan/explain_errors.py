"""Errors that name the argument because of which a call failed, or that qkv does not have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn

from qkv.core.torch_names import refuse_torch_names
from qkv.errors import OptionError
from qkv.plan.budget import budget_bytes
from qkv.plan.checks import check_arrays, check_data
from qkv.plan.kernel_protocol import Kernel

_REMEDIES = {
    "attn_mask": "Pass mask=masks.AllowedPairs(attn_mask) for booleans, where True allows a pair, or "
    "score=scores.Biased(scores.ScaledDot(), attn_mask) for numbers.",
    "is_causal": "Pass mask=masks.Causal() instead.",
    "dropout_p": "Pass dropout instead.",
    "scale": "Pass score=scores.Dot(scale) instead.",
    "key_padding_mask": "Pass mask=masks.AllowedKeys(~key_padding_mask), or nn.torch_masks for modules of qkv.nn.",
    "need_weights": "Call qkv.observe with readouts=[readouts.Dense()] to read the weights.",
}
"""What to pass instead of each argument of PyTorch's attention function and modules."""


def refuse_unknown(function: str, unknown: Mapping[str, object]) -> NoReturn:
    """Raise an error that names arguments which a function does not have.

    Args:
        function: name of the function.
        unknown: the arguments by name.

    Raises:
        KindError: a name is that of an argument of PyTorch; the message says what to pass instead.
        TypeError: otherwise, as for every function.
    """
    refuse_torch_names(function, unknown, _REMEDIES)
    raise TypeError(f"{function}() got an unexpected keyword argument {next(iter(unknown))!r}")


def explain_failure(
    query: object,
    key: object,
    value: object,
    parts: Iterable[object],
    kernel: str | Kernel | None,
    memory: int | str | None,
) -> None:
    """Raise an error that names the argument because of which a call failed; return if the arguments are valid.

    A call checks its arguments before its plan is cached, and another call with the same signature does not check them
    again. This function is therefore called when an array library has raised an error.

    Raises:
        KindError: an array is not dense, has no data, or holds other elements than real numbers.
        OptionError: the kernel is not a name or a `Kernel`, or the memory limit is not an amount of memory.
    """
    check_arrays(query, key, value, parts)
    if not (kernel is None or isinstance(kernel, (str, Kernel))):
        raise OptionError(f'kernel must be a name, a Kernel or None, got {kernel!r}. Pass a name, such as "tiled".')
    budget_bytes(memory)
    for name, x in (("query", query), ("key", key), ("value", value)):
        check_data(name, x)
