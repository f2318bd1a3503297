"""What normalizers share that choose some keys of each row: they fold by keeping the best so far.

Ties go to the lowest key index, and exactly as many keys are chosen as asked for.
"""

from __future__ import annotations

from qkv.core.arrays import Array, namespace, zeros
from qkv.core.equation import drop
from qkv.core.online_softmax import TopKeys
from qkv.core.ordering import top_k_indices, top_k_mask
from qkv.core.tile import Tile

__all__ = ["is_selected", "select_top", "selection_threshold", "top_keys_of_tile", "weigh_top_keys"]


def select_top(rank: Array, count: int) -> Array:
    """Which keys are among the `count` largest of their row, as booleans; NaN counts as largest, so that it
    shows.

    Example:
        >>> import numpy as np
        >>> select_top(np.array([[1.0, 3.0, 3.0, 2.0]]), 1)
        array([[False,  True, False, False]])
    """
    return top_k_mask(rank, count) & (rank != -namespace(rank).inf)


def top_keys_of_tile(rank: Array, logits: Array, value: Array, tile: Tile, count: int) -> TopKeys:
    """The best keys of a tile, by rank, with their values; fewer than `count` are filled up with nothing."""
    xp = namespace(logits)
    batch, q = logits.shape[:-2], logits.shape[-2]
    order = top_k_indices(rank, count)
    n, width = order.shape[-1], value.shape[-1]
    rank = xp.take_along_axis(rank, order, axis=-1)
    index = xp.where(rank == -xp.inf, xp.zeros_like(order) - 1, order + tile.first_key)
    logits = xp.take_along_axis(logits, order, axis=-1)
    rows = xp.broadcast_to(xp.reshape(order, (*batch, q * n, 1)), (*batch, q * n, width))
    of_all = xp.broadcast_to(value, (*batch, *value.shape[-2:]))
    values = xp.reshape(xp.take_along_axis(of_all, rows, axis=-2), (*batch, q, n, width))
    missing = count - n
    if missing:
        nothing = zeros(logits, (*batch, q, missing)) - xp.inf
        rank, logits = xp.concat([rank, nothing], axis=-1), xp.concat([logits, nothing], axis=-1)
        index = xp.concat([index, zeros(index, (*batch, q, missing)) - 1], axis=-1)
        values = xp.concat([values, zeros(value, (*batch, q, missing, width))], axis=-2)
    return TopKeys(rank, index, logits, values, count)


def weigh_top_keys(weights: Array, best: TopKeys, tile: Tile, dropout: float, read: Array | None = None) -> Array:
    """Σ w v over the chosen keys; `read`: whose values are, None: those whose weight is not 0."""
    xp = namespace(weights)
    read = (weights != 0 if read is None else read)[..., None]
    dropped = drop(weights, tile, dropout, keys=best.index)[..., None]
    return xp.sum(xp.where(read, dropped * xp.where(read, best.value, xp.zeros_like(best.value)), 0 * dropped), axis=-2)


def selection_threshold(best: TopKeys) -> tuple[Array, Array]:
    """Rank and index of the worst key that was chosen, `(*batch, q, 1)`: with them a tile finds its own."""
    return best.rank[..., -1:], best.index[..., -1:]


def is_selected(rank: Array, last: tuple[Array, Array], tile: Tile) -> Array:
    """Which keys of a tile were chosen, given the worst one that was."""
    xp = namespace(rank)
    index = tile.key_positions(rank)
    better = (rank > last[0]) | ((rank == last[0]) & (index <= last[1])) | xp.isnan(rank)
    return better & (rank != -xp.inf)
