"""What forward leaves for backward where the two run apart, as operators of a compiled call do.

Without the compiler, autograd keeps a few numbers of each query between them. Operators hand on tensors
alone, whose shapes are known before: so the numbers go into one tensor `(*batch, q, 4)`, the first column of
which says how many of the others are used. 0: none, and the backward pass computes forward again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from qkv.core.typing import Tensor

__all__ = ["COLUMNS", "SavedNumbers", "saving", "current_saved"]

COLUMNS = 4
"""Width of the tensor that is handed on."""


class SavedNumbers:
    """Numbers of each query, noted in forward or given in backward.

    Args:
        given: the output and the tensor that forward gave; None: this is forward.
    """

    def __init__(self, given: tuple[Tensor, Tensor] | None = None) -> None:
        self._noted: list[Sequence[Tensor]] = []
        self._given: tuple[Tensor, list[Tensor]] | None = None
        if given is not None and given[1].numel():
            output, table = given
            count = int(table.flatten()[0])
            if count:
                columns = [table[..., n + 1 : n + 2].contiguous() for n in range(count)]
                self._given = output, columns

    def note(self, columns: Sequence[Tensor]) -> None:
        """Keep these numbers, each `(*batch, q, 1)`."""
        self._noted.append(columns)

    def take(self) -> tuple[Tensor, list[Tensor]] | None:
        """The output and the numbers of forward, once; None where they are to be computed."""
        given, self._given = self._given, None
        return given

    def table(self, output: Tensor) -> Any:
        """What is handed on beside this output."""
        table = output.new_zeros((*output.shape[:-1], COLUMNS))
        columns = self._noted[0] if len(self._noted) == 1 else ()
        one = (*output.shape[:-1], 1)
        fit = all(x.shape == one and x.dtype == output.dtype for x in columns)
        if fit and 0 < len(columns) < COLUMNS and math.prod(one):
            table[..., 0] = len(columns)
            for n, x in enumerate(columns):
                table[..., n + 1 : n + 2] = x.detach()
        return table


_THREAD = threading.local()


@contextmanager
def saving(kept: SavedNumbers) -> Iterator[SavedNumbers]:
    """Kernels that run within, on this thread, note into it and take from it."""
    before = current_saved()
    _THREAD.kept = kept
    try:
        yield kept
    finally:
        _THREAD.kept = before


def current_saved() -> SavedNumbers | None:
    """Where the kernel that runs now notes or takes; None outside of operators."""
    return getattr(_THREAD, "kept", None)
