"""Mask that calls a function of the user with the positions of queries and keys."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import numpy as np

from qkv.core.arrays import as_array, asarray_like, dtype_name, is_array, is_tensor, library, namespace, to_numpy
from qkv.core.batch import BatchIndex
from qkv.core.function_part import FunctionPart
from qkv.core.positions import Align, Positions
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, DType, Shaped
from qkv.errors import GradientError, KindError, ShapeError
from qkv.masks.arrays import coverage_of
from qkv.masks.base import Coverage, Mask

__all__ = ["Custom"]

_MAX_CACHED = 2**24
"""Maximum number of pairs whose booleans are cached during a call, that is, 16 MiB."""

_TileKey = tuple[tuple[int, int], tuple[int, int], int]
"""Queries of a tile, its keys, and the position of its first query."""


@dataclass(frozen=True, eq=False)
class Custom(FunctionPart, Mask):
    """Mask that allows the pairs for which a function of the positions of query and key returns True.

    The function is called with integer arrays of positions that broadcast to the pairs of a tile, in the library of
    the call. To skip tiles, kernels evaluate it once on all pairs of a tile, and reuse the result for all batch
    elements of the call. Nothing is reused in the next call, so that arrays and numbers to which the function refers
    may change between calls. Functions that JAX compiles are constant as usual: there, pass such arrays in
    `parameters`.

    Args:
        function: called as `function(query, key, *parameters)` with the positions of the queries, integers `(q, 1)`
            or `(*batch, q, 1)`, and of the keys, `(1, k)`. It returns booleans that broadcast to `(*batch, q, k)`,
            True for the pairs that may attend. Each element must depend only on the positions of its own pair.
        parameters: arrays, passed to the function after the positions in the library of the call. Their leading axes
            may be the last batch axes of the call, as in `scores.Custom`: `(heads, 1, 1)` has a number for each head.
        align: alignment of queries and keys; None: the `positions` of the call.
        batch_axes: number of leading axes of each parameter that are batch axes; None: found by a trial.

    Raises:
        OptionError: `function` is not callable, `align` is unknown, or `batch_axes` does not match `parameters`.
        RefusedError: raised by the call if a trial on drawn arrays shows that an element depends on the positions of
            other pairs or on their number.
        KindError: raised by the call if the function does not return booleans.
        ShapeError: raised by the call if the result of the function does not broadcast to the pairs.
        GradientError: an array in `parameters` requires a gradient.
        PositionError: query and key differ in length and no positions are given.

    Example:
        >>> import numpy as np
        >>> from qkv.core.tile import Tile
        >>> dilated = Custom(lambda query, key: (key <= query) & ((query - key) % 2 == 0))
        >>> dilated.allowed(Tile.whole(4, 4), np.zeros(())).astype(int)
        array([[1, 0, 0, 0],
               [0, 1, 0, 0],
               [1, 0, 1, 0],
               [0, 1, 0, 1]])
    """

    function: Callable[..., Array]
    parameters: tuple[Array, ...] = ()
    align: Align | None = None
    batch_axes: tuple[int, ...] | None = None
    bound_per_call = True

    def validate(self) -> None:
        self.check_function(
            "Pass a function of (query, key, *parameters) that returns booleans: lambda query, key: key <= query."
        )
        if self.align is not None:
            Positions(align=self.align)
        object.__setattr__(self, "parameters", tuple([as_array(x) for x in self.parameters]))
        if any(is_tensor(x) and x.requires_grad for x in self.parameters):
            raise GradientError(
                "parameters of Custom must not require a gradient, because a mask has none. Pass x.detach(), or add "
                "the function to the logits with scores.Custom or scores.Biased."
            )

    @property
    def positional(self) -> bool:  # type: ignore[override]
        return self.align is None

    def bind(
        self,
        reference: Shaped[Array, "*_"],
        batch: tuple[int, ...],
        dtype: DType = None,
        lengths: dict[str, int] | None = None,
    ) -> Self:
        """Return a copy for one call, which caches the coverage of its tiles; the arguments are those of `Part.bind`.

        Only such a copy knows the library and device in which the function must be evaluated.
        """
        bound = super().bind(reference, batch, dtype, lengths)
        object.__setattr__(bound, "_evaluated", _Evaluated(reference, bound.parameters))
        return bound

    def select_batch(self, index: BatchIndex) -> Self:
        """Return the mask restricted to the batch elements that `index` selects, which caches its own tiles."""
        selected, known = super().select_batch(index), self.__dict__.get("_evaluated")
        if known is not None and not known.describes(selected.parameters):
            object.__setattr__(selected, "_evaluated", _Evaluated(known.like, selected.parameters))
        return selected

    def allowed(self, tile: Tile, reference: Array) -> Bool[Array, "*batch q k"]:
        evaluated, key = self._evaluated_tiles(), self._key(tile)
        found = None if evaluated is None or key is None else evaluated.allowed.get(key)
        return self._evaluate(tile, reference) if found is None else found

    def coverage(self, tile: Tile) -> Coverage:
        """Return the coverage of the tile, for which the function is evaluated on all its pairs.

        It is "part" if the mask is not bound to a call, if the positions of the tile or the results of the function
        are traced, or if the positions differ between batch elements.
        """
        evaluated, key = self._evaluated_tiles(), self._key(tile)
        if evaluated is None or key is None:
            return "part"
        known = evaluated.coverage.get(key)
        if known is None:
            with evaluated.reference() as reference:
                allowed = self._evaluate(tile, reference)
                known = coverage_of(allowed)
            evaluated.store(key, known, allowed)
        return known

    def _evaluated_tiles(self) -> _Evaluated | None:
        """Return the results for the tiles of the call, or None outside of a call and for traced parameters."""
        evaluated: _Evaluated | None = getattr(self, "_evaluated", None)
        return evaluated if evaluated is not None and evaluated.describes(self.parameters) else None

    def _key(self, tile: Tile) -> _TileKey | None:
        span = tile.query_position_range(self.align)
        return None if span is None else (tile.rows, tile.cols, span[0])

    def _evaluate(self, tile: Tile, reference: Array) -> Bool[Array, "*batch q k"]:
        query, key = tile.query_positions(reference, self.align), tile.key_positions(reference)[None, :]
        parameters = [asarray_like(key, x) for x in self.parameters]
        allowed = self.function(query, key, *parameters)
        if isinstance(allowed, (bool, np.bool_)):  # as of `lambda query, key: True`
            allowed = key == key if allowed else key != key
        if not is_array(allowed) or "bool" not in dtype_name(allowed):
            given = (
                f"dtype {dtype_name(allowed)}" if is_array(allowed) else f"an object of type {type(allowed).__name__}"
            )
            raise KindError(
                f"the result of the function of Custom must be a boolean array, got {given}. Return a comparison, "
                "which is True for the pairs that may attend, and combine comparisons with & and |."
            )
        if library(allowed) != library(key):
            allowed = asarray_like(key, allowed)
        shape = (*tile.batch, query.shape[-2], key.shape[-1])
        own = tuple(allowed.shape)
        extra = len(own) - len(shape)
        if 0 < extra <= tile.removed_axes and all(n == 1 for n in own[:extra]):
            own = own[extra:]
            allowed = namespace(allowed).reshape(allowed, own)
        fits = len(own) <= len(shape) and all(n in (1, m) for n, m in zip(own[::-1], shape[::-1], strict=False))
        if not fits and all(isinstance(n, int) for n in (*own, *shape)):
            raise ShapeError(
                f"the result of the function of Custom must broadcast to shape {shape}, got shape {own}. Compute each "
                f"element from the positions of its own pair: query has shape {tuple(query.shape)} and key has shape "
                f"{tuple(key.shape)}. Pass arrays with batch axes as parameters."
            )
        return allowed


class _Evaluated:
    """Results of the function of a mask for the tiles of one call, shared by its slices and batch elements."""

    def __init__(self, reference: Array, parameters: tuple[Array, ...]) -> None:
        self.kind, self.device = library(reference), getattr(reference, "device", None)
        self.like = reference
        self.parameters = parameters
        self.coverage: dict[_TileKey, Coverage] = {}
        self.allowed: dict[_TileKey, Array] = {}
        self.pairs = 0

    def describes(self, parameters: tuple[Array, ...]) -> bool:
        """Return whether `parameters` are the arrays of the call, and not tracers or other arrays in their place."""
        return all(a is b for a, b in zip(self.parameters, parameters, strict=True))

    @contextmanager
    def reference(self) -> Iterator[Array]:
        """Provide an array of the library and device of the call, with operations on it evaluated even under `jit`."""
        if self.kind == "torch":
            yield sys.modules["torch"].zeros((), device=self.device)
        elif self.kind == "jax":
            jax = sys.modules["jax"]
            with jax.ensure_compile_time_eval():
                yield jax.numpy.zeros(())
        elif self.kind == "tensorflow":
            yield sys.modules["tensorflow"].zeros(())
        else:
            yield np.zeros(())

    def store(self, key: _TileKey, coverage: Coverage, allowed: Array) -> None:
        """Store the coverage of a tile, and its booleans if it is covered in part and the cache is not full."""
        self.coverage[key] = coverage
        size = int(np.prod(allowed.shape))
        if coverage == "part" and self.pairs + size <= _MAX_CACHED and to_numpy(allowed) is not None:
            self.pairs += size
            self.allowed[key] = allowed
