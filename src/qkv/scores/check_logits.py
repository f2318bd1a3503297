"""Check of the logits that a score computes by a function which users may write."""

from __future__ import annotations

from qkv.core.arrays import dtype_name, is_array, is_text, library, namespace
from qkv.core.checks import describe
from qkv.core.tile import Tile
from qkv.core.typing import Array, Shaped
from qkv.errors import KindError, ShapeError

__all__ = ["check_logits"]

_REAL = ("float", "bfloat", "int", "uint", "bool")


def check_logits(
    owner: str, logits: object, query: Shaped[Array, "*_"], key: Shaped[Array, "*_"], tile: Tile
) -> Shaped[Array, "*#batch #q #k"]:
    """Return the logits of a tile, or raise an error if they are not an array that suits the tile.

    Args:
        owner: name of the score in error messages.
        logits: the result of the function.
        query: the queries of the tile.
        key: the keys of the tile.
        tile: the tile.

    Raises:
        KindError: `logits` is not an array of real numbers, or not of the library of `query`.
        ShapeError: its shape does not broadcast to `(*batch, q, k)`.
    """
    axis = -1 if is_text(query) else -2
    lengths = query.shape[axis], key.shape[axis]
    if type(logits).__module__ == "torch" and isinstance(logits, type(query)):  # a fast path for PyTorch
        usual = logits.dtype == query.dtype and logits.dtype.is_floating_point
        if usual and logits.shape == (*tile.batch, *lengths):
            return logits
    if not is_array(logits) or library(logits) != library(query):
        got = f"a {library(logits)} array" if is_array(logits) else describe(logits)
        raise KindError(
            f"logits of {owner} must be a {library(query)} array of shape (*batch, q, k), got {got}. Return an array "
            "of the same library as query and key."
        )
    if not dtype_name(logits).startswith(_REAL):
        raise KindError(
            f"logits of {owner} must be real numbers, got {dtype_name(logits)} elements. Convert them to real numbers."
        )
    shape = tuple(logits.shape)
    extra = len(shape) - 2 - len(tile.batch)
    if 0 < extra <= tile.removed_axes and all(n == 1 for n in shape[:extra]):
        shape = shape[extra:]
        logits = namespace(logits).reshape(logits, shape)
    # Lengths are symbols or unknown under torch.export and tf.function, which check the shapes by themselves.
    known = all(type(n) is int for n in (*shape, *lengths, *tile.batch))
    if known and not _broadcasts(shape, (*tile.batch, *lengths)):
        raise ShapeError(
            f"logits of {owner} must have shape (*batch, q, k), here {(*tile.batch, *lengths)}, got {shape}. Return "
            "one logit for each pair of a query and a key, and pass arrays with batch axes as parameters."
        )
    return logits


def _broadcasts(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Return whether an array of shape `shape` with at least two axes broadcasts to `expected`."""
    if shape == expected:
        return True
    if not 2 <= len(shape) <= len(expected):
        return False
    return all(n in (1, m) for n, m in zip(reversed(shape), reversed(expected), strict=False))
