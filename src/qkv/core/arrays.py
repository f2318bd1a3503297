"""Array functions that behave the same for NumPy, PyTorch, JAX and TensorFlow arrays.

Scores, normalizers and masks use the functions of the Python array API standard
(https://data-apis.org/array-api) from `namespace(array)`. This module adds functions that the standard lacks, such
as `stop_gradient`, `row_max`, which allows an empty axis, and `gather`, which supports batch axes.

This module imports NumPy, and uses PyTorch, JAX and TensorFlow only if the caller has imported them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, TypeGuard, TypeVar

import numpy as np

from qkv.core.typing import Array, ArrayLike, Bool, DType, Float, Int, Namespace, Num, Shaped, Tensor
from qkv.errors import KindError, ShapeError

T = TypeVar("T")

OWN = frozenset(
    (
        *("abs", "all", "any", "arange", "argmax", "argmin", "asarray", "astype", "bool"),
        *("broadcast_arrays", "broadcast_to", "concat", "cos", "cumulative_sum", "e", "equal", "exp"),
        *("expand_dims", "flip", "float32", "float64", "full", "full_like", "inf", "int32", "int64"),
        *("isfinite", "isinf", "isnan", "log", "log1p", "logaddexp", "logical_and", "logical_not"),
        *("logical_or", "matmul", "matrix_transpose", "max", "maximum", "mean", "min", "minimum"),
        *("moveaxis", "nan", "newaxis", "ones", "ones_like", "permute_dims", "pi", "prod", "reshape"),
        *("result_type", "sin", "sqrt", "squeeze", "stack", "sum", "take", "take_along_axis", "tanh"),
        *("uint32", "vecdot", "where", "zeros", "zeros_like"),
    )
)
"""Names of the NumPy functions that follow the standard."""

STANDARD = "2024.12"
"""Minimum version of the standard that NumPy must declare; otherwise all functions come from array-api-compat."""


class NumPyFunctions:
    """Namespace with the array API functions for NumPy as attributes, which are looked up on first access.

    Example:
        >>> float(NumPyFunctions().exp(0.0))
        1.0
    """

    def __getattr__(self, name: str) -> Any:
        if getattr(np, "__array_api_version__", "") < STANDARD:
            found = _from_package(name)
        elif name in ("argsort", "sort"):
            found = globals()[name]
        else:
            found = getattr(np, name) if name in OWN else _from_package(name)
        setattr(self, name, found)
        return found


def argsort(
    x: Num[np.ndarray, "*axes"], /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Int[np.ndarray, "*axes"]:
    """Return the indices that sort `x` along an axis; equal elements keep their order if `stable`.

    This also holds in descending order.

    Example:
        >>> argsort(np.array([1.0, 3.0, 3.0]), descending=True)
        array([1, 2, 0])
    """
    kind: Literal["stable"] | None = "stable" if stable else None
    if not descending:
        return np.argsort(x, axis=axis, kind=kind)
    reversed_order = np.flip(np.argsort(np.flip(x, axis=axis), axis=axis, kind=kind), axis=axis)
    order: np.ndarray = x.shape[axis] - 1 - reversed_order
    return order


def sort(x: Num[np.ndarray, "*axes"], /, *, axis: int = -1, descending: bool = False) -> Num[np.ndarray, "*axes"]:
    """Return `x` sorted along an axis, NaN last or, in descending order, first."""
    ordered = np.sort(x, axis=axis)  # not stable, which takes 30 times as long: equal numbers are equal
    return np.flip(ordered, axis=axis) if descending else ordered


def _from_package(name: str) -> object:
    import array_api_compat.numpy as package

    return getattr(package, name)


def sequence_array(x: ArrayLike) -> Shaped[np.ndarray, "*_"]:
    """Return a number or a nested sequence as a NumPy array, in which strings are objects.

    Raises:
        ShapeError: `x` is a nested sequence whose rows differ in length.

    Example:
        >>> sequence_array([[1, 2], [3, 4]])
        array([[1, 2],
               [3, 4]])
    """
    try:
        array = np.asarray(x)
    except ValueError:
        raise ShapeError(
            "rows of nested sequences must have equal lengths, got different lengths. Pad them, and exclude the "
            "padding with masks.Lengths."
        ) from None
    return array.astype(object) if array.dtype.kind == "U" else array


_LIBRARIES: dict[type, str | None] = {}
"""Libraries by the types that were seen; None for types that are not arrays."""
_MAX_TYPES = 1000
"""Largest number of these types, so that types which are created again and again are not kept."""


def library_of(x: object) -> str | None:
    """Return "numpy", "torch", "jax" or "tensorflow" for arrays and NumPy scalars of these libraries, else None."""
    kind = type(x)
    try:
        return _LIBRARIES[kind]
    except KeyError:
        name = _find_library(x)
        torch = sys.modules.get("torch")
        if torch is not None and torch.compiler.is_compiling():
            return name  # torch.compile cannot guard a dictionary of types
        # While TensorFlow is being imported its module exists without `Tensor`.
        if len(_LIBRARIES) < _MAX_TYPES and (name is not None or "tensorflow" not in kind.__module__):
            _LIBRARIES[kind] = name
        return name


def _find_library(x: object) -> str | None:
    if isinstance(x, (np.ndarray, np.generic)):
        return "numpy"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return "torch"
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(x, jax.Array):
        return "jax"
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(x, getattr(tensorflow, "Tensor", ())):
        return "tensorflow"
    return None


_HALF = ("float16", "bfloat16")


def is_array(x: object) -> TypeGuard[Shaped[Array, "*_"]]:
    """Return whether `x` is a NumPy, PyTorch, JAX or TensorFlow array; NumPy scalars do not count as arrays."""
    return not isinstance(x, np.generic) and library_of(x) is not None


def library(*arrays: Array) -> str:
    """Return the name of the array library of `arrays`: "numpy", "torch", "jax" or "tensorflow".

    Raises:
        KindError: the arrays belong to several libraries, or an argument is not an array.

    Example:
        >>> library(np.zeros(2))
        'numpy'
    """
    first = library_of(arrays[0])
    if first is not None and len(arrays) == 1:
        return first
    if first is not None and all(library_of(x) == first for x in arrays):
        return first
    names: dict[str, Array] = {}
    for x in arrays:
        name = library_of(x)
        if name is None:
            raise KindError(
                "arrays of a call must be NumPy, PyTorch, JAX or TensorFlow arrays, got an object of type "
                f"{type(x).__name__}. Convert it to an array, for example with numpy.asarray."
            )
        names.setdefault(name, x)
    if len(names) > 1:
        raise KindError(
            f"all arrays of a call must belong to one library, got arrays of {' and '.join(sorted(names))}. "
            "Convert all arrays to the same library."
        )
    return next(iter(names))


def namespace(*arrays: Shaped[Array, "*_"]) -> Namespace:
    """Return the namespace of array API functions, such as `matmul` and `exp`, for the library of `arrays`."""
    return _NAMESPACES[library(*arrays)]()


def _numpy() -> Namespace:
    return _NUMPY


def _torch() -> Any:
    from qkv.core import torch_functions

    return torch_functions


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


def is_ndarray(x: object) -> TypeGuard[Shaped[np.ndarray, "*_"]]:
    """Return whether `x` is a NumPy array."""
    return isinstance(x, np.ndarray)


def is_tensor(x: object) -> TypeGuard[Shaped[Tensor, "*_"]]:
    """Return whether `x` is a PyTorch tensor."""
    return library_of(x) == "torch"


def as_array(x: ArrayLike) -> Shaped[Array, "*_"]:
    """Return `x` if it is an array, its value if it is a variable, otherwise `x` converted to a NumPy array."""
    if is_array(x):
        return x
    value = variable_value(x)
    if value is not None:
        return value
    return sequence_array(x)


def variable_value(x: ArrayLike) -> Shaped[Array, "*_"] | None:
    """Return the value of a Keras or TensorFlow variable as an array, or None if `x` is neither."""
    keras = sys.modules.get("keras")
    tensorflow = sys.modules.get("tensorflow")
    if keras is not None and isinstance(x, getattr(keras, "Variable", ())):
        value = x.value  # type: ignore[union-attr]  # an array of the backend, or a TensorFlow variable
        return value if is_array(value) else variable_value(value)
    if tensorflow is not None and isinstance(x, getattr(tensorflow, "Variable", ())):
        tensor: Array = tensorflow.convert_to_tensor(x)
        return tensor
    return None


def is_text(x: Shaped[Array, "*_"]) -> bool:
    """Return whether `x` is a NumPy array of strings, bytes, objects or records, which has no width axis."""
    return isinstance(x, np.ndarray) and x.dtype.kind in "UOTSV"


def dtype_name(x: Shaped[Array, "*_"]) -> str:
    """Return the dtype of `x` as a name such as "float32", which is the same for all libraries and byte orders."""
    if isinstance(x, np.ndarray):
        return _numpy_name(x.dtype)
    if library_of(x) == "tensorflow":
        return str(x.dtype.name)
    return str(x.dtype).removeprefix("torch.")


@lru_cache(256)
def _numpy_name(dtype: np.dtype[np.generic]) -> str:
    return str(dtype.newbyteorder("="))  # with another byte order, the name would be ">f4"


@lru_cache(256)
def itemsize(name: str) -> int:
    """Return the number of bytes per element of the dtype `name`; Unicode strings and objects count as 8."""
    if name == "bool":
        return 1
    digits = "".join(filter(str.isdigit, name))
    return max(1, int(digits) // 8) if digits and not name.startswith("<U") else 8


def is_floating(x: Shaped[Array, "*_"]) -> bool:
    """Return whether the elements of `x` are real floating-point numbers."""
    return dtype_name(x).startswith(("float", "bfloat"))


def result_dtype(*arrays: Shaped[Array, "*_"]) -> DType:
    """Return the promoted dtype of the floating-point `arrays`, or the library's default dtype if there are none."""
    xp = namespace(*arrays)
    floating = [x.dtype for x in arrays if is_floating(x)]
    if not floating:
        return xp.asarray(0.5).dtype
    out = floating[0]
    for d in floating[1:]:
        out = xp.result_type(out, d)
    return out.newbyteorder("=") if isinstance(out, np.dtype) else out


