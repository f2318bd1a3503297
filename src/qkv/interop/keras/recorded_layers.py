"""Record the weights of the attention layers of a Keras model while it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, cast

from qkv.core.typing import Array, Shaped
from qkv.interop.layer_weights import LayerWeights

if TYPE_CHECKING:
    import keras


_OPTION = "return_attention_scores"


@contextmanager
def record_layers(model: keras.layers.Layer) -> Iterator[list[LayerWeights]]:
    """Record the weights of the attention layers of a model in a `with` block, on every backend of Keras.

    Layers whose `call` accepts `return_attention_scores` are recorded, such as `MultiHeadAttention`,
    `GroupQueryAttention`, `Attention` and those of `qkv.interop.keras`. Their weights are those that Keras itself
    returns; the outputs do not change. The model must run eagerly: call it, instead of `predict`.

    Args:
        model: a Keras model or layer.

    Yields:
        A list, to which each call of a layer adds its weights.

    Example:
        >>> with record_layers(model) as found:  # doctest: +SKIP
        ...     _ = model(inputs)
        >>> found[0].name, found[0].weights.shape  # doctest: +SKIP
        ('multi_head_attention', (1, 2, 5, 5))
    """
    found: list[LayerWeights] = []
    with ExitStack() as stack:
        for layer in model._flatten_layers():
            if _OPTION in inspect.signature(layer.call).parameters:
                stack.callback(layer.__dict__.pop, "call", None)
                # Keras tracks attributes that are set in the usual way.
                layer.__dict__["call"] = _recorded_call(layer, found)
        yield found


def _recorded_call(layer: keras.layers.Layer, found: list[LayerWeights]) -> Callable[..., object]:
    original: Callable[..., object] = layer.call
    signature = inspect.signature(original)

    def call(*args: object, **kwargs: object) -> object:
        bound = signature.bind(*args, **kwargs)
        asked = bound.arguments.get(_OPTION, False)
        bound.arguments[_OPTION] = True
        output, scores = cast("tuple[object, Shaped[Array, '*axes']]", original(*bound.args, **bound.kwargs))
        # `Attention` has one list of inputs, and weights without an axis of heads.
        inputs = bound.arguments.get("inputs", [bound.arguments.get("query"), bound.arguments.get("value")])
        kind = "self" if inputs[0] is inputs[1] else "cross"
        weights = scores[:, None] if len(scores.shape) == 3 else scores
        found.append(LayerWeights(layer.name, kind, weights))  # type: ignore[arg-type]
        return (output, scores) if asked else output

    return call
