"""Problem: a spec and the facts of a call, without its data. The planner sees nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass

from qkv.core.arrays import itemsize
from qkv.core.axes import Axes
from qkv.core.tile import Tile
from qkv.normalizers import Normalizer
from qkv.plan.spec import Spec
from qkv.readouts import Readout
from qkv.scores import Score

__all__ = ["Problem"]


@dataclass(frozen=True, eq=False)
class Problem:
    """The spec, shapes and facts of a call.

    Attributes:
        spec: score, normalizer, mask, positions and dropout.
        axes: shapes of query, key and value.
        library: "numpy", "torch", "jax" or "tensorflow".
        dtype: name of the floating dtype of the output.
        gradient: whether an array requires a gradient.
        readouts: readouts of the weights.
        memory: bytes that may be allocated beyond inputs and output.
        traced: "" if the arrays hold data. Otherwise what hides it: "export", "vmap" (also `torch.func.grad`), "jvp"
            (forward derivatives) or "twice" (derivatives of derivatives).
    """

    spec: Spec
    axes: Axes
    library: str = "numpy"
    dtype: str = "float32"
    gradient: bool = False
    readouts: tuple[Readout, ...] = ()
    memory: int = 512 * 2**20
    traced: str = ""

    @property
    def score(self) -> Score:
        """The score of the spec."""
        assert self.spec.score is not None
        return self.spec.score

    @property
    def normalizer(self) -> Normalizer:
        """The normalizer of the spec."""
        assert self.spec.normalizer is not None
        return self.spec.normalizer

    @property
    def tile(self) -> Tile:
        """The tile that covers the whole call."""
        return Tile.whole(self.axes.q, self.axes.k, self.axes.batch, self.spec.positions)

    @property
    def itemsize(self) -> int:
        """Bytes of a number in the dtype of accumulation: at least those of float32."""
        return max(4, itemsize(self.dtype))

    @property
    def elements_per_logit(self) -> int:
        """Numbers in memory at once for each logit, as the score declares."""
        return max(1, self.score.elements_per_logit(self.axes.query_width, self.axes.key_width))

    @property
    def flop_per_pair(self) -> int:
        """Floating-point operations per pair: the score, the normalizer (counted as 10) and the weighted sum."""
        score = self.score.flop_per_logit(self.axes.query_width, self.axes.key_width)
        return score + 10 + 2 * self.axes.value_width

    @property
    def input_bytes(self) -> int:
        """Bytes of query, key, value and output, each read or written once."""
        axes = self.axes
        rows = axes.q * (axes.query_width + axes.value_width) + axes.k * (axes.key_width + axes.value_width)
        return axes.batch_size * rows * itemsize(self.dtype)

    @property
    def untiled_bytes(self) -> int:
        """Bytes allocated besides tiles: readouts, the output, and in half precision float32 copies of the arrays."""
        axes = self.axes
        numbers = sum(readout.total_elements(self.tile) for readout in self.readouts)
        # The output is concatenated from pieces.
        numbers += math.prod(axes.output)
        if itemsize(self.dtype) < self.itemsize:
            inputs = math.prod(axes.key) + math.prod(axes.query) + math.prod(axes.value)
            numbers += (inputs + math.prod(axes.output)) * (2 if self.gradient else 1)
        return numbers * self.itemsize