def accumulation_dtype(*arrays: Shaped[Array, "*_"]) -> DType:
    """Return the dtype in which sums are accumulated: `result_dtype(*arrays)`, but at least float32."""
    dtype = result_dtype(*arrays)
    name = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    return namespace(*arrays).float32 if name in _HALF else dtype


def cast(x: Shaped[Array, "*shape"], dtype: DType) -> Shaped[Array, "*shape"]:
    """Return `x` converted to `dtype`, without a copy if `x` already has this dtype."""
    return x if x.dtype == dtype else namespace(x).astype(x, dtype)


def asarray_like(reference: Shaped[Array, "*_"], value: ArrayLike, dtype: DType = None) -> Shaped[Array, "*_"]:
    """Return `value` as an array of the library and device of `reference`; arrays of that library stay on theirs.

    Args:
        reference: an array of the library of the result.
        value: a number or an array of any library.
        dtype: dtype of the result; None: the dtype of `value`.
    """
    xp = namespace(reference)
    if library_of(value) == library_of(reference):
        return value if dtype is None else cast(value, dtype)
    if library_of(value) == "torch":
        value = value.detach().cpu().numpy()
    elif library_of(value) in ("jax", "tensorflow"):
        value = np.asarray(value)
    if is_tensor(reference) and isinstance(value, np.ndarray) and not value.flags.writeable:
        value = value.copy()  # PyTorch warns about read-only memory, as of JAX arrays and mapped files
    return xp.asarray(value, dtype=dtype, **_device(reference))


