"""Numbers below the smallest normal number (1.2e-38 in float32), with which processors compute up to 100 times slower.

Weights are subnormal where a logit is 87 to 103 below the largest logit of its row.
"""

from __future__ import annotations

import torch

from qkv.core.typing import Tensor

LEAST_WEIGHT = 2.0**-100
"""Weight below which weights count as 0 where several threads compute, of which only the calling one flushes."""
_SUBNORMAL = 1e-310


def divides_among_threads(x: Tensor) -> bool:
    """Return whether PyTorch may divide operations on a tensor among threads that do not flush subnormal numbers."""
    return x.device.type == "cpu" and torch.get_num_threads() > 1


class FlushedSubnormals:
    """Context in which PyTorch takes subnormal numbers for 0 in this thread, and in threads that it starts.

    It takes a microsecond. The threads among which PyTorch divides an operation are older, so that they do not flush.
    Nothing changes under `torch.compile`, which traces the calls inside.
    """

    __slots__ = ("_changes",)

    def __enter__(self) -> None:
        # PyTorch cannot report the current setting, so test it.
        self._changes = _SUBNORMAL * 1.0 != 0 and not torch.compiler.is_compiling()
        if self._changes:
            torch.set_flush_denormal(True)

    def __exit__(self, *_: object) -> None:
        if self._changes:
            torch.set_flush_denormal(False)
