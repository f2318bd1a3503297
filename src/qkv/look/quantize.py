"""Quantize attention weights to one byte each, and reduce attention maps to smaller sizes.

A weight is stored as code = 255 · √(weight / scale). The largest error of a dequantized weight is 1/255 of the scale.
The square root assigns more of the 256 codes to small weights, which are the most frequent: at 1/100 of the scale,
the error is a tenth as large.
"""

from __future__ import annotations

import numpy as np

from qkv.core.typing import ArrayLike, Float, Num

__all__ = ["THUMBNAIL_SIZE", "dequantize", "max_pool", "quantize", "thumbnails", "to_numpy"]

THUMBNAIL_SIZE = 32
"""Pixels along each side of a thumbnail; the thumbnails of 144 heads take 147 kB."""


def quantize(weights: ArrayLike) -> tuple[Num[np.ndarray, "*maps q k"], Float[np.ndarray, "*maps"] | np.float32]:
    """Quantize attention maps to uint8 codes relative to the largest weight of each map.

    Args:
        weights: `(*maps, q, k)` of any supported array library. Negative, infinite and NaN weights count as 0.

    Returns:
        The codes as uint8, `(*maps, q, k)`, and the scale of each map, `(*maps)`: its largest weight.

    Example:
        >>> codes, scale = quantize(np.array([[0.25, 0.75], [0.0, 1.0]]))
        >>> codes.tolist(), float(scale)
        ([[128, 221], [0, 255]], 1.0)
    """
    clean = np.nan_to_num(to_numpy(weights, np.float32), nan=0.0, posinf=0.0, neginf=0.0).clip(min=0.0)
    scale = clean.max(axis=(-2, -1), initial=0.0)
    share = clean / np.where(scale > 0, scale, 1.0)[..., None, None]
    return np.rint(255.0 * np.sqrt(share)).astype(np.uint8), scale


def dequantize(codes: Num[np.ndarray, "*maps q k"], scale: ArrayLike) -> Float[np.ndarray, "*maps q k"]:
    """Return the weights in float32 that the codes and scales returned by `quantize` represent."""
    return np.asarray(np.square(codes.astype(np.float32) / 255.0) * np.asarray(scale)[..., None, None])


def thumbnails(codes: Num[np.ndarray, "heads q k"], size: int = THUMBNAIL_SIZE) -> Num[np.ndarray, "heads size size"]:
    """Resize each quantized map to `size` × `size` pixels. A pixel is the maximum of the codes that it covers.

    Example:
        >>> thumbnails(np.diag([1, 2, 3, 4]).astype(np.uint8)[None], 2).tolist()
        [[[2, 0], [0, 4]]]
    """
    codes = max_pool(codes, size, size)
    rows, columns = (np.arange(size) * length // size for length in codes.shape[1:])
    return codes[:, rows[:, None], columns]


def max_pool(panel: Num[np.ndarray, "*maps q k"], rows: int, columns: int) -> Num[np.ndarray, "*maps rows columns"]:
    """Reduce each map to at most `rows` × `columns` cells. A cell is the maximum of the weights that it covers.

    Example:
        >>> max_pool(np.diag([0.0, 0.0, 0.0, 1.0]), 2, 2).tolist()
        [[0.0, 0.0], [0.0, 1.0]]
    """
    for axis, cells in ((-2, rows), (-1, columns)):
        length = panel.shape[axis]
        if length > cells:
            panel = np.maximum.reduceat(panel, np.arange(cells) * length // cells, axis=axis)
    return panel


def to_numpy(array: ArrayLike, dtype: type[np.floating] | None = None) -> Num[np.ndarray, "*shape"]:
    """Convert an array of any supported library to a NumPy array.

    PyTorch tensors in half precision are converted to float32.

    Args:
        array: an array, a tensor, or nested lists of numbers.
        dtype: the type of the result; None: that of the array.
    """
    if hasattr(array, "detach"):
        array = (array if array.element_size() > 2 else array.float()).detach().cpu()
    return np.asarray(array, dtype)
