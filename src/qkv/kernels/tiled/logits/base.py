"""Interface of the classes that compute the logits of a tile, and functions that these classes share.

    InnerProductLogits    inner product of the projections: one matrix product in forward, two in backward
    DistanceLogits        distance times a number (`Distance`)
    AdditiveLogits        sum of tanh over hidden units (`Tanh`)
    GatedLogits           inner product multiplied by the sigmoid of a sum (`Gated`)
    BiasedLogits          logits of an inner score plus an offset (`Offset`)
    SoftcapLogits         inner product with a soft cap (`Capped`)
    AutogradLogits        any other score, by its own method, differentiated by autograd tile by tile

`kernels/tiled/softmax.py` selects the implementation from the form of the score. Each implementation returns the
logits in an array that may be overwritten, multiplied by a factor (temperature, log₂ e) and minus a shift of each
query, because both operations can often be fused with other passes over the tile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, cast

import torch

from qkv.core.batch import BatchIndex, take_batch
from qkv.core.equation import TorchCall
from qkv.core.parts import Part
from qkv.core.tile import take_range
from qkv.core.typing import Float, Num, Shaped, Tensor
from qkv.kernels.runtime.faster_ops import FasterOps
from qkv.kernels.runtime.gradients import accumulate, leaves_of
from qkv.kernels.runtime.tile_loop import Limits
from qkv.kernels.runtime.workspace import Workspace
from qkv.normalizers.base import Normalizer
from qkv.scores.base import Score


@dataclass
class RowSlices:
    """Cache of views of ranges of rows of an array, because many tiles use the same rows."""

    array: Tensor
    _views: dict[Limits, Tensor] = field(default_factory=dict)

    def __call__(self, limits: Limits) -> Num[Tensor, "*batch rows width"]:
        """Return a view of the rows from `limits[0]` up to, but not including, `limits[1]`."""
        view = self._views.get(limits)
        if view is None:
            view = self._views[limits] = self.array[..., slice(*limits), :]
        return view


@dataclass(frozen=True)
class Gradients:
    """Gradients of the arrays of a call, to which the gradients of each tile are added.

    Attributes:
        query: gradient of the query, `(*batch, q, width)`.
        key: gradient of the key, `(*batch, k, width)`.
        value: gradient of the value, `(*batch, k, value_width)`.
        score: the score with gradients in place of its arrays.
        normalizer: the normalizer with gradients in place of its arrays.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    score: Score
    normalizer: Normalizer

    # The gradients of ranges of queries, keys and values.
    queries = cached_property(lambda self: RowSlices(self.query))
    keys = cached_property(lambda self: RowSlices(self.key))
    values = cached_property(lambda self: RowSlices(self.value))

    @classmethod
    def zeros(cls, call: TorchCall) -> Gradients:
        """Create gradients for the arrays of a call, with all elements 0."""
        zeros: Callable[[Any], Tensor] = torch.zeros_like

        def column_major(x: Num[Tensor, "*batch k width"]) -> Num[Tensor, "*batch k width"]:
            # Matrix products that add to the gradients of key and value are 15 % faster in column-major layout.
            return x.new_zeros((*x.shape[:-2], x.shape[-1], x.shape[-2])).mT

        return cls(
            zeros(call.query),
            column_major(call.key),
            column_major(call.value),
            call.score.map_arrays(zeros),
            call.normalizer.map_arrays(zeros),
        )

    def select_batch(self, index: BatchIndex) -> Gradients:
        """Return views of the gradients, restricted to the batch elements at `index`."""
        query, key, value = (take_batch(x, index, 2) for x in (self.query, self.key, self.value))
        return Gradients(query, key, value, self.score.select_batch(index), self.normalizer.select_batch(index))


def tensors_of(part: Part) -> list[Shaped[Tensor, "*_"]]:
    """Return the arrays of a part as a list of PyTorch tensors."""
    return cast("list[Tensor]", list(part.arrays()))


TileTensor: TypeAlias = Float[Tensor, "*#batch q k"]
"""One number for each pair of a tile."""
Shift: TypeAlias = Float[Tensor, "*#batch q 1"] | None
"""Value that is subtracted from each row of logits; None for 0."""
Backward: TypeAlias = Callable[[TileTensor, Gradients], None]
"""Function that adds the gradients of query, key and the score's arrays, given that of a tile's unscaled logits."""
Traced: TypeAlias = tuple[TileTensor, Backward]


@dataclass
class TileLogits(ABC):
    """Base class of the implementations of the logits of a tile and their gradients.

    Args:
        call: the call, or one of its batch elements.
        factor: factor by which logits are multiplied.
        ops: the faster of equivalent operations on this machine.
    """

    call: TorchCall
    factor: float
    ops: FasterOps

    def guard_notes(self) -> tuple[str, ...]:
        """Return one phrase for each guard on the data, which states whether its fast path was taken."""
        return ()

    @abstractmethod
    def logits(self, rows: Limits, cols: Limits, workspace: Workspace, shift: Shift = None) -> TileTensor:
        """Return `factor` times the logits of a tile, minus `shift`, before the mask is applied.

        The caller may overwrite the array.

        Args:
            rows: range of the tile's queries.
            cols: range of the tile's keys.
            workspace: buffers of the worker.
            shift: value that is subtracted from each row; None for 0.
        """

    @abstractmethod
    def trace(self, rows: Limits, cols: Limits, workspace: Workspace, shift: Shift = None) -> Traced:
        """Return the logits of a tile and a function that adds the gradients of the tile to a `Gradients` object.

        The argument of this function is the gradient of the plain logits, without factor and shift.
        """


