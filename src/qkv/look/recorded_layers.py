"""Layers that one run of a model records: their maps, and maps over all heads (mean, attention rollout and flow)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qkv.core.typing import Bool, Float
from qkv.errors import DataError
from qkv.look.allowed_pairs import allowed_of_record
from qkv.look.axis import Axis
from qkv.look.head_call import HeadCall
from qkv.look.quantize import MASKED, to_numpy
from qkv.look.rollout import flow, rollout
from qkv.look.views import ALL_HEADS, LayerMaps, View

if TYPE_CHECKING:
    import torch

    from qkv.interop.huggingface.attention_record import AttentionRecord


_MAX_FLOW_TOKENS = 32
"""Maximum tokens for attention flow, which takes 0.3 s for 32 tokens in six layers, and 3 s for 64 tokens."""


class DenseCall(NamedTuple):
    """The attention weights of one layer for one input.

    Attributes:
        name: name of the layer.
        kind: `"self"` or `"cross"`.
        weights: `(heads, q, k)`.
        allowed: the pairs that the mask allows; None: all.
        value_norms: `(heads, k)`, the norms of the values; None if the layer computed its own attention.
        calls: the call of each head; None if the layer computed its own attention.
    """

    name: str
    kind: str
    weights: Float[np.ndarray, "heads q k"]
    allowed: Bool[np.ndarray, "*#heads q k"] | None
    value_norms: Float[np.ndarray, "heads k"] | None = None
    calls: tuple[HeadCall, ...] | None = None


def call_module(module: Callable[..., object], inputs: object) -> object:
    """Call a module with keyword arguments from a mapping, positional arguments from a tuple or list, or one array."""
    if isinstance(inputs, Mapping):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, (tuple, list)) else module(inputs)


def run_dense(
    module: torch.nn.Module, inputs: object, collect: Callable[[DenseCall], None], element: int = 0
) -> object:
    """Run a model on its inputs, call a function with the weights of each attention layer, and return the output.

    Gradients are disabled. The weights of one layer at a time are in memory, unless `collect` stores them.

    Args:
        module: a model of transformers or PyTorch.
        inputs: inputs of the model, as for `call_module`.
        collect: function that is called once per call of an attention layer, in the order of the calls.
        element: index into the batch.
    """
    import torch

    from qkv.interop import record
    from qkv.readouts import Dense

    def consume(name: str, call: AttentionRecord) -> None:
        weights = to_numpy(call.readouts[0][element])
        norms = None if call.saved is None or call.saved.value_norms is None else call.saved.value_norms[element]
        heads = HeadCall.of_record(call, element)
        allowed = allowed_of_record(call, weights, element)
        collect(DenseCall(name, call.kind, weights, allowed, None if norms is None else to_numpy(norms), heads))

    # The saved inputs hold the mask.
    with torch.no_grad(), record(module, [Dense()], save_inputs=True, consume=consume):
        return call_module(module, inputs)


def check_shapes(
    model: torch.nn.Module, name: str, shapes: Sequence[tuple[int, ...]], expected: tuple[int, int]
) -> None:
    """Raise a `DataError` if a run of a model recorded no layers, or one with other numbers of queries and keys."""
    wrong = next((shape for shape in shapes if shape != expected), None)
    if wrong is not None or not shapes:
        found = "no such layer" if wrong is None else f"a layer of {wrong[0]} × {wrong[1]} weights"
        other = "" if wrong is None else "at its layers of any size with qkv.look.model, "
        raise DataError(
            f"the model must have attention layers with {expected[0]} × {expected[1]} weights for this text, got "
            f"{name}, whose class {type(model).__name__} has {found}. Look at another model, {other}or at weights of "
            "your own with qkv.look.View.from_weights."
        )


@dataclass
class RecordedLayers:
    """Layers of one run of a model that are shown in one view.

    Attributes:
        maps: the maps of each layer.
        modules: the name of the module of each layer.
        means: the mean over the heads of each layer.
    """

    maps: list[LayerMaps] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    means: list[Float[np.ndarray, "q k"]] = field(default_factory=list)

    @cached_property
    def causal(self) -> bool:
        """Whether no query may attend to a later key."""
        return not any(np.triu((layer.codes != MASKED).any(axis=0), 1).any() for layer in self.maps)

    def add(self, call: DenseCall, name: str | None = None) -> None:
        """Add a layer under a name; None: its number, such as `layer 0`."""
        _, _, weights, allowed, value_norms, calls = call
        name = f"layer {len(self.maps)}" if name is None else name
        self.maps.append(LayerMaps.from_weights(name, weights, None, allowed, value_norms, calls))
        self.modules.append(call.name)
        self.means.append(weights.mean(axis=0))

    def view(
        self, name: str, model: str, kind: str, queries: Axis, keys: Axis | None, all_heads: bool, **fields: Any
    ) -> View:
        """Return a view of the layers, with another layer of maps over all heads if `all_heads`.

        These are the mean over all heads and layers, the rollout and, for short texts, the flow. They need only the
        means over the heads of each layer, with which the page computes the flow of single pairs of longer texts.

        Example:
            >>> words, maps = Axis.from_words("abc"), [LayerMaps.from_weights("layer 0", np.eye(3)[None])]
            >>> found = RecordedLayers(maps, means=[np.eye(3)])
            >>> found.view("three words", "", "self", words, None, True).layers[1].heads
            ('mean', 'rollout', 'flow')
        """
        maps = list(self.maps)
        if all_heads:
            stacked = np.stack(self.means)[:, None]
            combined = {"mean": stacked.mean(axis=(0, 1), dtype=np.float64), "rollout": rollout(stacked)}
            if stacked.shape[-1] <= _MAX_FLOW_TOKENS:
                combined["flow"] = flow(stacked)
            else:
                note = (
                    f"For more than {_MAX_FLOW_TOKENS} tokens, attention flow is computed for single pairs: select a "
                    "pair in the map and press “Flow of this pair”. Exported files do not offer it."
                )
                fields |= {"note": note, "layer_means": stacked[:, 0].astype(np.float32)}
            # Tokens reach only earlier tokens in any number of causal layers; other masks may combine to more.
            allowed = np.tri(len(queries.tokens), dtype=bool) if self.causal else None
            maps.append(LayerMaps.from_weights(ALL_HEADS, np.stack(list(combined.values())), list(combined), allowed))
        return View(name, model, kind, queries, keys, tuple(maps), **fields)
