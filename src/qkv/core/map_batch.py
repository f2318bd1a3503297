"""Function that changes the batch axes of the arrays of a part."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from qkv.core.arrays import is_array
from qkv.core.parts import Part
from qkv.core.typing import Array

T = TypeVar("T")


def map_batch(part: T, function: Callable[[Array, int], Array]) -> T:
    """Return `part` with `function(array, number of its batch axes)` in place of each array that has axis names.

    If no array changes, the result is `part` itself. torch.compile traces this function, so it uses plain loops and
    list comprehensions.

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
