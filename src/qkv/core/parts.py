"""Class `Part`, the base class of scores, normalizers, masks, readouts and positions, and checks of its fields.

A part is a frozen dataclass whose fields are numbers, strings, arrays, other parts, or tuples of these values.
`array_field(...)` declares the axes of an array field after its batch axes. The declaration determines how the array
is sliced for a tile, how its batch axes are checked and how its gradient is accumulated.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np

from qkv.core.arrays import (
    asarray_like,
    cast,
    dtype_name,
    is_array,
    is_floating,
    is_tensor,
    library,
    namespace,
    variable_value,
)
from qkv.core.batch import BatchIndex, take_batch
from qkv.core.checks import is_int
from qkv.core.tracing import tracing_mode
from qkv.core.typing import Array, ArrayLike, DType, Num, Shaped
from qkv.errors import KindError, OptionError, ShapeError

_REGISTERED: set[type] = set()


def register(kind: type[Part], root: type[Part]) -> None:
    """Register the classes `kind` and `root`, and all their subclasses, as JAX pytrees.

    Classes that are already registered are skipped.
    """
    if kind in _REGISTERED:
        return
    import jax

    # Classes defined before JAX was imported are not registered yet.
    kinds: list[type[Part]] = [kind, root]
    while kinds:
        one = kinds.pop()
        kinds += one.__subclasses__()
        if one not in _REGISTERED:
            _REGISTERED.add(one)
            jax.tree_util.register_pytree_node(one, _flatten, _unflatten)


@dataclass(frozen=True)
class _Placeholder:
    """Object that stands for an array in a `_Skeleton`, which holds no arrays."""


@dataclass(frozen=True)
class _Leaf:
    """Wrapper of a pytree leaf that is not an array, such as None or the axis number of `jax.vmap`."""

    value: object


@dataclass(frozen=True)
class _Skeleton:
    """Structure of a part without its arrays, equal for parts of one class that differ only in their arrays.

    Example:
        >>> import numpy as np
        >>> from qkv.scores import Bilinear
        >>> _Skeleton(Bilinear(np.ones((2, 2)))) == _Skeleton(Bilinear(np.ones((3, 3))))
        True
    """

    part: Part = field(compare=False)
    signature: Hashable = field(init=False)

    def __post_init__(self) -> None:
        part = self.part._map(lambda leaf, names: _Placeholder(), _is_leaf)
        object.__setattr__(self, "part", part)
        object.__setattr__(self, "signature", part.signature())


def _flatten(part: Part) -> tuple[list[object], _Skeleton]:
    leaves: list[object] = []

    part._map(lambda leaf, names: leaves.append(leaf.value if isinstance(leaf, _Leaf) else leaf), _is_leaf)
    return leaves, _Skeleton(part)


def _unflatten(skeleton: _Skeleton, leaves: Iterable[object]) -> Part:
    queue = iter(leaves)

    def fill(placeholder: object, names: object) -> object:
        leaf = next(queue)
        return leaf if is_array(leaf) else _Leaf(leaf)

    return skeleton.part._map(fill, _is_leaf)


def _is_leaf(value: object) -> bool:
    return is_array(value) or isinstance(value, (_Placeholder, _Leaf))


AnyPart = TypeVar("AnyPart", bound="Part")


def array_field(*names: str, default: object = dataclasses.MISSING) -> Any:
    """Declare a dataclass field that may hold an array with batch axes followed by the axes `names`.

    Args:
        *names: names of the axes after the batch axes; without names the field holds one number, or one number per
            batch element. Axes named "q" and "k" are sliced for a tile.
        default: default value of the field.
    """
    return dataclasses.field(default=default, metadata={"axes": names})


def delegates(field: str, *names: str) -> Callable[[type[AnyPart]], type[AnyPart]]:
    """Return a class decorator that forwards the attributes and methods `names` of a part to its inner part.

    Args:
        field: name of the field or property that holds the inner part.
        *names: names of the forwarded attributes and methods.

    Example:
        >>> from qkv.masks import Causal
        >>> (~Causal()).positional
        True
    """

    def decorate(cls: type[AnyPart]) -> type[AnyPart]:
        for name in names:
            setattr(cls, name, _delegate(field, name))
        return cls

    return decorate


class UserAxes(tuple[str, ...]):
    """Axes after the batch axes of a parameter of a user's function, which keeps all its axes for any batch elements.

    Attributes:
        decided: whether the number of its batch axes is known; otherwise batch elements cannot be taken.
    """

    decided: bool

    @classmethod
    def of(cls, array: Shaped[Array, "*_"], batch_axes: int | None) -> UserAxes:
        """Return the axes of an array with `batch_axes` batch axes; None: their number is unknown."""
        axes = cls(("",) * (array.ndim - (batch_axes or 0)))
        axes.decided = batch_axes is not None
        return axes


def _delegate(field: str, name: str) -> property:
    return property(lambda self: getattr(getattr(self, field), name), doc=f"The attribute `{name}` of `{field}`.")


class Part:
    """Base class of scores, normalizers, masks, readouts and positions, which are immutable and may hold arrays."""

    if TYPE_CHECKING:  # every part is a dataclass
        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]
        __match_args__: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # At once: torch.compile cannot trace the registration by the first instance.
        if "jax" in sys.modules:
            _register_pytree(cls)

    def __post_init__(self) -> None:
        # Convert NumPy scalars to numbers, so that they do not determine the library of the call.
        # `_fields` is cached, which torch.compile warns about.
        for name in type(self).__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, np.generic) and not isinstance(value, (np.str_, np.bytes_)):
                object.__setattr__(self, name, value.item())
            elif "keras" in sys.modules and (array := variable_value(value)) is not None:
                object.__setattr__(self, name, array)
        self.validate()
        if "jax" in sys.modules:
            _register_pytree(type(self))

    def validate(self) -> None:
        """Check the fields when the part is constructed; the base class allows all values.

        Elements of arrays that are traced or on a GPU are not checked.
        """

    # -- arrays -----------------------------------------------------------------------------------------

    def arrays(self) -> tuple[Shaped[Array, "*_"], ...]:
        """Return all arrays of the part and of its inner parts, in the order of the fields."""
        found: list[Array] = []
        _collect_arrays(self.__dict__.values(), found)
        return tuple(found)

    def array_fields(self) -> list[tuple[Shaped[Array, "*_"], tuple[str, ...] | None]]:
        """Return each array of `arrays()` with the axes that `array_field` declares for it, or None."""
        found: list[tuple[Array, tuple[str, ...] | None]] = []
        self._map(lambda array, names: found.append((array, names)))
        return found

    def replace_arrays(self, arrays: Sequence[Array]) -> Self:
        """Return a copy of the part with its arrays replaced by `arrays`, without validation.

        The order is that of the method `arrays()`.

        Raises:
            ShapeError: the number of `arrays` is not the number of arrays of the part.
        """
        queue = list(arrays)
        try:
            out = self._map(lambda array, names: queue.pop(0))
        except IndexError:
            out = self
        if queue or out is self:
            raise ShapeError(
                f"the number of arrays for {type(self).__name__} must be {len(self.arrays())}, got {len(arrays)}. Pass "
                "as many arrays as its method arrays returns."
            )
        return out

    def map_arrays(self, function: Callable[[Shaped[Array, "*_"]], Shaped[Array, "*_"]]) -> Self:
        """Return a copy of the part in which `function` is applied to each array, also of inner parts."""
        return self._map(lambda array, names: function(array))

    def signature(self) -> Hashable:
        """Return a hashable key of the class, the fields, and the shapes and dtypes of the arrays of the part.

        The elements of arrays are not included. Parts with equal signatures share a plan.
        """
        return (type(self), *(_signature(getattr(self, name)) for name in _fields(self)))

    def slice(self, rows: slice, cols: slice) -> Self:
        """Return the part with its arrays sliced to the queries `rows` and the keys `cols`.

        Axes of length 1 are not sliced.
        """

        def slice_array(array: Array, names: tuple[str, ...] | None) -> Array:
            if not names or not ({"q", "k"} & set(names)):
                return array
            index: list[slice | EllipsisType] = [...]
            for name, length in zip(names, array.shape[array.ndim - len(names) :], strict=True):
                index.append({"q": rows, "k": cols}.get(name, slice(None)) if length != 1 else slice(None))
            return array[tuple(index)]

        return self._map(slice_array)

    def select_batch(self, index: BatchIndex) -> Self:
        """Return the part with its arrays restricted to the batch elements that `index` selects.

        Raises:
            ShapeError: it is not known which axes of a parameter of a user's function are batch axes.
        """
        slices = tuple([slice(at, at + 1) if isinstance(at, int) else at for at in index])

        def take(x: Array, names: tuple[str, ...] | None) -> Array:
            if not isinstance(names, UserAxes):
                return x if names is None else take_batch(x, index, len(names))
            if not names.decided:
                raise ShapeError(
                    f"batch_axes of Custom must be given for a parameter of shape {tuple(x.shape)}, because a trial of "
                    "the function did not show whether its leading axes are batch axes of the call, got None. Pass "
                    "batch_axes=(1,) if the first axis of the only parameter is the axis of heads, or (0,) if all "
                    "batch elements share it."
                )
            return take_batch(x, slices, len(names))

        return self._map(take)

    def bind(
        self,
        reference: Shaped[Array, "*_"],
        batch: tuple[int, ...],
        dtype: DType = None,
        lengths: dict[str, int] | None = None,
    ) -> Self:
        """Return a copy of the part with its arrays checked against a call and converted to the call's library.

        Args:
            reference: an array of the call, which determines library and device.
            batch: batch axes of the call.
            dtype: dtype to which floating-point arrays are cast; None: arrays keep their dtype.
            lengths: number of queries "q" and number of keys "k" of the call.

        Raises:
            ShapeError: an array has some but not all batch axes, or its shape does not broadcast to that of the call.
            KindError: a floating-point array of the part belongs to another library than `reference`.
        """
        self.check_shapes(batch, lengths or {})

        def check(array: Array, names: tuple[str, ...] | None) -> Array:
            if library(array) != library(reference):
                if is_floating(array):
                    raise KindError(
                        f"arrays of {type(self).__name__} must be {library(reference)} arrays like query, key and "
                        f"value, got a {library(array)} array. Convert it to {library(reference)}."
                    )
                array = asarray_like(reference, array)
            if library(array) == "tensorflow" and dtype_name(array) == "int32":
                array = cast(array, namespace(array).int64)  # TensorFlow compares no integers of different dtypes
            if library(array) == "tensorflow" and names is not None and array.ndim - len(names) > 2:
                core = tuple(array.shape[array.ndim - len(names) :])
                array = namespace(array).broadcast_to(array, (*batch, *core))  # it broadcasts at most five axes
            return cast(array, dtype) if dtype is not None and is_floating(array) else array

        return self._map(check)

    def check_shapes(self, batch: tuple[int, ...] | None, lengths: dict[str, int]) -> None:
        """Raise a `ShapeError` if an array has other batch axes, numbers of queries "q" or of keys "k" than a call.

        The message names the inner part that holds the array. If `batch` is None, all batch axes are allowed.
        """
        for part in self.parts():
            for name, axes in _fields(part).items():
                array = getattr(part, name)
                if axes is not None and is_array(array):
                    _check_batch(type(part).__name__, array, axes, batch)
                    _check_lengths(type(part).__name__, array, axes, lengths)

    def parts(self) -> Iterator[Part]:
        """Yield the part itself and all its inner parts."""
        yield self
        yield from _parts_in(tuple(getattr(self, name) for name in _fields(self)))

    def _map(
        self, function: Callable[[Any, tuple[str, ...] | None], object], is_leaf: Callable[[object], bool] = is_array
    ) -> Self:
        """Return a copy of the part in which each leaf is replaced by `function(leaf, axis names of its field)`.

        The leaves are by default the arrays.
        """
        out = object.__new__(type(self))
        for name, value in self.__dict__.items():
            object.__setattr__(out, name, _mapped(value, _fields(self).get(name), function, is_leaf))
        return out

    def __str__(self) -> str:
        shown: list[str] = []
        for n, declared in enumerate(dataclasses.fields(self)):
            value = getattr(self, declared.name)
            if declared.default is not dataclasses.MISSING and _is_default(value, declared.default):
                continue
            shown.append(f"{declared.name}={_format_value(value)}" if n else _format_value(value))
        return f"{type(self).__name__}({', '.join(shown)})"


def _register_pytree(kind: type[Part]) -> None:

    register(kind, Part)


def _fields(part: Part) -> dict[str, tuple[str, ...] | None]:
    return _fields_of(type(part))  # type: ignore[arg-type]


@cache
def _fields_of(cls: type[Part]) -> dict[str, tuple[str, ...] | None]:
    # torch.compile does not trace dataclasses.fields.
    fields = getattr(cls, "__dataclass_fields__", {})  # a subclass without fields may be no dataclass
    return {name: field.metadata.get("axes") for name, field in fields.items()}


def _parts_in(value: object) -> Iterator[Part]:
    if isinstance(value, Part):
        yield from value.parts()
    elif isinstance(value, tuple):
        for item in value:
            yield from _parts_in(item)


def _collect_arrays(values: Iterable[object], found: list[Array]) -> None:
    """Append the arrays in `values` to `found`, without the copies that `Part._map` makes."""
    for value in values:
        if isinstance(value, tuple):
            _collect_arrays(value, found)
        elif isinstance(value, Part):
            _collect_arrays(value.__dict__.values(), found)
        elif is_array(value):
            found.append(value)


def _mapped(
    value: object,
    names: tuple[str, ...] | None,
    function: Callable[[Any, tuple[str, ...] | None], object],
    is_leaf: Callable[[object], bool],
) -> Any:
    if isinstance(value, tuple):
        return tuple(_mapped(item, names, function, is_leaf) for item in value)
    if isinstance(value, Part):
        return value._map(function, is_leaf)
    return function(value, names) if is_leaf(value) else value


def _signature(value: object) -> Hashable:
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


def _is_default(value: object, default: object) -> bool:
    # A mapped part is a copy of the default with the same signature.
    if isinstance(value, Part) and isinstance(default, Part):
        return value.signature() == default.signature()
    return value is default


def _format_value(value: object) -> str:
    if is_array(value):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, Part):
        return str(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_format_value, value))})"
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    return repr(value)


def _check_batch(owner: str, array: Shaped[Array, "*_"], names: tuple[str, ...], batch: tuple[int, ...] | None) -> None:
    own = tuple(array.shape[: array.ndim - len(names)])
    expected = ", ".join(("*batch", *names))
    if array.ndim < len(names):
        raise ShapeError(
            f"arrays of {owner} must have shape ({expected}), got shape {tuple(array.shape)}. Add the missing axes."
        )
    if not own or batch is None:
        return
    if len(own) != len(batch):
        remedy = "Change the number of axes"
        if len(own) < len(batch):
            equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(own, batch, strict=False)))
            axes = equal * [":"] + (len(batch) - len(own)) * ["None"]
            remedy += f", for example with x[{', '.join(axes)}]"
        elif own[0] == 1:
            remedy += ", for example with x[0]"
        raise ShapeError(
            f"arrays of {owner} must have shape ({expected}) with none or all of the batch axes {batch} of the call, "
            f"got batch axes {own} in shape {tuple(array.shape)}. {remedy}."
        )
    if any(mine not in (1, theirs) for mine, theirs in zip(own, batch, strict=True)):
        remedy = "Make the lengths of corresponding axes equal, or 1."
        if all(theirs == 1 or mine in (1, theirs) for mine, theirs in zip(own, batch, strict=True)):
            remedy = "Expand the query along the axes that only this part has, for example with x.expand."
        raise ShapeError(
            f"batch axes of arrays of {owner} must broadcast to the batch axes {batch} of the call, got {own}. {remedy}"
        )


def _check_lengths(owner: str, array: Shaped[Array, "*_"], names: tuple[str, ...], lengths: dict[str, int]) -> None:
    for name, length in zip(names, array.shape[array.ndim - len(names) :], strict=True):
        if length not in (1, lengths.get(name, length)):
            raise ShapeError(
                f"arrays of {owner} must have shape ({', '.join(('*batch', *names))}), where {name}, the number of "
                f"{'queries' if name == 'q' else 'keys'}, is {lengths[name]} or 1, got shape {tuple(array.shape)}. "
                f"Change the length of axis {name}."
            )


def expand_to_pairs(x: Num[Array, "*batch"] | float) -> Num[Array, "*_shape"] | float:
    """Append two axes to an array `(*batch,)`, so that it broadcasts with logits `(*batch, q, k)`.

    Python numbers and arrays without axes are returned unchanged.
    """
    return x[..., None, None] if is_array(x) and x.ndim else x


def require_number(owner: str, name: str, value: object, test: Callable[[float], bool], condition: str) -> None:
    """Raise an `OptionError` if `value` is neither a number that satisfies a condition nor an array of such numbers.

    Args:
        owner: name of the class in the error message.
        name: name of the argument in the error message.
        value: value of the argument.
        test: function that returns whether a number is allowed, which holds for an interval of numbers.
        condition: the condition in the error message, such as "a positive number".
    """
    if is_array(value):
        wrong: object = next((number for number in extremes(value) if not test(number)), None)
        place = " in each element"
    else:
        allowed = isinstance(value, (int, float)) and not isinstance(value, bool) and test(value)
        wrong, place = None if allowed else repr(value), ""
    if wrong is not None:
        example = next(number for number in (1.0, 0.5, 2.0, -1.0) if test(number))
        raise OptionError(f"{name} of {owner} must be {condition}{place}, got {wrong}. Pass, for example, {example}.")


_FEW = 64
"""Number of elements up to which reading all of them takes less time than two passes of a library."""


def extremes(x: ArrayLike) -> Sequence[float]:
    """Return numbers among the elements of an array that include the smallest, the largest, and NaN if there is one.

    There are none while the array is traced, and of tensors on a GPU, for which Python would wait.
    """
    if is_tensor(x) and (x.device.type != "cpu" or tracing_mode(x)):
        return ()
    try:
        x = x.detach() if is_tensor(x) else np.asarray(x)
        found = x.reshape(-1).tolist() if math.prod(x.shape) <= _FEW else [x.min().item(), x.max().item()]
        return [number for number in found if isinstance(number, (int, float))]  # the call refuses other elements
    except Exception:  # every tracer raises another class of exception
        return ()


def require_indices(part: Part, name: str) -> None:
    """Convert the field `name` of a part to a tuple, and check that it holds one or more integers.

    An `OptionError` is raised if the tuple is empty or an element is not an integer.
    """
    indices = tuple(getattr(part, name))
    object.__setattr__(part, name, indices)
    if not indices or not all(map(is_int, indices)):
        raise OptionError(
            f"{name} of {type(part).__name__} must contain one or more integers, got {indices!r}. "
            "Pass, for example, 0 or (0, 2)."
        )


def require_positive_integer(owner: str, name: str, value: object) -> None:
    """Raise an `OptionError` if `value` is not an integer of at least 1."""
    if not is_int(value) or value < 1:
        raise OptionError(f"{name} of {owner} must be an integer of at least 1, got {value!r}. Pass, for example, 5.")
