"""Differences of the attention maps of two texts, models, layers or heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from qkv.core.typing import Bool, Float, Int
from qkv.errors import KindError, ShapeError
from qkv.look.quantize import code_table
from qkv.look.views import ALL_HEADS, View

__all__ = ["Difference", "HeadDistance", "PairDifference", "align_tokens", "difference", "rank_heads", "rank_pairs"]

_Head = tuple[int, int | None]
"""Layer and head; None: the mean over the heads of the layer."""
_MAX_CELLS = 4_000_000
"""Maximum size of the table of the alignment, which takes about 2 s."""


class HeadDistance(NamedTuple):
    """How much a head differs between two views."""

    layer: int
    head: int
    distance: float


class PairDifference(NamedTuple):
    """The weights of a pair of aligned tokens in a head of two views."""

    layer: int
    head: int
    query: int
    key: int
    first: float
    second: float


@dataclass(frozen=True, eq=False)
class Difference:
    """Differences of attention weights at aligned tokens of two views, first minus second.

    Attributes:
        queries: indices of the aligned queries in the first and in the second view, `(q, 2)`.
        keys: indices of the aligned keys, `(k, 2)`.
        query_names: text of each aligned query; `a | b` if the texts differ.
        key_names: text of each aligned key.
        weights: `(heads, q, k)` for each layer: the difference; NaN for pairs that are masked in one of the views.
        error: `(heads, q, k)` for each layer: largest error of the difference, because the weights of views are
            rounded to three digits.
        distances: `(heads,)` for each layer, as in `HeadDistance`.
    """

    queries: tuple[tuple[int, int], ...]
    keys: tuple[tuple[int, int], ...]
    query_names: tuple[str, ...]
    key_names: tuple[str, ...]
    weights: tuple[Float[np.ndarray, "heads q k"], ...] = field(repr=False)
    error: tuple[Float[np.ndarray, "heads q k"], ...] = field(repr=False)
    distances: tuple[Float[np.ndarray, " heads"], ...] = field(repr=False)

    def heads(self, count: int | None = None) -> list[HeadDistance]:
        """Return the heads by decreasing distance."""
        found = [
            HeadDistance(layer, head, float(distance))
            for layer, of_heads in enumerate(self.distances)
            for head, distance in enumerate(of_heads)
        ]
        return sorted(found, key=lambda one: -one.distance)[:count]


def difference(
    first: View,
    second: View | None = None,
    *,
    heads: tuple[_Head, _Head] | None = None,
) -> Difference:
    """Subtract the attention weights of one view from those of another, at the tokens that both texts share.

        D_ij = A_ij − B_π(i)π(j)        for aligned tokens i, j

    Tokens are aligned by `align_tokens`; a token without counterpart has no row and no column, but counts in the
    distances.

    Args:
        first: the view from which is subtracted.
        second: the view that is subtracted; None: `first`, to compare two of its heads or layers.
        heads: layer and head of the first and of the second view, to compare only these; the head None is the mean
            over the heads of the layer. None: each head with the head of the same layer and index; the maps over all
            heads, such as rollout, are left out.

    Raises:
        ShapeError: `heads` is None and the views have different numbers of layers or heads.
        KindError: a view is tiled.

    Example:
        >>> weights = np.array([[[[1, 0], [0.5, 0.5]], [[1, 0], [0.9, 0.1]]]])
        >>> view = View.from_weights(weights, ["a", "b"])
        >>> result = difference(view, heads=((0, 0), (0, 1)))
        >>> np.nan_to_num(result.weights[0][0]).round(3).tolist()
        [[0.0, 0.0], [-0.4, 0.4]]
        >>> round(result.heads()[0].distance, 3)
        0.2
    """
    second = first if second is None else second
    for view in (first, second):
        if not isinstance(view, View):
            raise KindError(
                f"first and second must be dense views, got {type(view).__name__}. Increase memory, so that the maps "
                "of the text are dense."
            )
    if heads is None:
        pairs: list[list[tuple[_Head, _Head]]]
        pairs = [[((i, j), (i, j)) for j in range(count)] for i, count in enumerate(_head_counts(first, second))]
    else:
        pairs = [[heads]]
    rows, columns = _align(first, second)
    both = [(view.keys or view.queries).tokens for view in (first, second)]
    found = [[_subtract(first, second, a, b, rows, columns) for a, b in layer] for layer in pairs]
    weights, error, distances = (tuple(np.stack([head[i] for head in layer]) for layer in found) for i in range(3))
    return Difference(
        tuple(rows),
        tuple(columns),
        _names(rows, first.queries.tokens, second.queries.tokens),
        _names(columns, *both),
        weights,
        error,
        distances,
    )


def rank_heads(first: View, second: View) -> list[HeadDistance]:
    """Return the heads of two views by decreasing distance, as `difference(first, second).heads()` does.

    One head of each view is in memory at a time, and no differences are kept.
    """
    shapes = _head_counts(first, second)
    rows, columns = _align(first, second)
    found = []
    for layer, count in enumerate(shapes):
        for head in range(count):
            weights = []
            for maps in (first.layers[layer], second.layers[layer]):
                weights.append(code_table(maps.ranges[head].exponent)[maps.codes[head]])
            found.append(HeadDistance(layer, head, _distance(weights[0], weights[1], rows, columns)))
    return sorted(found, key=lambda one: -one.distance)


def rank_pairs(first: View, second: View, count: int = 10) -> list[PairDifference]:
    """Return the pairs of aligned tokens whose weights differ most between two views, over all heads.

    One head of each view is in memory at a time. Pairs that are masked in one of the views are left out.

    Example:
        >>> one, other = ([[[[1, 0], [0.5, 0.5]]]], [[[[1, 0], [0.9, 0.1]]]])
        >>> views = [View.from_weights(np.array(weights), ["a", "b"]) for weights in (one, other)]
        >>> [(pair.query, pair.key, round(pair.first - pair.second, 2)) for pair in rank_pairs(*views, count=2)]
        [(1, 0, -0.4), (1, 1, 0.4)]
    """
    rows, columns = _align(first, second)
    found: list[PairDifference] = []
    if not rows or not columns:
        return found
    for layer, heads in enumerate(_head_counts(first, second)):
        for head in range(heads):
            a, b = (
                np.where(view.allowed(layer, head), view.weights(layer, head), np.nan)[np.ix_(*places)]
                for view, places in (
                    (first, [[pair[0] for pair in side] for side in (rows, columns)]),
                    (second, [[pair[1] for pair in side] for side in (rows, columns)]),
                )
            )
            moved = np.abs(a.astype(np.float64) - b)
            size = np.where(np.isfinite(moved), moved, -1.0).ravel()
            largest = _first_largest(size, min(count, size.size))
            for at in largest[size[largest] > 0]:
                row, column = divmod(int(at), len(columns))
                place = (rows[row][0], columns[column][0])
                found.append(PairDifference(layer, head, *place, float(a[row, column]), float(b[row, column])))
        found = sorted(found, key=lambda one: -abs(one.first - one.second))[:count]
    return found


def _first_largest(size: Float[np.ndarray, " n"], count: int) -> Int[np.ndarray, " count"]:
    """Return the indices of the largest numbers in decreasing order; of equal numbers, the first."""
    least = np.partition(size, -count)[-count]
    candidates = np.flatnonzero(size >= least)
    return candidates[np.argsort(-size[candidates], kind="stable")[:count]]


def align_tokens(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """Return the pairs of indices of tokens that correspond to each other in two texts, in increasing order.

    These are the tokens of a longest common subsequence, and between them the tokens of passages of equal length. Texts
    of very different long passages are compared position by position if these have the same length.

    Example:
        >>> align_tokens("the dog was happy".split(), "the old dog was sad".split())
        [(0, 0), (1, 2), (2, 3), (3, 4)]
    """
    start = 0
    shorter = min(len(first), len(second))
    while start < shorter and first[start] == second[start]:
        start += 1
    end = 0
    while end < shorter - start and first[-1 - end] == second[-1 - end]:
        end += 1
    a, b = first[start : len(first) - end], second[start : len(second) - end]
    anchors = [(i, i) for i in range(start)]
    anchors += [(start + i, start + j) for i, j in _common(a, b)]
    anchors += [(len(first) - end + i, len(second) - end + i) for i in range(end)]
    pairs: list[tuple[int, int]] = []
    last = (-1, -1)
    for anchor in [*anchors, (len(first), len(second))]:
        gap = anchor[0] - last[0]
        if gap == anchor[1] - last[1]:
            pairs += [(last[0] + i, last[1] + i) for i in range(1, gap)]
        pairs.append(anchor)
        last = anchor
    return pairs[:-1]


def _align(first: View, second: View) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the pairs of aligned queries and of aligned keys of two views."""
    rows = align_tokens(first.queries.tokens, second.queries.tokens)
    both = [(view.keys or view.queries).tokens for view in (first, second)]
    return rows, rows if first.keys is None and second.keys is None else align_tokens(*both)