def arange(reference: Array, start: int, stop: int) -> Int[Array, " n"]:
    """Return the integers from `start` to `stop` - 1 as an array of the library of `reference`, on its device."""
    if is_tensor(reference):  # array-api-compat's function takes twice as long
        return sys.modules["torch"].arange(start, stop, device=reference.device)  # type: ignore[no-any-return]
    return namespace(reference).arange(start, stop)


def zeros(reference: Shaped[Array, "*_"], shape: tuple[int, ...], dtype: DType = None) -> Shaped[Array, "*_"]:
    """Return an array of zeros in the library of `reference`, by default with the dtype of `reference`."""
    dtype = reference.dtype if dtype is None else dtype
    return namespace(reference).zeros(shape, dtype=dtype, **_device(reference))


def _device(reference: Shaped[Array, "*_"]) -> dict[str, object]:
    return {"device": reference.device} if is_tensor(reference) else {}


def where(condition: Bool[Array, "*#shape"], x: Any, y: Any) -> Shaped[Array, "*shape"]:
    """Return the elements of `x` where `condition` is True and of `y` elsewhere; `x` or `y` may be a number.

    The number is converted to the dtype of the array.

    Example:
        >>> where(np.array([False, True]), 0.0, np.array([1.0, 2.0]))
        array([1., 0.])
    """
    selected: Array
    if isinstance(condition, np.ndarray):
        if type(y) is float and y == -math.inf and is_ndarray(x) and x.dtype.kind == "f":
            selected = np.fmin(x, excluding(condition, x.dtype))  # takes a sixth of the time of `np.where`
        else:
            selected = np.where(condition, x, y)
    elif is_tensor(condition):  # array-api-compat's `where` takes numbers only in later versions
        selected = sys.modules["torch"].where(condition, x, y)
    else:
        xp, dtype = namespace(condition), (x if is_array(x) else y).dtype
        x, y = (each if is_array(each) else xp.asarray(each, dtype=dtype) for each in (x, y))
        selected = xp.where(condition, x, y)
    return selected


