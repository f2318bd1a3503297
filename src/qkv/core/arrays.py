"""One set of array functions over NumPy, PyTorch, JAX and, through Keras, TensorFlow.

Parts are written with the functions of the Python array API standard
(https://data-apis.org/array-api), taken from `namespace(array)`. What the standard leaves out and parts need
(a stopped gradient, a row maximum that allows zero keys, a batched gather) stands here, once.

No library but NumPy is imported unless an array of its comes in.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qkv.core.numpy_namespace import NumPyFunctions
from qkv.core.typing import Array, Namespace
from qkv.errors import KindError

__all__ = [
    "Array",
    "Namespace",
    "accumulation_dtype",
    "toeplitz",
    "arange",
    "as_array",
    "cast",
    "dtype_name",
    "gather",
    "is_array",
    "is_floating",
    "is_text",
    "itemsize",
    "statically_known_true",
    "library",
    "asarray_like",
    "namespace",
    "ignore_numpy_warnings",
    "requires_gradient",
    "result_dtype",
    "row_max",
    "sigmoid",
    "stop_gradient",
    "to_numpy",
    "variable_value",
    "zeros",
]


_HALF = ("float16", "bfloat16")


def is_array(x: object) -> bool:
    """Whether `x` is an array of a supported library (NumPy scalars are numbers, not arrays)."""
    return not isinstance(x, np.generic) and _library(x) is not None


def _library(x: object) -> str | None:
    if isinstance(x, (np.ndarray, np.generic)):
        return "numpy"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return "torch"
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(x, jax.Array):
        return "jax"
    tensorflow = sys.modules.get("tensorflow")
    # While it is being imported its module is there and empty.
    if tensorflow is not None and isinstance(x, getattr(tensorflow, "Tensor", ())):
        return "tensorflow"
    return None


def library(*arrays: Array) -> str:
    """The name of the one library that all `arrays` belong to.

    Raises:
        KindError: they belong to several, or one is no array.

    Example:
        >>> library(np.zeros(2))
        'numpy'
    """
    names: dict[str, Array] = {}
    for x in arrays:
        name = _library(x)
        if name is None:
            raise KindError(
                f"{type(x).__name__} is no array. Give a NumPy, PyTorch or JAX array, or a TensorFlow tensor."
            )
        names.setdefault(name, x)
    if len(names) > 1:
        raise KindError(f"arrays of {' and '.join(sorted(names))} in one call. Convert all to one library.")
    return next(iter(names))


def namespace(*arrays: Array) -> Namespace:
    """The array API functions for `arrays`."""
    return _NAMESPACES[library(*arrays)]()


def _numpy() -> Namespace:
    return _NUMPY


def _torch() -> Namespace:
    import array_api_compat.torch as xp

    return xp


def _jax() -> Namespace:
    import jax.numpy as xp

    return xp


_NUMPY = NumPyFunctions()


def _tensorflow() -> Namespace:
    from qkv.core.tensorflow_arrays import tensorflow_namespace

    return tensorflow_namespace()


_NAMESPACES: dict[str, Callable[[], Namespace]] = {
    "numpy": _numpy,
    "torch": _torch,
    "jax": _jax,
    "tensorflow": _tensorflow,
}


def as_array(x: Any) -> Array:
    """`x` itself if it is an array, otherwise what NumPy makes of it (lists of text become object arrays)."""
    if is_array(x):
        return x
    held = variable_value(x)
    if held is not None:
        return held
    array = np.asarray(x)
    return array.astype(object) if array.dtype.kind == "U" else array


def variable_value(x: Any) -> Array | None:
    """The array that a variable of Keras or TensorFlow holds, read where a tape sees it; None of all else."""
    keras: Any = sys.modules.get("keras")
    tensorflow: Any = sys.modules.get("tensorflow")
    kind: Any = getattr(keras, "Variable", ())
    if isinstance(x, kind):
        held = x.value  # an array of the backend, or in its turn a variable of TensorFlow
        return held if is_array(held) else variable_value(held)
    kind = getattr(tensorflow, "Variable", ())
    if isinstance(x, kind):
        return tensorflow.convert_to_tensor(x)
    return None


def is_text(x: Array) -> bool:
    """Whether the elements are text or records, so that the array has no width axis."""
    return isinstance(x, np.ndarray) and x.dtype.kind in "UOTSV"


def dtype_name(x: Array) -> str:
    """`float32`, `bfloat16`, `int64`, `object`, whatever the library and the order of bytes."""
    if _library(x) == "tensorflow":
        return str(x.dtype.name)
    name = str(x.dtype)
    # NumPy calls numbers in another machine's order of bytes ">f4".
    return str(x.dtype.newbyteorder("=")) if name[0] in "<>" else name.removeprefix("torch.")


def itemsize(name: str) -> int:
    """Bytes of one element of the dtype called `name` (text counts as a pointer)."""
    if name == "bool":
        return 1
    digits = "".join(c for c in name if c.isdigit())
    return max(1, int(digits) // 8) if digits and not name.startswith("<U") else 8


def is_floating(x: Array) -> bool:
    """Whether the elements are real floating-point numbers."""
    return dtype_name(x).startswith(("float", "bfloat"))


def result_dtype(*arrays: Array) -> Any:
    """The floating dtype of the answer: the promoted one, or the library's default for integers."""
    xp = namespace(*arrays)
    floating = [x.dtype for x in arrays if is_floating(x)]
    if not floating:
        return xp.asarray(0.5).dtype
    out = floating[0]
    for d in floating[1:]:
        out = xp.result_type(out, d)
    return out.newbyteorder("=") if isinstance(out, np.dtype) else out


