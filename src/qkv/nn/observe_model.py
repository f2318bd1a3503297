"""Compute readouts of the attention modules inside a model, without changes to the model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from qkv.core.typing import ReadoutResult
from qkv.errors import OptionError
from qkv.nn.attention import Attention
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.protocols import AttentionOutput
from qkv.readouts import Readout

_PreHook = Callable[[nn.Module, tuple[object, ...], dict[str, object]], tuple[tuple[object, ...], dict[str, object]]]
_PostHook = Callable[[nn.Module, tuple[object, ...], dict[str, object], AttentionOutput], object]


@dataclass(frozen=True)
class ModelObservation:
    """Output of a model and the readouts of its attention modules, as returned by `observe`.

    Attributes:
        output: the output of the model.
        calls: for each module name, the readouts of every call of the module, in the order of the calls.

    Example:
        >>> import torch
        >>> from qkv import nn, readouts
        >>> seen = nn.observe(nn.Encoder(2, 8, 2), {"layers.0.attention": [readouts.Entropy()]},
        ...                   torch.randn(1, 4, 8))
        >>> seen.output.shape, seen.readouts["layers.0.attention"][0].shape
        (torch.Size([1, 4, 8]), torch.Size([1, 2, 4]))
    """

    output: Any  # of the model
    calls: dict[str, list[tuple[ReadoutResult, ...]]]

    @property
    def readouts(self) -> dict[str, tuple[ReadoutResult, ...]]:
        """Mapping from the name of each called module to the readouts of its last call."""
        return {name: calls[-1] for name, calls in self.calls.items() if calls}


class ModuleCall(NamedTuple):
    """A call of an attention module, with the output and readouts that `readout_hooks` collect."""

    module: nn.Module
    args: tuple[object, ...]
    kwargs: dict[str, object]
    output: AttentionOutput


def observe(
    model: nn.Module, readouts: Mapping[str, Sequence[Readout]], *args: object, **kwargs: object
) -> ModelObservation:
    """Run `model(*args, **kwargs)`, and return its output and readouts of selected attention modules.

    The output does not change: readouts see the weights before dropout.

    Args:
        model: model with attention modules of `qkv.nn`.
        readouts: readouts for each module name, as `model.named_modules()` lists them. `*` matches any text, so
            "encoder.layers.*.attention" selects all layers.
        args: positional arguments of the model.
        kwargs: keyword arguments of the model.

    Raises:
        OptionError: if a name matches no attention module; the message lists all names.

    Example:
        >>> import torch
        >>> from qkv import nn, readouts
        >>> model = nn.Encoder(3, 8, 2)
        >>> seen = observe(model, {"layers.1.attention": [readouts.Dense()]}, torch.randn(1, 4, 8))
        >>> seen.readouts["layers.1.attention"][0].shape  # (batch, heads, q, k)
        torch.Size([1, 2, 4, 4])
    """
    selected = _select_modules(model, readouts)
    calls: dict[str, list[tuple[object, ...]]] = {name: [] for name in selected}
    with contextlib.ExitStack() as stack:
        for name, (module, added) in selected.items():
            before, after = readout_hooks(tuple(added), partial(_collect_readouts, calls[name]))
            stack.enter_context(module.register_forward_pre_hook(before, with_kwargs=True))
            stack.enter_context(module.register_forward_hook(after, with_kwargs=True))
        output = model(*args, **kwargs)
    return ModelObservation(output, calls)


def _select_modules(
    model: nn.Module, readouts: Mapping[str, Sequence[Readout]]
) -> dict[str, tuple[nn.Module, list[Readout]]]:
    modules = {
        name: module for name, module in model.named_modules() if isinstance(module, (Attention, MultiHeadAttention))
    }
    selected: dict[str, tuple[nn.Module, list[Readout]]] = {}
    for pattern, patterns_readouts in readouts.items():
        names = [name for name in modules if fnmatchcase(name, pattern)]
        if not names:
            known = ", ".join(map(repr, modules))
            advice = f"Choose from {known}." if modules else "The model has no attention modules of qkv.nn."
            raise OptionError(
                "each key of readouts must match the name of an attention module of the model, got "
                f"{pattern!r}. {advice}"
            )
        for name in names:
            selected.setdefault(name, (modules[name], []))[1].extend(patterns_readouts)
    return selected


def _collect_readouts(calls: list[tuple[object, ...]], call: ModuleCall) -> None:
    calls.append(call.output.readouts)


def readout_hooks(readouts: tuple[Readout, ...], collect: Callable[[ModuleCall], None]) -> tuple[_PreHook, _PostHook]:
    """Return two hooks of an attention module: the first adds `readouts` to a call, the second collects their results.

    The module returns what it returns without the hooks.
    """

    def before(
        module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        own = kwargs.get("readouts", ())
        assert isinstance(own, Sequence)
        return args, {**kwargs, "readouts": (*own, *readouts)}

    def after(
        module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: AttentionOutput
    ) -> object:
        own = len(output.readouts) - len(readouts)
        collect(ModuleCall(module, args, kwargs, output._replace(readouts=tuple(output.readouts[own:]))))
        return output._replace(readouts=output.readouts[:own]) if own else output.output

    return before, after
