"""Calls under transforms of `torch.func`: the axes that `vmap` maps become batch axes of one call.

    query (size, *batch, q, width)       key (*batch, k, width)       a mask's lengths (size,)  ->  (size, 1 … 1)

Arrays without the mapped axis get an axis of length 1, which broadcasts without copies. Elements are computed one after
the other where one call cannot compute them all: where `vmap` maps an array that a part does not declare with
`array_field`, such as a parameter of a user's function, and where all elements use the same random numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import torch

from qkv.core.arrays import is_array, is_tensor, namespace, result_dtype
from qkv.core.axes import Axes
from qkv.core.formatting import memory_text
from qkv.core.map_batch import map_batch
from qkv.core.parts import Part
from qkv.core.threefry import Seed
from qkv.core.typing import Array, Num, Shaped, Tensor
from qkv.errors import OptionError, RefusedError
from qkv.kernels.dense.kernel import DenseKernel
from qkv.kernels.linear.kernel import LinearKernel
from qkv.normalizers import NORMALIZERS, Softmax
from qkv.plan.budget import budget_bytes
from qkv.plan.cache import SpecFields
from qkv.plan.checks import check_problem
from qkv.plan.devices import device_of
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.plan import Plan
from qkv.plan.problem import Problem
from qkv.plan.spec import Spec
from qkv.readouts import Readout
from qkv.readouts.base import flatten, unflatten
from qkv.torch_bridge.closures import has_tangent, refers_to_transformed

if TYPE_CHECKING:
    from torch._functorch.pyfunctorch import VmapInterpreter

    from qkv.core.autograd_function import Context


if TYPE_CHECKING:

    class _Context(Context):
        function: TensorFunction
        differentiable: tuple[bool, ...]


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
        mapped_or_needed = tuple(has or needed for has, needed in zip(mapped[:count], self.needed, strict=True))
        function, required = self.function.batched(size, mapped_or_needed, randomness)
        gradient = _Gradient(function, self.needed, self.differentiable)
        return gradient, (*required, *(True for _ in mapped[count:]))


def _select(tensors: Sequence[Shaped[Tensor, "*_"]], flags: Sequence[bool]) -> list[Shaped[Tensor, "*_"]]:
    return [x for x, flag in zip(tensors, flags, strict=True) if flag]


_Run = Callable[..., tuple[Result, Plan | None]]
T = TypeVar("T")


def run_transformed(
    run: _Run,
    query: Num[Tensor, "*#batch q query_width"],
    key: Num[Tensor, "*#batch k key_width"],
    value: Num[Tensor, "*#batch k value_width"],
    fields: SpecFields,
    readouts: tuple[Readout, ...],
    seed: Seed | None,
    kernel: str | Kernel | None,
    memory: int | str | None,
) -> tuple[Result, Plan | None] | None:
    """Run a call under transforms of `torch.func`, and return its result and plan.

    Return None if no transform is active that this module supports, or if a part of the call refers to a transformed
    tensor that is not one of its arrays; then only a kernel that can be traced can run the call.

    Args:
        run: function that runs a call on ordinary tensors, with the further arguments.
        query: queries.
        key: keys.
        value: values.
        fields: score, normalizer, mask, positions and dropout.
        readouts: readouts of the weights.
        seed: seed of random numbers.
        kernel: kernel named in the call.
        memory: memory limit.

    Raises:
        RefusedError: forward-mode differentiation needs more memory than `memory`.
        OptionError: the call uses random numbers without a seed within `vmap(randomness="error")`, or the seed differs
            between the elements that `vmap` maps.
    """
    functorch = torch._C._functorch
    levels = functorch.get_interpreter_stack() or ()
    if not levels or any(level.key() == functorch.TransformType.Functionalize for level in levels):
        return None
    parts = (*fields[:4], *readouts)
    if not all(part is None or isinstance(part, Part) for part in parts):
        return None  # the caller reports the error
    if refers_to_transformed(query, key, fields[:4]):
        return None
    if any(level.key() == functorch.TransformType.Jvp for level in levels):
        _check_forward_mode(query, key, value, fields, memory, [level.batch_size() for level in _vmap_levels()])
    seed, drawn = _read_seed(fields, seed)
    shapes = Axes.of(query.shape, key.shape, value.shape)
    markers = _mapped_markers() if drawn else []
    results: list[tuple[Result, Plan | None]] = []
    options = (run, seed, kernel, memory)
    tensors, axes = [query, key, value], [2, 2, 2]
    for array, names in _arrays(parts):
        if is_tensor(array):
            tensors.append(array)
            axes.append(-1 if names is None else len(names))
    call = _TransformedCall(options, fields, readouts, len(shapes.batch), tuple(axes), seed is not None, drawn, results)
    output, *arrays = apply_function(call, *tensors, *markers)
    result, plan = results[-1]
    read = []
    for each in result.readouts:
        count = len(flatten(each))
        read.append(unflatten(tuple(arrays[:count]), each))
        arrays = arrays[count:]
    return Result(output, tuple(read), result.guards), plan


@dataclass(frozen=True)
class _Level:
    """One mapped axis.

    Attributes:
        size: length of the axis.
        mapped: for each tensor of the call, whether it has the axis.
        loop: whether the elements are computed one after the other.
    """

    size: int
    mapped: tuple[bool, ...]
    loop: bool


@dataclass(frozen=True, eq=False)
class _TransformedCall:
    """A call as a function of its tensors: query, key, value, and the tensors of its parts.

    Further tensors are ignored, except that `vmap` may map them.

    Attributes:
        options: function that runs the call, seed, kernel and memory limit.
        fields: score, normalizer, mask, positions and dropout.
        readouts: readouts of the weights.
        batch_axes: number of batch axes of the call, without mapped axes.
        axes: for each tensor, the number of axes after its batch axes, or −1 if the part does not declare them.
        random: whether the call uses a seed.
        drawn: whether the seed was drawn from PyTorch's generator.
        results: list to which the result and the plan of each call are appended.
        levels: mapped axes, the outermost first; these are the first axes of the tensors that have them.
    """

    options: tuple[_Run, Seed | None, str | Kernel | None, int | str | None]
    fields: SpecFields
    readouts: tuple[Readout, ...]
    batch_axes: int
    axes: tuple[int, ...]
    random: bool
    drawn: bool
    results: list[tuple[Result, Plan | None]] = field(repr=False)
    levels: tuple[_Level, ...] = ()

    def batched(
        self, size: int, mapped: tuple[bool, ...], randomness: str
    ) -> tuple[_TransformedCall, tuple[bool, ...]]:
        """Return the call with a further mapped axis."""
        undeclared = any(has and axes < 0 for has, axes in zip(mapped, self.axes, strict=False))
        same = self.random and not (self.drawn and randomness == "different")
        level = _Level(size, mapped, undeclared or same)
        return dataclasses.replace(self, levels=(level, *self.levels)), mapped

    def __call__(self, *tensors: Shaped[Tensor, "*_"]) -> tuple[Shaped[Tensor, "*_"], ...]:
        """Return the output and the arrays of the readouts, with all mapped axes first."""
        at = next((n for n, level in enumerate(self.levels) if level.loop), None)
        if at is None:
            return self._run(list(tensors))
        level = self.levels[at]
        rest = dataclasses.replace(self, levels=(*self.levels[:at], *self.levels[at + 1 :]))
        elements = []
        for n in range(level.size):
            selected = [
                x.select(sum(each.mapped[i] for each in self.levels[:at]), n) if level.mapped[i] else x
                for i, x in enumerate(tensors)
            ]
            elements.append(rest(*selected))
        return tuple(torch.stack(each, dim=at) for each in zip(*elements, strict=True))

    def _run(self, tensors: list[Shaped[Tensor, "*_"]]) -> tuple[Shaped[Tensor, "*_"], ...]:
        run, seed, kernel, memory = self.options
        sides = [self._aligned(x, 2, n, shared=False) for n, x in enumerate(tensors[:3])]
        for at, level in enumerate(self.levels):
            if not any(level.mapped[:3]):
                # No side of the call has the axis, so the queries get it.
                query = self._aligned(tensors[0], 2, 0, shared=True) if sides[0] is tensors[0] else sides[0]
                sides[0] = query.expand(*query.shape[:at], level.size, *query.shape[at + 1 :])
        score, normalizer, mask, positions, dropout = self.fields
        parts = self._parts((score, normalizer, mask, positions, *self.readouts), tensors[3:])
        fields = cast("SpecFields", (*parts[:4], dropout))
        result, plan = run(*sides, fields, parts[4:], seed, kernel, memory)
        self.results.append((result, plan))
        arrays = (array for each in result.readouts for array in flatten(each))
        return cast("tuple[Tensor, ...]", (result.output, *arrays))

    def _parts(self, parts: tuple[Part | None, ...], tensors: list[Shaped[Tensor, "*_"]]) -> tuple[Part | None, ...]:
        """Return the parts with `tensors` in place of their tensors, and with the batch axes of the whole call."""
        count, flags, replaced = 0, {}, []
        for part in parts:
            arrays = [] if part is None else list(part.arrays())
            for n, array in enumerate(arrays):
                # A new object for each array, because one array may stand in several fields.
                arrays[n] = tensors[count][...] if is_tensor(array) else array[...]
                if is_tensor(array):
                    flags[id(arrays[n])] = count + 3
                    count += 1
            replaced.append(part.replace_arrays(arrays) if part is not None and arrays else part)

        def align(array: Array, own_axes: int) -> Array:
            return self._aligned(array, array.ndim - own_axes, flags.get(id(array)), shared=False)

        return tuple(map_batch(part, align) for part in replaced)

    def _aligned(self, x: T, core: int, at: int | None, shared: bool) -> T:
        """Return an array with all batch axes of the call, or unchanged if it has no batch axes.

        Args:
            x: an array, whose first axes are the mapped axes that it has.
            core: number of axes after the batch axes.
            at: index of the array among the tensors of the call; None for an array of another library.
            shared: whether arrays without batch axes get them, too.
        """
        array = cast("Array", x)
        shape = tuple(array.shape)
        mapped = [at is not None and level.mapped[at] for level in self.levels]
        own = len(shape) - sum(mapped) - core
        if not self.levels or (not any(mapped) and own == 0 and not shared):
            return x
        lengths = iter(shape)
        lead = [next(lengths) if has else 1 for has in mapped]
        target = (*lead, *(1 for _ in range(self.batch_axes - own)), *lengths)
        return cast(T, namespace(array).reshape(array, target))


def _arrays(parts: tuple[Part | None, ...]) -> Iterator[tuple[Shaped[Array, "*_"], tuple[str, ...] | None]]:
    for part in parts:
        if part is not None:
            yield from part.array_fields()


def _read_seed(fields: SpecFields, seed: Seed | None) -> tuple[Seed | None, bool]:
    """Return the seed of a call, None if it uses no random numbers, and whether it was drawn here."""
    score, normalizer, _, _, dropout = fields
    default = NORMALIZERS[score.default_normalizer] if score is not None else Softmax
    if not (dropout or (default if normalizer is None else normalizer).stochastic):
        return seed, False
    if seed is not None:
        if is_array(seed) and is_tensor(seed):
            if torch._C._functorch.is_batchedtensor(seed):
                raise OptionError(
                    "seed must be one integer for all elements that vmap maps, got a mapped tensor. For random numbers "
                    'that differ between the elements, pass seed=None, and randomness="different" to vmap.'
                )
            seed = int(torch._C._functorch._unwrap_for_grad(seed, torch._C._functorch.maybe_current_level() or 0))
        return seed, False
    if any(level.randomness() == "error" for level in _vmap_levels()):
        raise OptionError(
            'seed must be given within torch.func.vmap(randomness="error"), which is the default, got None. Pass an '
            'integer, such as seed=0, or pass randomness="same" or randomness="different" to vmap.'
        )
    with torch._C._DisableFuncTorch():
        return int(torch.randint(2**62, ())), True


def _vmap_levels() -> list[VmapInterpreter]:
    from torch._functorch.pyfunctorch import VmapInterpreter, retrieve_all_functorch_interpreters

    return [level for level in retrieve_all_functorch_interpreters() if isinstance(level, VmapInterpreter)]


def _mapped_markers() -> list[Shaped[Tensor, "*_"]]:
    """Return a mapped tensor for each level of `vmap` whose elements use different random numbers.

    With it among the arguments, the level is mapped even if it maps no other argument.
    """
    with torch._C._DisableFuncTorch():
        pairs = [(torch.zeros(x.batch_size()), x.level()) for x in _vmap_levels() if x.randomness() == "different"]
        return [torch._C._functorch._add_batch_dim(x, 0, level) for x, level in pairs]


def _check_forward_mode(
    query: Num[Tensor, "*#batch q query_width"],
    key: Num[Tensor, "*#batch k key_width"],
    value: Num[Tensor, "*#batch k value_width"],
    fields: SpecFields,
    memory: int | str | None,
    mapped: Sequence[int],
) -> None:
    """Refuse forward-mode differentiation, which keeps the graph of a gradient of all pairs, beyond the memory budget.

    Measured peaks are 14 to 28 arrays of pairs, and for scores of pairs of features up to 2 more for each feature.

    Args:
        query: queries.
        key: keys.
        value: values.
        fields: score, normalizer, mask, positions and dropout.
        memory: as in `qkv.attend`.
        mapped: lengths of the axes that `vmap` maps.

    Raises:
        RefusedError: the memory budget is too small.
    """
    batch = Axes.of(query.shape, key.shape, value.shape).batch
    lead = (*mapped, *batch)
    axes = Axes.of((*lead, *query.shape[-2:]), tuple(key.shape), tuple(value.shape))
    device, dtype = device_of(value), str(result_dtype(query, key, value)).removeprefix("torch.")
    problem = Problem(Spec(*fields), axes, "torch", dtype, True, (), budget_bytes(memory, device), device=device)
    check_problem(problem)
    if LinearKernel().refuse(problem) is None:
        return
    arrays = 4 + (2 * problem.elements_per_logit if problem.elements_per_logit > 1 else 0)
    needed = 3.5 * DenseKernel().scratch(problem) + arrays * axes.pairs * problem.itemsize
    if needed > problem.memory:
        raise RefusedError(
            f"memory must be at least {memory_text(needed)} for torch.func.jvp and jacfwd of {axes.q} queries and "
            f"{axes.k} keys, because forward-mode differentiation keeps all pairs, got {memory_text(problem.memory)}. "
            "Increase memory, or use torch.func.vjp or jacrev, whose memory is linear."
        )
