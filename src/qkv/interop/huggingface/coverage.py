"""Which layers of a model the engine reaches: found by counting, and told to the user.

Some models of transformers compute attention themselves and accept any `attn_implementation` in silence.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import torch

from qkv.errors import OptionError
from qkv.interop.huggingface.model_layers import attention_configs, is_attention, module_names, nested
from qkv.interop.huggingface.registration import LISTENERS, REGISTERED, register

__all__ = [
    "CallCounter",
    "LayerCoverage",
    "BypassWarning",
    "attach",
    "save_implementations",
    "layer_coverage",
    "restore_implementations",
    "switch_implementation",
]


class BypassWarning(UserWarning):
    """Some layers of a model compute attention on their own: what was asked for does not hold there."""


@dataclass(frozen=True)
class LayerCoverage:
    """Which layers called the engine.

    Attributes:
        reached: name of the layer and how often it called.
        missed: names of layers that ran and look like attention, and did not call.
    """

    covered: dict[str, int] = field(default_factory=dict)
    missed: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.missed:
            return f"all {len(self.covered)} attention layers that ran are reached"
        shown = ", ".join(self.missed[:4]) + (", …" if len(self.missed) > 4 else "")
        return (
            f"{len(self.covered)} attention layers are reached, {len(self.missed)} are not: they do not call "
            f"transformers' attention interface ({shown})"
        )


class CallCounter:
    """Counts calls of the engine and runs of layers that look like attention, until it is stopped."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.names = module_names(model)
        self.calls: dict[str, int] = {}
        self.ran: dict[str, int] = {}
        self._hooks: list[Any] = []
        for module, name in self.names.items():
            LISTENERS.setdefault(module, []).append(self._heard)
            if is_attention(module):
                self._hooks.append(module.register_forward_pre_hook(self._noted(name)))

    def _noted(self, name: str) -> Any:
        def note(module: Any, arguments: Any) -> None:
            self.ran[name] = self.ran.get(name, 0) + 1

        return note

    def _heard(self, module: Any, call: Any, dropout: float) -> None:
        name = self.names[module]
        self.calls[name] = self.calls.get(name, 0) + 1

    def result(self) -> LayerCoverage:
        """What was counted so far."""
        apart = [name for name in self.ran if not nested(name, self.calls)]
        # Of layers within layers, the innermost attends.
        missed = [name for name in apart if not any(other.startswith(f"{name}.") for other in apart if other != name)]
        return LayerCoverage(dict(self.calls), tuple(missed))

    def stop(self) -> None:
        """Count no longer."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for module in self.names:
            remove_listener(module, self._heard)


def remove_listener(module: torch.nn.Module, listener: Any) -> None:
    """Tell a listener no longer of a layer's calls."""
    others = [other for other in LISTENERS.get(module, ()) if other != listener]
    if others:
        LISTENERS[module] = others
    else:
        LISTENERS.pop(module, None)


def save_implementations(model: Any) -> list[tuple[Any, Any]]:
    """Every config of the model and the attention it names, for `restore`."""
    return [(config, config._attn_implementation) for config in attention_configs(model)]


def restore_implementations(before: list[tuple[Any, Any]]) -> None:
    """Let every config name the attention that it named before."""
    for config, name in before:
        config._attn_implementation_internal = name


def switch_implementation(model: Any, name: str) -> bool:
    """Let the model take the attention of that name where it can; whether any of it can.

    Raises:
        OptionError: nothing is registered under the name.
    """
    if name not in REGISTERED:
        if name != "qkv":
            raise OptionError(
                f'nothing is registered as "{name}", only {", ".join(REGISTERED) or "nothing yet"}. '
                "Call qkv.interop.huggingface.register first."
            )
        register()
    can = getattr(model, "_can_set_attn_implementation", None)
    if can is None or not can():
        return False
    model.set_attn_implementation(name)
    return True


def attach(model: Any, name: str = "qkv") -> Any:
    """Run a model on the engine from now on; after its first run warn of layers that are not reached.

    As `model.set_attn_implementation(name)`, which stays silent about models that compute attention
    themselves.

    Args:
        model: of transformers.
        name: under which the engine was registered; "qkv" registers itself.

    Returns:
        The model.

    Warns:
        BypassWarning: after the first run, where layers did not call the engine.

    Raises:
        OptionError: nothing is registered under the name.

    Example:
        >>> import transformers
        >>> config = transformers.LlamaConfig(
        ...     vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        ...     num_attention_heads=2, num_key_value_heads=1,
        ... )
        >>> model = attach(transformers.LlamaModel(config))
        >>> model(torch.tensor([[1, 2, 3]])).last_hidden_state.shape
        torch.Size([1, 3, 8])
    """
    switch_implementation(model, name)
    counter = CallCounter(model)

    def told(module: Any, arguments: Any, output: Any) -> None:
        hook.remove()
        counter.stop()
        found = counter.result()
        if found.missed:
            warnings.warn(f"{type(model).__name__}: {found}.", BypassWarning, stacklevel=2)

    hook = model.register_forward_hook(told)
    return model


def layer_coverage(model: Any, name: str = "qkv", **inputs: Any) -> LayerCoverage:
    """Run the model once and count which layers call the engine; the model is as before afterwards.

    Args:
        model: of transformers.
        name: under which the engine was registered.
        inputs: of the model.

    Example:
        >>> import transformers
        >>> config = transformers.BertConfig(
        ...     vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
        ... )
        >>> layer_coverage(transformers.BertModel(config), input_ids=torch.tensor([[1, 2, 3]])).covered
        {'encoder.layer.0.attention.self': 1}
    """
    before = save_implementations(model)
    counter = CallCounter(model)
    try:
        switch_implementation(model, name)
        with torch.no_grad():
            model(**inputs)
        return counter.result()
    finally:
        counter.stop()
        restore_implementations(before)
