"""PyTorch module that holds the arrays of a score, normalizer or mask, to move, save and load them with a model.

The arrays are reshaped so that they broadcast over the heads of a module, which are the last batch axis of its calls:

    batch axes of a part's array        meaning             in the call
    ()                                  one for all         ()
    (heads,)      score, normalizer     one per head        (1, …, 1, heads)
    (*batch,)     mask, positions       one per element     (*batch, 1)
    (*batch, heads)                     one per both        (*batch, heads)

In grouped-query attention the heads are two axes, (key_heads, group). torch.compile traces these functions, so they use
plain loops and list comprehensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import torch

from qkv.core.map_batch import map_batch
from qkv.core.parts import Part
from qkv.core.typing import Array, Shaped

if TYPE_CHECKING:
    from torch import Tensor


T = TypeVar("T")

Groups = tuple[int, int] | None
"""(key_heads, group) if the heads are two axes of the call; None if they are a single axis."""


def align_batch(part: T, batch_axes: int, groups: Groups, per_head: bool) -> T:
    """Return `part` with its arrays reshaped to broadcast over the heads, or `part` itself if none needs it.

    Args:
        part: a part, or None.
        batch_axes: number of batch axes of the module's inputs.
        groups: (key_heads, group) if the heads are two axes of the call, else None.
        per_head: whether a single batch axis of an array means heads (scores, normalizers) or batch elements (masks).
    """
    return map_batch(part, lambda x, own_axes: align_array(x, own_axes, batch_axes, groups, per_head))


def align_array(
    x: Shaped[Array, "*_"], own_axes: int, batch_axes: int, groups: Groups, per_head: bool
) -> Shaped[Array, "*_"]:
    """Return the array, reshaped so that its leading batch axes broadcast over the heads.

    An array whose batch axes fit neither batch nor heads is returned unchanged; the engine raises the error.
    """
    if own_axes <= 0:
        return x
    shape = tuple(x.shape)
    lead, core = shape[:own_axes], shape[own_axes:]
    if own_axes == 1 and (per_head or batch_axes == 0):
        lead = (1,) * batch_axes + lead
    elif own_axes == batch_axes:
        lead = (*lead, 1)
    elif own_axes != batch_axes + 1:
        return x
    if groups is not None:
        lead = (*lead[:-1], 1, 1) if lead[-1] == 1 else (*lead[:-1], *groups)
    lead = (*lead, *core)
    return x if lead == shape else cast("Tensor", x).reshape(lead)


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
