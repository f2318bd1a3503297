"""Examples for the suites: numbers for parts, and one batch element, row or pair to apply a formula to."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, TypeVar

import numpy as np

from qkv.core.arrays import Array, is_floating
from qkv.core.parts import Part

__all__ = ["At", "Draw", "RowAt", "element", "floats", "rebuilt", "with_floats"]

P = TypeVar("P", bound=Part)


class At(NamedTuple):
    """One pair of a call: the indices of its query and key, and the positions where these stand."""

    row: int
    col: int
    i: int
    j: int


class RowAt(NamedTuple):
    """One row of a call: its batch element and query, the keys that are not excluded, and the seed."""

    batch: int
    row: int
    keys: list[int]
    seed: int


class Draw:
    """Random float64 NumPy arrays for an example, each with the example's batch axes in front.

    Example:
        >>> draw = Draw(seed=0, q=2, k=3, batch=(4,))
        >>> draw(draw.q, draw.k).shape, draw.positive().shape
        ((4, 2, 3), (4,))
    """

    def __init__(self, seed: int, q: int = 4, k: int = 6, batch: tuple[int, ...] = ()) -> None:
        self.rng = np.random.default_rng(seed)
        self.q, self.k, self.batch = q, k, batch

    def __call__(self, *shape: int) -> Any:
        """Normal numbers."""
        return np.asarray(self.rng.normal(size=(*self.batch, *shape)))

    def positive(self, *shape: int) -> Any:
        """Numbers between 0.7 and 1.8."""
        return np.asarray(self.rng.uniform(0.7, 1.8, size=(*self.batch, *shape)))

    def integers(self, below: int, *shape: int) -> Any:
        """Integers from 0."""
        return np.asarray(self.rng.integers(0, below, size=(*self.batch, *shape)))

    def booleans(self, *shape: int) -> Any:
        """True for two of three."""
        return np.asarray(self.rng.random(size=(*self.batch, *shape)) < 2 / 3)


def element(part: P, batch: tuple[int, ...], index: tuple[int, ...]) -> P:
    """The part of one batch element; `batch` are the part's own batch axes, () or as many as the call has."""
    if not batch:
        return part
    own = tuple(0 if length == 1 else i for i, length in zip(index, batch, strict=True))
    return part._map(lambda array, names: array if names is None else array[own])


def rebuilt(part: P) -> P:
    """The part constructed once more from its fields, so that construction is seen to let tracers pass."""
    made: Any = part
    return type(part)(**{field.name: getattr(part, field.name) for field in dataclasses.fields(made)})


def floats(part: Part) -> list[Array]:
    """The floating-point arrays of a part: what can have a gradient."""
    return [array for array in part.arrays() if is_floating(array)]


def with_floats(part: P, new: Any) -> P:
    """The part with other floating-point arrays, in order."""
    queue = list(new)
    return part.replace_arrays([queue.pop(0) if is_floating(array) else array for array in part.arrays()])