def rounded(x: Num[Array, "*shape"]) -> Num[Array, "*shape"]:
    """Round each element of a JAX array to one bit less than its dtype has; return other arrays unchanged.

    XLA may compute an element again within a sum, as a product that it does not round. Without this rounding, the same
    element could have two values.
    """
    if library(x) != "jax":
        return x
    import jax

    kind = jax.numpy.finfo(x.dtype)
    shorter: Array = jax.lax.reduce_precision(x, kind.nexp, kind.nmant - 1)
    return shorter


def excluding(condition: Bool[np.ndarray, "*shape"], dtype: DType) -> Float[np.ndarray, "*shape"]:
    """Return NaN where `condition` is True and −inf elsewhere: `np.fmin` of `x` and it is `x` or −inf."""
    with ignore_numpy_warnings():
        limit: np.ndarray = np.subtract(condition, 1, dtype=dtype) / 0  # 0 / 0 or −1 / 0, without a branch
    return limit


def stop_gradient(x: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
    """Return `x` as a constant, so that no gradient is computed through it."""
    if is_tensor(x):
        return x.detach()
    name = library_of(x)
    if name == "jax":
        x = sys.modules["jax"].lax.stop_gradient(x)
    elif name == "tensorflow":
        x = sys.modules["tensorflow"].stop_gradient(x)
    return x


def requires_gradient(x: Shaped[Array, "*_"]) -> bool:
    """Return whether a gradient with respect to `x` may be computed later.

    The result is True for PyTorch tensors that autograd records, for JAX tracers and for every TensorFlow tensor.
    """
    if is_tensor(x):
        return x.requires_grad and bool(sys.modules["torch"].is_grad_enabled())
    name = library_of(x)
    if name == "jax":
        return isinstance(x, sys.modules["jax"].core.Tracer)
    return name == "tensorflow"  # tapes do not tell which tensors they watch


def choose(condition: Bool[Array, ""], yes: Callable[[], T], no: Callable[[], T]) -> T:
    """Return `yes()` or `no()` in JAX or TensorFlow, where a compiled function decides when it runs.

    Example:
        >>> import jax.numpy as jnp
        >>> int(choose(jnp.array(True), lambda: jnp.array(1), lambda: jnp.array(2)))
        1
    """
    jax = library(condition) == "jax"
    branch: Callable[..., T] = sys.modules["jax"].lax.cond if jax else sys.modules["tensorflow"].cond
    return branch(condition, yes, no)


def statically_known_true(x: Bool[Array, ""]) -> bool:
    """Return `bool(x)`, or False if `x` is a tracer, which has no value, for example under `jax.jit`."""
    try:
        return bool(x)
    except Exception as error:  # every tracer raises another class of exception
        if isinstance(error, (KeyboardInterrupt, MemoryError)):
            raise
        return False


def to_numpy(x: Shaped[Array, "*shape"]) -> Shaped[np.ndarray, "*shape"] | None:
    """Return `x` as a NumPy array, or None if `x` is a tracer, which has no values."""
    try:
        return np.asarray(x.detach().cpu() if is_tensor(x) else x)
    except Exception:
        return None


def plain_array(x: ArrayLike) -> ArrayLike:
    """Return an array of PyTorch, JAX or TensorFlow as a NumPy array if NumPy has its dtype, all else as it is."""
    found = None if library_of(x) in (None, "numpy") else to_numpy(x)
    return x if found is None else found


def row_max(x: Num[Array, "*batch n"]) -> Num[Array, "*batch 1"]:
    """Return the maximum along the last axis of `x`, kept with length 1, or −inf if this axis is empty."""
    xp = namespace(x)
    if x.shape[-1] == 0:
        return zeros(x, (*x.shape[:-1], 1)) - math.inf
    return xp.max(x, axis=-1, keepdims=True)


def sigmoid(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return the sigmoid 1 / (1 + e^−x) of each element of `x`, computed without overflow.

    Small results are accurate, and the gradient at 0 is 1/4.

    Example:
        >>> sigmoid(np.array([0.0, 800.0, -800.0]))
        array([0.5, 1. , 0. ])
    """
    if is_tensor(x):
        return x.sigmoid()
    name = library_of(x)
    if name in ("jax", "tensorflow"):
        result: Array = sys.modules[name].nn.sigmoid(x)
        return result
    with ignore_numpy_warnings():  # an infinite exponential has the reciprocal 0
        e = np.exp(-x)  # type: ignore[call-overload]
        e += 1
        return np.divide(1, e, out=e if is_ndarray(e) else None)  # type: ignore[no-any-return]


def gather(table: Num[Array, "*#batch n"], index: Num[Array, "*#batch q k"]) -> Num[Array, "*#batch q k"]:
    """Return the elements `table[..., index]` of each batch element; either argument may have no batch axes.

    Example:
        >>> gather(np.array([5.0, 6.0, 7.0]), np.array([[2, 0]]))
        array([[7., 5.]])
    """
    xp = namespace(table)
    pair = index.shape[-2:]
    flat = xp.reshape(index, (*index.shape[:-2], pair[0] * pair[1]))
    if is_tensor(flat):  # index_select needs int64
        flat = cast(flat, xp.int64)
    if index.ndim == 2:
        # The standard's `take` handles negative indices first, which costs time; here there are none.
        elements: Array
        if is_tensor(table) and is_tensor(flat):
            elements = table.index_select(-1, flat)
        else:
            elements = xp.take(table, flat, axis=-1)
        return xp.reshape(elements, (*table.shape[:-1], *pair))
    batch = np.broadcast_shapes(table.shape[:-1], index.shape[:-2])
    table = xp.broadcast_to(table, (*batch, table.shape[-1]))
    flat = xp.broadcast_to(flat, (*batch, flat.shape[-1]))
    return xp.reshape(xp.take_along_axis(table, flat, axis=-1), (*batch, *pair))


def toeplitz(vector: Shaped[Array, "*batch n"], rows: int, cols: int) -> Shaped[Array, "*batch rows cols"]:
    """Return the Toeplitz matrix of a NumPy array or tensor, with `vector[..., j - i + rows - 1]` at (i, j).

    Example:
        >>> toeplitz(np.array([1.0, 2.0, 3.0]), 2, 2)
        array([[2., 3.],
               [1., 2.]])
    """
    if is_tensor(vector):
        # The columns of what `flip` returns may not be contiguous, and copying them takes ten times as long.
        backwards = sys.modules["torch"].arange(rows - 1, -1, -1, device=vector.device)
        return vector.unfold(-1, cols, 1).index_select(-2, backwards)
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(vector), cols, axis=-1)
    return windows[..., ::-1, :]


def ignore_numpy_warnings() -> np.errstate:
    """Suppress NumPy's floating-point warnings in a `with` block."""
    return np.errstate(all="ignore")
