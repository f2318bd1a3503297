"""Create attention views of any model that `qkv.interop.record` records, from the inputs of its `forward`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from qkv.core.typing import ArrayLike, Num
from qkv.errors import DataError, OptionError, ShapeError
from qkv.look.allowed_pairs import infer_causal
from qkv.look.axis import Axis
from qkv.look.live_model import LiveModel
from qkv.look.quantize import to_numpy
from qkv.look.recorded_layers import DenseCall, RecordedLayers, call_module, run_dense
from qkv.look.text_roles import mark_roles
from qkv.look.views import LayerMaps, View

if TYPE_CHECKING:
    import keras
    import torch
    from flax import nnx

    from qkv.core.typing import Array, Shaped


def model(
    module: torch.nn.Module | keras.layers.Layer | nnx.Module,
    inputs: Mapping[str, object] | Sequence[object] | Shaped[Array, "*axes"],
    *,
    queries: Sequence[str] | Axis | None = None,
    keys: Sequence[str] | Axis | None = None,
    element: int = 0,
    name: str | None = None,
    picture: Num[np.ndarray, "height width 3"] | None = None,
) -> list[View]:
    """Run a model once, and return views of the weights of its attention layers.

    Layers with the same kind, number of queries and number of keys share a view, in the order of their first call.

    Args:
        module: a model of transformers, a PyTorch module with attention modules of `torch.nn` or `qkv.nn`, a Keras
            model with attention layers of Keras, or a Flax NNX model with `nnx.MultiHeadAttention`.
        inputs: inputs of the model: keyword arguments as a mapping, positional arguments as a tuple or list, or one
            array. A Keras model gets the mapping or list itself.
        queries: tokens of the rows of self-attention, and of the queries of cross-attention; None: the patches of the
            image for a vision transformer, otherwise the numbers from 0.
        keys: tokens of the keys of cross-attention; None: the numbers from 0.
        element: index into the batch.
        name: title of the views; None: the class of the model.
        picture: red, green and blue of the image as the model sees it, from 0 to 255, under the patches of a vision
            transformer; None: the input of the model, scaled to its range.

    Raises:
        OptionError: `module` is no model.
        DataError: no attention layer of the model could be recorded.
        ShapeError: no layer has as many queries as there are tokens.

    Example:
        >>> import torch
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        >>> (view,) = model(layer, torch.randn(1, 3, 8), queries=["a", "b", "c"])
        >>> view.layers[0].name, view.weights(0, 1).shape
        ('self_attn', (3, 3))
    """
    groups: dict[tuple[str, int, int], RecordedLayers] = {}

    def collect(call: DenseCall) -> None:
        group = groups.setdefault((call.kind, *call.weights.shape[1:]), RecordedLayers())
        group.add(call, call.name or type(module).__name__)

    libraries = {kind.__module__.split(".")[0] for kind in type(module).__mro__} & {"torch", "keras", "flax"}
    if not libraries:
        raise OptionError(
            f"module must be a model of PyTorch, Keras or Flax, got {module!r:.60}. Create or load the model, and pass "
            "the object."
        )
    arrays = next((name for name in ("keras", "flax") if name in libraries), "")
    if arrays:
        _run_arrays(module, inputs, element, arrays, collect)
    else:
        run_dense(cast("torch.nn.Module", module), inputs, collect, element)
    if not groups:
        raise DataError(
            f"module must have attention layers that can be recorded, got {type(module).__name__} without any. Pass "
            "its weights to View.from_weights."
        )
    rows, columns = (None if x is None else Axis.from_words(x) for x in (queries, keys))
    counts = sorted({q for _, q, _ in groups})
    if rows is not None and len(rows.tokens) not in counts:
        raise ShapeError(
            f"queries must have as many tokens as a layer has queries, {', '.join(map(str, counts))}, got "
            f"{len(rows.tokens)}. Pass one token for each query."
        )
    grid = _patch_grid(module, inputs)
    if grid is not None:
        picture = _picture(inputs, element) if picture is None else picture.astype(np.uint8)
    title = type(module).__name__ if name is None else name
    views = []
    for (kind, q, k), group in groups.items():
        group.maps = _numbered(group.maps)
        torch_module, names = cast("torch.nn.Module", module), tuple(group.modules)
        live = None if arrays else LiveModel(torch_module, inputs, names, element=element, queries=q)
        shares = all(one.normalized for layer in group.maps for one in layer.ranges)
        all_heads = kind == "self" and q == k and len(group.maps) > 1 and shares
        query_axis = _fitting(rows, q, grid, picture)
        key_axis = None if kind == "self" and q == k else _fitting(columns, k, grid, picture)
        view = group.view(title, type(module).__name__, kind, query_axis, key_axis, all_heads, live=live)
        views.append(mark_roles(view))
    return views


def _run_arrays(
    module: object, inputs: object, element: int, library: str, collect: Callable[[DenseCall], None]
) -> None:
    """Run a model of Keras or Flax, whose layers return their weights as arrays."""
    assert callable(module)
    if library == "keras":
        from qkv.interop.keras import record_layers

        with record_layers(module) as found:
            module(inputs)  # the inputs of a Keras model are one argument
    else:
        from qkv.interop.flax import record_modules

        with record_modules(module) as found:
            call_module(module, inputs)
    for layer, kind, several in found:
        weights = to_numpy(several[element])
        collect(DenseCall(layer, kind, weights, infer_causal([weights]) if kind == "self" else None))


def _numbered(layers: Sequence[LayerMaps]) -> list[LayerMaps]:
    """Return the layers with the names `layer 0`, `layer 1` …, if only one number distinguishes their names."""
    parts = [re.split(r"(\d+)", layer.name) for layer in layers]
    differing = {i for one in parts for i, (x, y) in enumerate(zip(one, parts[0], strict=False)) if x != y}
    if len(layers) == 1 or len({len(one) for one in parts}) > 1 or len(differing) != 1 or min(differing) % 2 == 0:
        return list(layers)
    (place,) = differing
    return [replace(layer, name=f"layer {one[place]}") for layer, one in zip(layers, parts, strict=True)]


def _fitting(
    axis: Axis | None, count: int, grid: tuple[int, int] | None, picture: Num[np.ndarray, "height width 3"] | None
) -> Axis:
    """Return `axis` if it has `count` tokens, otherwise the patches if they fit, otherwise numbers."""
    if axis is not None and len(axis.tokens) == count:
        return axis
    special = -1 if grid is None else count - grid[0] * grid[1]
    # Vision transformers have up to some ten special tokens: a class token, a distillation token, registers.
    if grid is not None and 0 <= special <= 16:
        return Axis.from_patches(*grid, special, picture)
    return Axis.from_count(count)


def _image(inputs: object) -> object:
    """Return the argument of a vision transformer that may hold images."""
    image = inputs.get("pixel_values") if isinstance(inputs, Mapping) else inputs
    return image[0] if isinstance(image, (tuple, list)) and image else image


def _picture(inputs: object, element: int) -> Num[np.ndarray, "height width 3"]:
    """Return one image of the inputs, scaled so that its smallest value is black and its largest is white."""
    values = to_numpy(cast("ArrayLike", _image(inputs)))[element].astype(np.float64)
    scaled = (values - values.min()) / max(float(values.max() - values.min()), 1e-12) * 255
    image = np.rint(scaled).astype(np.uint8).transpose(1, 2, 0)
    return np.ascontiguousarray(np.broadcast_to(image[..., :3], (*image.shape[:2], 3)))


def _patch_grid(module: object, inputs: object) -> tuple[int, int] | None:
    """Return the numbers of rows and columns of patches of a vision transformer of transformers, otherwise None."""
    config = getattr(module, "config", None)
    patch = getattr(getattr(config, "vision_config", config), "patch_size", None)
    shape = tuple(getattr(_image(inputs), "shape", ()))
    if patch is None or len(shape) != 4:
        return None
    down, across = patch if isinstance(patch, (tuple, list)) else (patch, patch)
    return shape[2] // int(down), shape[3] // int(across)
