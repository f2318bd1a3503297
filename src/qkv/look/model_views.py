"""Create attention views of any model that `qkv.interop.record` records, from the inputs of its `forward`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from qkv.errors import DataError, ShapeError
from qkv.look.allowed_pairs import allowed_of_record
from qkv.look.quantize import to_numpy
from qkv.look.views import LayerMaps, TokenAxis, View

if TYPE_CHECKING:
    import torch

    from qkv.core.typing import Shaped
    from qkv.interop.huggingface.attention_record import AttentionRecord

__all__ = ["model", "patch_axis"]


def patch_axis(rows: int, columns: int, special: int = 0) -> TokenAxis:
    """Return the axis of the patches of an image, named by row and column, after special tokens such as [CLS].

    Args:
        rows: number of rows of patches.
        columns: number of columns of patches.
        special: number of special tokens before the patches.

    Example:
        >>> patch_axis(2, 2, 1).tokens
        ('[CLS]', '0,0', '0,1', '1,0', '1,1')
    """
    before = ("[CLS]", *(f"[REG{i}]" for i in range(1, special)))[:special]
    names = (*before, *(f"{row},{column}" for row in range(rows) for column in range(columns)))
    words = (*(-1 for _ in before), *range(rows * columns))
    return TokenAxis(names, names, words, tuple(i < special for i in range(len(names))))


def model(
    module: torch.nn.Module,
    inputs: Mapping[str, object] | Sequence[object] | Shaped[torch.Tensor, "*axes"],
    *,
    queries: Sequence[str] | TokenAxis | None = None,
    keys: Sequence[str] | TokenAxis | None = None,
    element: int = 0,
    name: str | None = None,
) -> list[View]:
    """Run a model once, and return views of the weights of its attention layers.

    Layers with the same kind, number of queries and number of keys share a view, in the order of their first call.

    Args:
        module: a model of transformers, or a PyTorch module with attention modules of `torch.nn` or `qkv.nn`.
        inputs: inputs of the model: keyword arguments as a mapping, positional arguments as a tuple or list, or one
            tensor.
        queries: tokens of the rows of self-attention, and of the queries of cross-attention; None: the patches of the
            image for a vision transformer, otherwise the numbers from 0.
        keys: tokens of the keys of cross-attention; None: the numbers from 0.
        element: index into the batch.
        name: title of the views; None: the class of the model.

    Raises:
        DataError: no attention layer of the model could be recorded.
        ShapeError: no layer has as many queries as there are tokens.

    Example:
        >>> import torch
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        >>> (view,) = model(layer, torch.randn(1, 3, 8), queries=["a", "b", "c"])
        >>> view.layers[0].name, view.weights(0, 1).shape
        ('self_attn', (3, 3))
    """
    import torch

    from qkv.interop import record
    from qkv.readouts import Dense

    groups: dict[tuple[str, int, int], list[LayerMaps]] = {}

    def collect(layer: str, call: AttentionRecord) -> None:
        weights = to_numpy(call.readouts[0][element])
        allowed = allowed_of_record(call, weights, element)
        maps = LayerMaps.from_weights(layer or type(module).__name__, weights, None, allowed)
        groups.setdefault((call.kind, call.queries, call.keys), []).append(maps)

    with torch.no_grad(), record(module, [Dense()], save_inputs=True, consume=collect):
        if isinstance(inputs, Mapping):
            module(**inputs)
        elif isinstance(inputs, (tuple, list)):
            module(*inputs)
        else:
            module(inputs)
    if not groups:
        raise DataError(
            f"module must have attention layers that record can record, got {type(module).__name__} without any. Pass "
            "its weights to View.from_weights."
        )
    rows, columns = (None if x is None else _axis(x) for x in (queries, keys))
    if rows is not None and all(len(rows.tokens) != q for _, q, _ in groups):
        counts = sorted({q for _, q, _ in groups})
        raise ShapeError(
            f"queries must have as many tokens as a layer has queries, {', '.join(map(str, counts))}, got "
            f"{len(rows.tokens)}. Pass one token for each query."
        )
    patches = _patch_grid(module, inputs)
    title = type(module).__name__ if name is None else name
    views = []
    for (kind, q, k), layers in groups.items():
        query_axis = _fitting(rows, q, patches)
        key_axis = None if kind == "self" and q == k else _fitting(columns, k, patches)
        views.append(View(title, type(module).__name__, kind, query_axis, key_axis, tuple(layers)))
    return views


def _axis(tokens: Sequence[str] | TokenAxis) -> TokenAxis:
    return tokens if isinstance(tokens, TokenAxis) else TokenAxis.from_words(tokens)


def _fitting(axis: TokenAxis | None, count: int, patches: tuple[int, int] | None) -> TokenAxis:
    """Return `axis` if it has `count` tokens, otherwise the patches if they fit, otherwise numbers."""
    if axis is not None and len(axis.tokens) == count:
        return axis
    special = -1 if patches is None else count - patches[0] * patches[1]
    # Vision transformers have up to some ten special tokens: a class token, a distillation token, registers.
    if patches is not None and 0 <= special <= 16:
        return patch_axis(*patches, special)
    return TokenAxis.from_count(count)


def _patch_grid(module: torch.nn.Module, inputs: object) -> tuple[int, int] | None:
    """Return the numbers of rows and columns of patches of a vision transformer of transformers, otherwise None."""
    config = getattr(module, "config", None)
    patch = getattr(getattr(config, "vision_config", config), "patch_size", None)
    image = inputs.get("pixel_values") if isinstance(inputs, Mapping) else inputs
    image = image[0] if isinstance(image, (tuple, list)) and image else image
    shape = tuple(getattr(image, "shape", ()))
    if patch is None or len(shape) != 4:
        return None
    down, across = patch if isinstance(patch, (tuple, list)) else (patch, patch)
    return shape[2] // int(down), shape[3] // int(across)
