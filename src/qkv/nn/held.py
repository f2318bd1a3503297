"""A part as a module: its arrays move, save and load with the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from qkv.core.parts import Part

__all__ = ["Held"]


class Held(torch.nn.Module):
    """Called, it gives its part. Arrays that are `torch.nn.Parameter`s are learned, others are buffers.

    Example:
        >>> from qkv import scores
        >>> held = Held(scores.ALiBi(scores.ScaledDot(), torch.tensor([0.5, 0.25])))
        >>> list(held.state_dict()), held.double()().slope.dtype
        (['array_0'], torch.float64)
    """

    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part = part
        self.arrays = 0 if part is None else len(part.arrays())
        if self.arrays:
            for n, array in enumerate(part.arrays()):
                if isinstance(array, torch.nn.Parameter):
                    self.register_parameter(f"array_{n}", array)
                else:
                    self.register_buffer(f"array_{n}", torch.as_tensor(array).detach())
            self.part = part.replace_arrays([_Hole()] * self.arrays)

    def forward(self) -> Any:
        """The part."""
        if not self.arrays:
            return self.part
        return _filled(self.part, iter([getattr(self, f"array_{n}") for n in range(self.arrays)]))

    def reset_parameters(self) -> None:
        """Nothing: what was given stays."""

    def extra_repr(self) -> str:
        """The part."""
        return str(self.forward())


class _Hole:
    """Stands where an array was."""


def _filled(value: Any, arrays: Iterator[Any]) -> Any:
    """The value with an array for each hole, in the order of the fields. torch.compile looks into this."""
    if isinstance(value, _Hole):
        return next(arrays)
    if isinstance(value, Part):
        kind: Any = type(value)
        return kind(**{name: _filled(getattr(value, name), arrays) for name in kind.__match_args__})
    if isinstance(value, tuple):
        return tuple([_filled(item, arrays) for item in value])
    return value
