"""Logits of tiles in NumPy, in one buffer, minus a shift for each query.

Each query is projected once per call, and each key once per tile of keys. Keys are never copied as a whole, so a
memory-mapped table stays on disk.

    InnerProductLogits   lifted queries and keys: one matrix product, with log2 e and the shift folded in
    ProjectedLogits      any other score: its `projected_logits`

Buffers lie keys first, `(*batch, k, q)`, and are viewed as `(*batch, q, k)`: BLAS multiplies a few queries with
many keys 15 % faster that way.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from qkv.core.arrays import cast, is_text
from qkv.core.equation import BoundCall
from qkv.core.guard import zero_nonfinite
from qkv.core.tile import Centre, Tile
from qkv.core.typing import Array, Float, Shaped
from qkv.kernels.numpy_blocks.exponential import NATURAL, Exponential, exponential
from qkv.kernels.runtime.tile_loop import Limits
from qkv.scores.base import Score

__all__ = ["BlockLogits", "InnerProductLogits", "ProjectedLogits", "ProjectedQueries", "block_logits"]

_CENTRE_KEYS = 256
"""Maximum number of keys from which a centre is computed."""


@dataclass
class ProjectedQueries:
    """Projected or lifted queries of a block.

    Attributes:
        vectors: one row per query; text for scores that compare text.
        term: number to add to every logit of a query; None: 0.
    """

    vectors: Shaped[np.ndarray, " ..."]
    term: Float[np.ndarray, "*batch q 1"] | None = None


class BlockLogits(ABC):
    """Tiles of logits of a call, or of some of its batch elements.

    Attributes:
        exp: exponential of these logits, which are multiplied by its unit.
    """

    exp: Exponential = NATURAL

    def __init__(self, call: BoundCall) -> None:
        self.call = call
        self.dtype = np.dtype(call.dtype)
        self.tile: Tile = dataclasses.replace(call.tile, centre=_centre(call))

    @abstractmethod
    def project_queries(self, rows: Limits) -> ProjectedQueries:
        """Return the projections of some queries."""

    @abstractmethod
    def project_keys(self, cols: Limits, rows: int) -> Shaped[np.ndarray, " ..."]:
        """Return the projections of some keys, to be compared with blocks of `rows` queries."""

    @abstractmethod
    def write(
        self,
        queries: ProjectedQueries,
        keys: Shaped[np.ndarray, " ..."],
        rows: Limits,
        cols: Limits,
        shift: Float[np.ndarray, "*batch q 1"] | None,
        out: Float[np.ndarray, "*batch q k"],
    ) -> None:
        """Write the logits of a tile, times the unit, minus `shift`, into `out`."""

    def _parts(self, rows: Limits, cols: Limits) -> tuple[Score, Array, Array, Tile]:
        """Return the score, the queries, the keys and the tile."""
        call = self.call
        score = call.score.slice(slice(*rows), slice(*cols))
        return score, call.queries(rows), call.keys(cols), self.tile.restrict(rows, cols)


class InnerProductLogits(BlockLogits):
    """Logits of a score that is an inner product of lifted vectors, plus a term of the query."""

    def __init__(self, call: BoundCall) -> None:
        super().__init__(call)
        self.exp = exponential(str(self.dtype))
        self._buffer = np.empty(0, dtype=self.dtype)
        self._has_term = False

    def project_queries(self, rows: Limits) -> ProjectedQueries:
        """Lift the queries, times the unit, with one more column that can hold the term and the shift."""
        score, query, key, tile = self._parts(rows, (0, 1))
        vectors = np.asarray(cast(score.lift(query, key, tile)[0], self.dtype))
        term = score.query_term(query, tile)
        self._has_term = term is not None
        wide = np.empty((*vectors.shape[:-1], vectors.shape[-1] + 1), dtype=self.dtype)
        np.multiply(vectors, self.exp.unit, out=wide[..., :-1])
        wide[..., -1] = 0
        if term is None:
            return ProjectedQueries(wide)
        return ProjectedQueries(wide, np.asarray(cast(term, self.dtype))[..., None] * self.exp.unit)

    def project_keys(self, cols: Limits, rows: int) -> Float[np.ndarray, " ..."]:
        """Lift the keys, with one more column of ones where that is little work beside that of the pairs."""
        score, query, key, tile = self._parts((0, 1), cols)
        vectors = np.asarray(cast(score.lift(query, key, tile)[1], self.dtype))
        if not self._has_term and 4 * vectors.shape[-1] > rows:
            return vectors
        shape = (*vectors.shape[:-1], vectors.shape[-1] + 1)
        size = int(np.prod(shape))
        if self._buffer.size < size:
            self._buffer = np.empty(size, dtype=self.dtype)
        wide = self._buffer[:size].reshape(shape)
        wide[..., :-1] = vectors
        wide[..., -1] = 1
        return wide

    def write(
        self,
        queries: ProjectedQueries,
        keys: Shaped[np.ndarray, " ..."],
        rows: Limits,
        cols: Limits,
        shift: Float[np.ndarray, "*batch q 1"] | None,
        out: Float[np.ndarray, "*batch q k"],
    ) -> None:
        """Compute one matrix product, and one subtraction where the keys have no column of ones."""
        vectors = queries.vectors
        if keys.shape[-1] == vectors.shape[-1]:
            term = 0.0 if queries.term is None else queries.term
            vectors[..., -1:] = term if shift is None else term - shift
            np.matmul(keys, vectors.swapaxes(-1, -2), out=out.swapaxes(-1, -2))
            return
        np.matmul(keys, vectors[..., :-1].swapaxes(-1, -2), out=out.swapaxes(-1, -2))
        if shift is not None:
            np.subtract(out, shift, out=out)


class ProjectedLogits(BlockLogits):
    """Logits of any score, under any normalizer that prepares its logits."""

    def project_queries(self, rows: Limits) -> ProjectedQueries:
        """Project the queries."""
        score, query, key, tile = self._parts(rows, (0, 1))
        return ProjectedQueries(np.asarray(score.project(query, key, tile)[0]))

    def project_keys(self, cols: Limits, rows: int) -> Shaped[np.ndarray, " ..."]:
        """Project the keys."""
        score, query, key, tile = self._parts((0, 1), cols)
        return np.asarray(score.project(query, key, tile)[1])

    def write(
        self,
        queries: ProjectedQueries,
        keys: Shaped[np.ndarray, " ..."],
        rows: Limits,
        cols: Limits,
        shift: Float[np.ndarray, "*batch q 1"] | None,
        out: Float[np.ndarray, "*batch q k"],
    ) -> None:
        """Compute the score's logits and prepare them for the normalizer."""
        score = self.call.score.slice(slice(*rows), slice(*cols))
        logits = cast(score.projected_logits(queries.vectors, keys, self.tile.restrict(rows, cols)), self.dtype)
        logits = self.call.normalizer.prepare(logits)
        np.subtract(np.asarray(logits), 0 if shift is None else shift, out=out)


def block_logits(call: BoundCall) -> BlockLogits:
    """Return the logits of the call as the facts of its score and normalizer allow."""
    one = np.ones((*(1 for _ in call.batch), 1, 1), dtype=call.dtype)
    prepares = call.normalizer.prepare(one) is not one
    inner_product = call.score.is_inner_product and not prepares
    return InnerProductLogits(call) if inner_product else ProjectedLogits(call)


def _centre(call: BoundCall) -> Centre:
    """Return one centre for all tiles, of a sample: a pass over all keys would cost more than it improves digits."""
    if is_text(call.key) or call.score.centre(call.key[..., :1, :]) is None:
        return None
    key = call.key[..., :: max(1, -(-call.key.shape[-2] // _CENTRE_KEYS)), :]
    return call.score.centre(zero_nonfinite(key if call.score.keeps_dtype else cast(key, call.dtype)))
