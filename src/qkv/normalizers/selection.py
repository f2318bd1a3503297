"""Functions that select the keys with the highest rank in each row, for normalizers with at most k weights.

Ties go to the lowest key index, so that exactly `count` keys are selected.
"""

from __future__ import annotations

from qkv.core.arrays import namespace, where, zeros
from qkv.core.equation import apply_dropout
from qkv.core.ordering import index_mask, top_k_indices, top_k_mask
from qkv.core.partial import TopKeys
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, Float, Int, Num, OutputArray, PairArray, ValueArray

__all__ = ["is_selected", "select_top", "top_keys_of_tile", "weigh_top_keys"]


def select_top(rank: PairArray, count: int) -> Bool[Array, "*batch q k"]:
    """Return a boolean array that is True for the `count` keys with the highest rank in each row.

    Keys of rank −inf are not selected.

    NaN ranks highest, so that it propagates to the output.

    Example:
        >>> import numpy as np
        >>> select_top(np.array([[1.0, 3.0, 3.0, 2.0]]), 1)
        array([[False,  True, False, False]])
    """
    return top_k_mask(rank, count) & (rank != -namespace(rank).inf)


def top_keys_of_tile(rank: PairArray, logits: PairArray, value: ValueArray, tile: Tile, count: int) -> TopKeys:
    """Return a `TopKeys` with the `count` keys of a tile that have the highest rank for each query.

    If the tile has fewer keys, the result is padded with −inf.
    """
    xp = namespace(logits)
    batch, q = logits.shape[:-2], logits.shape[-2]
    order = top_k_indices(rank, count)
    n, width = order.shape[-1], value.shape[-1]
    rank = xp.take_along_axis(rank, order, axis=-1)
    index = where(rank == -xp.inf, -1, order + tile.first_key)
    logits = xp.take_along_axis(logits, order, axis=-1)
    rows = xp.broadcast_to(xp.reshape(order, (*batch, q * n, 1)), (*batch, q * n, width))
    values_of_all = xp.broadcast_to(value, (*batch, *value.shape[-2:]))
    values = xp.reshape(xp.take_along_axis(values_of_all, rows, axis=-2), (*batch, q, n, width))
    missing = count - n
    if missing:
        padding = zeros(logits, (*batch, q, missing)) - xp.inf
        rank, logits = xp.concat([rank, padding], axis=-1), xp.concat([logits, padding], axis=-1)
        index = xp.concat([index, zeros(index, (*batch, q, missing)) - 1], axis=-1)
        values = xp.concat([values, zeros(value, (*batch, q, missing, width))], axis=-2)
    return TopKeys(rank, index, logits, values, count)


def weigh_top_keys(
    weights: Float[Array, "*batch q n"],
    top: TopKeys,
    tile: Tile,
    dropout: float,
    read: Bool[Array, "*batch q n"] | None = None,
) -> OutputArray:
    """Return the output of each query, Σ w v over its selected keys, with dropout applied to the weights.

    `read` is True for keys whose values are included; None: keys with non-zero weight.
    """
    xp = namespace(weights)
    read = (weights != 0 if read is None else read)[..., None]
    dropped = apply_dropout(weights, tile, dropout, keys=top.index)[..., None]
    return xp.sum(xp.where(read, dropped * where(read, top.value, 0.0), 0 * dropped), axis=-2)


def is_selected(
    index: Int[Array, "*batch q n"], logits: Num[Array, "*batch q k"], tile: Tile
) -> Bool[Array, "*batch q k"]:
    """Return which keys of a tile were selected: those whose absolute index is an element of `index`.

    Weights are recomputed from the indices of `TopKeys`, not by a comparison with the rank of the last selected key:
    the logits of a tile that is computed again may differ in the last bit. In PyTorch, `matmul` takes another path if
    an argument requires a gradient.

    Args:
        index: `TopKeys.index` of all keys of the query; −1 if there are fewer keys.
        logits: logits of the tile, of which only the shape is used.
    """
    return index_mask(index - tile.first_key, logits)
