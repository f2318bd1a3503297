"""Find the pairs of query and key that a mask excludes, so that a page does not show their weights as 0."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.equation import BoundCall
from qkv.core.tile import Tile
from qkv.core.typing import Bool, Int, Num
from qkv.look.quantize import to_numpy

if TYPE_CHECKING:
    from qkv.interop.huggingface.attention_record import AttentionRecord


_BLOCK_PAIRS = 2**18
"""Number of pairs that `excluded_cells` asks the mask for at a time: 256 kB of booleans."""

_SAMPLED_QUERIES = 512
"""Maximum number of queries whose allowed keys are counted one by one: 50 MB of booleans for 100,000 keys."""


def infer_causal(maps: Sequence[Num[np.ndarray, "_ q k"]]) -> Bool[np.ndarray, "q k"] | None:
    """Return the causal mask of attention maps, or that of a window of last keys, if their weights show it.

    The mask is causal if the weights of all maps are exactly 0 for keys after the query, and those of at least one map
    are positive for all other keys; in a window, for all keys at no larger distance than any positive weight. The last
    query is aligned with the last key. The result is None for other weights.

    Example:
        >>> infer_causal([np.array([[[1.0, 0.0], [0.5, 0.5]]])]).tolist()
        [[True, False], [True, True]]
        >>> infer_causal([np.array([[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]])])[2].tolist()
        [False, True, True]
        >>> infer_causal([np.eye(2)[None]]) is None
        True
    """
    q, k = maps[0].shape[-2:]
    if not 1 < q <= k:
        return None
    allowed = np.tri(q, k, k - q, dtype=bool)
    # A few late keys decide for most maps that are not causal.
    if any(layer[:, 0, 1 + k - q :].any() for layer in maps) or any(layer[:, ~allowed].any() for layer in maps):
        return None
    positive = np.logical_or.reduce([panel > 0 for layer in maps for panel in layer])
    distance = np.arange(k - q, k)[:, None] - np.arange(k)
    width = distance[positive].max(initial=0)
    allowed &= distance <= width
    return allowed if width and any((panel[allowed] > 0).all() for layer in maps for panel in layer) else None


def allowed_of_record(
    record: AttentionRecord, weights: Num[np.ndarray, "heads q k"], element: int = 0
) -> Bool[np.ndarray, "*#heads q k"] | None:
    """Return the pairs that the mask of a recorded call allows, or None if it allows all pairs.

    The mask is exact if the record has saved inputs. Otherwise it is the causal mask, if the call is causal, combined
    with the padding of the keys.
    """
    if record.saved is not None:
        bound = [record.saved.bind(element, head) for head in record.heads]
        if bound[0].mask is None:
            return None
        return np.stack([_allowed(call, call.tile) for call in bound])
    allowed = None
    if record.causal:
        q, k = weights.shape[1:]
        # For weights that the model returned, `causal` only says that later keys have weight 0.
        allowed = np.tri(q, k, record.query_start, dtype=bool) if record.exact else infer_causal([weights])
    if record.key_mask is not None:
        key_mask = to_numpy(record.key_mask[element]).astype(bool)[None, :]
        allowed = np.broadcast_to(key_mask, weights.shape[1:]) if allowed is None else allowed & key_mask
    return allowed


def key_counts(call: BoundCall) -> Num[np.ndarray, " q"]:
    """Return the number of keys that each query of a call without batch axes may attend to.

    The keys of masks other than a causal one are counted for at most 512 queries; the others have the number of the
    nearest query before them.
    """
    q, k = call.tile.q_total, call.tile.k_total
    if call.mask is None:
        return np.full(q, k, np.uint32)
    start = call.mask.causal_offset(call.tile)
    if start is not None:
        return np.clip(np.arange(1, q + 1) + start, 0, k).astype(np.uint32)
    sampled = np.arange(min(q, _SAMPLED_QUERIES)) * q // min(q, _SAMPLED_QUERIES)
    counts = [_allowed(call, call.tile.restrict((row, row + 1), (0, k))).sum() for row in sampled.tolist()]
    return np.repeat(np.array(counts, np.uint32), np.diff(np.append(sampled, q)))


def excluded_cells(
    call: BoundCall, row_edges: Int[np.ndarray, " rows_and_one"], column_edges: Int[np.ndarray, " columns_and_one"]
) -> Bool[np.ndarray, "rows columns"]:
    """Return for each cell of a map whether the mask excludes all its pairs.

    Blocks of cells that the mask covers completely, or not at all, are decided at once.

    Args:
        call: a call without batch axes.
        row_edges: first query of each row of cells, and one past the last query.
        column_edges: first key of each column of cells, and one past the last key.

    Example:
        >>> from qkv.look.tiled_map import TiledMap
        >>> from qkv.masks import Causal
        >>> rows, edges = np.ones((4, 1)), np.array([0, 2, 4])
        >>> excluded_cells(TiledMap.from_arrays(rows, rows, mask=Causal()).call, edges, edges).tolist()
        [[False, True], [False, False]]
    """
    excluded = np.zeros((len(row_edges) - 1, len(column_edges) - 1), bool)
    blocks = [(0, excluded.shape[0], 0, excluded.shape[1])]
    while blocks and call.mask is not None:
        top, bottom, left, right = blocks.pop()
        rows = int(row_edges[top]), int(row_edges[bottom])
        columns = int(column_edges[left]), int(column_edges[right])
        part = call.tile.restrict(rows, columns)
        cover = call.mask.coverage(part)
        if cover == "none":
            excluded[top:bottom, left:right] = True
        elif cover == "part":
            pairs = (rows[1] - rows[0]) * (columns[1] - columns[0])
            if pairs <= _BLOCK_PAIRS or (bottom - top == 1 and right - left == 1):
                allowed = _allowed(call, part)
                allowed = np.logical_or.reduceat(allowed, row_edges[top:bottom] - rows[0], axis=0)
                excluded[top:bottom, left:right] = ~np.logical_or.reduceat(
                    allowed, column_edges[left:right] - columns[0], axis=1
                )
            else:  # halves of each side with several cells
                down, across = (sorted({a, (a + b) // 2, b}) for a, b in ((top, bottom), (left, right)))
                blocks += [(*rows, *columns) for rows in pairwise(down) for columns in pairwise(across)]
    return excluded


def _allowed(call: BoundCall, tile: Tile) -> Bool[np.ndarray, "rows columns"]:
    """Return whether the mask of the call of a single head allows each pair of a tile."""
    assert call.mask is not None
    shape = tile.rows[1] - tile.rows[0], tile.cols[1] - tile.cols[0]
    whole = shape == (tile.q_total, tile.k_total)
    part = call.mask if whole else call.mask.slice(slice(*tile.rows), slice(*tile.cols))
    allowed = np.atleast_2d(to_numpy(part.allowed(tile, call.value)))
    return np.broadcast_to(allowed.reshape(allowed.shape[-2:]), shape)
