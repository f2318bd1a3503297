"""Statistics of each query that the forward operator of a compiled call saves for the backward operator.

Without the compiler, autograd saves a few statistics per query, such as the log-sum-exp. An operator can only return
tensors of shapes that are known when it is traced. The statistics are therefore stored in one tensor `(*batch, q, 4)`,
whose first column holds the number of further columns in use. If this number is 0, the backward operator runs the
forward pass again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from qkv.core.typing import Float, Num, OutputTensor, RowTensor, Tensor

COLUMNS = 4
"""Number of columns of the tensor of saved statistics."""


@dataclass
class SavedStatistics:
    """Statistics of each query, recorded by the forward operator or restored in the backward operator.

    Args:
        restored: the output and the tensor of saved statistics; None in the forward pass.
    """

    restored: tuple[OutputTensor, Float[Tensor, "*_"]] | None = None
    _recorded: list[Sequence[Num[Tensor, "*batch q _"]]] = field(default_factory=list)

    def note(self, columns: Sequence[Num[Tensor, "*batch q _"]]) -> None:
        """Record the statistics of a forward pass, each a tensor `(*batch, q, n)`.

        They are stored only if n is 1 for all of them.
        """
        self._recorded.append(columns)

    def take(self) -> tuple[OutputTensor, list[RowTensor]] | None:
        """Return the output and the statistics of the forward pass, or None if they must be computed again.

        They are returned only by the first call.
        """
        restored, self.restored = self.restored, None
        if restored is None or not restored[1].numel() or not (count := int(restored[1].flatten()[0])):
            return None
        output, table = restored
        return output, [table[..., n : n + 1].contiguous() for n in range(1, count + 1)]

    def table(self, output: OutputTensor) -> Float[Tensor, "*batch q 4"]:
        """Return the recorded statistics as one tensor `(*batch, q, 4)`, with the dtype and device of `output`.

        Its first column holds the number of further columns in use, which is 0 if the statistics cannot be stored.
        """
        table = output.new_zeros((*output.shape[:-1], COLUMNS))
        columns = self._recorded[0] if len(self._recorded) == 1 else ()
        shape = (*output.shape[:-1], 1)
        fits = all(x.shape == shape and x.dtype == output.dtype for x in columns)
        if fits and 0 < len(columns) < COLUMNS and math.prod(shape):
            table[..., 0] = len(columns)
            for n, x in enumerate(columns):
                table[..., n + 1 : n + 2] = x.detach()
        return table


SAVED: ContextVar[SavedStatistics | None] = ContextVar("saved", default=None)
"""Statistics that kernels record and restore within the operator that is running; None outside of an operator."""
