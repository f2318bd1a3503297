"""Class `Problem`, which describes a call without its data and is the input of the planner."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from qkv.core.arrays import dtype_name, itemsize, requires_gradient
from qkv.core.axes import Axes
from qkv.core.function_part import Verdict
from qkv.core.tile import Tile
from qkv.normalizers import Normalizer
from qkv.plan.devices import CPU, Device
from qkv.plan.footprint import elements_by_trial
from qkv.plan.spec import Spec
from qkv.readouts import Readout
from qkv.scores import Score

__all__ = ["Problem"]


@dataclass(frozen=True, eq=False)
class Problem:
    """Description of a call without its data, from which the planner chooses a kernel.

    Attributes:
        spec: score, normalizer, mask, positions and dropout.
        axes: shapes of query, key and value.
        library: "numpy", "torch", "jax" or "tensorflow".
        dtype: name of the floating-point dtype of the output.
        rounded_to: name of the narrower dtype to which the caller of a prepared function rounds the output; "": none.
        gradient: whether an array requires a gradient.
        readouts: readouts of the weights.
        memory: budget for scratch memory in bytes, that is, memory besides inputs, output and gradients.
        traced: "" if the arrays hold data, otherwise the kind of tracing: "export", "vmap" (also for
            `torch.func.grad`), "jvp" (forward-mode derivatives) or "twice" (higher derivatives).
        device: the processor on which the call runs.
        recomputes: whether kernels that do not save their statistics run the forward pass again in backward, as they
            do in the operator of `torch.compile`.
        trials: verdicts on score, normalizer and mask by the trial of parts that users write; () before it.
    """

    spec: Spec
    axes: Axes
    library: str = "numpy"
    dtype: str = "float32"
    gradient: bool = False
    readouts: tuple[Readout, ...] = ()
    memory: int = 512 * 2**20
    traced: str = ""
    device: Device = CPU
    rounded_to: str = ""
    recomputes: bool = False
    trials: tuple[Verdict | None, ...] = ()

    @property
    def score(self) -> Score:
        """The score of the call."""
        assert self.spec.score is not None
        return self.spec.score

    @property
    def normalizer(self) -> Normalizer:
        """The normalizer of the call."""
        assert self.spec.normalizer is not None
        return self.spec.normalizer

    @property
    def tile(self) -> Tile:
        """The tile that covers the whole call."""
        return Tile.whole(self.axes.q, self.axes.k, self.axes.batch, self.spec.positions)

    @property
    def itemsize(self) -> int:
        """Number of bytes of an element in the dtype of accumulation, which is at least float32."""
        return max(4, itemsize(self.dtype))

    @cached_property
    def elements_per_logit(self) -> int:
        """Number of array elements that the score holds in memory at once for each logit."""
        if self.library == "torch" and not self.traced:
            if self.score.is_distance:
                return 1
            found = elements_by_trial(self.score, self.axes, self.dtype)
            if found is not None:
                return found
        return max(1, self.score.elements_per_logit(self.axes.query_width, self.axes.key_width))

    @property
    def flop_per_pair(self) -> int:
        """Floating-point operations per pair of query and key, for the score, normalizer and weighted sum.

        The normalizer counts as 10 operations.
        """
        score = self.score.flop_per_logit(self.axes.query_width, self.axes.key_width)
        return score + 10 + 2 * self.axes.value_width

    @property
    def input_bytes(self) -> int:
        """Number of bytes of query, key, value and output if none of them is broadcast along batch axes."""
        axes = self.axes
        rows = axes.q * (axes.query_width + axes.value_width) + axes.k * (axes.key_width + axes.value_width)
        return axes.batch_size * rows * itemsize(self.dtype)

    @property
    def result_bytes(self) -> int:
        """Number of bytes of what every kernel returns: the output, and the gradients of all arrays of the call."""
        axes, width = self.axes, itemsize(self.dtype)
        size = math.prod(axes.output) * width
        if self.gradient:
            size += (math.prod(axes.query) + math.prod(axes.key) + math.prod(axes.value)) * width
            parts = (*self.score.arrays(), *self.normalizer.arrays())
            size += sum(
                math.prod(x.shape) * itemsize(dtype_name(x))
                for x in parts
                if requires_gradient(x) and None not in x.shape
            )
        return size

    @property
    def readout_bytes(self) -> int:
        """Number of bytes of the results of all readouts."""
        return sum(readout.total_elements(self.tile) for readout in self.readouts) * self.itemsize

    @property
    def cast_bytes(self) -> int:
        """Number of bytes of copies of half-precision arrays in the dtype of accumulation, and of their gradients."""
        axes = self.axes
        if itemsize(self.dtype) >= self.itemsize:
            return 0
        inputs = math.prod(axes.key) + math.prod(axes.query) + math.prod(axes.value)
        # The gradients in that dtype are cast one after the other, so that not all are there at the peak.
        return int((inputs * (1.5 if self.gradient else 1) + math.prod(axes.output)) * self.itemsize)
