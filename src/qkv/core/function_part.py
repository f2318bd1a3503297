"""Class `FunctionPart`, the base class of parts that call a function of the user with arrays as parameters.

The function always gets its parameters with the axes that the caller gave them. Before a kernel takes batch elements of
a call, `plan/trial.py` finds which leading axes of each parameter are batch axes, and `with_batch_axes` declares them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, Self
from weakref import ref

from qkv.core.arrays import dtype_name, is_array, library, namespace
from qkv.core.parts import Part, UserAxes
from qkv.core.typing import Array, Shaped
from qkv.errors import KindError, OptionError, ShapeError


@dataclass(frozen=True)
class Verdict:
    """Result of the trial of a score, normalizer or mask.

    Attributes:
        batch_axes: for each part with a function, the number of leading axes of each parameter that are batch axes;
            None if it is not known.
        same_rank: whether functions need arguments with all batch axes of the call, also for one batch element.
        finding: what an element depends on besides its own pair or row, or "".
        doubt: why the part could not be judged, or "".
        random: whether the function returned other elements for the same arrays.
    """

    batch_axes: tuple[tuple[int | None, ...], ...]
    same_rank: bool = True
    finding: str = ""
    doubt: str = ""
    random: bool = False

    @property
    def divides(self) -> bool:
        """Whether functions need other parameters or axes for some batch elements than for all."""
        return bool(self.batch_axes) and (self.same_rank or any(own != 0 for each in self.batch_axes for own in each))


class FunctionPart(Part):
    """Base class of parts with the fields `function`, `parameters` and `batch_axes`.

    Attributes:
        function: the function of the user.
        parameters: arrays that are passed to the function.
        batch_axes: number of leading axes of each parameter that are batch axes; None: found by a trial.
    """

    function: Callable[..., Array]
    parameters: tuple[Array, ...]
    batch_axes: tuple[int, ...] | None

    def check_function(self, advice: str) -> None:
        """Check the fields, and convert `parameters` and `batch_axes` to tuples.

        Raises:
            OptionError: `function` is not callable, or `batch_axes` does not have an integer for each parameter.
        """
        if not callable(self.function):
            raise OptionError(f"function of Custom must be callable, got {self.function!r}. {advice}")
        object.__setattr__(self, "parameters", tuple(self.parameters))
        if self.batch_axes is None:
            return
        object.__setattr__(self, "batch_axes", tuple(self.batch_axes))
        given = zip(self.batch_axes, self.parameters, strict=False)
        if len(self.batch_axes) != len(self.parameters) or any(
            not isinstance(n, int) or not 0 <= n <= getattr(x, "ndim", n) for n, x in given
        ):
            raise OptionError(
                "batch_axes of Custom must be one integer from 0 to its number of axes for each of the "
                f"{len(self.parameters)} parameters, got {self.batch_axes}. Count the leading axes that are batch axes."
            )

    def batch_axes_for(self, batch: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return for each parameter the numbers of leading axes that may be batch axes of a call, most likely first.

        Raises:
            ShapeError: the axes that `batch_axes` declares do not match the batch axes of the call.
        """
        found = []
        for n, x in enumerate(self.parameters):
            shape = tuple(x.shape) if is_array(x) else ()
            fits = [0] + [r for r in range(1, 1 + min(len(shape), len(batch))) if _matches(shape[:r], batch[-r:])]
            if self.batch_axes is not None:
                declared = self.batch_axes[n]
                if declared not in fits and any(m != 1 for m in shape[:declared]):
                    raise ShapeError(
                        f"the first {declared} axes of parameter {n} of Custom must broadcast to the last of the batch "
                        f"axes {batch} of the call, got shape {shape}. Change the shape, or batch_axes."
                    )
                fits = [declared if declared in fits else 0]
            # Axes of length 1 are the same for all batch elements, so there is nothing to divide.
            found.append(tuple(r for r in reversed(fits) if r == 0 or any(m != 1 for m in shape[:r])))
        return found

    def with_batch_axes(self, own: tuple[int | None, ...], ranks: tuple[int, ...]) -> Self:
        """Declare the batch axes of each parameter in place, in a copy that belongs to one call, and return it.

        Args:
            own: number of leading axes of each parameter that are batch axes; None: unknown, so that the parameter
                cannot be divided.
            ranks: numbers of axes of the arguments of the function that a kernel must restore; () for any.
        """
        object.__setattr__(self, "_own_axes", own)
        object.__setattr__(self, "_ranks", ranks)
        return self

    @property
    def ranks(self) -> tuple[int, ...]:
        """Numbers of axes of the arguments of the function, which it gets also for a single batch element."""
        ranks: tuple[int, ...] = self.__dict__.get("_ranks", ())
        return ranks

    def _map(
        self, function: Callable[[Any, tuple[str, ...] | None], object], *is_leaf: Callable[[object], bool]
    ) -> Self:
        if "_own_axes" not in self.__dict__:
            return super()._map(function, *is_leaf)
        own = zip(self.parameters, self.__dict__["_own_axes"], strict=True)
        axes = iter([UserAxes.of(x, n) for x, n in own if is_array(x)])
        return super()._map(lambda x, names: function(x, next(axes, None)), *is_leaf)


def function_parts(value: object) -> list[FunctionPart]:
    """Return all parts with a function of the user within a part or a tuple, in the order of `Part.parts`."""
    if isinstance(value, tuple):
        return [found for item in value if isinstance(item, (Part, tuple)) for found in function_parts(item)]
    if isinstance(value, FunctionPart):
        return [value]
    return function_parts(tuple(value.__dict__.values())) if isinstance(value, Part) else []


def key_of_code(value: object, depth: int = 8) -> Hashable:
    """Return a key of a part or its fields; a function that is defined anew for each call has that of its code.

    Raises:
        KindError: a part is no dataclass.
    """
    if isinstance(value, Part):
        if not is_dataclass(value):
            name = type(value).__name__
            raise KindError(
                f"{name} must be a dataclass, got another class. Write @dataclass(frozen=True, eq=False) above it, and "
                "declare its settings and arrays as fields."
            )
        return type(value), *(key_of_code(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, tuple):
        return tuple([key_of_code(x, depth - 1) for x in value]) if depth else ()
    if isinstance(value, partial):
        return partial, key_of_code((value.func, *value.args, *value.keywords.items()), depth)
    if isinstance(value, MethodType):
        return MethodType, key_of_code((value.__func__, value.__self__), depth)
    if isinstance(value, FunctionType):
        # A function that calls itself refers to itself, so `depth` ends the search.
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        return value.__code__, key_of_code((*cells, *(value.__defaults__ or ())), depth)
    if is_array(value):
        return library(value), tuple(value.shape), dtype_name(value)
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return type(value), value
    try:
        key = ref(value)  # such as a module to which a function refers, which must not be kept
        hash(key)
    except TypeError:
        return type(value), id(value)
    return key


def pad_axes(x: Shaped[Array, "*shape"], rank: int) -> Shaped[Array, "*_"]:
    """Return an array with leading axes of length 1, so that it has at least `rank` axes."""
    missing = rank - x.ndim
    return namespace(x).reshape(x, (*(1,) * missing, *x.shape)) if missing > 0 else x


def _matches(shape: tuple[int, ...], batch: tuple[int, ...]) -> bool:
    return all(type(m) is not int or n in (1, m) for n, m in zip(shape, batch, strict=True))
