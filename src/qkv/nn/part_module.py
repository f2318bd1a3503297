"""PyTorch module around a score, normalizer or mask, whose arrays are moved, saved and loaded with the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar, cast

import torch

from qkv.core.parts import Part
from qkv.core.typing import Array

__all__ = ["PartModule"]

P = TypeVar("P", bound=Part | None)


class PartModule(torch.nn.Module, Generic[P]):
    """Module that holds the arrays of a score, normalizer or mask, and returns that part when called.

    Arrays that are `torch.nn.Parameter`s become parameters of the module; other arrays become buffers.

    Args:
        part: a score, normalizer, mask, or None.

    Example:
        >>> from qkv import scores
        >>> module = PartModule(scores.ALiBi(scores.ScaledDot(), torch.tensor([0.5, 0.25])))
        >>> list(module.state_dict()), module.double()().slope.dtype
        (['array_0'], torch.float64)
    """

    def __init__(self, part: P) -> None:
        super().__init__()
        self.part = part
        self.arrays = 0
        if part is not None and (arrays := part.arrays()):
            self.arrays = len(arrays)
            for n, array in enumerate(arrays):
                if isinstance(array, torch.nn.Parameter):
                    self.register_parameter(f"array_{n}", array)
                else:
                    self.register_buffer(f"array_{n}", torch.as_tensor(array).detach())
            self.part = part.replace_arrays([_Placeholder()] * self.arrays)  # type: ignore[list-item]

    def forward(self) -> P:
        """Return the part with the current arrays of this module."""
        if not self.arrays:
            return self.part
        return cast(P, _fill(self.part, iter([getattr(self, f"array_{n}") for n in range(self.arrays)])))

    def reset_parameters(self) -> None:
        """Do nothing, because the arrays were given by the caller and have no initialization of their own."""

    def extra_repr(self) -> str:
        """Return the part's description for `print`."""
        return str(self.forward())


class _Placeholder:
    """Marks the position of an array in the stored part."""


def _fill(value: object, arrays: Iterator[Array]) -> object:
    """Replace placeholders by arrays in the order of the fields. torch.compile traces this function."""
    if isinstance(value, _Placeholder):
        return next(arrays)
    if isinstance(value, Part):
        kind: Any = type(value)  # a dataclass
        return kind(**{name: _fill(getattr(value, name), arrays) for name in kind.__match_args__})
    if isinstance(value, tuple):
        return tuple([_fill(item, arrays) for item in value])
    return value
