"""Custom PyTorch operator that represents a call of `qkv.attend` in the graph of `torch.compile`.

The compiler cannot trace kernels whose control flow depends on data. Its graph contains one opaque operator instead,
which plans and runs the call as without the compiler:

    qkv::attend(tensors, seed, call) -> output, saved statistics of each query
    qkv::attend_backward(gradient, output, numbers, tensors, needed, seed, call) -> the required gradients

`tensors` are query, key, value and the arrays of the parts. `call` is a name under which all other arguments are
registered: the parts without their arrays, the kernel and the memory limit. Names are valid only in the process that
traced the call, so a saved graph cannot run in another process. Lengths may be dynamic. A call is compiled again if a
Python number in a part changes; a number in a tensor may change freely. Second derivatives are not supported. In
backward, the tiled and the fused kernel use the saved statistics (`kernels/runtime/saved_statistics.py`); other
kernels, and all kernels in half precision, run the forward pass again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, NoReturn, TypeAlias, TypeVar, cast

import numpy as np
import torch

from qkv.core.arrays import result_dtype
from qkv.core.axes import Axes
from qkv.core.parts import Part
from qkv.core.threefry import Seed
from qkv.core.typing import Array, Int, Num, OutputTensor, Shaped, Tensor
from qkv.errors import GradientError, RefusedError
from qkv.kernels.runtime.context import set_context
from qkv.kernels.runtime.saved_statistics import COLUMNS, SAVED, SavedStatistics
from qkv.normalizers import NORMALIZERS, Softmax

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from qkv.plan.cache import SpecFields


T = TypeVar("T")
_Run = Callable[..., Array]
_Needed = tuple[bool, ...] | None
_Structure: TypeAlias = "str | tuple[_Structure, ...]"
"""Nested structure of a value: "tensor", "constant", ("tuple", items…) or ("part", field names, items…)."""


def compiled_attend(
    query: Num[Tensor, "*#batch q query_width"],
    key: Num[Tensor, "*#batch k key_width"],
    value: Num[Tensor, "*#batch k value_width"],
    fields: SpecFields,
    seed: Seed | None,
    run: _Run,
    *more: Hashable,
) -> OutputTensor:
    """Return the output of a call that `torch.compile` is tracing, by the operator `qkv::attend`.

    The arguments are those of `operator_arguments`.
    """
    arguments = operator_arguments(query, key, value, fields, seed, run, *more)  # first: this defines the operator
    output: Tensor = torch.ops.qkv.attend(*arguments)[0]
    return output


def operator_arguments(
    query: Num[Tensor, "*#batch q query_width"],
    key: Num[Tensor, "*#batch k key_width"],
    value: Num[Tensor, "*#batch k value_width"],
    fields: SpecFields,
    seed: Seed | None,
    run: _Run,
    *more: Hashable,
) -> tuple[list[Shaped[Tensor, "*_"]], Int[Tensor, ""] | None, str]:
    """Return the arguments of the operator `qkv::attend` for a call. The compiler traces this function.

    Args:
        query: queries.
        key: keys.
        value: values.
        fields: score, normalizer, mask, positions and dropout.
        seed: an integer, or None for a new random seed at every call that uses random numbers.
        run: function that runs the call, as `run(query, key, value, fields, seed, *more)`.
        more: further arguments of `run`.
    """
    if _in_functorch():
        refuse(
            "torch.compile cannot trace qkv.attend within a transform of torch.func (vmap, grad, jvp). Apply the "
            "transform outside of torch.compile, or do not compile the function that applies the transform."
        )
    tensors = [query, key, value]
    leaves: list[object] = []
    structure = _flatten(fields, tensors, leaves)
    needed = tuple([x.requires_grad for x in tensors]) if torch.is_grad_enabled() else None
    name = _register_call(run, more, needed, structure, *leaves)
    if seed is not None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            refuse(
                "seed must be an int or None under torch.compile, got a value of another type. Convert the seed with "
                "int(seed) before you call the compiled function."
            )
        return tensors, torch.full((), seed, dtype=torch.int64, device="cpu"), name
    return tensors, torch.randint(2**62, (), device="cpu") if _uses_random_numbers(name) else None, name


def refuse(message: str) -> NoReturn:
    """Raise a `RefusedError` with `message`, about a call that is being compiled.

    The compiler runs this function instead of tracing it. It reports errors of other kinds as faults of the compiler.

    Raises:
        RefusedError: always.
    """
    from torch._dynamo.exc import Unsupported

    raise type("RefusedError", (RefusedError, Unsupported), {})(message)


def break_graph() -> None:
    """Make `torch.compile` run the rest of the calling function without compiling it, if the graph may break.

    Raises:
        RefusedError: the graph must not break, since it was compiled with `fullgraph=True`.
    """
    if torch._guards.TracingContext.try_get() is not None:
        refuse(
            "fullgraph must be False to call qkv.observe or a prepared plan under torch.compile, which cannot trace "
            "them, got True. Call qkv.attend in this function, or call them outside of it."
        )


def run_uncompiled(function: Callable[..., T], *arguments: object, **named: object) -> T:
    """Return the result of a function that `torch.compile` does not compile. Call `break_graph` before."""
    return cast("T", torch.compiler.disable(function)(*arguments, **named))  # type: ignore[no-untyped-call]


# -- flattening of parts to tensors and constants --------------------------------------------------------


def _flatten(value: object, tensors: list[Shaped[Tensor, "*_"]], leaves: list[object]) -> _Structure:
    """Append the tensors and constants in a value to two lists, and return the structure of the value.

    The compiler traces this function.
    """
    if isinstance(value, (torch.Tensor, np.ndarray)):
        tensors.append(value if isinstance(value, torch.Tensor) else torch.as_tensor(value))
        return "tensor"
    if isinstance(value, tuple):
        return ("tuple", *[_flatten(item, tensors, leaves) for item in value])
    if isinstance(value, Part):
        kind = type(value)
        leaves.append(kind)
        names = tuple(kind.__dataclass_fields__)
        return ("part", names, *[_flatten(getattr(value, name), tensors, leaves) for name in names])
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # The compiler may replace a number that changes between calls by a symbol, which a registered call cannot hold.
        from torch.fx.experimental.symbolic_shapes import guard_scalar

        value = guard_scalar(value * 1)
    leaves.append(value)
    return "constant"


def _unflatten(structure: _Structure, tensors: list[Shaped[Tensor, "*_"]] | list[None], leaves: list[object]) -> object:
    """Rebuild a value from its structure, and remove its tensors and constants from the front of two lists."""
    if structure == "tensor":
        return tensors.pop(0)
    if structure == "constant":
        return leaves.pop(0)
    assert not isinstance(structure, str)
    kind, *items = structure
    if kind == "tuple":
        return tuple(_unflatten(item, tensors, leaves) for item in items)
    part = object.__new__(cast("type[Part]", leaves.pop(0)))
    names, *items = items
    for name, item in zip(names, items, strict=True):
        object.__setattr__(part, cast(str, name), _unflatten(item, tensors, leaves))
    return part


# -- registered calls ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _RegisteredCall:
    """Arguments of a call without its tensors. Calling the object with tensors runs the call.

    Attributes:
        run: function that runs the call.
        more: further arguments of `run`.
        needed: which of the tensors require a gradient; None if autograd is disabled.
        structure: structure of score, normalizer, mask, positions and dropout.
        leaves: constants of this structure.
    """

    run: _Run
    more: tuple[Hashable, ...]
    needed: _Needed
    structure: _Structure
    leaves: tuple[object, ...]

    def __call__(self, tensors: Sequence[Shaped[Tensor, "*_"]], seed: Int[Tensor, ""] | None) -> OutputTensor:
        query, key, value, *arrays = tensors
        # The plan cache identifies parts without arrays by `id`, so they are rebuilt only once.
        fields = _unflatten(self.structure, arrays, list(self.leaves)) if arrays else self._fields_without_arrays
        output = self.run(query, key, value, fields, None if seed is None else int(seed), *self.more)
        return cast("Tensor", output)

    @cached_property
    def _fields_without_arrays(self) -> SpecFields:
        return cast("SpecFields", _unflatten(self.structure, [], list(self.leaves)))


_LAYOUT = "heads last"
"""Layout of the tensors that the operators return.