def scale_and_shift_(logits: TileTensor, factor: float, shift: Shift) -> TileTensor:
    """Compute factor · logits − shift in place, and return the array.

    The product is rounded before the shift is subtracted, as it was when the shift was computed from it: otherwise the
    difference of a logit of 1e11 in float32 is 1e4 instead of 0, and its exponential infinite.

    Example:
        >>> import torch
        >>> scale_and_shift_(torch.tensor([[1.0, 2.0]]), 3.0, torch.tensor([[1.0]]))
        tensor([[2., 5.]])
    """
    if factor != 1:
        logits.mul_(factor)
    return logits if shift is None else logits.sub_(shift)


class AutogradLogits(TileLogits):
    """Logits and gradients of tiles for scores without a specialized implementation, by autograd."""

    def logits(self, rows: Limits, cols: Limits, workspace: Workspace, shift: Shift = None) -> TileTensor:
        """Return `factor` times the logits of a tile, minus `shift`, in a buffer of the workspace.

        The score may return a view of another array, which must not be overwritten.
        """
        tile, score = self.call.tile.restrict(rows, cols), self.call.score.slice(slice(*rows), slice(*cols))
        logits = self._function(score)(take_range(self.call.query, rows), take_range(self.call.key, cols), tile)
        return self._copy(logits, rows, cols, workspace, shift)

    def trace(self, rows: Limits, cols: Limits, workspace: Workspace, shift: Shift = None) -> Traced:
        # The function holds the autograd graph of the tile.
        tile, limits = self.call.tile.restrict(rows, cols), (slice(*rows), slice(*cols))
        score = self.call.score.slice(*limits)
        leaves = leaves_of([take_range(self.call.query, rows), take_range(self.call.key, cols), *tensors_of(score)])
        with torch.enable_grad():
            traced = self._function(score.replace_arrays(leaves[2:]))(leaves[0], leaves[1], tile)

        def backward(gradient: TileTensor, gradients: Gradients) -> None:
            sums = [gradients.queries(rows), gradients.keys(cols), *tensors_of(gradients.score.slice(*limits))]
            accumulate_logits(traced, gradient, leaves, sums)

        return self._copy(traced.detach(), rows, cols, workspace, shift), backward

    def _function(self, score: Score) -> Callable[..., Num[Tensor, "*#batch #q #k"]]:
        return cast("Callable[..., Tensor]", score.projected_logits if self.call.projected else score.logits)

    def _copy(
        self, logits: Num[Tensor, "*#batch #q #k"], rows: Limits, cols: Limits, workspace: Workspace, shift: Shift
    ) -> TileTensor:
        shape = (*self.call.tile.batch, rows[1] - rows[0], cols[1] - cols[0])
        out = workspace.take("logits", shape, self.call.value)
        if logits.dtype == out.dtype and logits.shape == out.shape:
            torch.mul(logits, self.factor, out=out)
            return out if shift is None else out.sub_(shift)
        return scale_and_shift_(out.copy_(logits), self.factor, shift)


def accumulate_logits(
    logits: Num[Tensor, "*#batch #q #k"],
    gradient: TileTensor,
    leaves: Sequence[Shaped[Tensor, "*_"]],
    sums: Sequence[Shaped[Tensor, "*_"]],
) -> None:
    """Add the gradients of `leaves` to `sums`, computed by autograd from the gradient of the logits.

    The logits may broadcast to the tile. If they require no gradient, nothing is added.
    """
    if logits.requires_grad:
        accumulate([logits], [gradient.sum_to_size(logits.shape).to(logits.dtype)], leaves, sums)


def center_sides(
    left: Float[Tensor, "q n"], right: Float[Tensor, "k n"]
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return, for each column, the shift that centers the side of narrower range at 0, and half that range.

    Args:
        left: array to which the shift is to be added.
        right: array from which the shift is to be subtracted.

    Returns:
        Shifts, which are integers, and min(max|left + shift|, max|right − shift|), both for each column.
    """
    middles, halves = [], []
    for side in (left, right):
        low, high = torch.aminmax(side if len(side) else side.new_zeros((1, side.shape[1])), dim=0)
        if bool((low + high).isnan().any()):  # ignore NaN, so that the range of other rows does not change
            low, high = torch.aminmax(side.masked_fill(side.isnan(), 0), dim=0)
        # Shifts are integers, because adding an integer preserves the precision of small numbers.
        middle = ((low + high) / 2).round().nan_to_num(0.0, 0.0, 0.0)
        middles.append(middle)
        halves.append(torch.maximum(high - middle, middle - low))
    narrow = halves[1] <= halves[0]
    return torch.where(narrow, middles[1], -middles[0]), torch.where(narrow, halves[1], halves[0])
