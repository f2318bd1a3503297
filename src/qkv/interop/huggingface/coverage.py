"""Report of which attention layers of a Hugging Face model call qkv, by counting calls during a run.

Some models of transformers silently accept any `attn_implementation` but compute attention in their own code.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from qkv.interop.huggingface.attention_call import AttentionCall
from qkv.interop.huggingface.model_hooks import note_parts
from qkv.interop.huggingface.model_layers import (
    attention_configs,
    is_attention,
    module_names,
    nested,
    pretrained_models,
)
from qkv.interop.huggingface.registration import REGISTERED, add_listener, switch_implementation

Model = TypeVar("Model", bound=torch.nn.Module)


class BypassWarning(UserWarning):
    """Warning that some attention layers of a model compute attention in their own code instead of calling qkv.

    Example:
        >>> import warnings
        >>> from qkv.interop import huggingface
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", huggingface.BypassWarning)  # a layer that bypasses qkv is an error
    """


@dataclass(frozen=True)
class LayerCoverage:
    """Names of the attention layers of a model that call qkv, and of the attention layers that bypass qkv.

    Attributes:
        covered: number of calls of qkv by layer name.
        missed: names of attention layers that ran without calling qkv.

    Example:
        >>> import torch, transformers
        >>> from qkv.interop import huggingface
        >>> sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
        >>> model = transformers.BertModel(transformers.BertConfig(num_hidden_layers=1, **sizes)).eval()
        >>> found = huggingface.layer_coverage(model, input_ids=torch.tensor([[1, 2, 3]]))
        >>> found.covered, found.missed
        ({'encoder.layer.0.attention.self': 1}, ())
    """

    covered: dict[str, int] = field(default_factory=dict)
    missed: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.missed:
            return f"all {len(self.covered)} attention layers that ran call the engine"
        names = ", ".join(self.missed[:4]) + (", …" if len(self.missed) > 4 else "")
        return (
            f"{len(self.covered)} attention layers call the engine, {len(self.missed)} bypass the attention "
            f"interface of transformers ({names})"
        )


class CallCounter:
    """Counter of the calls of qkv and of the forward passes of each attention layer, until `stop` is called."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.names = module_names(model)
        self.calls: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self._hooks = [add_listener(module, self._count_call) for module in self.names]
        self._hooks += [x.register_forward_pre_hook(self._count_run) for x in self.names if is_attention(x)]

    def _count_run(self, module: torch.nn.Module, args: tuple[object, ...]) -> None:
        self.runs[self.names[module]] += 1

    def _count_call(self, module: torch.nn.Module, call: AttentionCall, dropout: float) -> None:
        self.calls[self.names[module]] += 1

    def result(self) -> LayerCoverage:
        """Return which attention layers have called qkv and which have bypassed it so far."""
        without = [name for name in self.runs if not nested(name, self.calls)]
        # Of nested attention layers, the innermost computes attention.
        missed = [name for name in without if not any(other.startswith(f"{name}.") for other in without)]
        return LayerCoverage(dict(self.calls), tuple(missed))

    def stop(self) -> None:
        """Remove all hooks and listeners that the counter added to the model."""
        for hook in self._hooks:
            hook.remove()


@contextlib.contextmanager
def engine_attention(model: torch.nn.Module, name: str) -> Iterator[CallCounter]:
    """Make a model compute attention with qkv in a `with` block, and yield the counter of its calls.

    Models inside it that use a registered name already are unchanged.
    """
    saved = [(config, config._attn_implementation) for config in attention_configs(model)]
    counter = CallCounter(model)
    try:
        for part in pretrained_models(model):
            if getattr(getattr(part, "config", None), "_attn_implementation", None) not in REGISTERED:
                switch_implementation(part, name)
        yield counter
    finally:
        counter.stop()
        for config, implementation in saved:
            config._attn_implementation_internal = implementation
            note_parts(config, REGISTERED)


def attach(model: Model, name: str = "qkv") -> Model:
    """Make a model compute attention with qkv, and warn after its first run about layers that bypass qkv.

    `model.set_attn_implementation(name)` does the same without the warning.

    Args:
        model: a model of transformers; it is modified in place.
        name: a registered name; "qkv" is registered if needed.

    Returns:
        The model.

    Warns:
        BypassWarning: after the first run, if some attention layers did not call qkv.

    Raises:
        OptionError: the name is not registered.

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

    def warn_once(module: torch.nn.Module, args: tuple[object, ...], output: object) -> None:
        hook.remove()
        counter.stop()
        coverage = counter.result()
        if coverage.missed:
            warnings.warn(f"{type(model).__name__}: {coverage}.", BypassWarning, stacklevel=2)

    hook = model.register_forward_hook(warn_once)
    return model


def layer_coverage(model: torch.nn.Module, name: str = "qkv", **inputs: object) -> LayerCoverage:
    """Run a model once with qkv, return which layers call qkv, and restore the model.

    Args:
        model: a model of transformers.
        name: a registered name; "qkv" is registered if needed.
        inputs: inputs of the model.

    Raises:
        OptionError: the name is not registered.

    Example:
        >>> import transformers
        >>> config = transformers.BertConfig(
        ...     vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
        ... )
        >>> layer_coverage(transformers.BertModel(config), input_ids=torch.tensor([[1, 2, 3]])).covered
        {'encoder.layer.0.attention.self': 1}
    """
    with engine_attention(model, name) as counter, torch.no_grad():
        switch_implementation(model, name)
        model(**inputs)
        return counter.result()
