"""Differences of the attention maps of two texts, models, tokenizers, layers or heads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from qkv.core.typing import Bool, Float
from qkv.errors import KindError, ShapeError
from qkv.look.axis import Axis
from qkv.look.tiled_map import TiledView
from qkv.look.token_groups import Alignment, align_axes, merge, merge_allowed
from qkv.look.views import ALL_HEADS, LayerMaps, View

_Head = tuple[int, int | None]
"""Layer and head; None: the mean over the heads of the layer."""


class HeadDistance(NamedTuple):
    """How much a head differs between two views, and the largest error of the distance, because weights are rounded."""

    layer: int
    head: int
    distance: float
    error: float


class PairDifference(NamedTuple):
    """The weights of a pair of aligned groups in a head of two views, with their first tokens in the first view.

    The errors of weights between single tokens are 0: their three digits are exact.
    """

    layer: int
    head: int
    query: int
    key: int
    first: float
    second: float
    errors: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Difference:
    """Differences of attention weights at aligned groups of tokens of two views, first minus second.

    Attributes:
        names: names of the view from which is subtracted and of the subtracted one: their texts, or their models if the
            texts are the same; of two maps of one view, one name.
        layers: name of each layer, with the names of its maps.
        queries: the groups of queries that correspond to each other, and the queries that correspond to none.
        keys: the same of the keys.
        query_names: text of each aligned group of queries; `a | b` if the texts differ.
        key_names: text of each aligned group of keys.
        unaligned: the tokens of the first and of the second view that correspond to none: queries, and keys if they
            are other tokens.
        weights: `(heads, q, k)` for each layer: the difference; NaN for pairs that are masked in one of the views.
        error: `(heads, q, k)` for each layer: largest error of the difference, because the weights of views are
            rounded to three digits.
        distances: `(heads,)` for each layer, as in `HeadDistance`.
        distance_errors: `(heads,)` for each layer: largest error of the distance.
    """

    names: tuple[str, ...]
    layers: tuple[tuple[str, tuple[str, ...]], ...] = field(repr=False)
    queries: Alignment
    keys: Alignment
    query_names: tuple[str, ...]
    key_names: tuple[str, ...]
    unaligned: tuple[tuple[str, ...], tuple[str, ...]]
    weights: tuple[Float[np.ndarray, "heads q k"], ...] = field(repr=False)
    error: tuple[Float[np.ndarray, "heads q k"], ...] = field(repr=False)
    distances: tuple[Float[np.ndarray, " heads"], ...] = field(repr=False)
    distance_errors: tuple[Float[np.ndarray, " heads"], ...] = field(repr=False)

    def heads(self, count: int | None = None) -> list[HeadDistance]:
        """Return the heads by decreasing distance, which is the mean over all aligned groups of queries."""
        layers = enumerate(zip(self.distances, self.distance_errors, strict=True))
        own = [
            HeadDistance(i, j, *map(float, one))
            for i, layer in layers
            for j, one in enumerate(zip(*layer, strict=True))
        ]
        return sorted(own, key=lambda one: -one.distance)[:count]

    def view(self) -> View:
        """Return a view of the differences, rounded to three digits, for figures; pairs that are NaN are masked."""
        if not self.query_names or not self.key_names:
            raise ShapeError(
                f"both texts must have tokens in common, got {' and '.join(self.names)}. Compare other texts."
            )
        rows, columns = (Axis.from_words(names) for names in (self.query_names, self.key_names))
        layers = zip(self.layers, self.weights, strict=True)
        maps = (LayerMaps.from_weights(name, one, heads, ~np.isnan(one)) for (name, heads), one in layers)
        return View(" minus ".join(self.names), "", "cross", rows, columns, tuple(maps))


def difference(first: View, second: View | None = None, *, heads: tuple[_Head, _Head] | None = None) -> Difference:
    """Subtract the attention weights of one view from those of another, at the tokens that both texts share.

        D_ij = A_ij − B_π(i)π(j)        for aligned groups i, j of tokens

    Tokens are aligned by `align_axes`: in one text, by their characters. Where the tokens of two tokenizers differ, a
    group has several tokens, mostly those of a word; its weight is the mean over its queries and the sum over its
    keys. A token without counterpart has no row and no column, but counts in the distances.

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
    rows, columns = align_views(first, second)
    heads_of = [[_compare(first, second, a, b, rows, columns) for a, b in layer] for layer in pairs]
    weights = tuple(np.stack([a - b for a, b, _, _ in layer]) for layer in heads_of)
    error = tuple(np.stack([sum(errors) for _, _, errors, _ in layer]) for layer in heads_of)
    distances = [tuple(np.array([distance[i] for *_, distance in layer]) for layer in heads_of) for i in (0, 1)]
    keys = [view.columns for view in (first, second)]
    axes = [(rows, [first.queries, second.queries]), *([] if rows is columns else [(columns, keys)])]
    one, other = (tuple(both[i].tokens[j] for found, both in axes for j in found.others[i]) for i in (0, 1))
    names = _names(rows, first.queries, second.queries), _names(columns, *keys)
    texts, models = (
        tuple(dict.fromkeys(getattr(view, name) for view in (first, second))) for name in ("name", "model")
    )
    layers = tuple((maps.name, maps.heads) for maps in first.layers[: len(pairs)])
    if heads is not None:
        places = [(view.layers[layer], head) for view, (layer, head) in zip((first, second), heads, strict=True)]
        shown = [(maps.name, "mean of its heads" if head is None else maps.heads[head]) for maps, head in places]
        (layer, head), subtracted = shown
        layers = ((layer, (head if shown[0] == subtracted else f"{head} minus {', '.join(subtracted)}",)),)
    return Difference(
        max(texts, models, key=len), layers, rows, columns, *names, (one, other), weights, error, *distances
    )


