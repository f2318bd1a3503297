"""What scores, normalizers, masks and readouts have in common: they are values that hold arrays.

A part is a frozen dataclass. Each field is a plain number or name, an array, another part, or a tuple of
these. Which axes an array field has after its batch axes is said once, by `axes(...)`; from it follow the
slicing of a tile, the check of batch axes and the accumulation of gradients, for every part alike.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Hashable, Iterator
from functools import cache
from typing import Any, Self

import numpy as np

from qkv.core.arrays import (
    Array,
    asarray_like,
    cast,
    dtype_name,
    is_array,
    is_floating,
    library,
    namespace,
    variable_value,
)
from qkv.core.batch import BatchIndex, take_batch
from qkv.errors import KindError, OptionError, ShapeError

__all__ = ["Part", "array_field", "expand_to_pairs", "require_number"]


def array_field(*names: str, default: Any = dataclasses.MISSING) -> Any:
    """A field that may hold an array of shape `(*batch, *names)`; `"q"` and `"k"` are cut with the tile.

    `axes()` is a number, or one number per batch element.
    """
    return dataclasses.field(default=default, metadata={"axes": names})


class Part:
    """A frozen dataclass of numbers, names, arrays and other parts."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # At once: torch.compile cannot trace the registration by the first instance.
        if "jax" in sys.modules:
            _known_to_jax(cls)

    def __post_init__(self) -> None:
        # A NumPy scalar is a number: it must not bring its library along.
        # Not through `_fields`: torch.compile warns of what is cached.
        for name in type(self).__dataclass_fields__:  # type: ignore[attr-defined]
            value = getattr(self, name)
            if isinstance(value, np.generic) and not isinstance(value, (np.str_, np.bytes_)):
                object.__setattr__(self, name, value.item())
            elif "keras" in sys.modules and (held := variable_value(value)) is not None:
                object.__setattr__(self, name, held)
        self.validate()
        if "jax" in sys.modules:
            _known_to_jax(type(self))

    def validate(self) -> None:
        """Check the Python numbers, at construction. Arrays are not looked at: they may be tracers."""

    # -- arrays -----------------------------------------------------------------------------------------

    def arrays(self) -> tuple[Array, ...]:
        """All arrays in this part and the parts within it, in the order of the fields."""
        return tuple(array for array, _ in self._walk())

    def replace_arrays(self, arrays: tuple[Array, ...] | list[Array]) -> Self:
        """The same part with other arrays, in the order of `arrays()`; nothing is validated again."""
        queue = list(arrays)
        out = self._map(lambda array, names: queue.pop(0))
        if queue:
            raise ShapeError(f"{len(arrays)} arrays for a part that holds {len(arrays) - len(queue)}.")
        return out

    def map_arrays(self, function: Callable[[Array], Array]) -> Self:
        """The same part with `function` applied to every array."""
        return self._map(lambda array, names: function(array))

    def signature(self) -> Hashable:
        """All that is not an array, hashable: two parts with equal signatures run by the same plan."""
        return (type(self), *(_signature(getattr(self, name)) for name in _fields(self)))

    def slice(self, rows: slice, cols: slice) -> Self:
        """The part for the tile of these queries and keys. Axes of length 1 are broadcast and stay."""

        def cut(array: Array, names: tuple[str, ...] | None) -> Array:
            if not names or not ({"q", "k"} & set(names)):
                return array
            index: list[Any] = [...]
            for name, length in zip(names, array.shape[array.ndim - len(names) :], strict=True):
                index.append({"q": rows, "k": cols}.get(name, slice(None)) if length != 1 else slice(None))
            return array[tuple(index)]

        return self._map(cut)

    def select_batch(self, index: BatchIndex) -> Self:
        """The part for these batch elements of its call."""
        return self._map(lambda x, names: x if names is None else take_batch(x, index, len(names)))

    def bind(
        self,
        reference: Array,
        batch: tuple[int, ...],
        dtype: Any = None,
        lengths: dict[str, int] | None = None,
    ) -> Self:
        """This part for a call: its batch axes and `lengths` ("q", "k") checked, its floating arrays in
        `dtype`.

        Raises:
            ShapeError: an array has some batch axes but not all, or they do not broadcast.
            KindError: an array is of another library than the call.
        """

        def check(array: Array, names: tuple[str, ...] | None) -> Array:
            if names is not None:
                _check_batch(type(self).__name__, array, names, batch)
                _check_lengths(type(self).__name__, array, names, lengths or {})
            if library(array) != library(reference):
                if is_floating(array):
                    raise KindError(
                        f"{type(self).__name__} holds an array of {library(array)}, the call is in "
                        f"{library(reference)}. Convert the part's array."
                    )
                array = asarray_like(reference, array)
            if library(array) == "tensorflow" and dtype_name(array) == "int32":
                array = cast(array, namespace(array).int64)  # it compares with no other integers than its own
            return cast(array, dtype) if dtype is not None and is_floating(array) else array

        return self._map(check)

    def check_lengths(self, q: int, k: int) -> None:
        """Raise a `ShapeError` where an array of one number per query or per key has another length."""
        for array, names in self._walk():
            if names and array.ndim >= len(names):
                _check_lengths(type(self).__name__, array, names, {"q": q, "k": k})

    def parts(self) -> Iterator[Part]:
        """This part and every part within it."""
        yield self
        for name in _fields(self):
            for value in _flatten(getattr(self, name)):
                if isinstance(value, Part):
                    yield from value.parts()

    def _walk(self) -> Iterator[tuple[Array, tuple[str, ...] | None]]:
        found: list[tuple[Array, tuple[str, ...] | None]] = []

        def note(array: Array, names: tuple[str, ...] | None) -> Array:
            found.append((array, names))
            return array

        self._map(note)
        return iter(found)

    def _map(self, function: Callable[[Array, tuple[str, ...] | None], Array]) -> Self:
        out = object.__new__(type(self))
        for name, value in self.__dict__.items():
            object.__setattr__(out, name, _mapped(value, _fields(self).get(name), function))
        return out

    def __str__(self) -> str:
        shown: list[str] = []
        for n, field in enumerate(dataclasses.fields(self)):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.default is not dataclasses.MISSING and _is_default(value, field.default):
                continue
            shown.append(f"{field.name}={_shown(value)}" if n else _shown(value))
        return f"{type(self).__name__}({', '.join(shown)})"


