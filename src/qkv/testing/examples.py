"""Generate example data for the contract tests: random arrays, and the indices of elements of a call."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, TypeVar

import numpy as np

from qkv.core.arrays import is_floating
from qkv.core.parts import Part
from qkv.core.typing import Array, ArrayLike, Float

__all__ = ["PairIndex", "Draw", "WeightRow", "element", "floats", "rebuilt", "with_floats"]

P = TypeVar("P", bound=Part)


class PairIndex(NamedTuple):
    """Pair of a query and a key: their indices `row` and `col`, and their positions `i` and `j`."""

    row: int
    col: int
    i: int
    j: int


class WeightRow(NamedTuple):
    """Row of weights: flat index of the batch element, index of the query, indices of its unmasked keys, and seed."""

    batch: int
    row: int
    keys: list[int]
    seed: int


class Draw:
    """Generator of random NumPy arrays, all of which have the same batch axes.

    Example:
        >>> draw = Draw(seed=0, q=2, k=3, batch=(4,))
        >>> draw(draw.q, draw.k).shape, draw.positive().shape
        ((4, 2, 3), (4,))
    """

    def __init__(self, seed: int, q: int = 4, k: int = 6, batch: tuple[int, ...] = ()) -> None:
        self.rng = np.random.default_rng(seed)
        self.q, self.k, self.batch = q, k, batch

    def __call__(self, *shape: int) -> ArrayLike:
        """Return an array `(*batch, *shape)` of standard normal random numbers."""
        return np.asarray(self.rng.normal(size=(*self.batch, *shape)))

    def positive(self, *shape: int) -> ArrayLike:
        """Return an array `(*batch, *shape)` of random numbers, uniform in [0.7, 1.8)."""
        return np.asarray(self.rng.uniform(0.7, 1.8, size=(*self.batch, *shape)))

    def integers(self, below: int, *shape: int) -> ArrayLike:
        """Return an array `(*batch, *shape)` of random integers from 0 to `below` − 1."""
        return np.asarray(self.rng.integers(0, below, size=(*self.batch, *shape)))

    def booleans(self, *shape: int) -> ArrayLike:
        """Return an array `(*batch, *shape)` of random booleans, each True with probability 2/3."""
        return np.asarray(self.rng.random(size=(*self.batch, *shape)) < 2 / 3)


def element(part: P, batch: tuple[int, ...], index: tuple[int, ...]) -> P:
    """Return a part restricted to one batch element.

    Args:
        batch: batch axes of the arrays of the part; () if they have none.
        index: index of the batch element.
    """
    if not batch:
        return part
    own = tuple(0 if length == 1 else i for i, length in zip(index, batch, strict=True))
    return part._map(lambda array, names: array if names is None else array[own])


def rebuilt(part: P) -> P:
    """Return a new part with the same fields, to test that the constructor accepts the arrays that JAX traces."""
    return type(part)(**{field.name: getattr(part, field.name) for field in dataclasses.fields(part)})


def floats(part: Part) -> list[Float[Array, "*_"]]:
    """Return a list of the floating-point arrays of a part, which can have gradients."""
    return [array for array in part.arrays() if is_floating(array)]


def with_floats(part: P, new: ArrayLike) -> P:
    """Return a part with its floating-point arrays replaced by `new`, in the order of `floats`."""
    queue = list(new)
    return part.replace_arrays([queue.pop(0) if is_floating(array) else array for array in part.arrays()])
