"""One operator of PyTorch for a whole call, so that `torch.compile` has something to put into its graph.

The compiler cannot look into kernels that look at their data. It sees one operator instead, which runs the
call as it would run without the compiler, planned for the shapes and data that it meets:

    qkv::attend(tensors, seed, call) -> output, a few numbers of each query
    qkv::attend_backward(gradient, output, numbers, tensors, wanted, seed, call) -> the gradients wanted

`tensors` are query, key, value and the arrays of the parts; `call` names the rest: the parts without their
arrays, the kernel that must run it, the memory allowed. A name means something only in the process that
traced it, so a saved graph does not run in another. Lengths may be dynamic; a number of a part that changes
is compiled for anew, one in a tensor is not. Gradients cannot be differentiated again. The backward pass of
the tiled and the fused kernel goes on from the numbers (`compiled/kept.py`); of other kernels, and in half
precision, it first runs forward once more.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from qkv.core.arrays import result_dtype
from qkv.core.axes import Axes
from qkv.core.parts import Part
from qkv.core.typing import Tensor
from qkv.errors import GradientError, RefusedError
from qkv.kernels.compiled.saved import COLUMNS, SavedNumbers, saving
from qkv.normalizers import NORMALIZERS, Softmax

__all__ = ["compiled_attend", "operands", "refuse"]

Asked = tuple[Any, ...]
Run = Callable[..., Tensor]
Wanted = tuple[bool, ...] | None


def compiled_attend(query: Tensor, key: Tensor, value: Tensor, asked: Asked, seed: Any, run: Run, *more: Any) -> Tensor:
    """The output of a call that `torch.compile` is tracing; arguments as in `operands`."""
    import torch

    given = operands(query, key, value, asked, seed, run, *more)  # first: this makes the operator
    return torch.ops.qkv.attend(*given)[0]


def operands(
    query: Tensor, key: Tensor, value: Tensor, asked: Asked, seed: Any, run: Run, *more: Any
) -> tuple[list[Tensor], Tensor | None, str]:
    """What the operator is called with. The compiler traces this.

    Args:
        query, key, value: the arrays.
        asked: score, normalizer, mask, positions, dropout.
        seed: a whole number; None: every call draws one, where it draws at all.
        run: what runs the call, `run(query, key, value, asked, seed, *more)`.
        more: handed to `run`.
    """
    import torch

    if _transformed():
        refuse(
            "under torch.compile the transforms of torch.func (vmap, grad, jvp) cannot look into qkv.attend. "
            "Transform outside of torch.compile, or keep both in a function that is not compiled."
        )
    tensors = [query, key, value]
    leaves: list[Any] = []
    form = _apart(asked, tensors, leaves)
    wanted = tuple([x.requires_grad for x in tensors]) if torch.is_grad_enabled() else None
    call = _named(run, more, wanted, form, *leaves)
    if seed is not None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            refuse("the seed of a call under torch.compile must be a whole number (an int of Python).")
        return tensors, torch.full((), seed, dtype=torch.int64, device="cpu"), call
    return tensors, torch.randint(2**62, (), device="cpu") if _draws(call) else None, call


def refuse(sentence: str) -> NoReturn:
    """Refuse a call that the compiler is tracing. It runs this, so that its error is what a user sees.

    Raises:
        RefusedError: always.
    """
    raise RefusedError(sentence)


# -- parts, taken apart and put together ---------------------------------------------------------------


def _apart(value: Any, tensors: list[Tensor], leaves: list[Any]) -> Any:
    """How a value is built from tensors and constants, which are appended. The compiler traces this."""
    import torch

    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return "tensor"
    if isinstance(value, np.ndarray):
        tensors.append(torch.as_tensor(value))
        return "tensor"
    if isinstance(value, tuple):
        return ("tuple", *[_apart(item, tensors, leaves) for item in value])
    if isinstance(value, Part):
        kind: Any = type(value)
        leaves.append(kind)
        names = tuple(kind.__dataclass_fields__)
        return ("part", names, *[_apart(getattr(value, name), tensors, leaves) for name in names])
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # The compiler may hold a symbol for a number that has changed between calls; a call is named with it.
        from torch.fx.experimental.symbolic_shapes import guard_scalar

        value = guard_scalar(value * 1)
    leaves.append(value)
    return "constant"


def _together(form: Any, tensors: list[Tensor], leaves: list[Any]) -> Any:
    """The value again; takes what it needs from the front of the lists."""
    if form == "tensor":
        return tensors.pop(0)
    if form == "constant":
        return leaves.pop(0)
    kind, *items = form
    if kind == "tuple":
        return tuple(_together(item, tensors, leaves) for item in items)
    part = object.__new__(leaves.pop(0))
    names, *items = items
    for name, item in zip(names, items, strict=True):
        object.__setattr__(part, name, _together(item, tensors, leaves))
    return part


# -- names of calls ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Call:
    """All of a call but its tensors; `wanted`: of which of them gradients may be; None: autograd is off."""

    run: Run
    more: tuple[Any, ...]
    wanted: Wanted
    form: Any
    leaves: tuple[Any, ...]

    def __call__(self, tensors: Sequence[Tensor], seed: Tensor | None) -> Tensor:
        """Run it."""
        query, key, value, *arrays = tensors
        # The same parts again find the plan again that was kept for them.
        asked = _together(self.form, arrays, list(self.leaves)) if arrays else self._bare
        return self.run(query, key, value, asked, None if seed is None else int(seed), *self.more)

    @cached_property
    def _bare(self) -> Asked:
        """What is asked, where it holds no arrays."""
        asked: Asked = _together(self.form, [], list(self.leaves))
        return asked

    def draws(self) -> bool:
        """Whether the call wants a seed."""
        holes = [None] * str(self.form).count("'tensor'")
        score, normalizer, _, _, dropout = _together(self.form, holes, list(self.leaves))
        if normalizer is None:
            normalizer = NORMALIZERS[score.default_normalizer] if score is not None else Softmax
        return bool(dropout) or bool(normalizer.stochastic)


_CALLS: dict[str, _Call] = {}
_NAMES: dict[Hashable, str] = {}


def _named(run: Run, more: tuple[Any, ...], wanted: Wanted, form: Any, *leaves: Any) -> str:
    """The name of a call; the same for equal calls. The compiler runs this while it traces."""
    _register()
    call = _Call(run, more, wanted, form, leaves)
    key: Hashable = (call, tuple(map(type, leaves)))  # 1, 1.0 and True are equal
    try:
        known = _NAMES.get(key)
    except TypeError:  # something in it cannot be hashed
        key, known = object(), None
    if known is not None:
        return known
    parts = "/".join(x.__name__ for x in leaves if isinstance(x, type) and issubclass(x, Part))
    name = _NAMES[key] = f"{parts}#{len(_CALLS)}"
    _CALLS[name] = call
    return name


def _draws(name: str) -> bool:
    """Whether the call of this name draws at random."""
    return _CALLS[name].draws()


def _transformed() -> bool:
    """Whether a transform of `torch.func` is at work."""
    import torch

    return torch._C._functorch.maybe_current_level() is not None


for _function in (_named, _draws, _transformed, refuse):
    # What `torch.compiler.assume_constant_result` does, which would import the compiler with qkv.
    vars(_function)["_dynamo_marked_constant"] = True


# -- the operators -------------------------------------------------------------------------------------

_REGISTERED: list[Any] = []


def _register() -> None:
    """Make the operators, once."""
    if _REGISTERED:
        return
    import torch

    def attend(tensors, seed, call):  # type: ignore[no-untyped-def]
        known = _found(call)
        wanted = known.wanted or (False,) * len(tensors)
        with _outside(), torch.set_grad_enabled(known.wanted is not None):
            leaves = [x.detach().requires_grad_(w) for x, w in zip(tensors, wanted, strict=True)]
            with saving(SavedNumbers()) as kept:
                output = known(leaves, seed)
            _refuse_hidden(output, leaves)
            output = _own(output.detach(), tensors)
            return output, kept.table(output) if any(wanted) else output.new_empty(0)

    def attend_backward(gradient, output, numbers, tensors, wanted, seed, call):  # type: ignore[no-untyped-def]
        with _outside(), torch.enable_grad(), saving(SavedNumbers((output, numbers))):
            leaves = [x.detach().requires_grad_(w) for x, w in zip(tensors, wanted, strict=True)]
            again = _found(call)(leaves, seed)
            of = [x for x in leaves if x.requires_grad]
            if not again.requires_grad:
                return [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in of]
            found = torch.autograd.grad(again, of, gradient, allow_unused=True, materialize_grads=True)
            others = [gradient, output, numbers, *tensors]
            return [_own(x, [*others, *found[:n]]) for n, x in enumerate(found)]

    def fake(tensors, seed, call):  # type: ignore[no-untyped-def]
        query, key, value = tensors[:3]
        shape: Any = query.shape, key.shape, value.shape
        if all(isinstance(n, int) for one in shape for n in one):
            shape = Axes.of(shape[0], shape[1], shape[2]).output
        else:  # lengths that are not known yet
            broadcast: Any = torch.broadcast_shapes
            shape = (*broadcast(*(one[:-2] for one in shape)), query.shape[-2], value.shape[-1])
        output = value.new_empty(shape, dtype=result_dtype(query, key, value))
        keeps = any(_found(call).wanted or ())
        return output, output.new_empty((*shape[:-1], COLUMNS) if keeps else (0,))

    def fake_backward(gradient, output, numbers, tensors, wanted, seed, call):  # type: ignore[no-untyped-def]
        return [x.new_empty(x.shape) for x, w in zip(tensors, wanted, strict=True) if w]

    def keep(ctx, inputs, output):  # type: ignore[no-untyped-def]
        tensors, seed, call = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output, *tensors)
        ctx.seed, ctx.call = seed, call

    def back(ctx, gradient, _):  # type: ignore[no-untyped-def]
        output, numbers, *tensors = ctx.saved_tensors
        wanted = [bool(w) for w in ctx.needs_input_grad[0]]
        given = gradient, output, numbers, tensors, wanted, ctx.seed, ctx.call
        found = iter(torch.ops.qkv.attend_backward(*given))
        return [next(found) if w else None for w in wanted], None, None

    forward = torch.library.custom_op(
        "qkv::attend",
        attend,
        mutates_args=(),
        schema="(Tensor[] tensors, Tensor? seed, str call) -> (Tensor, Tensor)",
    )
    forward.register_fake(fake)
    forward.register_autograd(back, setup_context=keep)
    backward = torch.library.custom_op(
        "qkv::attend_backward",
        attend_backward,
        mutates_args=(),
        schema="(Tensor gradient, Tensor output, Tensor numbers, Tensor[] tensors, bool[] wanted, "
        "Tensor? seed, str call) -> Tensor[]",
    )
    backward.register_fake(fake_backward)
    _REGISTERED.extend((forward, backward))


_CLOSES = (
    "a part of this compiled call closes over something that requires a gradient, which would get none. "
    "Hand it over: Custom(function, parameters=(…,)) calls function(query, key, *parameters); in a part of "
    "your own make it a field."
)


def _refuse_hidden(output: Tensor, leaves: Sequence[Tensor]) -> None:
    """Raise where the graph of the output leads to a tensor that is none of the leaves."""
    known, seen = {id(x) for x in leaves}, set()
    stack = [output.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if id(getattr(node, "variable", leaves[0])) not in known:
            raise GradientError(_CLOSES)
        stack.extend(before for before, _ in node.next_functions)


def _found(name: str) -> _Call:
    if name not in _CALLS:
        raise RefusedError(
            f"the compiled call {name} was traced in another process. Compile it in this one: "
            f"a saved graph does not hold the parts."
        )
    return _CALLS[name]


def _outside() -> Any:
    """Operators of PyTorch run as they do outside of an operator: with autograd."""
    import torch

    inner: Any = torch._C
    excluded = inner._dispatch_tls_local_exclude_set()
    for name in ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor"):
        excluded = excluded.remove(getattr(inner.DispatchKey, name))
    return inner._ForceDispatchKeyGuard(inner._dispatch_tls_local_include_set(), excluded)


def _own(x: Tensor, others: Sequence[Tensor]) -> Tensor:
    """Contiguous, as the compiler was told, and in memory that no other tensor has."""
    x = x.contiguous()
    tile = x.untyped_storage().data_ptr()
    return x.clone() if any(tile == y.untyped_storage().data_ptr() for y in others) else x