def rank_differences(first: View, second: View, count: int = 10) -> tuple[list[HeadDistance], list[PairDifference]]:
    """Return the heads of two views by decreasing distance, and the pairs of groups whose weights differ most.

    One head of each view is in memory at a time. Pairs that are masked in one of the views are left out.

    Example:
        >>> one, other = ([[[[1, 0], [0.5, 0.5]]]], [[[[1, 0], [0.9, 0.1]]]])
        >>> views = [View.from_weights(np.array(weights), ["a", "b"]) for weights in (one, other)]
        >>> [(one.query, one.key, round(one.first - one.second, 2)) for one in rank_differences(*views, 2)[1]]
        [(1, 0, -0.4), (1, 1, 0.4)]
    """
    shapes = _head_counts(first, second)
    rows, columns = align_views(first, second)
    heads: list[HeadDistance] = []
    pairs: list[PairDifference] = []
    for place in ((i, j) for i, number in enumerate(shapes) for j in range(number)):
        a, b, errors, distance = _compare(first, second, place, place, rows, columns)
        heads.append(HeadDistance(*place, *distance))
        moved = np.abs(a - b)
        size = np.where(np.isfinite(moved), moved, -1.0).ravel()
        # Sorting all pairs of a head would take ten times as long.
        least = np.partition(size, -count)[-count] if count < size.size else -1.0
        candidates = np.flatnonzero((size >= least) & (size > 0))
        for at in candidates[np.argsort(-size[candidates], kind="stable")[:count]]:
            row, column = divmod(int(at), len(columns.pairs))
            groups = rows.pairs[row], columns.pairs[column]
            far = [float(errors[i][row, column]) * (max(len(both[i]) for both in groups) > 1) for i in (0, 1)]
            weights = float(a[row, column]), float(b[row, column])
            pairs.append(PairDifference(*place, groups[0][0][0], groups[1][0][0], *weights, (far[0], far[1])))
        pairs = sorted(pairs, key=lambda one: -abs(one.first - one.second))[:count]
    return sorted(heads, key=lambda one: -one.distance), pairs


