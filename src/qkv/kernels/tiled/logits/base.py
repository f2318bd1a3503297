"""The interface of tile logits, and what its implementations share.

    InnerProductLogits    the score is the inner product of its projections: one matrix product forward, two backward
    AdditiveLogits        a sum over hidden units of tanh (`Score.tanh_vector`)
    GatedLogits           a product times the sigmoid of a sum (`Score.gated_product`)
    BiasedLogits          an offset added to the logits of an inner score (`Score.adds_offset`)
    SoftcapLogits         the logits of an inner product, capped by a tanh (`Score.tanh_cap`)
    AutogradLogits        any other score: its own function, differentiated by autograd tile by tile

`kernels/tiled/softmax.py` selects the implementation from the facts of the score. Each returns logits in an array that
may be overwritten, multiplied by a factor (temperature, log₂ e) and with a shift of each query subtracted: both often
fit into a pass over the tile that is made anyway.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from qkv.core.batch import BatchIndex, take_batch
from qkv.core.equation import TorchCall
from qkv.core.parts import Part
from qkv.core.typing import Float, Tensor
from qkv.kernels.runtime.microbenchmarks import FasterOps
from qkv.kernels.runtime.tile_loop import Limits
from qkv.kernels.runtime.workspace import Workspace
from qkv.normalizers.base import Normalizer
from qkv.scores.base import Score

__all__ = ["Backward", "Gradients", "Limits", "RowSlices", "TileLogits", "scale_and_shift_", "tensors_of"]


@dataclass
class RowSlices:
    """Ranges of rows of an array; each view is created once, because many tiles ask for the same rows."""

    array: Tensor
    _views: dict[Limits, Tensor] = field(default_factory=dict)

    def __call__(self, limits: Limits) -> Tensor:
        """Return the view of the rows within `limits`."""
        view = self._views.get(limits)
        if view is None:
            view = self._views[limits] = self.array[..., slice(*limits), :]
        return view


@dataclass(frozen=True)
class Gradients:
    """Arrays to which gradients are added, shaped like those of the call; parts hold theirs as fields.

    Attributes:
        query: `(*batch, q, width)`.
        key: `(*batch, k, width)`.
        value: `(*batch, k, value_width)`.
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
        """Return gradients of zero for the arrays of `call`."""
        import torch

        zeros: Callable[[Any], Tensor] = torch.zeros_like

        def column_major(x: Tensor) -> Tensor:
            # The products that add to keys and values are a seventh faster with contiguous columns.
            return x.new_zeros((*x.shape[:-2], x.shape[-1], x.shape[-2])).mT

        return cls(
            zeros(call.query),
            column_major(call.key),
            column_major(call.value),
            call.score.map_arrays(zeros),
            call.normalizer.map_arrays(zeros),
        )

    def select_batch(self, index: BatchIndex) -> Gradients:
        """Return views of the gradients of the batch elements at `index`."""
        query, key, value = (take_batch(x, index, 2) for x in (self.query, self.key, self.value))
        return Gradients(query, key, value, self.score.select_batch(index), self.normalizer.select_batch(index))


def tensors_of(part: Part) -> list[Tensor]:
    """Return the arrays of a part of a call on PyTorch."""
    return cast("list[Tensor]", list(part.arrays()))


Backward = Callable[[Tensor, Gradients], None]
"""Adds the gradients of query, key and the score's arrays, given the gradient of a tile's unscaled logits."""


@dataclass
class TileLogits(ABC):
    """The logits of the tiles of a call, and their gradients.

    Args:
        call: the call, or one of its batch elements.
        factor: number by which logits are multiplied.
        ops: the faster of equivalent operations on this machine.
    """

    call: TorchCall
    factor: float
    ops: FasterOps

    def guard_notes(self) -> tuple[str, ...]:
        """Return one sentence for each guard on the data, which says how it was decided."""
        return ()

    @abstractmethod
    def logits(
        self, rows: Limits, cols: Limits, workspace: Workspace, shift: Float[Tensor, "*#batch q 1"] | None = None
    ) -> Float[Tensor, "*#batch q k"]:
        """Return factor · logits − shift of a tile, before the mask, in an array that may be overwritten.

        Args:
            rows: range of the tile's queries.
            cols: range of the tile's keys.
            workspace: buffers of the worker.
            shift: number subtracted from each row; None: 0.
        """

    @abstractmethod
    def trace(
        self, rows: Limits, cols: Limits, workspace: Workspace, shift: Float[Tensor, "*#batch q 1"] | None = None
    ) -> tuple[Float[Tensor, "*#batch q k"], Backward]:
        """Return the same as `logits`, and the function that adds the tile's gradients.

        The function takes the gradient of the plain logits, not multiplied by the factor.
        """


def scale_and_shift_(
    logits: Float[Tensor, "*#batch q k"], factor: float, shift: Float[Tensor, "*#batch q 1"] | None
) -> Float[Tensor, "*#batch q k"]:
    """Return factor · logits − shift, computed in place in one pass.

    Example:
        >>> import torch
        >>> scale_and_shift_(torch.tensor([[1.0, 2.0]]), 3.0, torch.tensor([[1.0]]))
        tensor([[2., 5.]])
    """
    import torch

    if shift is None:
        return logits if factor == 1 else logits.mul_(factor)
    return logits.sub_(shift) if factor == 1 else torch.add(-shift, logits, alpha=factor, out=logits)
