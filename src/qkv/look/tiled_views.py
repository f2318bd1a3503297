"""Maps of many thousand tokens as a page shows them: of arrays that were saved, and of long texts in a model.

What they take is known beforehand and bounded; nothing of it is an array of all pairs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkv.errors import DataError, RefusedError, ShapeError
from qkv.look.tiled_map import TiledMap, TiledView
from qkv.look.views import TokenAxis
from qkv.masks import Causal, Mask
from qkv.plan.cost import memory_text

__all__ = [
    "arrays_view",
    "model_dimensions",
    "arrays_required_bytes",
    "heads_required_bytes",
    "read_array",
    "recorded_view",
    "refuse",
]


def read_array(path: str | os.PathLike[str]) -> np.ndarray:
    """An array that `numpy.save` wrote, `(tokens, width)` or `(heads, tokens, width)`, in float32.

    Raises:
        DataError: there is no such file, or it holds something else.
    """
    file = Path(path)
    try:
        array = np.load(file, mmap_mode="c", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"there is no file {str(path)!r}.") from None
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from None
    except (ValueError, EOFError):
        # NumPy takes whatever else it is for a pickle, and tells how to trust it.
        raise DataError(
            f"{file.name!r} is no array of numpy.save. Save numbers: np.save({file.stem + '.npy'!r}, array)."
        ) from None
    shape = getattr(array, "shape", ())
    if len(shape) not in (2, 3) or 0 in shape or array.dtype.kind not in "fiu":
        raise DataError(
            f"{file.name!r} holds an array {shape} of {getattr(array, 'dtype', 'something')}, and numbers "
            "(tokens, width) or (heads, tokens, width) are wanted."
        )
    return np.ascontiguousarray(array, dtype=np.float32)


def arrays_required_bytes(query: np.ndarray, key: np.ndarray) -> int:
    """Bytes beside the arrays: the overviews of all heads, and what the pass takes on the way."""
    heads = query.shape[0] if query.ndim == 3 else 1
    q, k = query.shape[-2], key.shape[-2]
    one = TiledMap.needs(q, k, query.shape[-1], library=_library())
    return one + (heads - 1) * _kept(q, k, None)


def arrays_view(
    query: np.ndarray, key: np.ndarray, *, causal: bool = False, name: str = "arrays", progress: Any = None
) -> TiledView:
    """The heads of a query and a key that were saved, by scaled dot products.

    Args:
        query, key: `(tokens, width)` or `(heads, tokens, width)`; fewer heads of keys are shared.
        causal: no query looks at a later key; where there are more keys, the last of both belong together.
        name: what it is called.
        progress: called after each head.

    Raises:
        ShapeError: their heads or widths do not fit.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(2, 300, 4)).astype(np.float32)
        >>> view = arrays_view(rows, rows)
        >>> view.head(0, 1).shape, view.meta()["layers"]
        ((300, 300), [{'name': 'arrays', 'heads': ['head 0', 'head 1']}])
    """
    queries, keys = (array if array.ndim == 3 else array[None] for array in (query, key))
    if len(queries) % len(keys) or queries.shape[-1] != keys.shape[-1]:
        raise ShapeError(
            f"the query has the shape {query.shape}, the key {key.shape}. Widths must be equal, and the "
            "query's heads a multiple of the key's."
        )
    mask: Mask | None = Causal(align="end") if causal else None
    maps = {}
    for head, rows in enumerate(queries):
        shared = keys[head * len(keys) // len(queries)]
        maps[f"head {head}"] = TiledMap.of(_fast(rows), _fast(shared), mask=mask)
        if progress is not None:
            progress("reading heads", head + 1, len(queries))
    q, k = queries.shape[-2], keys.shape[-2]
    return TiledView(name, "", TokenAxis.numbers(q), None if q == k else TokenAxis.numbers(k), (("arrays", maps),))


def model_dimensions(model: Any) -> tuple[int, int, int]:
    """Layers, heads and width of a head of a model of transformers."""
    config = model.config
    layers = int(getattr(config, "num_hidden_layers", 1))
    heads = int(getattr(config, "num_attention_heads", 1))
    width = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 64) // heads
    return layers, heads, int(width)


def heads_required_bytes(tokens: int, width: int, heads: int) -> int:
    """Bytes that so many heads of a text keep: query, key, totals and overview of each."""
    return heads * (4 * tokens * (2 * width + 1) + _kept(tokens, tokens, side(tokens)))


def side(tokens: int) -> int:
    """Cells along the overview of a head among many: small, since there are many."""
    return min(1024, max(256, -(-tokens // 32)))


def recorded_view(
    model: Any,
    inputs: dict[str, Any],
    words: TokenAxis,
    *,
    name: str,
    called: str,
    layers: Sequence[int] | None,
) -> TiledView:
    """The heads of a model in a long text.

    Args:
        model: of transformers.
        inputs: of its forward.
        words: of the text.
        name: of the text.
        called: name of the model.
        layers: numbers of layers; None: all.
    """
    import torch

    from qkv.interop import record
    from qkv.readouts import PooledMap

    size = side(len(words.tokens))
    readouts = [PooledMap(size), PooledMap(size, "max")]
    with torch.no_grad(), record(model, readouts, layers=layers, save_inputs=True) as seen:
        model(**inputs)
    found = []
    numbers = range(len(seen.layers)) if layers is None else layers
    for number, calls in zip(numbers, seen.layers.values(), strict=True):
        last = calls[-1]
        if last.saved is None:
            raise DataError(
                f"{called} computes attention itself: its weights are arrays of all pairs. Shorten the text."
            )
        maps = {f"head {head}": TiledMap.recorded(last, head) for head in last.heads}
        found.append((f"layer {number}", maps))
    return TiledView(name, called, words, None, tuple(found))


def refuse(needed: int, allowed: int, what: str, advice: str) -> None:
    """Raise where it does not fit the memory allowed.

    Raises:
        RefusedError: it does not.
    """
    if needed > allowed:
        raise RefusedError(f"{what} would take {memory_text(needed)}, and {memory_text(allowed)} are allowed. {advice}")


def _kept(q: int, k: int, size: int | None) -> int:
    cells = size or min(2048, max(1024, -(-max(q, k) // 32)))
    return 8 * min(cells, q) * min(cells, k) + 4 * q


def _library() -> str:
    from importlib.util import find_spec

    return "torch" if find_spec("torch") else "numpy"


def _fast(rows: np.ndarray) -> Any:
    """As a tensor where PyTorch is there: three times as fast."""
    if _library() != "torch":
        return rows
    import torch

    return torch.from_numpy(rows)
