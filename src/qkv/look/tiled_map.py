"""Maps of many thousand tokens: an overview that is made once, and tiles of every finer resolution on demand.

One pass over the keys gives, for each head, the mean and the largest weight of some thousand by some thousand
cells, and the logarithm of each query's total. From query, key and that logarithm any part of the map is
exact again, e^(logit − total), without the rest:

    level 0          a spot is a pair of tokens                        computed when it is looked at
    level l < base   2^l × 2^l tokens: the largest, and the mean       computed when it is looked at
    level base       the cells of the overview                         from the one pass
    level above      2 × 2 spots of the level below                    from the overview
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from qkv.core.arrays import library, namespace, zeros
from qkv.core.equation import BoundCall, bind_call
from qkv.core.positions import Positions
from qkv.engine import explain, observe
from qkv.look.views import TokenAxis
from qkv.masks import Mask
from qkv.normalizers import Normalizer, Softmax
from qkv.readouts import LogSumExp, PooledMap, Readout
from qkv.scores import ScaledDot
from qkv.scores.base import Score

__all__ = ["SIDE", "TiledMap", "TiledView"]

SIDE = 256
"""Spots on a side of a tile."""
_STRIP = 2**18
"""Weights that are made at a time for a tile of a coarse level: as many as stay in the cache."""
_CELL = 32
"""Tokens along a cell of the overview, up to `_MOST` cells: finer tiles are made in a tenth of a second."""
_FEWEST, _MOST = 1024, 2048
_LOG2_E = math.log2(math.e)


@dataclass(frozen=True, eq=False)
class TiledMap:
    """The weights of one head, at any resolution.

    Fields:
        call: query and key of the head with what is asked of them, without batch axes.
        total: `(q,)`, the logarithm of each query's total.
        mean, largest: the overview, `(rows, columns)`.
    """

    call: BoundCall
    total: Any = field(repr=False)
    mean: np.ndarray = field(repr=False)
    largest: np.ndarray = field(repr=False)

    @classmethod
    def of(
        cls,
        query: Any,
        key: Any,
        *,
        score: Score | None = None,
        normalizer: Normalizer | None = None,
        mask: Mask | None = None,
        positions: Positions | None = None,
        size: int | None = None,
        memory: int | str = "512 MiB",
    ) -> TiledMap:
        """Read a head in one pass.

        Args:
            query: `(q, width)` of any library that the engine takes.
            key: `(k, width)`.
            score, normalizer, mask, positions: as in `qkv.attend`; the normalizer has a log-sum-exp.
            size: cells along each side of the overview; None: 1,024, or 2,048 for more than 32,768 tokens.
            memory: what may be allocated beside query and key; `TiledMap.needs` says it beforehand.

        Raises:
            RefusedError: it does not fit the memory, or the normalizer has no log-sum-exp.

        Example:
            >>> rows = np.random.default_rng(0).normal(size=(300, 4))
            >>> long = TiledMap.of(rows, rows, size=16)
            >>> long.largest.shape, long.weights((0, 2), (0, 300)).sum(axis=1).round(6).tolist()
            ((16, 16), [1.0, 1.0])
        """
        options = {"score": score, "normalizer": normalizer, "mask": mask, "positions": positions}
        readouts = _readouts(size, query.shape[-2], key.shape[-2])
        seen = observe(query, key, key[:, :1], readouts=readouts, memory=memory, **options)  # type: ignore[arg-type]
        mean, largest, total = seen.readouts
        bound = bind_call(
            query,
            key,
            key[:, :1],
            score=score or ScaledDot(),
            normalizer=normalizer or Softmax(),
            mask=mask,
            positions=positions,
        )
        return cls(bound, total, _numpy(mean), _numpy(largest))

    @classmethod
    def recorded(cls, seen: Any, head: int, element: int = 0) -> TiledMap:
        """A head of a model, from a call that was recorded with `save_inputs=True` and both pooled maps.

        Args:
            seen: of `qkv.interop.record(model, [PooledMap(size), PooledMap(size, "max")], save_inputs=True)`.
            head, element: which.
        """
        mean, largest = (readout[element, head] for readout in seen.readouts)
        call, total = seen.saved.call.select_head(head), seen.saved.log_sum_exp[element, head]
        options = {name: call.options[name] for name in ("score", "mask", "positions")}
        bound = bind_call(
            call.query, call.key, call.value, normalizer=call.options["normalizer"] or Softmax(), **options
        ).select_batch((element,))
        return cls(bound, total, _numpy(mean), _numpy(largest))

    @staticmethod
    def needs(q: int, k: int, width: int, *, size: int | None = None, library: str = "torch") -> int:
        """Bytes that `of` will allocate beside query and key, as the plan predicts them."""
        shapes = (q, width), (k, width), (k, 1)
        return int(explain(*shapes, readouts=_readouts(size, q, k), library=library).cost.peak)

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and keys."""
        return self.call.tile.q_total, self.call.tile.k_total

    @cached_property
    def base(self) -> int:
        """The level of the overview: its cells hold about 2^base × 2^base tokens, and not fewer."""
        cells = zip(self.shape, self.mean.shape, strict=True)
        return max(0, math.ceil(math.log2(max(tokens / count for tokens, count in cells))))

    @cached_property
    def levels(self) -> int:
        """The coarsest level, which is one tile."""
        return self.base + max(0, math.ceil(math.log2(max(self.mean.shape) / SIDE)))

    @property
    def most(self) -> float:
        """The largest weight of all: the scale of every tile."""
        return float(self.largest.max(initial=0.0))

    def weights(self, rows: tuple[int, int], cols: tuple[int, int]) -> np.ndarray:
        """The exact weights of some queries and keys, `(rows, cols)`."""
        found = self._weights(rows, cols)
        if found is None:
            return np.zeros((rows[1] - rows[0], cols[1] - cols[0]), np.float32)
        return _numpy(found)

    def _weights(self, rows: tuple[int, int], cols: tuple[int, int]) -> Any:
        """As an array of the library of query and key; None: the mask allows none of them."""
        logits = self.call.logits(rows, cols)
        if logits is None:
            return None
        prepared, total = self.call.normalizer.prepare(logits), self._divisor[rows[0] : rows[1], None]
        if library(prepared) != "torch":
            return _numpy(namespace(prepared).exp(prepared - total))
        # `exp` takes a hundred times as long where its result is nearly 0; `exp2` does not.
        return prepared.sub(total).mul_(_LOG2_E).exp2_()

    @cached_property
    def _divisor(self) -> Any:
        """The totals; infinite for a query without any key, whose weights are 0."""
        xp = namespace(self.total)
        return xp.where(self.total == -math.inf, xp.full_like(self.total, math.inf), self.total)

    def tile(self, level: int, y: int, x: int) -> np.ndarray:
        """Codes `(2, 256, 256)`, the largest and the mean weight of each spot; what lies outside is 0.

        Raises:
            IndexError: there is no such tile.
        """
        if not 0 <= level <= self.levels:
            raise IndexError(f"level {level} of {self.levels + 1}")
        largest, mean = self._coarse(level, y, x) if level >= self.base else self._fine(level, y, x)
        codes = np.zeros((2, SIDE, SIDE), np.uint8)
        for channel, spots in enumerate((largest, mean)):
            share = spots / self.most if self.most > 0 else spots
            codes[channel, : spots.shape[0], : spots.shape[1]] = np.rint(255 * np.sqrt(np.clip(share, 0, 1)))
        return codes

    def row(self, query: int, count: int = 10) -> list[tuple[int, float]]:
        """The strongest keys of a query with their weights, in falling order; ties to the lower key.

        Raises:
            IndexError: there is no such query.
        """
        if not 0 <= query < self.shape[0]:
            raise IndexError(f"query {query} of {self.shape[0]}")
        weights = self.weights((query, query + 1), (0, self.shape[1]))[0]
        order = np.argsort(-weights, kind="stable")[:count]
        return [(int(key), float(weights[key])) for key in order]

    def _coarse(self, level: int, y: int, x: int) -> tuple[np.ndarray, np.ndarray]:
        """From the overview."""
        reach = 2 ** (level - self.base)
        top, left = y * SIDE * reach, x * SIDE * reach
        if top >= len(self.mean) or left >= self.mean.shape[1] or y < 0 or x < 0:
            raise IndexError(f"tile {y}, {x} of level {level}")
        part = np.s_[top : top + SIDE * reach, left : left + SIDE * reach]
        return _pooled(self.largest[part], reach)[0], _pooled(self.mean[part], reach)[1]

    def _fine(self, level: int, y: int, x: int) -> tuple[np.ndarray, np.ndarray]:
        """From query, key and totals, some rows of spots at a time."""
        reach = 2**level
        q, k = self.shape
        top, left = y * SIDE * reach, x * SIDE * reach
        if top >= q or left >= k or y < 0 or x < 0:
            raise IndexError(f"tile {y}, {x} of level {level}")
        bottom, right = min(q, top + SIDE * reach), min(k, left + SIDE * reach)
        step = max(1, _STRIP // ((right - left) * reach)) * reach
        largest, mean = (np.zeros((-(-(bottom - top) // reach), -(-(right - left) // reach))) for _ in "ab")
        for start in range(top, bottom, step):
            found = self._weights((start, min(bottom, start + step)), (left, right))
            if found is not None:
                there = slice((start - top) // reach, -(-(min(bottom, start + step) - top) // reach))
                largest[there], mean[there] = _pooled(found, reach)
        return largest, mean


@dataclass(frozen=True, eq=False)
class TiledView:
    """Long maps of some heads with their words: what `View` is for short ones.

    Fields:
        name, model: as in `View`.
        queries, keys: the words; keys None: the same.
        layers: the name of each layer, and the maps of its heads by name.
    """

    name: str
    model: str
    queries: TokenAxis
    keys: TokenAxis | None
    layers: tuple[tuple[str, dict[str, TiledMap]], ...]

    def head(self, layer: int, head: int) -> TiledMap:
        """The map of a head.

        Raises:
            IndexError: there is no such head.
        """
        if layer < 0 or head < 0:
            raise IndexError(f"layer {layer}, head {head}")
        return list(self.layers[layer][1].values())[head]

    def tile(self, layer: int, head: int, level: int, y: int, x: int) -> bytes:
        """The codes of a tile."""
        return self.head(layer, head).tile(level, y, x).tobytes()

    def row(self, layer: int, head: int, query: int) -> list[tuple[int, float]]:
        """The strongest keys of a query."""
        return self.head(layer, head).row(query)

    def thumbs(self, side: int) -> bytes:
        """Small maps of all heads."""
        from qkv.look.quantize import quantize, thumbnails

        maps = [one for _, heads in self.layers for one in heads.values()]
        return b"".join(thumbnails(quantize(one.largest)[0][None], side).tobytes() for one in maps)

    def meta(self) -> dict[str, Any]:
        """What the page needs before it asks for tiles."""
        first = self.head(0, 0)
        return {
            "name": self.name,
            "model": self.model,
            "kind": "self" if self.keys is None else "cross",
            "queries": self.queries.meta(),
            "keys": None if self.keys is None else self.keys.meta(),
            "layers": [{"name": name, "heads": list(heads)} for name, heads in self.layers],
            "scales": [[float(f"{one.most:.6g}") for one in heads.values()] for _, heads in self.layers],
            "roles": {},
            "levels": first.levels,
            "base": first.base,
            "overview": list(first.mean.shape),
        }


def _readouts(size: int | None, q: int, k: int) -> list[Readout]:
    if size is None:
        size = min(_MOST, max(_FEWEST, -(-max(q, k) // _CELL)))
    return [PooledMap(size), PooledMap(size, "max"), LogSumExp()]


def _pooled(spots: Any, reach: int) -> tuple[np.ndarray, np.ndarray]:
    """The largest and the mean of each `reach` × `reach` spots; those at the end may hold fewer."""
    if reach == 1:
        return _numpy(spots), _numpy(spots)
    xp, (rows, columns) = namespace(spots), spots.shape
    down, across = -(-rows // reach), -(-columns // reach)
    if (down * reach, across * reach) != (rows, columns):
        # A weight is never below 0: what is added is no larger one, and adds nothing.
        whole = zeros(spots, (down * reach, across * reach))
        whole[:rows, :columns] = spots
        spots = whole
    # Rows first: what lies side by side in memory is compared in whole vectors.
    apart = xp.reshape(spots, (down, reach, -1))
    largest = xp.max(xp.reshape(xp.max(apart, axis=1), (down, across, reach)), axis=2)
    sums = xp.sum(xp.reshape(xp.sum(apart, axis=1), (down, across, reach)), axis=2)
    counts = [np.minimum(reach, n - np.arange(0, n, reach)) for n in (rows, columns)]
    return _numpy(largest), _numpy(sums) / np.outer(*counts)


def _numpy(array: Any) -> np.ndarray:
    if hasattr(array, "detach"):
        array = array.detach().float().cpu()
    return np.asarray(array)
