"""Types for annotations of arrays: the protocol `Array`, and jaxtyping's types with dtype and named axes.

    def logits(
        query: Float[Array, "*#batch q width"], key: Float[Array, "*#batch k width"]
    ) -> Float[Array, "*batch q k"]: ...

Axes have the same names everywhere: `*batch`, `q`, `k`, `width`, `value_width`. `#` marks an axis that may
have length 1 and is then broadcast. Arrays of the equation have names, such as `PairArray`. mypy treats
`Float[Array, "q k"]` as `Array`. The annotations are not evaluated at run time; the tests set `QKV_CHECK_SHAPES=1`, and
then jaxtyping and beartype check every annotated call.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

__all__ = [
    "Array",
    "ArrayLike",
    "Bool",
    "DType",
    "Float",
    "Int",
    "Namespace",
    "Num",
    "ReadoutResult",
    "Shaped",
    "Tensor",
]
__all__ += ["KeyArray", "LiftedArrays", "OutputArray", "OutputTensor", "PairArray", "PairTensor", "QueryArray"]
__all__ += ["RowArray", "RowTensor", "ValueArray"]

DType: TypeAlias = Any
"""A dtype of NumPy, PyTorch, JAX or TensorFlow; the dtypes of these libraries have no common base class."""

ArrayLike: TypeAlias = Any
"""An array of a supported library, or a number, list or data frame column that `as_array` converts."""

ReadoutResult: TypeAlias = Any
"""The result of a readout: an array, or a named tuple of arrays; each readout of `qkv.readouts` documents its own."""


class Array(Protocol):
    """Protocol with the attributes and operators of arrays that qkv uses."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def mT(self) -> Array: ...
    def __getitem__(self, key: Any, /) -> Array: ...
    def __add__(self, other: ArrayLike, /) -> Array: ...
    def __radd__(self, other: ArrayLike, /) -> Array: ...
    def __sub__(self, other: ArrayLike, /) -> Array: ...
    def __rsub__(self, other: ArrayLike, /) -> Array: ...
    def __mul__(self, other: ArrayLike, /) -> Array: ...
    def __rmul__(self, other: ArrayLike, /) -> Array: ...
    def __truediv__(self, other: ArrayLike, /) -> Array: ...
    def __rtruediv__(self, other: ArrayLike, /) -> Array: ...
    def __floordiv__(self, other: ArrayLike, /) -> Array: ...
    def __mod__(self, other: ArrayLike, /) -> Array: ...
    def __pow__(self, other: ArrayLike, /) -> Array: ...
    def __matmul__(self, other: ArrayLike, /) -> Array: ...
    def __neg__(self) -> Array: ...
    def __abs__(self) -> Array: ...
    def __invert__(self) -> Array: ...
    def __and__(self, other: ArrayLike, /) -> Array: ...
    def __or__(self, other: ArrayLike, /) -> Array: ...
    def __eq__(self, other: ArrayLike, /) -> Array: ...  # type: ignore[override]
    def __ne__(self, other: ArrayLike, /) -> Array: ...  # type: ignore[override]
    def __xor__(self, other: ArrayLike, /) -> Array: ...
    def __lshift__(self, other: ArrayLike, /) -> Array: ...
    def __rshift__(self, other: ArrayLike, /) -> Array: ...
    def __lt__(self, other: ArrayLike, /) -> Array: ...
    def __le__(self, other: ArrayLike, /) -> Array: ...
    def __gt__(self, other: ArrayLike, /) -> Array: ...
    def __ge__(self, other: ArrayLike, /) -> Array: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __int__(self) -> int: ...
    def __float__(self) -> float: ...


class Namespace(Protocol):
    """Protocol for the array API functions of a library, such as `matmul`, `exp` and `where`, as attributes.

    Only attributes that are not functions, and functions that do not return a single array, are declared here.
    """

    inf: float
    nan: float
    bool: DType
    int32: DType
    int64: DType
    uint32: DType
    float32: DType
    float64: DType
    linalg: Namespace

    def __getattr__(self, name: str, /) -> Callable[..., Array]: ...
    def broadcast_arrays(self, *arrays: Array) -> list[Array]: ...
    def finfo(self, dtype: DType, /) -> Any: ...
    def result_type(self, *arrays_and_dtypes: Array | DType) -> DType: ...


if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Num, Shaped
    from torch import Tensor
elif os.environ.get("QKV_CHECK_SHAPES"):
    from jaxtyping import Bool, Float, Int, Num, Shaped

    try:
        from torch import Tensor
    except ModuleNotFoundError:
        Tensor = Any

    # jaxtyping checks dtype and shape; which libraries are supported is checked by `library`.
    Array = Namespace = Any
else:

    class _Unchecked:
        """Replacement for jaxtyping's types if shapes are not checked, so that users need not install jaxtyping."""

        def __class_getitem__(cls, item: tuple[type, str]) -> type:
            return item[0]

    Bool = Float = Int = Num = Shaped = _Unchecked
    Tensor = Any

# The arrays of the equation, whose axes most functions of a score, a normalizer or a kernel state.
QueryArray: TypeAlias = Num[Array, "*#batch q query_width"]
KeyArray: TypeAlias = Num[Array, "*#batch k key_width"]
LiftedArrays: TypeAlias = tuple[Num[Array, "*#batch q lifted"], Num[Array, "*#batch k lifted"]]
"""Vectors of queries and keys whose inner products are logits."""
ValueArray: TypeAlias = Float[Array, "*#batch k value_width"]
OutputArray: TypeAlias = Float[Array, "*batch q value_width"]
PairArray: TypeAlias = Float[Array, "*batch q k"]
"""One number for each pair of a query and a key, such as the logits, the weights and their gradients."""
RowArray: TypeAlias = Float[Array, "*batch q 1"]
"""One number for each query."""
OutputTensor: TypeAlias = Float[Tensor, "*batch q value_width"]
PairTensor: TypeAlias = Float[Tensor, "*batch q k"]
RowTensor: TypeAlias = Float[Tensor, "*batch q 1"]