def accumulation_dtype(*arrays: Array) -> Any:
    """`result_dtype`, widened to float32 for half precision."""
    dtype = result_dtype(*arrays)
    name = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    return namespace(*arrays).float32 if name in _HALF else dtype


def cast(x: Array, dtype: Any) -> Array:
    """`x` in `dtype`; `x` itself where it has it already. Integers and booleans are cast too."""
    return x if x.dtype == dtype else namespace(x).astype(x, dtype)


def asarray_like(reference: Array, value: Any, dtype: Any = None) -> Array:
    """`value` as an array of the library and on the device of `reference`."""
    xp = namespace(reference)
    if _library(value) == _library(reference):
        return value if dtype is None else cast(value, dtype)
    if _library(value) == "torch":
        value = value.detach().cpu().numpy()
    elif _library(value) in ("jax", "tensorflow"):
        value = np.asarray(value)
    if _library(reference) == "torch":
        if isinstance(value, np.ndarray) and not value.flags.writeable:
            value = value.copy()  # PyTorch warns of memory that it may not write to, as of JAX and of mapped files
        return xp.asarray(value, dtype=dtype, device=reference.device)
    return xp.asarray(value, dtype=dtype)


def arange(reference: Array, start: int, stop: int) -> Array:
    """Integers from `start` up to `stop`, in the library and on the device of `reference`."""
    xp = namespace(reference)
    if _library(reference) == "torch":
        return xp.arange(start, stop, device=reference.device)
    return xp.arange(start, stop)


def zeros(reference: Array, shape: tuple[int, ...], dtype: Any = None) -> Array:
    """Zeros in the library and on the device of `reference`; in its dtype unless `dtype` is given."""
    xp = namespace(reference)
    dtype = reference.dtype if dtype is None else dtype
    if _library(reference) == "torch":
        return xp.zeros(shape, dtype=dtype, device=reference.device)
    return xp.zeros(shape, dtype=dtype)


def stop_gradient(x: Array) -> Array:
    """`x` as a constant: no gradient flows through."""
    name = _library(x)
    if name == "torch":
        return x.detach()
    if name == "jax":
        import jax

        return jax.lax.stop_gradient(x)
    return sys.modules["tensorflow"].stop_gradient(x) if name == "tensorflow" else x


