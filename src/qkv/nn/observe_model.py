"""observe: what the attentions of any model do, read while it runs, without a word of it in the model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from qkv.errors import OptionError
from qkv.nn.attention import Attention
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.protocols import AttentionOutput
from qkv.readouts import Readout

__all__ = ["ModelObservation", "observe"]


@dataclass(frozen=True)
class ModelObservation:
    """What `observe` gives.

    Attributes:
        output: what the model gives without being observed.
        calls: for each attention that was read, by name: what was read at each of its calls, in order.
    """

    output: Any
    calls: dict[str, list[tuple[Any, ...]]]

    @property
    def readouts(self) -> dict[str, tuple[Any, ...]]:
        """For each attention, by name, what was read at its last call, in the order asked."""
        return {name: calls[-1] for name, calls in self.calls.items() if calls}


def observe(model: nn.Module, wanted: Mapping[str, Sequence[Readout]], *args: Any, **kwargs: Any) -> ModelObservation:
    """Run `model(*args, **kwargs)` and read the weights of some of its attentions on the way.

    The output is the same: readouts come from beside it, before dropout.

    Args:
        model: holds attentions of `qkv.nn` somewhere.
        wanted: readouts for each name, as `model.named_modules()` has it; `*` stands for anything, so
            "encoder.layers.*.attention" are those of all its layers.
        args, kwargs: of the model.

    Raises:
        OptionError: a name fits no attention; the message lists those that there are.

    Example:
        >>> import torch
        >>> from qkv import nn, readouts
        >>> model = nn.Encoder(3, 8, 2)
        >>> seen = observe(model, {"layers.1.attention": [readouts.Dense()]}, torch.randn(1, 4, 8))
        >>> seen.readouts["layers.1.attention"][0].shape  # (batch, heads, q, k)
        torch.Size([1, 2, 4, 4])
    """
    found = _matched(model, wanted)
    calls: dict[str, list[tuple[Any, ...]]] = {name: [] for name in found}
    with contextlib.ExitStack() as stack:
        for name, (module, readouts) in found.items():
            before, after = _hooks(tuple(readouts), calls[name])
            handles = (
                module.register_forward_pre_hook(before, with_kwargs=True),
                module.register_forward_hook(after, with_kwargs=True),
            )
            for handle in handles:
                stack.callback(handle.remove)
        output = model(*args, **kwargs)
    return ModelObservation(output, calls)


def _matched(model: nn.Module, wanted: Mapping[str, Sequence[Readout]]) -> dict[str, tuple[nn.Module, list[Readout]]]:
    there = {
        name: module for name, module in model.named_modules() if isinstance(module, (Attention, MultiHeadAttention))
    }
    found: dict[str, tuple[nn.Module, list[Readout]]] = {}
    for pattern, readouts in wanted.items():
        names = [name for name in there if fnmatchcase(name, pattern)]
        if not names:
            listed = ", ".join(map(repr, there)) or "none"
            raise OptionError(f"no attention of the model is named {pattern!r}. There are {listed}.")
        for name in names:
            found.setdefault(name, (there[name], []))[1].extend(readouts)
    return found


def _hooks(readouts: tuple[Readout, ...], calls: list[tuple[Any, ...]]) -> tuple[Callable[..., Any], ...]:
    """What adds the readouts to the module's own before it runs, and takes them out of what it gives."""

    def before(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, {**kwargs, "readouts": (*kwargs.get("readouts", ()), *readouts)}

    def after(module: nn.Module, args: Any, kwargs: dict[str, Any], given: AttentionOutput) -> Any:
        own = len(kwargs["readouts"]) - len(readouts)
        calls.append(tuple(given.readouts[own:]))
        return given._replace(readouts=given.readouts[:own]) if own else given.output

    return before, after
