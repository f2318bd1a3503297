"""Create tiled views from saved arrays, or by running a model on a long text.

The required memory is predicted and limited in advance, and no array of all q × k weights is allocated.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.formatting import memory_text
from qkv.core.progress import Progress, track
from qkv.core.typing import Array, Float, Int
from qkv.errors import DataError, RefusedError, ShapeError
from qkv.look.axis import Axis
from qkv.look.recorded_layers import check_shapes
from qkv.look.tiled_map import TiledLayer, TiledMap, TiledView, overview_size
from qkv.masks import Causal, Mask

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


_MODEL_CELLS = 256, 1024
"""Least and most cells along each side of the overviews of a model, which has many heads."""


def read_array(path: str | os.PathLike[str]) -> Float[np.ndarray, "*heads tokens width"]:
    """Read a query or key array from a .npy file as float32.

    Args:
        path: a file written by `numpy.save`, with an array `(tokens, width)` or `(heads, tokens, width)`.

    Raises:
        DataError: the file does not exist, cannot be read, or contains no such array.
    """
    file = Path(path)
    try:
        array = np.load(file, mmap_mode="c", allow_pickle=False)
    except OSError as error:
        raise DataError(
            f"the array file must be readable, got {str(path)!r}, but reading failed: {error.strerror or error}. "
            "Check its path and permissions."
        ) from None
    except (ValueError, EOFError):
        # NumPy assumes that any unknown file is a pickle, and its message explains how to allow pickles.
        raise DataError(
            f"the array file must be in .npy format, got {file.name!r} in another format. "
            f"Save an array with np.save({file.stem + '.npy'!r}, array)."
        ) from None
    shape = getattr(array, "shape", ())
    if len(shape) not in (2, 3) or 0 in shape or array.dtype.kind not in "fiu":
        raise DataError(
            f"the array in {file.name!r} must be numeric with shape (tokens, width) or (heads, tokens, width), got "
            f"shape {shape} and dtype {getattr(array, 'dtype', 'unknown')}. Save the query or key of one input."
        )
    return np.ascontiguousarray(array, dtype=np.float32)


def arrays_required_bytes(
    query: Float[np.ndarray, "*heads q width"], key: Float[np.ndarray, "*groups k key_width"]
) -> int:
    """Predict the bytes that `arrays_view` allocates in addition to the arrays."""
    (*heads, q, width), k = query.shape, key.shape[-2]
    one = TiledMap.required_bytes(q, k, width, library="torch" if find_spec("torch") else "numpy")
    return one + (math.prod(heads) - 1) * _overview_bytes(q, k, overview_size(max(q, k)))


def arrays_view(
    query: Float[np.ndarray, "*heads q width"],
    key: Float[np.ndarray, "*groups k key_width"],
    *,
    causal: bool = False,
    name: str = "arrays",
    progress: Progress | None = None,
) -> TiledView:
    """Create a tiled view of scaled dot-product attention from a query and a key array.

    Raises:
        ShapeError: the numbers of heads or the widths do not match.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(2, 300, 4)).astype(np.float32)
        >>> view = arrays_view(rows, rows)
        >>> view.head(0, 1).shape, view.meta()["layers"]
        ((300, 300), [{'name': 'arrays', 'heads': ['head 0', 'head 1']}])
    """
    queries, keys = (array if array.ndim == 3 else array[None] for array in (query, key))
    if len(queries) % len(keys) or queries.shape[-1] != keys.shape[-1]:
        raise ShapeError(
            "query and key must have equal widths, and the number of query heads must be a multiple of the number of "
            f"key heads, got shapes {query.shape} and {key.shape}. Check that both arrays come from the same layer."
        )
    mask: Mask | None = Causal(align="end") if causal else None
    maps = {}
    for head, rows in enumerate(track(queries, "reading heads", progress)):
        pair: tuple[Array, ...] = rows, keys[head * len(keys) // len(queries)]
        if find_spec("torch"):  # which computes maps three times as fast
            from torch import from_numpy

            pair = tuple(map(from_numpy, pair))
        maps[f"head {head}"] = TiledMap.from_arrays(*pair, mask=mask)
    q, k = queries.shape[-2], keys.shape[-2]
    kind, columns = ("self", None) if q == k else ("cross", Axis.from_count(k))
    return TiledView(name, "", kind, Axis.from_count(q), columns, (TiledLayer("arrays", maps),))


def heads_required_bytes(tokens: int, width: int, heads: int) -> int:
    """Predict the bytes of the tiled view of a text that `recorded_view` returns.

    For each head, these are the query, the key, the log-sum-exp and the overview.
    """
    overview = _overview_bytes(tokens, tokens, overview_size(tokens, *_MODEL_CELLS))
    return heads * (4 * tokens * (2 * width + 1) + overview)


def recorded_view(
    model: PreTrainedModel,
    inputs: Mapping[str, Int[torch.Tensor, "1 tokens"]],
    tokens: Axis,
    *,
    name: str,
    model_name: str,
    layers: Sequence[int] | None,
) -> TiledView:
    """Return the tiled maps of a long text, of a model that uses the attention interface of transformers."""
    import torch

    from qkv.interop import record
    from qkv.readouts import PooledMap

    size = overview_size(len(tokens.tokens), *_MODEL_CELLS)
    readouts = [PooledMap(size), PooledMap(size, "max")]
    with torch.no_grad(), record(model, readouts, layers=layers, save_inputs=True) as recorded:
        model(**inputs)
    count, last_calls = len(tokens.tokens), [calls[-1] for calls in recorded.layers.values()]
    check_shapes(model, model_name, [(call.queries, call.keys) for call in last_calls], (count, count))
    result = []
    numbers = range(len(recorded.layers)) if layers is None else layers
    for number, last in zip(numbers, last_calls, strict=True):
        if last.saved is None:
            raise DataError(
                f"model must use the attention interface of transformers for a text whose maps exceed the memory "
                f"limit, got {model_name}, which computes attention itself. Shorten the text, or increase memory."
            )
        maps = {f"head {head}": TiledMap.from_record(last, head) for head in last.heads}
        result.append(TiledLayer(f"layer {number}", maps))
    return TiledView(name, model_name, "self", tokens, None, tuple(result))


def check_memory(
    required: int,
    allowed: int,
    subject: str,
    advice: str,
    *,
    detail: str = "",
    notify: Callable[[str], None] | None = None,
) -> None:
    """Raise a `RefusedError` if attention maps require more memory than is allowed."""
    if notify is not None:
        notify(f"{subject} take about {memory_text(required)} {detail}; the limit is {memory_text(allowed)}")
    if required > allowed:
        raise RefusedError(
            f"memory must be at least {memory_text(required)} for {subject}, got {memory_text(allowed)}. {advice}"
        )


def _overview_bytes(q: int, k: int, size: int) -> int:
    return 8 * min(size, q) * min(size, k) + 4 * q