def _known_to_jax(kind: type[Part]) -> None:
    from qkv.core.pytrees import register

    register(kind)


def _fields(part: Part) -> dict[str, tuple[str, ...] | None]:
    cls: Any = type(part)
    return _fields_of(cls)


@cache
def _fields_of(cls: Any) -> dict[str, tuple[str, ...] | None]:
    # Not dataclasses.fields, into which torch.compile does not look.
    return {name: field.metadata.get("axes") for name, field in cls.__dataclass_fields__.items()}


def _flatten(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for item in value:
            yield from _flatten(item)
    else:
        yield value


def _mapped(value: Any, names: Any, function: Callable[[Array, Any], Array]) -> Any:
    if isinstance(value, tuple):
        return tuple(_mapped(item, names, function) for item in value)
    if isinstance(value, Part):
        return value._map(function)
    return function(value, names) if is_array(value) else value


def _signature(value: Any) -> Hashable:
    if isinstance(value, Part):
        return value.signature()
    if isinstance(value, tuple):
        return tuple(_signature(item) for item in value)
    if is_array(value):
        return (library(value), tuple(value.shape), str(value.dtype))
    try:
        hash(value)
    except TypeError:
        return (type(value), id(value))
    return (type(value), value)


def _is_default(value: Any, default: Any) -> bool:
    # A part that was mapped is a copy of the default, and says the same.
    both_parts = isinstance(value, Part) and isinstance(default, Part)
    return value is default or (both_parts and value.signature() == default.signature())


def _shown(value: Any) -> str:
    if is_array(value):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, Part):
        return str(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    return repr(value)


def _check_batch(owner: str, array: Array, names: tuple[str, ...], batch: tuple[int, ...]) -> None:
    own = tuple(array.shape[: array.ndim - len(names)])
    axes_said = ", ".join(("*batch", *names))
    if array.ndim < len(names):
        raise ShapeError(f"{owner} was given an array of shape {tuple(array.shape)}; it must be ({axes_said}).")
    if not own:
        return
    if len(own) != len(batch):
        hint = "x[None]" if len(own) < len(batch) else "x[0]"
        if len(own) < len(batch) and own[0] == batch[0]:
            hint = "x[:, None]"
        raise ShapeError(
            f"{owner} was given an array of shape {tuple(array.shape)}, read as ({axes_said}) with "
            f"the batch axes {own}; the call has {batch}. Give it none or all of them, for "
            f"example {hint}."
        )
    if any(mine not in (1, theirs) for mine, theirs in zip(own, batch, strict=True)):
        raise ShapeError(f"{owner} has batch axes {own}, the call has {batch}. They must be equal, or 1.")


def _check_lengths(owner: str, array: Array, names: tuple[str, ...], lengths: dict[str, int]) -> None:
    for name, length in zip(names, array.shape[array.ndim - len(names) :], strict=True):
        if length not in (1, lengths.get(name, length)):
            raise ShapeError(
                f"{owner} holds an array of shape {tuple(array.shape)}, read as "
                f"({', '.join(('*batch', *names))}); the call has {name} = {lengths[name]}. That axis must "
                f"be {lengths[name]}, or 1."
            )


def expand_to_pairs(x: Any) -> Any:
    """A number per batch element, ready to meet logits `(*batch, q, k)`."""
    return x[..., None, None] if is_array(x) and x.ndim else x


def require_number(owner: str, name: str, value: Any, test: Callable[[Any], bool], wanted: str) -> None:
    """Raise an `OptionError` where a Python number is not what is `wanted`; arrays pass."""
    if is_array(value):
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not test(value):
        raise OptionError(f"{owner} was given {name}={value!r}. It must be {wanted}.")
