"""Weights as bytes: 255 · √(weight / scale). A shown weight is off by at most 1/255 of its scale.

The root spends the bytes on small weights, of which there are many: at a hundredth of the scale the error is
a tenth as large.
"""

from typing import Any

import numpy as np

__all__ = ["quantize", "thumbnails", "dequantize"]


def quantize(weights: Any) -> tuple[np.ndarray, np.ndarray]:
    """Codes `(…, queries, keys)` as uint8, and the scale of each map `(…)`: its largest weight.

    What is not finite or negative counts as 0.

    Example:
        >>> codes, scale = quantize(np.array([[0.25, 0.75], [0.0, 1.0]]))
        >>> codes.tolist(), float(scale)
        ([[128, 221], [0, 255]], 1.0)
    """
    if hasattr(weights, "detach"):
        weights = weights.detach().float().cpu().numpy()
    clean = np.nan_to_num(np.asarray(weights, np.float32), nan=0.0, posinf=0.0, neginf=0.0).clip(min=0.0)
    scale = clean.max(axis=(-2, -1), initial=0.0)
    share = clean / np.where(scale > 0, scale, 1.0)[..., None, None]
    return np.rint(255.0 * np.sqrt(share)).astype(np.uint8), scale


def dequantize(codes: np.ndarray, scale: Any) -> np.ndarray:
    """The weights that codes stand for."""
    return np.asarray(np.square(codes.astype(np.float32) / 255.0) * np.asarray(scale)[..., None, None])


def thumbnails(codes: np.ndarray, side: int) -> np.ndarray:
    """Maps `(heads, queries, keys)` as small squares `(heads, side, side)`, each spot the largest it covers.

    Example:
        >>> thumbnails(np.diag([1, 2, 3, 4]).astype(np.uint8)[None], 2).tolist()
        [[[2, 0], [0, 4]]]
    """
    for axis in (1, 2):
        length = codes.shape[axis]
        starts = np.arange(side) * length // side
        if length >= side:
            codes = np.maximum.reduceat(codes, starts, axis=axis)
        else:
            codes = np.take(codes, starts, axis=axis)
    return codes
