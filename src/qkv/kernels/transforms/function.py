"""Functions of tensors that `torch.func.vmap`, `grad`, `vjp` and `jvp` transform as a whole, without looking inside.

A transform replaces the tensors of a function by wrappers, which kernels can neither read nor differentiate. Here the
transforms see one autograd function whose rules call the function on ordinary tensors:

    vmap       f.batched(…), which maps over the first axis of its tensors, one level of transforms below
    backward   `_Gradient(f)`, a function of the same kind, which computes gradients by PyTorch's autograd
    jvp        the derivative of `_Gradient(f)` in the direction of the gradients of the outputs, because

                   J t = d/dg <Jᵀ g, t>

Every transform of every order therefore ends in calls with ordinary tensors, which any kernel can run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol, cast

from qkv.core.typing import Shaped, Tensor
from qkv.kernels.transforms.closures import has_tangent

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.autograd.function import FunctionCtx

    class _Context(FunctionCtx):
        function: TensorFunction
        saved_tensors: tuple[Tensor, ...]
        needs_input_grad: tuple[bool, ...]
        differentiable: tuple[bool, ...]


__all__ = ["TensorFunction", "apply_function"]


class TensorFunction(Protocol):
    """Function of tensors that returns tensors, and that can be mapped over an axis of some of its arguments."""

    def __call__(self, *tensors: Shaped[Tensor, "*_"]) -> tuple[Shaped[Tensor, "*_"], ...]:
        """Return the outputs of the function, computed from ordinary tensors."""

    def batched(self, size: int, mapped: tuple[bool, ...], randomness: str) -> tuple[TensorFunction, tuple[bool, ...]]:
        """Return the function that maps this one over the first axis of some of its arguments.

        Args:
            size: length of the axis.
            mapped: for each argument, whether it has the axis.
            randomness: "same" or "different": whether the random numbers of the elements are the same; "error": as
                "same", and random numbers without a seed are an error.

        Returns:
            The mapped function, all of whose outputs have the axis; and for each argument, whether it must have the
            axis, which is true at least for those that have it.
        """


def apply_function(function: TensorFunction, *tensors: Shaped[Tensor, "*_"]) -> tuple[Shaped[Tensor, "*_"], ...]:
    """Return `function(*tensors)`, under any transforms of `torch.func` that are active."""
    import torch
    from torch._functorch.utils import unwrap_dead_wrappers

    # Tensors saved for backward may be wrappers of a transform that has ended.
    tensors = unwrap_dead_wrappers(tensors)
    if torch._C._functorch.maybe_current_level() is None:
        moved = any(map(has_tangent, tensors))
        with _saved_tensor_hooks(), torch.autograd.forward_ad._set_fwd_grad_enabled(moved):
            return function(*tensors)
    outputs: tuple[Tensor, ...] = _autograd_function().apply(function, *tensors)
    return outputs


@contextmanager
def _saved_tensor_hooks() -> Iterator[None]:
    """Enable hooks on saved tensors, which `torch.func.grad` disables, but which activation checkpointing needs."""
    import torch

    hooks = torch._C._autograd
    message = hooks._saved_tensors_hooks_get_disabled_error_message()
    if message is not None:
        hooks._saved_tensors_hooks_enable()
    try:
        yield
    finally:
        if message is not None:
            hooks._saved_tensors_hooks_disable(message)


@cache
def _autograd_function() -> type[_Applicable]:
    import torch

    methods: dict[str, object] = {
        "forward": staticmethod(_forward),
        "setup_context": staticmethod(_setup_context),
        "backward": staticmethod(_backward),
        "jvp": staticmethod(_jvp),
        "vmap": staticmethod(_vmap),
    }
    return cast("type[_Applicable]", type("TransformedCall", (torch.autograd.Function,), methods))


class _Applicable(Protocol):
    apply: Callable[..., tuple[Tensor, ...]]


def _forward(function: TensorFunction, *tensors: Shaped[Tensor, "*_"]) -> tuple[Shaped[Tensor, "*_"], ...]:
    with _saved_tensor_hooks():
        outputs = function(*tensors)
    # An autograd function must not return one of its inputs.
    return tuple(x.view_as(x) if any(x is y for y in tensors) else x for x in outputs)


def _setup_context(
    ctx: _Context, inputs: tuple[TensorFunction, *tuple[Tensor, ...]], outputs: tuple[Tensor, ...]
) -> None:
    function, *tensors = inputs
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
    ctx.function = function
    ctx.differentiable = tuple(x.is_floating_point() for x in outputs)
    ctx.mark_non_differentiable(*(x for x in outputs if not x.is_floating_point()))


def _backward(ctx: _Context, *gradients: Shaped[Tensor, "*_"]) -> tuple[Shaped[Tensor, "*_"] | None, ...]:
    needed = tuple(ctx.needs_input_grad[1:])
    function = _Gradient(ctx.function, needed, ctx.differentiable)
    given = [g for g, used in zip(gradients, ctx.differentiable, strict=True) if used]
    found = iter(apply_function(function, *ctx.saved_tensors, *given))
    return (None, *(next(found) if n else None for n in needed))


def _jvp(ctx: _Context, *tangents: Shaped[Tensor, "*_"] | None) -> tuple[Shaped[Tensor, "*_"] | None, ...]:
    import torch

    tensors = ctx.saved_tensors
    given = tangents[1:]
    moved = tuple(t is not None and x.is_floating_point() for t, x in zip(given, tensors, strict=True))
    gradient = _Gradient(ctx.function, moved, ctx.differentiable)
    # The gradient is linear in its last arguments, so that its derivative may be taken at 0.
    primals = apply_function(ctx.function, *tensors)
    zeros = [torch.zeros_like(x) for x, used in zip(primals, ctx.differentiable, strict=True) if used]
    twice = _Gradient(gradient, (False,) * len(tensors) + (True,) * len(zeros), (True,) * sum(moved))
    directions = [cast("Tensor", t) for t, n in zip(given, moved, strict=True) if n]
    found = iter(apply_function(twice, *tensors, *zeros, *directions))
    return tuple(next(found) if used else None for used in ctx.differentiable)


def _vmap(
    info: _VmapInfo, dims: tuple[int | None, ...], function: TensorFunction, *tensors: Shaped[Tensor, "*_"]
) -> tuple[tuple[Shaped[Tensor, "*_"], ...], tuple[int, ...]]:
    size, own = info.batch_size, dims[1:]
    mapped = tuple(dim is not None for dim in own)
    batched, required = function.batched(size, mapped, info.randomness)
    moved: list[Tensor] = []
    for x, dim, needed in zip(tensors, own, required, strict=True):
        if dim is not None:
            moved.append(x.movedim(dim, 0))
        else:
            moved.append(x.expand(size, *x.shape) if needed else x)
    outputs = apply_function(batched, *moved)
    return outputs, (0,) * len(outputs)


class _VmapInfo(Protocol):
    batch_size: int
    randomness: str


@dataclass(frozen=True, eq=False)
class _Gradient:
    """Function that returns gradients of another function.

    Its arguments are those of the other function, and a gradient for each differentiable output.

    Attributes:
        function: the function that is differentiated.
        needed: for each argument of the function, whether its gradient is returned.
        differentiable: for each output of the function, whether it is differentiable.
    """

    function: TensorFunction
    needed: tuple[bool, ...]
    differentiable: tuple[bool, ...]

    def __call__(self, *tensors: Shaped[Tensor, "*_"]) -> tuple[Shaped[Tensor, "*_"], ...]:
        """Return the gradients that `needed` selects, which are themselves differentiable if autograd is enabled."""
        import torch

        primals, gradients = tensors[: len(self.needed)], tensors[len(self.needed) :]
        twice = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
        with torch.enable_grad():
            leaves = [self._leaf(x, n, twice) for x, n in zip(primals, self.needed, strict=True)]
            outputs = self.function(*leaves)
            inputs = [x for x, n in zip(leaves, self.needed, strict=True) if n]
            pairs = [
                (x, g) for x, g in zip(_select(outputs, self.differentiable), gradients, strict=True) if x.requires_grad
            ]
            if not (pairs and inputs):
                return tuple(torch.zeros_like(x) for x in inputs)
            targets, weights = zip(*pairs, strict=True)
            return torch.autograd.grad(
                targets, inputs, weights, create_graph=twice, allow_unused=True, materialize_grads=True
            )

    @staticmethod
    def _leaf(x: Shaped[Tensor, "*shape"], needed: bool, twice: bool) -> Shaped[Tensor, "*shape"]:
        if twice and x.requires_grad:
            return x.view_as(x)
        return x.detach().requires_grad_(needed)

    def batched(self, size: int, mapped: tuple[bool, ...], randomness: str) -> tuple[_Gradient, tuple[bool, ...]]:
        """Return the function that maps this one. Arguments whose gradients are returned get the axis, too."""
        count = len(self.needed)
        wanted = tuple(has or needed for has, needed in zip(mapped[:count], self.needed, strict=True))
        function, required = self.function.batched(size, wanted, randomness)
        gradient = _Gradient(function, self.needed, self.differentiable)
        return gradient, (*required, *(True for _ in mapped[count:]))


def _select(tensors: Sequence[Shaped[Tensor, "*_"]], flags: Sequence[bool]) -> list[Shaped[Tensor, "*_"]]:
    return [x for x, flag in zip(tensors, flags, strict=True) if flag]
