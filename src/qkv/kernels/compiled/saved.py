"""Statistics per query that the forward operator of a compiled call saves for its backward operator.

Without the compiler, autograd saves a few statistics per query, such as the log-sum-exp. An operator can only return
tensors of shapes that are known when it is traced. The statistics are therefore stored in one tensor `(*batch, q, 4)`,
whose first column holds the number of further columns in use. If this number is 0, the backward operator runs the
forward pass again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from qkv.core.typing import Tensor

__all__ = ["COLUMNS", "SavedNumbers", "current_saved", "saving"]

COLUMNS = 4
"""Number of columns of the tensor of saved statistics."""


@dataclass
class SavedNumbers:
    """Statistics of each query, recorded in the forward pass or restored in the backward pass.

    Args:
        restored: the output and the tensor of saved statistics; None in the forward pass.
    """

    restored: tuple[Tensor, Tensor] | None = None
    _recorded: list[Sequence[Tensor]] = field(default_factory=list)

    def note(self, columns: Sequence[Tensor]) -> None:
        """Record statistics, each a tensor `(*batch, q, 1)`."""
        self._recorded.append(columns)

    def take(self) -> tuple[Tensor, list[Tensor]] | None:
        """Return the output and the statistics of the forward pass, or None if they must be computed.

        They are returned only at the first call.
        """
        restored, self.restored = self.restored, None
        if restored is None or not restored[1].numel() or not (count := int(restored[1].flatten()[0])):
            return None
        output, table = restored
        return output, [table[..., n : n + 1].contiguous() for n in range(1, count + 1)]

    def table(self, output: Tensor) -> Tensor:
        """Return the recorded statistics as one tensor, with the dtype and device of the output."""
        table = output.new_zeros((*output.shape[:-1], COLUMNS))
        columns = self._recorded[0] if len(self._recorded) == 1 else ()
        shape = (*output.shape[:-1], 1)
        fits = all(x.shape == shape and x.dtype == output.dtype for x in columns)
        if fits and 0 < len(columns) < COLUMNS and math.prod(shape):
            table[..., 0] = len(columns)
            for n, x in enumerate(columns):
                table[..., n + 1 : n + 2] = x.detach()
        return table


_SAVED: ContextVar[SavedNumbers | None] = ContextVar("saved", default=None)


@contextmanager
def saving(saved: SavedNumbers) -> Iterator[SavedNumbers]:
    """Let kernels that run within this context record statistics in `saved` and restore them from it."""
    token = _SAVED.set(saved)
    try:
        yield saved
    finally:
        _SAVED.reset(token)


def current_saved() -> SavedNumbers | None:
    """Return the saved statistics of the operator that is running, or None outside of an operator."""
    return _SAVED.get()
