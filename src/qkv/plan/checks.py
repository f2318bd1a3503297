"""Functions that construct the problem of a call from its arguments and check its parts, readouts and seed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from qkv.core.arrays import dtype_name, is_array, is_tensor, is_text, library, requires_gradient, result_dtype
from qkv.core.axes import Axes
from qkv.core.checks import describe
from qkv.core.parts import Part
from qkv.core.threefry import Seed
from qkv.core.typing import Array, ArrayLike, Shaped
from qkv.errors import KindError, OptionError, RefusedError
from qkv.plan.budget import budget_bytes
from qkv.plan.devices import device_of
from qkv.plan.problem import Problem
from qkv.plan.spec import Spec
from qkv.readouts import Readout

_NUMBERS = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64|80|96|128)|bfloat16")
"""Names of the dtypes of numbers that can be converted to a floating-point dtype in which sums are accumulated."""


def check_arrays(query: object, key: object, value: object, parts: Iterable[object] = ()) -> None:
    """Check that query, key and value are dense arrays of real numbers or, for query and key, text.

    The arrays of `parts` must be dense arrays of real numbers too, and hold data.

    Raises:
        KindError: an array is sparse, nested, quantized, masked, a matrix, without data, or holds other elements, such
            as dates, complex numbers or 8-bit floating-point numbers.
    """
    for part in parts:
        for array in part.arrays() if isinstance(part, Part) else ():
            _check_array(f"each array of {type(part).__name__}", array)
            if is_tensor(array):
                check_data(f"each array of {type(part).__name__}", array)
    for name, x in (("query", query), ("key", key), ("value", value)):
        if is_array(x):
            _check_array(name, x, text=name != "value" and is_text(x))


def _check_array(name: str, x: ArrayLike, text: bool = False) -> None:
    if is_tensor(x):
        _check_tensor(name, x)
    elif type(x).__name__ == "MaskedArray":
        raise KindError(
            f"{name} must be an array without a mask of its own, got a MaskedArray. Pass its data, and its mask as "
            "masks.AllowedKeys or masks.AllowedPairs."
        )
    elif type(x).__name__ == "matrix":
        raise KindError(f"{name} must be an array, got a matrix of NumPy. Pass numpy.asarray(matrix).")
    if not text and not _NUMBERS.fullmatch(dtype_name(x)):
        raise KindError(
            f"{name} must hold real numbers, got {dtype_name(x)} elements. Convert them to real numbers first, for "
            "example of dtype float32."
        )


def _check_tensor(name: str, x: ArrayLike) -> None:
    if x.is_nested:
        raise KindError(
            f"{name} must be a tensor without ragged axes, got a nested tensor. Convert it with to_padded_tensor(0), "
            "and exclude the padding with masks.Lengths."
        )
    if str(x.layout) != "torch.strided":
        layout = str(x.layout).removeprefix("torch.")
        raise KindError(f"{name} must be a dense tensor, got a tensor in the layout {layout}. Call to_dense().")
    if x.is_quantized:
        raise KindError(f"{name} must be a tensor of plain numbers, got a quantized tensor. Call dequantize().")


def check_data(name: str, x: object) -> None:
    """Check that an array is not a tensor that has a shape alone.

    Raises:
        KindError: the tensor is on the device meta, or a fake tensor of a tracer.
    """
    kind = "tensor on the device meta" if getattr(x, "is_meta", False) else "fake tensor"
    if kind != "fake tensor" or hasattr(x, "fake_mode"):
        raise KindError(f"{name} must hold data, got a {kind}. Call qkv.explain for a plan without data.")


def as_readouts(readouts: Sequence[Readout]) -> tuple[Readout, ...]:
    """Return a sequence of readouts as a tuple.

    Raises:
        KindError: `readouts` is not a sequence, such as a single readout.
    """
    try:
        return tuple(readouts)
    except TypeError:
        remedy = f"Pass [{readouts}]" if isinstance(readouts, Readout) else "Pass [TopWeights(5)], for example"
        raise KindError(f"readouts must be a list or tuple of readouts, got {describe(readouts)}. {remedy}.") from None


def read_problem(
    query: Shaped[Array, "*_"],
    key: Shaped[Array, "*_"],
    value: Shaped[Array, "*_"],
    spec: Spec,
    readouts: tuple[Readout, ...],
    memory: int | str | None,
    traced: str = "",
) -> Problem:
    """Return the `Problem` of a call, which describes its parts, shapes and dtypes without its data.

    Args:
        spec: score, normalizer, mask, positions and dropout.
        readouts: readouts of the weights.
        memory: budget for scratch memory, in bytes or as text like "512 MiB"; None: the default of this machine.
        traced: kind of tracing that hides the data, as in `Problem.traced`.

    Raises:
        KindError: the score does not support text, or requires it; an array does not hold real numbers; or the arrays
            belong to different libraries.
        ShapeError: the shapes of the arrays do not match.
    """
    check_arrays(query, key, value)
    kind = library(query, key, value)
    texts = (is_text(query), is_text(key))
    assert spec.score is not None
    assert spec.normalizer is not None
    spec.score.check_kind(*texts)
    axes = Axes.of(query.shape, key.shape, value.shape, texts[0])
    numbers = (value,) if texts[0] else (query, key, value)
    out = result_dtype(*numbers)
    dtype = str(getattr(out, "name", out)).removeprefix("torch.")
    gradient = any(requires_gradient(x) for x in (*numbers, *spec.score.arrays(), *spec.normalizer.arrays()))
    device = device_of(value)
    return Problem(spec, axes, kind, dtype, gradient, readouts, budget_bytes(memory, device), traced, device)


def check_problem(problem: Problem) -> None:
    """Check that the parts and readouts of a problem match its shapes.

    Raises:
        ShapeError: a part or readout does not support the widths or lengths of the problem.
        PositionError: positions are required but not given.
        KindError: a readout is not a `Readout`.
        RefusedError: a readout is not defined for the normalizer.
    """
    axes, spec = problem.axes, problem.spec
    if not axes.text:
        problem.score.check_widths(axes.query_width, axes.key_width)
    if spec.mask is not None:
        spec.mask.check(axes.q, axes.k)
    problem.score.check_shapes(axes.batch, {"q": axes.q, "k": axes.k})
    for part in (problem.normalizer, spec.mask):
        if part is not None:
            part.check_shapes(axes.batch, {})
    if spec.positional:
        problem.tile.offset()
    for readout in problem.readouts:
        if not isinstance(readout, Readout):
            raise KindError(
                f"readouts must be instances of Readout, got {readout!r}. Pass instances of classes in qkv.readouts, "
                "such as TopWeights(5)."
            )
        if reason := readout.refuse(problem.normalizer):
            raise RefusedError(reason)
        readout.check(problem.tile)


def read_seed(problem: Problem, seed: object) -> Seed | None:
    """Return the seed of a call, or None if it is not given and the call uses no random numbers.

    The seed is an int; in JAX and TensorFlow it may be an integer array or two 32-bit words. Without a seed, PyTorch's
    generator provides one.

    Raises:
        OptionError: the seed is not an integer, or is missing for a library without a global generator.
    """
    if seed is not None:
        if is_array(seed) and "int" in dtype_name(seed) and tuple(seed.shape) in ((), (2,)):
            # Under `jax.jit` and `tf.function` the value is unknown. An array of two elements holds the low word first.
            if library(seed) in ("jax", "tensorflow"):
                return (seed[0], seed[1]) if seed.ndim else seed
            low, high = (int(seed[0]), int(seed[1])) if seed.ndim else (int(seed), 0)
            return low + (high << 32)
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
            raise OptionError(
                f"seed must be an integer, an integer array of shape () or (2,), or None, got {seed!r}. Pass an "
                "integer, such as seed=0."
            )
        return int(seed)
    if not (problem.spec.dropout or problem.normalizer.stochastic):
        return None
    if problem.library != "torch":
        drawn = "dropout" if problem.spec.dropout else str(problem.normalizer)
        raise OptionError(
            f"seed must be given for {drawn} with {problem.library} arrays, got None. Pass an integer, such as seed=0."
        )
    import torch

    return int(torch.randint(2**62, ()).item())
