"""Problem: a spec and the facts of a call, without its data. What the planner sees, and all it sees."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace

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
    """What is to be run: shapes and facts.

    Attributes:
        spec: what is asked.
        axes: shapes.
        library: "numpy", "torch", "jax" or "tensorflow".
        dtype: name of the floating dtype of the answer.
        gradient: a gradient will be wanted.
        readouts: what is to be read from the weights.
        memory: bytes that may be allocated beyond inputs and output.
        traced: "" where the arrays hold data to look at; otherwise what hides it: "export", "vmap" (or
            `torch.func.grad`), "jvp" (forward derivatives) or "twice" (derivatives of derivatives).
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
        """Of the spec."""
        assert self.spec.score is not None
        return self.spec.score

    @property
    def normalizer(self) -> Normalizer:
        """Of the spec."""
        assert self.spec.normalizer is not None
        return self.spec.normalizer

    @property
    def tile(self) -> Tile:
        """Of the whole call."""
        return Tile.whole(self.axes.q, self.axes.k, self.axes.batch, self.spec.positions)

    @property
    def itemsize(self) -> int:
        """Bytes of a number while accumulating: at least those of float32."""
        return max(4, itemsize(self.dtype))

    @property
    def elements_per_logit(self) -> int:
        """Numbers in memory at once for each logit."""
        return max(1, self.score.elements_per_logit(self.axes.query_width, self.axes.key_width))

    @property
    def flop_per_pair(self) -> int:
        """Operations for each pair: the score, the normalizer (counted as 10), the weighted sum."""
        score = self.score.flop_per_logit(self.axes.query_width, self.axes.key_width)
        return score + 10 + 2 * self.axes.value_width

    @property
    def input_bytes(self) -> int:
        """Bytes of query, key, value and output, read or written once."""
        axes = self.axes
        rows = axes.q * (axes.query_width + axes.value_width) + axes.k * (axes.key_width + axes.value_width)
        return axes.batch_size * rows * itemsize(self.dtype)

    @property
    def untiled_bytes(self) -> int:
        """Bytes beside tiles: what readouts keep; in half precision, inputs and output in float32."""
        axes = self.axes
        numbers = sum(readout.total_elements(self.tile) for readout in self.readouts)
        # The output is joined from pieces.
        numbers += math.prod(axes.output)
        if itemsize(self.dtype) < self.itemsize:
            inputs = math.prod(axes.key) + math.prod(axes.query) + math.prod(axes.value)
            numbers += (inputs + math.prod(axes.output)) * (2 if self.gradient else 1)
        return numbers * self.itemsize

    def with_spec(self, spec: Spec) -> Problem:
        """The same call with another spec."""
        return replace(self, spec=spec)

    def signature(self) -> Hashable:
        """Equal for calls that get the same plan."""
        readouts = tuple(readout.signature() for readout in self.readouts)
        return (
            self.spec.signature(),
            self.axes,
            self.library,
            self.dtype,
            self.gradient,
            readouts,
            self.memory,
            self.traced,
        )
