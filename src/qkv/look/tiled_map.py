"""Attention maps of up to 100,000 tokens, with a pooled overview and tiles that are computed on demand.

One pass over the keys computes, for each head, an overview of about 1,000 × 1,000 cells with the mean and the maximum
weight of each cell, and the log-sum-exp of each query. Every tile can then be computed from query, key and log-sum-exp
without the rest of the map, because a weight is exactly e^(logit − log-sum-exp):

    level 0          a cell is one pair of tokens                  computed on demand
    level l < base   2^l × 2^l tokens: maximum and mean            computed on demand
    level base       the cells of the overview                     from the single pass
    level above      2 × 2 cells of the level below                from the overview
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from qkv.core.arrays import library, namespace, zeros
from qkv.core.equation import BoundCall, bind_call
from qkv.core.typing import Array, Bool, Float, Num
from qkv.engine import explain, observe
from qkv.errors import OptionError
from qkv.look.allowed_pairs import excluded_cells, key_counts
from qkv.look.head_call import HeadCall
from qkv.look.quantize import MASKED, exponent_of, quantize, to_numpy
from qkv.look.token_groups import Group, group_tokens
from qkv.look.views import BaseView, LayerMaps, MapRange, View
from qkv.normalizers import Softmax
from qkv.readouts import LogSumExp, PooledMap, Readout
from qkv.scores import ScaledDot

if TYPE_CHECKING:
    import torch

    from qkv.interop.huggingface.attention_record import AttentionRecord


TILE_SIZE = 256
"""Cells along each side of a tile."""
_BLOCK_WEIGHTS = 2**18
"""Number of weights computed at a time for a tile of a coarse level: 1 MiB of float32, which fits the CPU cache."""
_GROUPED_WEIGHTS = 2**22
"""Number of weights that are summed up at a time for a map of sentences: 32 MiB of float64."""
_CELL_TOKENS = 32
"""Maximum tokens per overview cell, unless the overview would be too large; a finer tile then takes about 0.1 s."""
_LOG2_E = math.log2(math.e)


@dataclass(frozen=True, eq=False)
class TiledMap:
    """The attention map of one head, from which tiles at several resolutions are computed on demand.

    Attributes:
        call: the bound call of the head, without batch axes.
        log_sum_exp: `(q,)`, the log-sum-exp of the logits of each query.
        mean_overview: `(rows, columns)`, the mean weight of each cell.
        max_overview: `(rows, columns)`, the maximum weight of each cell.
    """

    call: BoundCall
    log_sum_exp: Float[Array, " q"] = field(repr=False)
    mean_overview: Float[np.ndarray, "rows columns"] = field(repr=False)
    max_overview: Float[np.ndarray, "rows columns"] = field(repr=False)

    @classmethod
    def from_arrays(
        cls,
        query: Float[Array, "q width"],
        key: Float[Array, "k width"],
        *,
        size: int | None = None,
        memory: int | str | None = None,
        **parts: Any,
    ) -> TiledMap:
        """Create the map of one head from its query and key arrays.

        The overview is computed in one pass.

        Args:
            query: `(q, width)`, of any supported array library.
            key: `(k, width)`.
            size: cells along each side of the overview; None: 1,024, and up to 2,048 for more than 32,768 tokens.
            memory: budget for scratch memory, as in `qkv.attend`; `required_bytes` includes the map itself.
            parts: score, normalizer, mask and positions, as in `qkv.attend`; the normalizer must have a log-sum-exp.

        Raises:
            RefusedError: the memory budget is too small, or the normalizer has no log-sum-exp.

        Example:
            >>> rows = np.random.default_rng(0).normal(size=(300, 4))
            >>> map = TiledMap.from_arrays(rows, rows, size=16)
            >>> map.max_overview.shape, map.weights((0, 2), (0, 300)).sum(axis=1).round(6).tolist()
            ((16, 16), [1.0, 1.0])
        """
        value = key[:, :0]  # only the weights are needed
        readouts = _readouts(size, query.shape[-2], key.shape[-2])
        mean, maximum, log_sum_exp = observe(query, key, value, readouts=readouts, memory=memory, **parts).readouts
        parts = {"score": ScaledDot(), "normalizer": Softmax(), "mask": None} | parts
        bound = bind_call(query, key, value, **parts)
        return cls(bound, log_sum_exp, to_numpy(mean), to_numpy(maximum))

    @classmethod
    def from_record(cls, record: AttentionRecord, head: int, element: int = 0) -> TiledMap:
        """Create the map of one head from a recorded attention call of a model.

        Args:
            record: a call recorded by `qkv.interop.record(model, [PooledMap(size), PooledMap(size, "max")],
                save_inputs=True)`.
            head: index of the head.
            element: index into the batch.

        Raises:
            OptionError: the record has no saved inputs.
        """
        saved = record.saved
        if saved is None or saved.log_sum_exp is None:
            raise OptionError(
                "record must have saved inputs of a call with softmax, got a record without. Call "
                "qkv.interop.record(…, save_inputs=True)."
            )
        mean, maximum = (readout[element, head] for readout in record.readouts)
        bound, log_sum_exp = saved.bind(element, head), saved.log_sum_exp[element, head]
        return cls(bound, log_sum_exp, to_numpy(mean), to_numpy(maximum))

    @staticmethod
    def required_bytes(q: int, k: int, width: int, *, size: int | None = None, library: str = "torch") -> int:
        """Predict the bytes that `from_arrays` allocates in addition to query and key."""
        shapes = (q, width), (k, width), (k, 0)
        return int(explain(*shapes, readouts=_readouts(size, q, k), library=library).cost.peak)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of queries and the number of keys."""
        return self.call.tile.q_total, self.call.tile.k_total

    @cached_property
    def base(self) -> int:
        """The level of the overview: the base-2 logarithm of the tokens per overview cell, rounded up."""
        cells = zip(self.shape, self.mean_overview.shape, strict=True)
        return max(0, math.ceil(math.log2(max(tokens / count for tokens, count in cells))))

    @cached_property
    def levels(self) -> int:
        """The number of the coarsest level, which has a single tile."""
        return self.base + max(0, math.ceil(math.log2(max(self.mean_overview.shape) / TILE_SIZE)))

    @cached_property
    def range(self) -> MapRange:
        """The range of the weights, which also determines the codes of all tiles."""
        return MapRange(exponent_of(self.max_overview), True)

    @cached_property
    def key_counts(self) -> Num[np.ndarray, " q"]:
        """The number of keys that each query may attend to."""
        return key_counts(self.call)

    def weights(self, rows: tuple[int, int], cols: tuple[int, int]) -> Float[np.ndarray, "q k"]:
        """Compute the exact weights for a range of queries and a range of keys."""
        weights = self._weights(rows, cols)
        if weights is None:
            return np.zeros((rows[1] - rows[0], cols[1] - cols[0]), np.float32)
        return to_numpy(weights)

    def _weights(self, rows: tuple[int, int], cols: tuple[int, int]) -> Float[Array, "q k"] | None:
        """Compute the weights for a range of queries and keys in the array library of the query.

        The result is None if the mask excludes all pairs.
        """
        logits = self.call.logits(rows, cols)
        if logits is None:
            return None
        prepared, divisor = self.call.normalizer.prepare(logits), self._divisor[rows[0] : rows[1], None]
        if library(prepared) != "torch":
            return cast("Array", to_numpy(namespace(prepared).exp(prepared - divisor)))
        # PyTorch's `exp` is 100 times slower where the result is subnormal; `exp2` is not.
        return cast("Array", cast("torch.Tensor", prepared).sub(cast("torch.Tensor", divisor)).mul_(_LOG2_E).exp2_())

    @cached_property
    def _divisor(self) -> Float[Array, " q"]:
        """The log-sum-exp of each query, or infinity for fully masked queries, so that their weights are 0."""
        return namespace(self.log_sum_exp).where(self.log_sum_exp <= -math.inf, math.inf, self.log_sum_exp)

    def tile(self, level: int, y: int, x: int) -> Num[np.ndarray, "2 256 256"]:
        """Return the codes of the maximum and mean weight of each cell of a tile, an array `(2, 256, 256)` of uint16.

        Cells outside the map, and cells whose pairs the mask excludes, are `qkv.look.quantize.MASKED`.

        Raises:
            IndexError: the tile does not exist.
        """
        if not 0 <= level <= self.levels:
            raise IndexError(f"level must be between 0 and {self.levels}, got {level}. Level 0 is the finest.")
        coarse = level >= self.base
        factor = 2 ** (level - self.base if coarse else level)
        height, width = self.mean_overview.shape if coarse else self.shape
        top, left = y * TILE_SIZE * factor, x * TILE_SIZE * factor
        if not (0 <= top < height and 0 <= left < width):
            down, across = (-(-length // (TILE_SIZE * factor)) for length in (height, width))
            raise IndexError(
                f"y must be between 0 and {down - 1} and x between 0 and {across - 1} for a tile of level {level}, "
                f"got y={y} and x={x}. Choose a tile within the map."
            )
        rows, cols = (top, min(height, top + TILE_SIZE * factor)), (left, min(width, left + TILE_SIZE * factor))
        edges = [np.append(np.arange(first, last, factor), last) for first, last in (rows, cols)]
        if coarse:
            part = slice(*rows), slice(*cols)
            pooled = _pool(self.max_overview[part], factor)[0], _pool(self.mean_overview[part], factor)[1]
            # The first token of each cell of the overview, rounded up as in `PooledMap`.
            edges = [-(-edge * tokens // n) for edge, tokens, n in zip(edges, self.shape, (height, width), strict=True)]
        else:
            pooled = self._compute_pooled_weights(rows, cols, factor)
        codes = np.full((2, TILE_SIZE, TILE_SIZE), MASKED, np.uint16)
        down, across = pooled[0].shape
        excluded = excluded_cells(self.call, *edges)
        codes[:, :down, :across] = quantize(np.stack(pooled), ~excluded, self.range.exponent)[0]
        return codes

    def coarser(self) -> TiledMap:
        """Return the map with an overview whose cells cover 32 tokens along each side if possible."""
        mean, maximum = self.mean_overview, self.max_overview
        while all(s % 2 == 0 for s in mean.shape) and mean.shape[0] * _CELL_TOKENS > self.shape[0]:
            maximum, mean = _pool(maximum, 2)[0], _pool(mean, 2)[1]
        return replace(self, mean_overview=mean, max_overview=maximum)

    def overview_tiles(self) -> list[Num[np.ndarray, "2 256 256"]]:
        """Return the tiles of all levels that come from the overview, finest first, row by row."""
        found = []
        for level in range(self.base, self.levels + 1):
            down, across = (-(-cells // (TILE_SIZE << (level - self.base))) for cells in self.mean_overview.shape)
            found += [self.tile(level, y, x) for y, x in np.ndindex(down, across)]
        return found

    def coarsest(self) -> Num[np.ndarray, "rows columns"]:
        """Return the codes of the maximum weights of the coarsest level."""
        factor = 2 ** (self.levels - self.base)
        rows, columns = (-(-cells // factor) for cells in self.max_overview.shape)
        return self.tile(self.levels, 0, 0)[0, :rows, :columns]

    def row(self, query: int, count: int = 10) -> list[tuple[int, float]]:
        """Return the `count` keys with the largest weights for one query, as pairs (key index, weight).

        The pairs are in decreasing order of weight; ties go to the lower key index. Masked keys are omitted.
        """
        if not 0 <= query < self.shape[0]:
            raise IndexError(f"query must be between 0 and {self.shape[0] - 1}, got {query}. Pass the index of a row.")
        weights = self.weights((query, query + 1), (0, self.shape[1]))[0]
        edges = np.array([query, query + 1]), np.arange(self.shape[1] + 1)
        excluded = excluded_cells(self.call, *edges)[0]
        order = np.argsort(np.where(excluded, np.inf, -weights), kind="stable")[: min(count, int((~excluded).sum()))]
        return [(int(key), float(weights[key])) for key in order]

    def merged(
        self, rows: Sequence[Group], columns: Sequence[Group]
    ) -> tuple[Float[np.ndarray, "rows columns"], Bool[np.ndarray, "rows columns"]]:
        """Return the weights between groups of neighbouring tokens, as in `merge`, and whether the mask allows them."""
        edges = [np.array([*(group[0] for group in groups), groups[-1][-1] + 1]) for groups in (rows, columns)]
        sizes = np.diff(edges[0])
        owners, sums = np.repeat(np.arange(len(rows)), sizes), np.zeros((len(rows), len(columns)))
        step = max(1, _GROUPED_WEIGHTS // self.shape[1])
        for start in range(0, self.shape[0], step):
            stop = min(self.shape[0], start + step)
            block = self.weights((start, stop), (0, self.shape[1])).astype(np.float64)
            np.add.at(sums, owners[start:stop], np.add.reduceat(block, edges[1][:-1], axis=1))
        return sums / sizes[:, None], ~excluded_cells(self.call, *edges)

    def _compute_pooled_weights(self, rows: tuple[int, int], cols: tuple[int, int], factor: int) -> _Pooled:
        """Compute the maximum and the mean weight of each cell of `factor` × `factor` pairs, a few rows at a time."""
        top, bottom = rows
        step = max(1, _BLOCK_WEIGHTS // ((cols[1] - cols[0]) * factor)) * factor
        maximum, mean = np.zeros((2, -(-(bottom - top) // factor), -(-(cols[1] - cols[0]) // factor)))
        for start in range(top, bottom, step):
            stop = min(bottom, start + step)
            weights = self._weights((start, stop), cols)
            if weights is not None:
                cells = slice((start - top) // factor, -(-(stop - top) // factor))
                maximum[cells], mean[cells] = _pool(weights, factor)
        return maximum, mean


class TiledLayer(NamedTuple):
    """The maps of the heads of one layer by the names of the heads."""

    name: str
    maps: dict[str, TiledMap]

    @property
    def heads(self) -> tuple[str, ...]:
        """The name of each head."""
        return tuple(self.maps)

    @property
    def ranges(self) -> tuple[MapRange, ...]:
        """The range of the weights of each head."""
        return tuple(one.range for one in self.maps.values())

    @property
    def calls(self) -> tuple[HeadCall, ...]:
        """The attention call of each head."""
        return tuple(HeadCall(one.call, one.log_sum_exp) for one in self.maps.values())

    def preview(self, head: int) -> Num[np.ndarray, "rows columns"]:
        """Return the codes of the coarsest level of a head, from which its thumbnail is drawn."""
        return list(self.maps.values())[head].coarsest()


@dataclass(frozen=True, eq=False, repr=False)
class TiledView(BaseView):
    """The attention maps of one long text in one model. Tiles are computed on demand; a `View` stores all weights."""

    layers: tuple[TiledLayer, ...]

    def beginning(self, count: int) -> View:
        """Return the exact maps of the first `count` tokens; their rows lack the weights of later keys."""
        queries, keys = (None if axis is None else axis.beginning(count) for axis in (self.queries, self.keys))
        assert queries is not None
        rows, columns = len(queries.tokens), len((keys or queries).tokens)
        edges = np.arange(rows + 1), np.arange(columns + 1)
        layers = []
        for name, heads in self.layers:
            weights = np.stack([head.weights((0, rows), (0, columns)) for head in heads.values()])
            allowed = ~np.stack([excluded_cells(head.call, *edges) for head in heads.values()])
            layers.append(LayerMaps.from_weights(name, weights, list(heads), allowed))
        return View(self.name, self.model, self.kind, queries, keys, tuple(layers))

    def grouped(self, unit: str = "sentences") -> View:
        """Return a view of the weights between the groups of a unit: mean over the queries, sum over the keys.

        The weights of one head are computed a few groups at a time, as long as those of its overview.
        """
        q, k = group_tokens(self.queries, unit), group_tokens(self.columns, unit)
        layers = []
        for name, heads in self.layers:
            weights, allowed = zip(*(head.merged(q, k) for head in heads.values()), strict=True)
            layers.append(LayerMaps.from_weights(name, np.stack(weights), list(heads), np.stack(allowed)))
        axes = self.queries.grouped(q, unit), self.keys and self.keys.grouped(k, unit)
        return View(self.name, self.model, self.kind, *axes, tuple(layers), self.roles, note=self.note)

    def head(self, layer: int, head: int) -> TiledMap:
        """Return the tiled map of one head."""
        self.check_head(layer, head)
        return list(self.layers[layer].maps.values())[head]

    def coarser(self) -> TiledView:
        """Return the view with smaller overview maps, the size that exported files contain."""
        layers = (TiledLayer(name, {head: one.coarser() for head, one in maps.items()}) for name, maps in self.layers)
        return replace(self, layers=tuple(layers))

    def meta(self) -> dict[str, object]:
        """Return the metadata as in `BaseView.meta`, with the levels of the tiles."""
        first = self.head(0, 0)
        overview = list(first.mean_overview.shape)
        return super().meta() | {"levels": first.levels, "base": first.base, "overview": overview}


_Pooled = tuple[Float[np.ndarray, "rows columns"], Float[np.ndarray, "rows columns"]]
"""The maximum and the mean weight of each cell."""


def overview_size(tokens: int, least: int = 1024, most: int = 2048) -> int:
    """Return the number of cells along each side of the overview of `tokens` queries or keys, within limits."""
    return min(most, max(least, -(-tokens // _CELL_TOKENS)))


def _readouts(size: int | None, q: int, k: int) -> list[Readout]:
    size = size or overview_size(max(q, k))
    return [PooledMap(size), PooledMap(size, "max"), LogSumExp()]


def _pool(weights: Float[Array, "q k"], factor: int) -> _Pooled:
    """Return the maximum and the mean of each block of `factor` × `factor` weights. Blocks at the edges are smaller."""
    if factor == 1:
        return to_numpy(weights), to_numpy(weights)
    xp, (rows, columns) = namespace(weights), weights.shape
    down, across = -(-rows // factor), -(-columns // factor)
    if (down * factor, across * factor) != (rows, columns):
        # Weights are not negative, so padding with 0 changes neither maximum nor sum.
        padded = zeros(weights, (down * factor, across * factor))
        padded[:rows, :columns] = weights  # type: ignore[index] # NumPy and PyTorch only
        weights = padded
    # Reduce the rows first, because these reductions run over contiguous memory.
    blocks = xp.reshape(weights, (down, factor, -1))
    maximum = xp.max(xp.reshape(xp.max(blocks, axis=1), (down, across, factor)), axis=2)
    sums = xp.sum(xp.reshape(xp.sum(blocks, axis=1), (down, across, factor)), axis=2)
    counts = [np.minimum(factor, n - np.arange(0, n, factor)) for n in (rows, columns)]
    return to_numpy(maximum), to_numpy(sums) / np.outer(*counts)