def requires_gradient(x: Array) -> bool:
    """Whether a gradient of `x` may be wanted: what torch records, JAX traces, any TensorFlow tensor."""
    name = _library(x)
    if name == "jax":
        return isinstance(x, sys.modules["jax"].core.Tracer)
    if name != "torch" or not x.requires_grad:
        return name == "tensorflow"  # whose tapes do not say what they watch
    return bool(sys.modules["torch"].is_grad_enabled())


def statically_known_true(x: Array) -> bool:
    """`bool(x)`, and False where that cannot be known now, as under `jax.jit` and `torch.func.vmap`."""
    try:
        return bool(x)
    except Exception as error:  # each tracer has a class of its own
        if isinstance(error, (KeyboardInterrupt, MemoryError)):
            raise
        return False


def to_numpy(x: Array) -> np.ndarray[Any, Any] | None:
    """`x` in NumPy, or None where its elements cannot be known now."""
    try:
        return np.asarray(x.detach().cpu() if _library(x) == "torch" else x)
    except Exception:
        return None


def row_max(x: Array) -> Array:
    """Largest element along the last axis, which is kept; −inf where that axis is empty."""
    xp = namespace(x)
    if x.shape[-1] == 0:
        return zeros(x, (*x.shape[:-1], 1)) - math.inf
    return xp.max(x, axis=-1, keepdims=True)


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^−x), through e^−|x|: no overflow, small results keep their digits, the gradient at 0 is 1/4.

    Example:
        >>> sigmoid(np.array([0.0, 800.0, -800.0]))
        array([0.5, 1. , 0. ])
    """
    if _library(x) == "torch":
        return sys.modules["torch"].sigmoid(x)
    xp = namespace(x)
    negative = x < 0
    # Not through tanh: (1 + tanh)/2 cancels where x is far below 0, and sigmoid attention with a bias lives
    # there.
    e = xp.exp(xp.where(negative, x, -x))
    return xp.where(negative, e, xp.ones_like(e)) / (1 + e)


def gather(table: Array, index: Array) -> Array:
    """`table[..., index]`: rows `(*batch, n)` looked up at `(*batch, q, k)`; either may lack its batch axes.

    Example:
        >>> gather(np.array([5.0, 6.0, 7.0]), np.array([[2, 0]]))
        array([[7., 5.]])
    """
    xp = namespace(table)
    pair = index.shape[-2:]
    flat = xp.reshape(index, (*index.shape[:-2], pair[0] * pair[1]))
    torch = library(flat) == "torch"
    if torch:  # which takes no other integers as an index
        flat = cast(flat, xp.int64)
    if index.ndim == 2:
        # The standard's `take` makes sense of negative numbers first; here there are none.
        taken = table.index_select(-1, flat) if torch else xp.take(table, flat, axis=-1)
        return xp.reshape(taken, (*table.shape[:-1], *pair))
    batch = np.broadcast_shapes(table.shape[:-1], index.shape[:-2])
    table = xp.broadcast_to(table, (*batch, table.shape[-1]))
    flat = xp.broadcast_to(flat, (*batch, flat.shape[-1]))
    return xp.reshape(xp.take_along_axis(table, flat, axis=-1), (*batch, *pair))


def toeplitz(vector: Array, rows: int, cols: int) -> Array:
    """`(*batch, rows, cols)` with `vector[..., j − i + rows − 1]` at (i, j), for NumPy and PyTorch.

    Example:
        >>> toeplitz(np.array([1.0, 2.0, 3.0]), 2, 2)
        array([[2., 3.],
               [1., 2.]])
    """
    if _library(vector) == "torch":
        return vector.unfold(-1, cols, 1).flip(-2)
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(vector), cols, axis=-1)
    return windows[..., ::-1, :]


@contextlib.contextmanager
def ignore_numpy_warnings() -> Iterator[None]:
    """No NumPy warnings: what is NaN or infinite here is meant to be, or is replaced a line later."""
    with np.errstate(all="ignore"):
        yield