def _head_counts(first: View, second: View) -> list[int]:
    """Return the number of heads of each layer, without maps over all heads."""
    counts = [[len(maps.heads) for maps in view.layers if maps.name != ALL_HEADS] for view in (first, second)]
    if counts[0] != counts[1]:
        raise ShapeError(
            f"both views must have the same layers and heads, got {counts[0]} and {counts[1]} heads per layer. "
            "Pass heads to compare one head of each."
        )
    return counts[0]


def _common(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int]]:
    """Return a longest common subsequence as pairs of indices."""
    if len(a) * len(b) > _MAX_CELLS:
        return []
    lengths = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in range(len(a) - 1, -1, -1):
        row, below = lengths[i], lengths[i + 1]
        for j in range(len(b) - 1, -1, -1):
            row[j] = below[j + 1] + 1 if a[i] == b[j] else max(below[j], row[j + 1])
    found: list[tuple[int, int]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i] == b[j]:
            found.append((i, j))
            i, j = i + 1, j + 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return found


def _subtract(
    first: View,
    second: View,
    first_head: _Head,
    second_head: _Head,
    rows: Sequence[tuple[int, int]],
    columns: Sequence[tuple[int, int]],
) -> tuple[Float[np.ndarray, "q k"], Float[np.ndarray, "q k"], float]:
    """Return difference, error and distance of one head of each view."""
    maps = [_weights(view, *head) for view, head in ((first, first_head), (second, second_head))]
    aligned = [
        [array[np.ix_([pair[i] for pair in rows], [pair[i] for pair in columns])] for array in one]
        for i, one in enumerate(maps)
    ]
    (a, a_error, a_masked), (b, b_error, b_masked) = aligned
    masked = a_masked | b_masked
    distance = _distance(maps[0][0], maps[1][0], rows, columns)
    return np.where(masked, np.nan, a - b), np.where(masked, 0.0, a_error + b_error), distance


