"""PyTorch module that holds the arrays of a score, normalizer or mask, to move, save and load them with a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar, cast

import torch

from qkv.core.map_batch import Groups, align_batch
from qkv.core.parts import Part
from qkv.core.typing import Array, Shaped

P = TypeVar("P", bound=Part | None)


class PartModule(torch.nn.Module, Generic[P]):
    """Module that holds the arrays of a score, normalizer or mask, and returns that part when it is called.

    Arrays that are `torch.nn.Parameter`s become parameters of the module; other arrays become buffers.

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
        """Return the score, normalizer or mask with the current arrays of this module, or None if `part` was None."""
        if not self.arrays:
            return self.part
        return cast(P, _fill_placeholders(self.part, iter([getattr(self, f"array_{n}") for n in range(self.arrays)])))

    def reset_parameters(self) -> None:
        """Do nothing, because the caller passed the arrays and no initial distribution of them is known."""

    def extra_repr(self) -> str:
        """Return the part as text for `print`."""
        return str(self.forward())


def current_part(module: Callable[[], P]) -> P:
    """Return the part that a module returns when it is called, in a fifth of the time if the part holds no arrays."""
    if type(module) is PartModule and not module.arrays:
        return cast(P, module.part)
    return module()


def aligned_part(module: Callable[[], P], batch_axes: int, groups: Groups, per_head: bool) -> P:
    """Return the part of a module with its arrays reshaped as by `align_batch`, and at once if it holds no arrays."""
    if type(module) is PartModule and not module.arrays:
        return cast(P, module.part)
    return align_batch(module(), batch_axes, groups, per_head)


class _Placeholder:
    """Object that marks the position of an array in a part whose arrays `PartModule` stores separately."""


def _fill_placeholders(value: object, arrays: Iterator[Shaped[Array, "*_"]]) -> object:
    """Return `value` with its placeholders replaced by arrays, in the order of the fields."""
    # torch.compile traces this function, so it uses list comprehensions.
    if isinstance(value, _Placeholder):
        return next(arrays)
    if isinstance(value, Part):
        kind = type(value)
        return kind(**{name: _fill_placeholders(getattr(value, name), arrays) for name in kind.__match_args__})
    if isinstance(value, tuple):
        return tuple([_fill_placeholders(item, arrays) for item in value])
    return value
