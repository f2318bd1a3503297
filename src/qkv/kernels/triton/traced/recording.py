"""Record the operators that a function of tensors calls, on tensors without data.

The function runs on tensors of the device "meta", which have shapes but no elements. Query and key have the lengths
`QUERIES` and `KEYS`, two large primes, so that an axis of queries or keys is known by its length, also where the
function computes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qkv.core.typing import Shaped, Tensor

if TYPE_CHECKING:
    import torch
    from torch._ops import OpOverload


QUERIES = 65_521
KEYS = 65_537
"""Lengths of query and key in a recording."""


class TraceError(Exception):
    """A function cannot be recorded or translated; the message says why and names the operator."""


@dataclass(frozen=True, eq=False)
class Recorded:
    """Array of a recording.

    Attributes:
        shape: its shape, with the lengths `QUERIES` and `KEYS`.
        dtype: its dtype.
        source: the operation that returned it; None for an argument of the function or a constant.
        index: its index among the results of that operation, or among the arguments and constants.
        constant: a tensor that the function used without being given it, or None.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    source: Operation | None
    index: int
    constant: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Operation:
    """Operator of PyTorch with its arguments, among which are `Recorded` in place of tensors."""

    operator: OpOverload
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the operator without its overload, such as "sum"."""
        return operator_name(self.operator)

    def arrays(self) -> list[Recorded]:
        """Return the arrays among the arguments."""
        from torch.utils._pytree import tree_leaves

        return [x for x in tree_leaves((self.arguments, self.options)) if isinstance(x, Recorded)]


@dataclass(frozen=True, eq=False)
class Recording:
    """Operators that a function called, in order.

    Attributes:
        arguments: the arguments of the function.
        operations: the operations in the order of their calls, each with the arrays that it returned.
        output: the array that the function returned.
        constants: the constants, in the order in which the function first used them.
    """

    arguments: tuple[Recorded, ...]
    operations: tuple[tuple[Operation, tuple[Recorded, ...]], ...]
    output: Recorded
    constants: tuple[Recorded, ...]


def operator_name(operator: Any) -> str:
    """Return the name of an operator of PyTorch without its namespace and overload."""
    return str(operator.name()).removeprefix("aten::").partition(".")[0]


_READS = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "unique", "is_nonzero", "allclose", "item")
"""Operators whose results depend on data in a way that a recording cannot hold."""


def record(function: Callable[..., Shaped[Tensor, "*_"]], arguments: Sequence[Shaped[Tensor, "*_"]]) -> Recording:
    """Call a function on tensors without data, and return the operators that it called.

    Raises:
        TraceError: the function reads elements, changes a shared array, or fails.
    """
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch.no_grad(), torch.autocast("cpu", enabled=False):
        recorder = _Recorder(arguments)
        try:
            with recorder.mode():
                result = function(*arguments)
        except TraceError:
            raise
        except Exception as error:
            text = str(error).strip().split("\n")[0].rstrip(".")
            where = f"the operator {recorder.current}" if recorder.current else "it"
            raise TraceError(f"{where} fails on tensors without data: {text or type(error).__name__}") from error
    if id(result) not in recorder.known:
        raise TraceError("its result is a tensor that no operator returned")
    return Recording(
        tuple(recorder.arguments), tuple(recorder.operations), recorder.known[id(result)], tuple(recorder.constants)
    )


class _Recorder:
    """State of a recording: the arrays by the `id` of their tensors."""

    def __init__(self, arguments: Sequence[Shaped[Tensor, "*_"]]) -> None:
        self.known: dict[int, Recorded] = {}
        self.alive: list[object] = []  # tensors whose id is in `known`
        self.stored: dict[int, list[int]] = {}  # the `id` of the tensors of each storage
        self.stale: set[int] = set()  # the `id` of tensors whose storage was changed through another tensor
        self.twins: dict[int, Tensor] = {}  # tensors without data in place of constants
        self.operations: list[tuple[Operation, tuple[Recorded, ...]]] = []
        self.constants: list[Recorded] = []
        self.current = ""  # the operator that runs
        self.arguments = [self._add(x, Recorded(tuple(x.shape), x.dtype, None, n)) for n, x in enumerate(arguments)]

    def mode(self) -> AbstractContextManager[object]:
        """Return a context in which every operator is recorded."""
        from torch.utils._python_dispatch import TorchDispatchMode

        call = self.call

        class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
                return call(func, args, kwargs or {})

        return Mode()  # type: ignore[no-untyped-call]

    def call(self, operator: OpOverload, arguments: tuple[Any, ...], options: dict[str, Any]) -> object:
        """Record the call of an operator and return its result."""
        import torch
        from torch.utils._pytree import tree_leaves, tree_map_only

        name = operator_name(operator)
        if name in _READS or name.startswith("_unique"):
            raise TraceError(f"the operator {name} reads data, as a condition on elements does")
        if torch.Tag.nondeterministic_seeded in operator.tags:
            raise TraceError(f"the operator {name} draws random numbers")
        given = tree_map_only(torch.Tensor, self._argument, (arguments, options))
        arguments, options = tree_map_only(torch.Tensor, self._twin, (arguments, options))
        changed = arguments[0] if operator._schema.is_mutable else None
        if changed is not None:
            operator = self._functional(operator, name, changed)
        self.current = name
        result = operator(*arguments, **options)
        self.current = ""
        operation = Operation(operator, *given)
        if changed is not None:
            if result.shape != changed.shape or result.dtype != changed.dtype:
                raise TraceError(f"the operator {name} changes the shape or dtype of an array")
            result = changed
        found = [
            self._add(x, Recorded(tuple(x.shape), x.dtype, operation, n), changed is None)
            for n, x in enumerate(tree_leaves(result))
            if isinstance(x, torch.Tensor)
        ]
        self.operations.append((operation, tuple(found)))
        return result

    def _functional(self, operator: OpOverload, name: str, changed: Shaped[Tensor, "*_"]) -> OpOverload:
        """Return the operator that returns what an operator would write to its first argument."""
        import torch

        other = getattr(torch.ops.aten, name[:-1], None) if name.endswith("_") else None
        overload = operator._overloadname
        if other is None or overload not in other.overloads():
            raise TraceError(f"the operator {name} changes an array in place")
        if self.known[id(changed)].source is None:
            raise TraceError(f"the operator {name} changes an argument in place")
        self.stale |= {x for x in self.stored[changed.untyped_storage()._cdata] if x != id(changed)}
        functional: OpOverload = getattr(other, overload)
        return functional

    def _add(self, x: Shaped[Tensor, "*_"], recorded: Recorded, new: bool = True) -> Recorded:
        self.known[id(x)] = recorded
        self.alive.append(x)
        if new:
            self.stored.setdefault(x.untyped_storage()._cdata, []).append(id(x))
        return recorded

    def _argument(self, x: Shaped[Tensor, "*_"]) -> Recorded:
        if id(x) in self.stale:
            raise TraceError("it reads an array that was changed through another one")
        if id(x) in self.known:
            return self.known[id(x)]
        recorded = Recorded(tuple(x.shape), x.dtype, None, len(self.constants), x)
        self.constants.append(recorded)
        self.known[id(x)] = recorded
        self.alive.append(x)
        return recorded

    def _twin(self, x: Shaped[Tensor, "*_"]) -> Shaped[Tensor, "*_"]:
        if x.device.type == "meta":
            return x
        if id(x) not in self.twins:
            self.twins[id(x)] = x.to("meta")
        return self.twins[id(x)]
