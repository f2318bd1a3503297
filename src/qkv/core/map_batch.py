"""Functions that change the batch axes of the arrays of a part.

`align_batch` reshapes arrays so that they broadcast over the heads of a module, which are the last batch axis of its
calls:

    batch axes of a part's array        meaning             in the call
    ()                                  one for all         ()
    (heads,)      score, normalizer     one per head        (1, …, 1, heads)
    (*batch,)     mask, positions       one per element     (*batch, 1)
    (*batch, heads)                     one per both        (*batch, heads)

In grouped-query attention the heads are two axes, (key_heads, group). torch.compile traces these functions, so they use
plain loops and list comprehensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from qkv.core.arrays import is_array
from qkv.core.parts import Part
from qkv.core.typing import Array

T = TypeVar("T")

Groups = tuple[int, int] | None
"""(key_heads, group) if the heads are two axes of the call; None if they are a single axis."""


def map_batch(part: T, function: Callable[[Array, int], Array]) -> T:
    """Return `part` with `function(array, number of its batch axes)` in place of each array that has axis names.

    If no array changes, the result is `part` itself.

    Args:
        part: a part, a tuple of parts, or None.
        function: function of an array and the number of its leading batch axes.
    """
    return cast(T, _map(part, None, function))


def _map(value: object, axes: tuple[str, ...] | None, function: Callable[[Array, int], Array]) -> object:
    if isinstance(value, Part):
        kind = type(value)
        field_axes = _field_axes(kind)
        before = [getattr(value, name) for name, _ in field_axes]
        after = [_map(x, axes_of_x, function) for x, (_, axes_of_x) in zip(before, field_axes, strict=True)]
        same = all([a is b for a, b in zip(after, before, strict=True)])  # noqa: C419 -- torch.compile
        return value if same else kind(*after)
    if isinstance(value, tuple):
        items = tuple([_map(item, axes, function) for item in value])
        same = all([a is b for a, b in zip(items, value, strict=True)])  # noqa: C419 -- torch.compile
        return value if same else items
    if axes is None or not is_array(value):
        return value
    return function(value, value.ndim - len(axes))


def _field_axes(kind: type[Part]) -> tuple[tuple[str, tuple[str, ...] | None], ...]:
    # The fields, without class variables.
    return tuple((name, kind.__dataclass_fields__[name].metadata.get("axes")) for name in kind.__match_args__)


# torch.compile runs this function instead of tracing it, because it cannot trace `metadata`, a mapping proxy, twice.
vars(_field_axes)["_dynamo_marked_constant"] = True


def align_batch(part: T, batch_axes: int, groups: Groups, per_head: bool) -> T:
    """Return `part` with its arrays reshaped to broadcast over the heads, or `part` itself if none needs it.

    Args:
        part: a part, or None.
        batch_axes: number of batch axes of the module's inputs.
        groups: (key_heads, group) if the heads are two axes of the call, else None.
        per_head: whether a single batch axis of an array means heads (scores, normalizers) or batch elements (masks).
    """
    return map_batch(part, lambda x, own_axes: align_array(x, own_axes, batch_axes, groups, per_head))


def align_array(x: Array, own_axes: int, batch_axes: int, groups: Groups, per_head: bool) -> Array:
    """Return the array, reshaped so that its leading batch axes broadcast over the heads.

    An array whose batch axes fit neither batch nor heads is returned unchanged; the engine raises the error.
    """
    if own_axes <= 0:
        return x
    shape = tuple(x.shape)
    lead, core = shape[:own_axes], shape[own_axes:]
    while own_axes > batch_axes + 1 and lead[0] == 1:  # a batch of one, for inputs without a batch axis
        lead, own_axes = lead[1:], own_axes - 1
    if own_axes == 1 and (per_head or batch_axes == 0):
        lead = (1,) * batch_axes + lead
    elif own_axes == batch_axes:
        lead = (*lead, 1)
    elif own_axes != batch_axes + 1:
        return x
    if groups is not None:
        lead = (*lead[:-1], 1, 1) if lead[-1] == 1 else (*lead[:-1], *groups)
    lead = (*lead, *core)
    return x if lead == shape else cast("Array", x.reshape(lead))  # type: ignore[attr-defined]
