"""The JAX border: parts are pytrees. Their arrays are leaves, all else is static.

So a score with learned arrays goes through `jax.jit`, `jax.grad` and `jax.vmap`, stands in an Equinox module
or an optimiser's state, as a tuple of these arrays would.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from qkv.core.arrays import is_array
from qkv.core.parts import Part

__all__ = ["Skeleton", "register"]

_REGISTERED: set[type] = set()


def register(kind: type[Part]) -> None:
    """Make JAX know a class of parts; nothing happens the second time."""
    if kind in _REGISTERED:
        return
    import jax

    # With all there are: some may have been made before JAX was there.
    kinds: list[type[Part]] = [kind, Part]
    while kinds:
        one = kinds.pop()
        kinds += one.__subclasses__()
        if one not in _REGISTERED:
            _REGISTERED.add(one)
            jax.tree_util.register_pytree_node(one, _flatten, _unflatten)


@dataclass(frozen=True)
class _Hole:
    """Where an array was."""


@dataclass(frozen=True)
class _Leaf:
    """What stands for an array for a while and is none: an axis of `vmap`, a shape, None."""

    value: Any


@dataclass(frozen=True, eq=False)
class Skeleton:
    """A part without its arrays: equal, and hashed alike, where it says the same.

    Example:
        >>> import numpy as np
        >>> from qkv.scores import Bilinear
        >>> Skeleton(Bilinear(np.ones((2, 2)))) == Skeleton(Bilinear(np.ones((3, 3))))
        True
    """

    part: Any

    def __post_init__(self) -> None:
        part = _mapped(self.part, lambda leaf: _Hole())
        object.__setattr__(self, "part", part)
        object.__setattr__(self, "_said", (type(part), part.signature()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Skeleton) and self._said == other._said

    def __hash__(self) -> int:
        return hash(self._said)

    _said: Hashable = ()


def _flatten(part: Part) -> tuple[list[Any], Skeleton]:
    leaves: list[Any] = []

    def note(leaf: Any) -> Any:
        leaves.append(leaf.value if isinstance(leaf, _Leaf) else leaf)
        return leaf

    _mapped(part, note)
    return leaves, Skeleton(part)


def _unflatten(skeleton: Skeleton, leaves: Any) -> Any:
    queue: Iterator[Any] = iter(leaves)

    def fill(hole: Any) -> Any:
        leaf = next(queue)
        return leaf if is_array(leaf) else _Leaf(leaf)

    return _mapped(skeleton.part, fill)


def _mapped(value: Any, function: Any) -> Any:
    """The part with `function` applied to every array and to whatever stands for one."""
    if isinstance(value, tuple):
        return tuple(_mapped(item, function) for item in value)
    if isinstance(value, Part):
        out = object.__new__(type(value))
        for name, field in value.__dict__.items():
            object.__setattr__(out, name, _mapped(field, function))
        return out
    return function(value) if is_array(value) or isinstance(value, (_Hole, _Leaf)) else value
