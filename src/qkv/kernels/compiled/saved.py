"""Numbers that the forward operator of a compiled call saves for its backward operator.

Without the compiler, autograd saves a few numbers per query. Operators return tensors alone, whose shapes must be known
beforehand: so the numbers go into one tensor `(*batch, q, 4)`, whose first column says how many of the others are used.
If it is 0, the backward operator runs forward once more.
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
"""Width of the tensor of saved numbers."""


@dataclass
class SavedNumbers:
    """Numbers of each query, recorded in forward or restored in backward.

    Args:
        restored: the output and the tensor of saved numbers; None in forward.
    """

    restored: tuple[Tensor, Tensor] | None = None
    _recorded: list[Sequence[Tensor]] = field(default_factory=list)

    def note(self, columns: Sequence[Tensor]) -> None:
        """Record these numbers, each `(*batch, q, 1)`."""
        self._recorded.append(columns)

    def take(self) -> tuple[Tensor, list[Tensor]] | None:
        """Return the output and numbers of forward, once; None if they have to be computed."""
        restored, self.restored = self.restored, None
        if restored is None or not restored[1].numel() or not (count := int(restored[1].flatten()[0])):
            return None
        output, table = restored
        return output, [table[..., n : n + 1].contiguous() for n in range(1, count + 1)]

    def table(self, output: Tensor) -> Tensor:
        """Return the tensor of saved numbers for this output."""
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
    """Let kernels that run within, on this thread, record to `saved` and restore from it."""
    token = _SAVED.set(saved)
    try:
        yield saved
    finally:
        _SAVED.reset(token)


def current_saved() -> SavedNumbers | None:
    """Return the saved numbers of the running operator; None outside of operators."""
    return _SAVED.get()