def _distance(
    first: Float[np.ndarray, "q k"],
    second: Float[np.ndarray, "other_q other_k"],
    rows: Sequence[tuple[int, int]],
    columns: Sequence[tuple[int, int]],
) -> float:
    """Return the total variation distance of two maps, mean over the aligned queries."""
    if not rows:
        return 0.0
    of_rows = [weights[[pair[i] for pair in rows]] for i, weights in enumerate((first, second))]
    aligned = [weights[:, [pair[i] for pair in columns]] for i, weights in enumerate(of_rows)]
    moved = np.abs(aligned[0] - aligned[1]).sum(axis=1, dtype=np.float64)
    for weights, shared in zip(of_rows, aligned, strict=True):
        # Weights of tokens without counterpart moved, too.
        moved += np.abs(weights).sum(axis=1, dtype=np.float64) - np.abs(shared).sum(axis=1, dtype=np.float64)
    return float(moved.mean() / 2)


def _weights(
    view: View, layer: int, head: int | None
) -> tuple[Float[np.ndarray, "q k"], Float[np.ndarray, "q k"], Bool[np.ndarray, "q k"]]:
    """Return weights, their largest errors and which pairs are masked, of a head or of the mean over a layer."""
    heads = range(len(view.layers[layer].heads)) if head is None else (head,)
    weights = np.stack([view.weights(layer, one) for one in heads]).astype(np.float64)
    allowed = np.stack([view.allowed(layer, one) for one in heads])
    magnitude = np.abs(weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        decades = np.floor(np.log10(magnitude) + 1e-6)
    error = np.where((magnitude > 1e-44) & np.isfinite(magnitude), 0.5 * 10.0 ** (decades - 2), 0.0)
    return weights.mean(axis=0), error.mean(axis=0), np.logical_not(allowed.any(axis=0))


def _names(pairs: Sequence[tuple[int, int]], first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    return tuple(first[i] if first[i] == second[j] else f"{first[i]} | {second[j]}" for i, j in pairs)
