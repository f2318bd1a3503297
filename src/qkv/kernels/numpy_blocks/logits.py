"""Logits of a tile in NumPy, minus a shift for each query, written to a reused buffer, and their exponentials.

Each query is projected once per call, and each key once per tile of keys. The keys are never copied as a whole, so a
memory-mapped table stays on disk.

    _InnerProductBlocks   scores that are inner products: one matrix product, which includes log2 e and the shift
    _ProjectedLogits      all other scores, by their method `projected_logits`

Buffers are stored keys first, `(*batch, k, q)`, and viewed as `(*batch, q, k)`, because BLAS then multiplies a few
queries with many keys 15 % faster.

Where NumPy has vectorized code for `exp2`, it takes half the time of `exp`; elsewhere it takes ten times as long. The
faster function is measured once per process and dtype, in less than a millisecond. Subnormal results are replaced by 0,
because computing them and multiplying with them is a hundred times slower.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from threading import Lock

import numpy as np

from qkv.core.arrays import cast, is_text
from qkv.core.equation import BoundCall
from qkv.core.guard import zero_nonfinite
from qkv.core.tile import Centre, Tile
from qkv.core.typing import Array, Float, Shaped
from qkv.kernels.runtime.faster_ops import is_faster
from qkv.kernels.runtime.tile_loop import Limits
from qkv.scores.base import Score
from qkv.scores.forms import Product


@dataclass(frozen=True)
class Exponential:
    """Exponential function of NumPy with a factor for its argument: `function(x * factor)` is e^x.

    Attributes:
        function: `np.exp` or `np.exp2`.
        factor: 1 for `np.exp`, log2 e for `np.exp2`.
    """

    function: np.ufunc
    factor: float

    def apply_(self, x: Float[np.ndarray, " ..."]) -> None:
        """Apply `function` to `x` in place. Results below 2^−100 (2^−900 in float64) may become 0.

        Example:
            >>> x = np.array([0.0, -1000.0])
            >>> NATURAL.apply_(x)
            >>> x
            array([1., 0.])
        """
        smallest = x.min(initial=0)
        bits = -900.0 if x.dtype == np.float64 else -100.0
        floor = bits * math.log(2) * self.factor
        if smallest >= 1.2 * floor:  # the smallest normal numbers are 2^−126 and 2^−1022; False for NaN
            self.function(x, out=x)
            return
        np.maximum(x, floor, out=x)
        self.function(x, out=x)
        # Subtract exactly the exponential of the floor: elements at the floor become 0, and the change of other
        # elements is below their precision.
        np.subtract(x, self.function(np.full(64, floor, dtype=x.dtype))[0], out=x)


NATURAL = Exponential(np.exp, 1.0)
BINARY = Exponential(np.exp2, math.log2(math.e))

_MEASURING = Lock()


def faster_exponential(dtype: str) -> Exponential:
    """Return `NATURAL` or `BINARY`, whichever is faster on this machine for a dtype such as "float32".

    Example:
        >>> import numpy as np
        >>> e = faster_exponential("float64")
        >>> round(float(e.function(1.0 * e.factor)), 9)
        2.718281828
    """
    with _MEASURING:  # threads that begin at once must not obtain different functions
        return _measured(dtype)


@cache
def _measured(dtype: str) -> Exponential:
    sample = np.linspace(-20, 0, 4096, dtype=dtype)
    out = np.empty_like(sample)
    faster = is_faster(lambda: np.exp2(sample, out=out), lambda: np.exp(sample, out=out))
    return BINARY if faster else NATURAL


_REFERENCE_KEYS = 256
"""Largest number of keys from which the reference point of the score is estimated."""


@dataclass
class ProjectedQueries:
    """Projected or lifted queries of a block, with the term that their score adds to every logit of a query.

    Attributes:
        vectors: one row per query; text for scores that compare text.
        term: term that is added to every logit of a query; None for 0.
    """

    vectors: Shaped[np.ndarray, " ..."]
    term: Float[np.ndarray, "*batch q 1"] | None = None


class BlockLogits(ABC):
    """Base class of the implementations of the logits of a tile in NumPy.

    Attributes:
        exp: exponential function for the logits. The logits are multiplied by its factor.
    """

    exp: Exponential = NATURAL

    def __init__(self, call: BoundCall) -> None:
        self.call = call
        self.dtype = np.dtype(call.dtype)
        self.tile: Tile = dataclasses.replace(call.tile, centre=_reference_point(call))

    @abstractmethod
    def project_queries(self, rows: Limits) -> ProjectedQueries:
        """Return the projections of a range of queries."""

    @abstractmethod
    def project_keys(self, cols: Limits, rows: int) -> Shaped[np.ndarray, " ..."]:
        """Return the projections of a range of keys, to be compared with blocks of `rows` queries."""

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
        """Write the logits of a tile, multiplied by `exp.factor` and minus `shift`, to `out`."""

    def _parts(self, rows: Limits, cols: Limits) -> tuple[Score, Shaped[Array, "*_"], Shaped[Array, "*_"], Tile]:
        """Return the score, the queries and the keys restricted to a tile, and the tile."""
        call = self.call
        score = call.score.slice(slice(*rows), slice(*cols))
        return score, call.queries(rows), call.keys(cols), self.tile.restrict(rows, cols)


class _InnerProductBlocks(BlockLogits):
    """Logits of tiles for scores that are an inner product of lifted vectors plus a term of the query."""

    def __init__(self, call: BoundCall, exponential: bool) -> None:
        super().__init__(call)
        self.exp = faster_exponential(str(self.dtype)) if exponential else NATURAL
        self._buffer = np.empty(0, dtype=self.dtype)
        self._has_term = False

    def project_queries(self, rows: Limits) -> ProjectedQueries:
        """Return a range of queries, lifted and multiplied by `exp.factor`, with one more column.

        The column is for the term of the query and for the shift.
        """
        score, query, key, tile = self._parts(rows, (0, 1))
        vectors = np.asarray(cast(score.lift(query, key, tile)[0], self.dtype))
        term = score.query_term(query, tile)
        self._has_term = term is not None
        wide = np.empty((*vectors.shape[:-1], vectors.shape[-1] + 1), dtype=self.dtype)
        np.multiply(vectors, self.exp.factor, out=wide[..., :-1])
        wide[..., -1] = 0
        if term is None:
            return ProjectedQueries(wide)
        return ProjectedQueries(wide, np.asarray(cast(term, self.dtype))[..., None] * self.exp.factor)

    def project_keys(self, cols: Limits, rows: int) -> Float[np.ndarray, " ..."]:
        """Return a range of keys, lifted, with one more column of ones if copying them is cheap.

        Copying is cheap if it costs little compared to the product with `rows` queries.
        """
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
        """Write the logits of a tile, multiplied by `exp.factor` and minus `shift`, to `out`.

        A column of ones in the keys includes the shift in the matrix product; otherwise it is subtracted afterwards.
        """
        vectors = queries.vectors
        if keys.shape[-1] == vectors.shape[-1]:
            term = 0.0 if queries.term is None else queries.term
            vectors[..., -1:] = term if shift is None else term - shift
            np.matmul(keys, vectors.swapaxes(-1, -2), out=out.swapaxes(-1, -2))
            return
        np.matmul(keys, vectors[..., :-1].swapaxes(-1, -2), out=out.swapaxes(-1, -2))
        if shift is not None:
            np.subtract(out, shift, out=out)


class _ProjectedLogits(BlockLogits):
    """Logits of tiles for any score and any normalizer, from projected queries and keys."""

    def __init__(self, call: BoundCall, prepares: bool) -> None:
        super().__init__(call)
        self._prepares = prepares

    def project_queries(self, rows: Limits) -> ProjectedQueries:
        score, query, key, tile = self._parts(rows, (0, 1))
        return ProjectedQueries(np.asarray(score.project(query, key, tile)[0]))

    def project_keys(self, cols: Limits, rows: int) -> Shaped[np.ndarray, " ..."]:
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
        score = self.call.score.slice(slice(*rows), slice(*cols))
        logits = cast(score.projected_logits(queries.vectors, keys, self.tile.restrict(rows, cols)), self.dtype)
        if self._prepares:
            logits = self.call.normalizer.prepare(logits)
        np.subtract(np.asarray(logits), 0 if shift is None else shift, out=out)


def block_logits(call: BoundCall, prepared: bool = True) -> BlockLogits:
    """Return the fastest implementation of the logits of a call that supports its score and normalizer.

    If `prepared` is False, logits are those of the score, without `Normalizer.prepare` and a factor.
    """
    one = np.ones((*(1 for _ in call.batch), 1, 1), dtype=call.dtype)
    prepares = prepared and call.normalizer.prepare(one) is not one
    inner_product = isinstance(call.score.form, Product) and not prepares
    return _InnerProductBlocks(call, prepared) if inner_product else _ProjectedLogits(call, prepares)


def _reference_point(call: BoundCall) -> Centre:
    """Return the point that the score subtracts from queries and keys, or None if the score has no such point.

    It is estimated from a sample of the keys.
    """
    if is_text(call.key) or call.score.centre(call.key[..., :1, :]) is None:
        return None
    key = call.key[..., :: max(1, -(-call.key.shape[-2] // _REFERENCE_KEYS)), :]
    return call.score.centre(zero_nonfinite(key if call.score.keeps_dtype else cast(key, call.dtype)))
