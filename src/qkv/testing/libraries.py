"""Define the array libraries, dtypes and cases with which the contract tests run, and compare arrays."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from qkv.core.arrays import is_floating
from qkv.core.parts import Part
from qkv.core.typing import Array, ArrayLike, Float, Shaped

P = TypeVar("P", bound=Part)
T = TypeVar("T")

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
"""Whether the contract tests run all cases, as in `make test-long`."""

LIBRARIES = tuple(name for name in ("numpy", "torch", "jax") if importlib.util.find_spec(name))
"""Installed libraries with which every suite runs. TensorFlow must be requested by name, because it loads slowly."""

_CONVERTERS = {
    "numpy": ("numpy", "array"),
    "torch": ("torch", "tensor"),
    "jax": ("jax.numpy", "asarray"),
    "tensorflow": ("tensorflow", "convert_to_tensor"),
}
"""Module of each library, and its function that converts a NumPy array."""
_TOLERANCE = {"float64": 1e-12, "float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}


@dataclass(frozen=True)
class Setting:
    """Array library and floating-point dtype with which a test runs.

    Example:
        >>> Setting("numpy", "float32").array(np.ones(2)).dtype
        dtype('float32')
    """

    library: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.library}-{self.dtype}"

    @property
    def tolerance(self) -> float:
        """Largest allowed error of a result, relative to the largest magnitude of its elements."""
        return _TOLERANCE[self.dtype]

    def array(self, x: ArrayLike) -> ArrayLike:
        """Return `x` as an array of the library, cast to the dtype of the setting if it is floating-point."""
        x = np.asarray(x)
        module, convert = _CONVERTERS[self.library]
        xp = importlib.import_module(module)
        return getattr(xp, convert)(x, dtype=getattr(xp, self.dtype) if x.dtype.kind == "f" else None)

    def part(self, part: P) -> P:
        """Return a part with its arrays converted by `array`."""
        return part.map_arrays(self.array)

    def rounded(self, x: ArrayLike) -> ArrayLike:
        """Return a floating-point `x` as a float64 NumPy array, rounded to the precision of the setting's dtype.

        Other arrays are returned unchanged.
        """
        return to_float64(self.array(x)) if np.asarray(x).dtype.kind == "f" else x

    def active(self) -> AbstractContextManager[object]:
        """Return a context manager that sets JAX to 64-bit precision for float64, and to 32-bit for other dtypes.

        It has no effect if the library is not JAX.
        """
        if self.library != "jax":
            return nullcontext()
        import jax

        switch: Any = jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")
        context: AbstractContextManager[object] = switch.enable_x64(self.dtype == "float64")
        return context

    def few(self, *cases: T) -> tuple[T, ...]:
        """Return `cases`, or only the first if the library is JAX, which compiles a function for each shape."""
        return cases[:1] if self.library == "jax" else cases

    def evaluate(self, part: P, function: Callable[..., ArrayLike], *inputs: ArrayLike) -> ArrayLike:
        """Return `function(part, *inputs)` with all arrays converted by `array`, compiled by `jax.jit` for JAX."""

        def evaluate(arrays: ArrayLike, *inputs: ArrayLike) -> ArrayLike:
            return function(part.replace_arrays(arrays), *inputs)

        with self.active():
            arguments = [self.array(x) for x in part.arrays()], *map(self.array, inputs)
            if self.library != "jax":
                return evaluate(*arguments)
            import jax

            return jax.jit(evaluate)(*arguments)


def installed(library: str) -> bool:
    """Return whether an array library is installed. TensorFlow counts as installed only together with Keras."""
    if library == "tensorflow":
        return all(importlib.util.find_spec(name) for name in ("tensorflow", "keras"))
    return library in LIBRARIES


def settings_of(libraries: tuple[str, ...], dtypes: tuple[str, ...]) -> list[Setting]:
    """Return a `Setting` for each of `libraries` that is in `LIBRARIES`, and each of `dtypes`."""
    return [Setting(library, dtype) for library in libraries if library in LIBRARIES for dtype in dtypes]


def turn(items: Sequence[T], number: int, every: int) -> list[T]:
    """Return all items in long runs, otherwise one of each `every`: those whose turn it is in test `number`.

    The tests with `every` consecutive numbers together run each item once.
    """
    return list(items) if LONG else list(items[-number % every :: every])


def to_float64(x: Shaped[Array, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Return an array of any library as a float64 NumPy array."""
    if hasattr(x, "detach"):
        x = x.detach().cpu().double()
    if hasattr(x, "numpy"):  # TensorFlow returns a scalar for a single bfloat16 element
        x = x.numpy()
    return np.asarray(x).astype(np.float64)


def assert_close(
    actual: Shaped[Array, "*shape"],
    expected: ArrayLike,
    tolerance: float,
    where: ArrayLike = True,
    message: str = "",
    min_scale: float = 0.0,
) -> None:
    """Assert that two arrays have equal shapes and equal non-finite elements, and agree within a relative tolerance.

    Args:
        actual: array of any library.
        expected: expected values in float64 NumPy.
        tolerance: largest allowed error relative to the largest magnitude.
        where: True for the elements to compare.
        message: prefix of the error message.
        min_scale: lower bound of the magnitude by which errors are divided, for expected values near 0.
    """
    actual, expected = to_float64(actual) if is_floating(actual) else np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"{message} shape must be {expected.shape}, got {actual.shape}."
    magnitudes = np.abs(expected[where & np.isfinite(expected)])
    scale = max(magnitudes.max(initial=0.0), min_scale, np.finfo(np.float64).tiny)
    compared = np.where(where, actual, expected)
    np.testing.assert_allclose(compared, expected, rtol=0, atol=tolerance * scale, err_msg=message)