def align_views(first: View | TiledView, second: View | TiledView) -> tuple[Alignment, Alignment]:
    """Return the alignments of the queries and of the keys of two views."""
    same = first.model == second.model
    rows = align_axes(first.queries, second.queries, same)
    if first.keys is None and second.keys is None:
        return rows, rows
    return rows, align_axes(first.columns, second.columns, same)


def _head_counts(first: View, second: View) -> list[int]:
    """Return the number of heads of each layer, without maps over all heads."""
    counts = [[len(maps.heads) for maps in view.layers if maps.name != ALL_HEADS] for view in (first, second)]
    if counts[0] != counts[1]:
        raise ShapeError(
            f"both views must have the same layers and heads, got {counts[0]} and {counts[1]} heads per layer. "
            "Pass heads to compare one head of each."
        )
    return counts[0]


def _compare(
    first: View, second: View, first_head: _Head, second_head: _Head, rows: Alignment, columns: Alignment
) -> tuple[Float[np.ndarray, "q k"], Float[np.ndarray, "q k"], list[Float[np.ndarray, "q k"]], tuple[float, float]]:
    """Return the weights of one head of each view at the groups, NaN if masked, their errors, and their distance.

    The distance is the total variation distance of both maps, mean over the aligned groups of queries, with its error.
    """
    maps = [_weights(view, *head) for view, head in ((first, first_head), (second, second_head))]
    groups = [(rows.groups(side), columns.groups(side)) for side in (0, 1)]
    (a, b), errors = ([merge(one[part], *own) for one, own in zip(maps, groups, strict=True)] for part in (0, 1))
    distance = 0.0, 0.0
    if rows.pairs:
        moved, far = np.abs(a - b).sum(axis=1), (errors[0] + errors[1]).sum(axis=1)
        for side, (weights, error, _) in enumerate(maps):
            # Weights of tokens without counterpart moved, too.
            others = [(key,) for key in columns.others[side]]
            moved += merge(np.abs(weights), groups[side][0], others).sum(axis=1)
            far += merge(error, groups[side][0], others).sum(axis=1)
        distance = float(moved.mean() / 2), float(far.mean() / 2)
    allowed = np.logical_and(*(merge_allowed(one[2], *own) for one, own in zip(maps, groups, strict=True)))
    a, b = (np.where(allowed, weights, np.nan) for weights in (a, b))
    return a, b, [np.where(allowed, error, 0.0) for error in errors], distance


def _weights(
    view: View, layer: int, head: int | None
) -> tuple[Float[np.ndarray, "q k"], Float[np.ndarray, "q k"], Bool[np.ndarray, "q k"]]:
    """Return weights, their largest errors and which pairs are allowed, of a head or of the mean over a layer."""
    heads = range(len(view.layers[layer].heads)) if head is None else (head,)
    weights = np.stack([view.weights(layer, one) for one in heads]).astype(np.float64)
    allowed = np.stack([view.allowed(layer, one) for one in heads])
    magnitude = np.abs(weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        decades = np.floor(np.log10(magnitude) + 1e-6)
    error = np.where((magnitude > 1e-44) & np.isfinite(magnitude), 0.5 * 10.0 ** (decades - 2), 0.0)
    return weights.mean(axis=0), error.mean(axis=0), np.logical_or.reduce(allowed)


def _names(alignment: Alignment, first: Axis, second: Axis) -> tuple[str, ...]:
    """Return a name for each pair of groups: the common token or text, or both texts if they differ."""
    found = []
    for groups in alignment.pairs:
        both = list(zip((first, second), groups, strict=True))
        texts = [axis.name(group) for axis, group in both]
        a, b = (axis.tokens[group[0]] if len(group) == 1 else axis.name(group) for axis, group in both)
        found.append(a if a == b else texts[0] if texts[0] == texts[1] else f"{a} | {b}")
    return tuple(found)
