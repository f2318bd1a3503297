"""Decoding steps whose score projects keys: the projections of earlier keys are kept, so a step projects only its own.

    logits = projected_logits(left(q), [R, right(k_new)])          R: the projections of the earlier keys

`Score.project` maps each key alone, for example to its centred coordinates and its norm (`Gaussian`) or to hidden units
(`Additive`). The projections are valid as long as the arrays of the score are; they are compared by their elements,
because a training step or a write through `.data` changes them in place. A score that subtracts the mean of the keys
keeps the mean of the keys at the last projection of all keys, which is repeated when their number has grown by a
quarter. The logits do not depend on this point, only their rounding errors.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Hashable

import torch

from qkv.cache.kernel import ChunkedTensor
from qkv.core.arrays import accumulation_dtype, dtype_name
from qkv.core.positions import Positions
from qkv.core.tile import Centre, Tile
from qkv.core.typing import Float, Int, Num, OutputTensor, PairTensor, Tensor
from qkv.kernels.runtime.tile_loop import row_weights
from qkv.normalizers import NORMALIZERS, Normalizer
from qkv.scores import Score
from qkv.scores.forms import Pairwise, ScaledProduct, lift_limits

_LAST = Positions(align="end")
_UNCHANGED: set[Hashable] = set()
"""Signatures of scores whose projection of a key is the key, so that there is nothing to keep."""
_MAX_SIGNATURES = 256
"""Largest number of these signatures."""


class ProjectedKeys:
    """Projections of the keys at consecutive positions of a cache, by one score.

    Args:
        score: the score.
        bound: the score, bound to the call.
        dtype: dtype of the projections; float64 if those in the dtype of the call would lose digits.
    """

    def __init__(self, score: Score, bound: Score, dtype: torch.dtype) -> None:
        self.signature, self.score, self.source, self.dtype = score.signature(), bound, score, dtype
        with torch.inference_mode(False):
            self.arrays = tuple(torch.as_tensor(x).clone() for x in score.arrays())
        self.centre: Centre = None
        self.centred = 0
        self.start = self.stop = 0
        self.buffer: Float[Tensor, "*batch capacity features"] | None = None
        self.shared = False

    def matches(self, score: Score) -> bool:
        """Return whether the projections are those by `score`."""
        if score is self.source and not self.arrays:
            return True
        arrays = score.arrays()
        return self.signature == score.signature() and all(
            torch.equal(old, torch.as_tensor(new)) for old, new in zip(self.arrays, arrays, strict=True)
        )

    @property
    def nbytes(self) -> int:
        """Number of bytes that are allocated."""
        return 0 if self.buffer is None else self.buffer.nbytes

    def append(self, right: Float[Tensor, "*batch new features"], first: int) -> None:
        """Append projections of the next keys; those before position `first` may be dropped."""
        n, old = right.shape[-2], self.buffer
        if old is None or self.shared or self.stop - self.start + n > old.shape[-2]:
            remaining = max(0, self.stop - max(first, self.start))
            with torch.inference_mode(False):
                size = remaining + n + max(128, (remaining + n) // 16)
                new = right.new_empty((*right.shape[:-2], size, right.shape[-1]))
            if old is not None and remaining:
                new[..., :remaining, :] = old.narrow(-2, self.stop - self.start - remaining, remaining)
            self.buffer, self.start, self.shared = new, self.stop - remaining, False
        assert self.buffer is not None
        self.buffer.narrow(-2, self.stop - self.start, n).copy_(right)
        self.stop += n

    def rows(self, first: int) -> Float[Tensor, "*batch k features"]:
        """Return the projections from position `first` on."""
        assert self.buffer is not None
        return self.buffer.narrow(-2, first - self.start, self.stop - first)

    def crop(self, stop: int) -> None:
        """Drop the projections of keys at positions from `stop` on."""
        self.stop = max(self.start, min(self.stop, stop))

    def take(self, index: Int[Tensor, " new_batch"]) -> None:
        """Replace the batch by its elements at the indices `index`."""
        if self.buffer is not None:
            with torch.inference_mode(False):
                self.buffer, self.shared = self.buffer.index_select(0, index), False
        if isinstance(self.centre, torch.Tensor):
            self.centre = self.centre.index_select(0, index)
        elif self.centre is not None:  # points of several scores: project all keys again
            self.stop, self.centre, self.centred = self.start, None, 0

    def fork(self) -> ProjectedKeys:
        """Return a copy in the same memory, which is copied before one of both writes to it."""
        self.shared = True
        other = ProjectedKeys.__new__(ProjectedKeys)
        other.__dict__.update(self.__dict__)
        return other


def attend_projected(
    projected: ProjectedKeys | None,
    query: Float[Tensor, "*batch q width"],
    key: ChunkedTensor,
    value: ChunkedTensor,
    first: int,
    score: Score,
    normalizer: Normalizer | None,
    reach: int,
) -> tuple[OutputTensor, ProjectedKeys] | None:
    """Return the output of queries at the end of their sequence and the projected keys, or None if not supported.

    Supported are finite data without a gradient, and scores without positions that project keys.

    Args:
        projected: the projections that an earlier step returned, or None.
        query: queries of the heads that share a key, as rows.
        key: all keys, including that of the query.
        value: values, in chunks of the same lengths as those of the keys.
        first: position of the first key.
        score: the score, whose arrays broadcast over the heads.
        normalizer: the normalizer; None means the default of the score.
        reach: number of last keys that the queries may attend to.
    """
    normalizer = NORMALIZERS[score.default_normalizer]() if normalizer is None else normalizer
    if not (key.finite and value.finite) or normalizer.stochastic:
        return None
    known = projected is not None and projected.source is score
    if not known and not _is_supported(score, query.ndim):
        return None
    k, batch, out_dtype = key.shape[-2], tuple(query.shape[:-2]), accumulation_dtype(query)
    if projected is None or not projected.matches(score):
        score.check_widths(query.shape[-1], key.shape[-1])
        projected = _empty_projections(score, query, k, first, out_dtype)
    bound, dtype = projected.score, projected.dtype
    if projected.stop < first:  # the window has passed all projected keys
        projected.start = projected.stop = first
        projected.buffer = None
    if (projected.centre is not None and 4 * (first + k) >= 5 * projected.centred) or not projected.centred:
        projected.centre, projected.centred = bound.centre(key.concat().to(dtype)), first + k
        if projected.centre is not None or projected.buffer is None:
            projected.start, projected.stop, projected.buffer = first, first, None
    new = _rows_from(key, min(projected.stop - first, k - 1)).to(dtype)
    tile = dataclasses.replace(Tile.whole(query.shape[-2], new.shape[-2], batch, _LAST), centre=projected.centre)
    left, right = (typing.cast("Tensor", x) for x in bound.project(query.to(dtype), new, tile))
    if right is new or right.data_ptr() == new.data_ptr():
        if len(_UNCHANGED) < _MAX_SIGNATURES:
            _UNCHANGED.add(projected.signature)
        return None
    if score.cancels and float(right.abs().amax()) > lift_limits(dtype_name(right))[0] / 2:
        if dtype == torch.float64:
            return None
        projected = _empty_projections(score, query, k, first, torch.float64)
        return attend_projected(projected, query, key, value, first, score, normalizer, reach)
    if projected.stop < first + k:
        projected.append(right, first)
    reached = min(k, reach)
    tile = dataclasses.replace(Tile.whole(query.shape[-2], reached, batch, _LAST), centre=projected.centre)
    logits = typing.cast("Tensor", bound.projected_logits(left, projected.rows(first + k - reached), tile))
    own = normalizer.simplify(reached)
    own = own.bind(query, batch, out_dtype, {"q": query.shape[-2], "k": reached}) if own.arrays() else own
    weights = typing.cast("Tensor", row_weights(own, logits, tile)).to(out_dtype)
    output = _weighted_sum(weights, value, k - reached, out_dtype)
    if not math.isfinite((output.sum() + query.sum()).item()):
        return None
    return output.to(value.dtype), projected


def _empty_projections(
    score: Score, query: Float[Tensor, "*batch q width"], k: int, first: int, dtype: torch.dtype
) -> ProjectedKeys:
    """Return projections of no key yet."""
    bound = score.bind(query, tuple(query.shape[:-2]), dtype, {"q": query.shape[-2], "k": k})
    projected = ProjectedKeys(score, bound, dtype)
    projected.start = projected.stop = first
    return projected


def _is_supported(score: Score, ndim: int) -> bool:
    """Return whether the projection of a key by a score depends on nothing but the key and the arrays of the score."""
    form = score.form
    constant = isinstance(form, Pairwise) and form.constant
    if score.positional or isinstance(form, ScaledProduct) or score.keeps_dtype or score.accepts == "text" or constant:
        return False
    if score.signature() in _UNCHANGED:
        return False
    return all(
        isinstance(x, torch.Tensor)
        and names is not None
        and not {"q", "k"} & set(names)
        # Arrays that differ among sequences, the first batch axis, would have to follow `reorder`.
        and math.prod(x.shape[: x.ndim - len(names)][: -1 if ndim == 4 else None]) == 1
        for x, names in score.array_fields()
    )


def _rows_from(key: ChunkedTensor, row: int) -> Num[Tensor, "*batch new width"]:
    """Return the keys from row `row` on."""
    ranges = enumerate(key.ranges)
    found = [key.dequantized(n)[..., max(0, row - start) :, :] for n, (start, stop) in ranges if stop > row]
    return found[0] if len(found) == 1 else torch.cat(found, dim=-2)


def _weighted_sum(weights: PairTensor, value: ChunkedTensor, first: int, dtype: torch.dtype) -> OutputTensor:
    """Return the sum of the values from row `first` on, times their weights."""
    output = None
    for n, (start, stop) in enumerate(value.ranges):
        if stop > first:
            begin = max(start, first)
            values = value.dequantized(n)[..., begin - start :, :].to(dtype)
            part = weights[..., begin - first : stop - first] @ values
            output = part if output is None else output.add_(part)
    assert output is not None
    return output
