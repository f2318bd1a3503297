"""One operator of PyTorch for a whole call, for `torch.compile` to put into its graph.

The compiler cannot trace kernels that look at their data. It sees one operator instead, which runs the call as it would
run without the compiler, planned for the shapes and data of each call:

    qkv::attend(tensors, seed, call) -> output, saved numbers of each query
    qkv::attend_backward(gradient, output, numbers, tensors, needed, seed, call) -> the gradients needed

`tensors` are query, key, value and the arrays of the parts; `call` is the name of the rest: the parts without their
arrays, the kernel and the memory. A name is valid only in the process that traced it, so a saved graph does not run in
another. Lengths may be dynamic; if a number of a part changes, the call is compiled again, unless it is in a tensor.
Gradients cannot be differentiated again. The backward operators of the tiled and the fused kernel continue from the
saved numbers (`saved.py`); those of other kernels, and in half precision, first run forward once more.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from qkv.core.arrays import result_dtype
from qkv.core.axes import Axes
from qkv.core.parts import Part
from qkv.core.typing import Tensor
from qkv.errors import GradientError, RefusedError
from qkv.kernels.compiled.saved import COLUMNS, SavedNumbers, saving
from qkv.normalizers import NORMALIZERS, Softmax

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from qkv.plan.cache import SpecFields

__all__ = ["compiled_attend", "operator_arguments", "refuse"]

Run = Callable[..., Any]
Needed = tuple[bool, ...] | None
Structure = str | tuple[Any, ...]
"""How a value is built: "tensor", "constant", ("tuple", …) or ("part", names, …), nested."""


def compiled_attend(
    query: Tensor, key: Tensor, value: Tensor, fields: SpecFields, seed: int | None, run: Run, *more: Hashable
) -> Tensor:
    """Return the output of a call that `torch.compile` is tracing; the arguments are those of `operator_arguments`."""
    import torch

    arguments = operator_arguments(query, key, value, fields, seed, run, *more)  # first: this defines the operator
    output: Tensor = torch.ops.qkv.attend(*arguments)[0]
    return output


def operator_arguments(
    query: Tensor, key: Tensor, value: Tensor, fields: SpecFields, seed: int | None, run: Run, *more: Hashable
) -> tuple[list[Tensor], Tensor | None, str]:
    """Return the arguments of the operator. The compiler traces this function.

    Args:
        query: queries.
        key: keys.
        value: values.
        fields: score, normalizer, mask, positions and dropout.
        seed: a whole number; None: every call draws one, if it draws at all.
        run: runs the call as `run(query, key, value, fields, seed, *more)`.
        more: further arguments of `run`.
    """
    import torch

    if _in_functorch():
        refuse(
            "under torch.compile the transforms of torch.func (vmap, grad, jvp) cannot trace qkv.attend. "
            "Transform outside of torch.compile, or keep both in a function that is not compiled."
        )
    tensors = [query, key, value]
    leaves: list[Any] = []
    structure = _flatten(fields, tensors, leaves)
    needed = tuple([x.requires_grad for x in tensors]) if torch.is_grad_enabled() else None
    name = _register_call(run, more, needed, structure, *leaves)
    if seed is not None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            refuse("seed must be a whole number under torch.compile, got another type. Give an int.")
        return tensors, torch.full((), seed, dtype=torch.int64, device="cpu"), name
    return tensors, torch.randint(2**62, (), device="cpu") if _draws(name) else None, name


def refuse(sentence: str) -> NoReturn:
    """Refuse a call that the compiler is tracing. The compiler runs this function, so that users see its error.

    Raises:
        RefusedError: always.
    """
    raise RefusedError(sentence)


# -- parts as tensors and constants ---------------------------------------------------------------------


def _flatten(value: Any, tensors: list[Tensor], leaves: list[Any]) -> Structure:
    """Append the tensors and constants of a value and return its structure. The compiler traces this function."""
    import torch

    if isinstance(value, (torch.Tensor, np.ndarray)):
        tensors.append(value if isinstance(value, torch.Tensor) else torch.as_tensor(value))
        return "tensor"
    if isinstance(value, tuple):
        return ("tuple", *[_flatten(item, tensors, leaves) for item in value])
    if isinstance(value, Part):
        kind: Any = type(value)
        leaves.append(kind)
        names = tuple(kind.__dataclass_fields__)
        return ("part", names, *[_flatten(getattr(value, name), tensors, leaves) for name in names])
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # The compiler may use a symbol for a number that has changed between calls; the name of a call contains it.
        from torch.fx.experimental.symbolic_shapes import guard_scalar

        value = guard_scalar(value * 1)
    leaves.append(value)
    return "constant"


def _unflatten(structure: Structure, tensors: list[Any], leaves: list[Any]) -> Any:
    """Return the value of a structure; its tensors and constants are removed from the front of the lists."""
    if structure == "tensor":
        return tensors.pop(0)
    if structure == "constant":
        return leaves.pop(0)
    assert not isinstance(structure, str)
    kind, *items = structure
    if kind == "tuple":
        return tuple(_unflatten(item, tensors, leaves) for item in items)
    part = object.__new__(leaves.pop(0))
    names, *items = items
    for name, item in zip(names, items, strict=True):
        object.__setattr__(part, name, _unflatten(item, tensors, leaves))
    return part


# -- names of calls ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Call:
    """Everything of a call but its tensors; `needed`: which of them require a gradient, or None without autograd."""

    run: Run
    more: tuple[Hashable, ...]
    needed: Needed
    structure: Structure
    leaves: tuple[Any, ...]

    def __call__(self, tensors: Sequence[Tensor], seed: Tensor | None) -> Tensor:
        query, key, value, *arrays = tensors
        # The plan cache recognises parts without arrays by their identity.
        fields = _unflatten(self.structure, arrays, list(self.leaves)) if arrays else self._fields_without_arrays
        output = self.run(query, key, value, fields, None if seed is None else int(seed), *self.more)
        return cast("Tensor", output)

    @cached_property
    def _fields_without_arrays(self) -> SpecFields:
        return cast("SpecFields", _unflatten(self.structure, [], list(self.leaves)))


_CALLS: dict[str, _Call] = {}
_NAMES: dict[Hashable, str] = {}


def _register_call(run: Run, more: tuple[Hashable, ...], needed: Needed, structure: Structure, *leaves: Any) -> str:
    """Return the name of a call, the same for equal calls. The compiler runs this function while it traces."""
    _define_operators()
    call = _Call(run, more, needed, structure, leaves)
    key: Hashable = (call, tuple(map(type, leaves)))  # 1, 1.0 and True are equal
    try:
        known = _NAMES.get(key)
    except TypeError:  # a constant cannot be hashed
        key, known = object(), None
    if known is not None:
        return known
    parts = "/".join(x.__name__ for x in leaves if isinstance(x, type) and issubclass(x, Part))
    name = _NAMES[key] = f"{parts}#{len(_CALLS)}"
    _CALLS[name] = call
    return name


def _find_call(name: str) -> _Call:
    if name not in _CALLS:
        raise RefusedError(
            f"a compiled call must run in the process that traced it, got {name} of another process. Compile it in "
            f"this one: a saved graph does not hold the parts."
        )
    return _CALLS[name]


def _draws(name: str) -> bool:
    """Return whether a call draws at random."""
    call = _CALLS[name]
    placeholders = [None] * str(call.structure).count("'tensor'")
    score, normalizer, _, _, dropout = _unflatten(call.structure, placeholders, list(call.leaves))
    if normalizer is None:
        normalizer = NORMALIZERS[score.default_normalizer] if score is not None else Softmax
    return bool(dropout) or bool(normalizer.stochastic)


def _in_functorch() -> bool:
    """Return whether a transform of `torch.func` is active."""
    import torch

    return torch._C._functorch.maybe_current_level() is not None


for _function in (_register_call, _draws, _in_functorch, refuse):
    # What `torch.compiler.assume_constant_result` does, which would import the compiler with qkv.
    vars(_function)["_dynamo_marked_constant"] = True


# -- the operators -------------------------------------------------------------------------------------


@cache
def _define_operators() -> None:
    import torch

    def attend(tensors, seed, call):  # type: ignore[no-untyped-def]
        known = _find_call(call)
        needed = known.needed or (False,) * len(tensors)
        with _with_autograd(), torch.set_grad_enabled(known.needed is not None):
            leaves = [x.detach().requires_grad_(n) for x, n in zip(tensors, needed, strict=True)]
            with saving(SavedNumbers()) as saved:
                output = known(leaves, seed)
            _refuse_closures(output, leaves)
            output = _own(output.detach(), tensors)
            return output, saved.table(output) if any(needed) else output.new_empty(0)

    def attend_backward(gradient, output, numbers, tensors, needed, seed, call):  # type: ignore[no-untyped-def]
        with _with_autograd(), torch.enable_grad(), saving(SavedNumbers((output, numbers))):
            leaves = [x.detach().requires_grad_(n) for x, n in zip(tensors, needed, strict=True)]
            again = _find_call(call)(leaves, seed)
            inputs = [x for x in leaves if x.requires_grad]
            if not again.requires_grad:
                return [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in inputs]
            results = torch.autograd.grad(again, inputs, gradient, allow_unused=True, materialize_grads=True)
            others = [gradient, output, numbers, *tensors]
            return [_own(x, [*others, *results[:n]]) for n, x in enumerate(results)]

    def fake(tensors, seed, call):  # type: ignore[no-untyped-def]
        query, key, value = tensors[:3]
        shape: Any = query.shape, key.shape, value.shape
        if all(isinstance(n, int) for one in shape for n in one):
            shape = Axes.of(shape[0], shape[1], shape[2]).output
        else:  # some lengths are symbols
            broadcast: Any = torch.broadcast_shapes
            shape = (*broadcast(*(one[:-2] for one in shape)), query.shape[-2], value.shape[-1])
        output = value.new_empty(shape, dtype=result_dtype(query, key, value))
        saves = any(_find_call(call).needed or ())
        return output, output.new_empty((*shape[:-1], COLUMNS) if saves else (0,))

    def fake_backward(gradient, output, numbers, tensors, needed, seed, call):  # type: ignore[no-untyped-def]
        return [x.new_empty(x.shape) for x, n in zip(tensors, needed, strict=True) if n]

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
        "qkv::attend",
        attend,
        mutates_args=(),
        schema="(Tensor[] tensors, Tensor? seed, str call) -> (Tensor, Tensor)",
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


def _refuse_closures(output: Tensor, leaves: Sequence[Tensor]) -> None:
    """Raise a `GradientError` if the graph of the output leads to a tensor that is not one of the leaves."""
    known, visited = {id(x) for x in leaves}, set()
    stack = [output.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if id(getattr(node, "variable", leaves[0])) not in known:
            raise GradientError(
                "a part of a compiled call must hold its parameters, got one that closes over a tensor that requires a "
                "gradient, which it would not receive. Use Custom(function, parameters=(…,)), which calls "
                "function(query, key, *parameters); in a part of your own make it a field."
            )
        stack.extend(before for before, _ in node.next_functions)


def _with_autograd() -> AbstractContextManager[object]:
    """Return a context in which PyTorch records a graph, as it does outside of an operator."""
    import torch

    inner: Any = torch._C
    excluded = inner._dispatch_tls_local_exclude_set()
    for name in ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor"):
        excluded = excluded.remove(getattr(inner.DispatchKey, name))
    guard = inner._ForceDispatchKeyGuard(inner._dispatch_tls_local_include_set(), excluded)
    return cast("AbstractContextManager[object]", guard)


def _own(x: Tensor, others: Sequence[Tensor]) -> Tensor:
    """Return `x` contiguous, as `fake` promises, and in memory that no other tensor uses."""
    x = x.contiguous()
    storage = x.untyped_storage().data_ptr()
    return x.clone() if any(storage == y.untyped_storage().data_ptr() for y in others) else x