It is part of a call's name, so that PyTorch's cache on disk finds no graph that was compiled for another layout.
"""

_CALLS: dict[str, _RegisteredCall] = {}
_NAMES: dict[Hashable, str] = {}


def _register_call(
    run: _Run, more: tuple[Hashable, ...], needed: _Needed, structure: _Structure, *leaves: object
) -> str:
    """Register a call and return its name, which is the same for equal calls.

    The compiler runs this function while tracing.
    """
    _define_operators()
    call = _RegisteredCall(run, more, needed, structure, leaves)
    key: Hashable = (call, tuple(map(type, leaves)))  # 1, 1.0 and True are equal
    try:
        known = _NAMES.get(key)
    except TypeError:  # a constant cannot be hashed
        key, known = object(), None
    if known is not None:
        return known
    parts = "/".join(x.__name__ for x in leaves if isinstance(x, type) and issubclass(x, Part))
    name = _NAMES[key] = f"{parts}#{len(_CALLS)} ({_LAYOUT})"
    _CALLS[name] = call
    return name


def _find_call(name: str) -> _RegisteredCall:
    if name not in _CALLS:
        raise RefusedError(
            f"compiled call {name!r} must run in the process that compiled it: a saved graph does not contain the "
            f"score, normalizer and mask. Compile the function again in this process."
        )
    return _CALLS[name]


def _uses_random_numbers(name: str) -> bool:
    """Return whether the call registered under `name` uses random numbers."""
    call = _CALLS[name]
    placeholders = [None] * str(call.structure).count("'tensor'")
    fields = _unflatten(call.structure, placeholders, list(call.leaves))
    score, normalizer, _, _, dropout = cast("SpecFields", fields)
    default = NORMALIZERS[score.default_normalizer] if score is not None else Softmax
    return bool(dropout) or (default if normalizer is None else normalizer).stochastic


def _in_functorch() -> bool:
    """Return whether a transform of `torch.func` is active."""
    return torch._C._functorch.maybe_current_level() is not None


for _function in (_register_call, _uses_random_numbers, _in_functorch, refuse, break_graph):
    # This has the effect of `torch.compiler.assume_constant_result`, which would import the compiler together with qkv.
    vars(_function)["_dynamo_marked_constant"] = True


# -- the operators -------------------------------------------------------------------------------------


@cache
def _define_operators() -> None:
    def attend(tensors, seed, call):  # type: ignore[no-untyped-def]
        known = _find_call(call)
        needed = known.needed or (False,) * len(tensors)
        with _with_autograd(), torch.set_grad_enabled(known.needed is not None):
            leaves = [x.detach().requires_grad_(n) for x, n in zip(tensors, needed, strict=True)]
            with set_context(SAVED, SavedStatistics()) as saved:
                output = known(leaves, seed)
            _refuse_closures(output, leaves)
            output = _copy_if_shared(_heads_last(output.detach()), tensors)
            return output, saved.table(output) if any(needed) else output.new_empty(0)

    def attend_backward(gradient, output, numbers, tensors, needed, seed, call):  # type: ignore[no-untyped-def]
        with _with_autograd(), torch.enable_grad(), set_context(SAVED, SavedStatistics((output, numbers))):
            leaves = [x.detach().requires_grad_(n) for x, n in zip(tensors, needed, strict=True)]
            again = _find_call(call)(leaves, seed)
            inputs = [x for x in leaves if x.requires_grad]
            if not again.requires_grad:
                return [_heads_last(torch.zeros_like(x)) for x in inputs]
            results = torch.autograd.grad(again, inputs, gradient, allow_unused=True, materialize_grads=True)
            others = [gradient, output, numbers, *tensors]
            return [_copy_if_shared(_heads_last(x), [*others, *results[:n]]) for n, x in enumerate(results)]

    def fake(tensors, seed, call):  # type: ignore[no-untyped-def]
        query, key, value = tensors[:3]
        sides = query.shape, key.shape, value.shape
        if all(isinstance(n, int) for one in sides for n in one):
            shape = Axes.of(*sides).output
        else:  # some lengths are symbols
            broadcast: Callable[..., torch.Size] = torch.broadcast_shapes
            shape = (*broadcast(*(one[:-2] for one in sides)), query.shape[-2], value.shape[-1])
        output = _heads_last(value.new_empty(shape, dtype=result_dtype(query, key, value)))
        saves = any(_find_call(call).needed or ())
        return output, output.new_empty((*shape[:-1], COLUMNS) if saves else (0,))

    def fake_backward(gradient, output, numbers, tensors, needed, seed, call):  # type: ignore[no-untyped-def]
        return [_heads_last(x.new_empty(x.shape)) for x, n in zip(tensors, needed, strict=True) if n]

    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        tensors, seed, call = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output, *tensors)
        ctx.seed, ctx.call = seed, call

    def backward(ctx, gradient, _):  # type: ignore[no-untyped-def]
        output, numbers, *tensors = ctx.saved_tensors
        needed = [bool(n) for n in ctx.needs_input_grad[0]]
        arguments = gradient, output, numbers, tensors, needed, ctx.seed, ctx.call
        results = iter(torch.ops.qkv.attend_backward(*arguments))
        return [next(results) if n else None for n in needed], None, None

    forward_operator = torch.library.custom_op(
        "qkv::attend", attend, mutates_args=(), schema="(Tensor[] tensors, Tensor? seed, str call) -> (Tensor, Tensor)"
    )
    forward_operator.register_fake(fake)
    forward_operator.register_autograd(backward, setup_context=setup_context)
    backward_operator = torch.library.custom_op(
        "qkv::attend_backward",
        attend_backward,
        mutates_args=(),
        schema="(Tensor gradient, Tensor output, Tensor numbers, Tensor[] tensors, bool[] needed, "
        "Tensor? seed, str call) -> Tensor[]",
    )
    backward_operator.register_fake(fake_backward)


def _refuse_closures(output: OutputTensor, leaves: Sequence[Shaped[Tensor, "*_"]]) -> None:
    """Raise a `GradientError` if the output depends on a tensor that requires a gradient and is not among `leaves`."""
    known, visited = {id(x) for x in leaves}, set()
    stack = [output.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if id(getattr(node, "variable", leaves[0])) not in known:
            raise GradientError(
                "score, normalizer and mask of a compiled call must not close over a tensor that requires a gradient, "
                "because no gradient would reach the tensor. Pass the tensor as Custom(function, parameters=(…,)), "
                "which calls function(query, key, *parameters), or make it a field of your score class."
            )
        stack.extend(before for before, _ in node.next_functions)


def _with_autograd() -> AbstractContextManager[object]:
    """Return a context that enables autograd within an operator, where PyTorch disables it."""
    inner = torch._C
    excluded = inner._dispatch_tls_local_exclude_set()
    for name in ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor"):
        excluded = excluded.remove(getattr(inner.DispatchKey, name))
    guard = inner._ForceDispatchKeyGuard(inner._dispatch_tls_local_include_set(), excluded)
    return cast("AbstractContextManager[object]", guard)


def _copy_if_shared(x: Shaped[Tensor, "*shape"], others: Sequence[Shaped[Tensor, "*_"]]) -> Shaped[Tensor, "*shape"]:
    """Return `x`, or a copy of `x` in the same layout if it shares memory with a tensor of `others`."""
    storage = x.untyped_storage().data_ptr()
    return x.clone() if any(storage == y.untyped_storage().data_ptr() for y in others) else x


def _heads_last(x: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """Return `x` in the layout of the operators: contiguous, except that the heads, if any, follow the rows in memory.

    Modules merge the heads of the output, and split those of query, key and value, without copies in this layout.
    """
    return x.transpose(-3, -2).contiguous().transpose(-3, -2) if x.ndim > 3 else x.contiguous()
