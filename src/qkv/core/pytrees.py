"""Functions that register scores, normalizers, masks and readouts as JAX pytrees.

The arrays of a part are leaves and all other fields are static. A score with learned arrays therefore works with
`jax.jit`, `jax.grad` and `jax.vmap`, in Equinox modules and in the state of optimizers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qkv.core.arrays import is_array

if TYPE_CHECKING:
    from qkv.core.parts import Part

__all__ = ["register"]

_REGISTERED: set[type] = set()


def register(kind: type[Part], root: type[Part]) -> None:
    """Register the classes `kind` and `root`, and all their subclasses, as JAX pytrees.

    Classes that are already registered are skipped.
    """
    if kind in _REGISTERED:
        return
    import jax

    # Classes defined before JAX was imported are not registered yet.
    kinds: list[type[Part]] = [kind, root]
    while kinds:
        one = kinds.pop()
        kinds += one.__subclasses__()
        if one not in _REGISTERED:
            _REGISTERED.add(one)
            jax.tree_util.register_pytree_node(one, _flatten, _unflatten)


@dataclass(frozen=True)
class _Placeholder:
    """Object that stands for an array in a `_Skeleton`, which holds no arrays."""


@dataclass(frozen=True)
class _Leaf:
    """Wrapper of a pytree leaf that is not an array, such as None or the axis number of `jax.vmap`."""

    value: object


@dataclass(frozen=True)
class _Skeleton:
    """Structure of a part without its arrays, equal for parts of one class that differ only in their arrays.

    Example:
        >>> import numpy as np
        >>> from qkv.scores import Bilinear
        >>> _Skeleton(Bilinear(np.ones((2, 2)))) == _Skeleton(Bilinear(np.ones((3, 3))))
        True
    """

    part: Part = field(compare=False)
    signature: Hashable = field(init=False)

    def __post_init__(self) -> None:
        part = self.part._map(lambda leaf, names: _Placeholder(), _is_leaf)
        object.__setattr__(self, "part", part)
        object.__setattr__(self, "signature", part.signature())


def _flatten(part: Part) -> tuple[list[object], _Skeleton]:
    leaves: list[object] = []

    part._map(lambda leaf, names: leaves.append(leaf.value if isinstance(leaf, _Leaf) else leaf), _is_leaf)
    return leaves, _Skeleton(part)


def _unflatten(skeleton: _Skeleton, leaves: Iterable[object]) -> Part:
    queue = iter(leaves)

    def fill(placeholder: object, names: object) -> object:
        leaf = next(queue)
        return leaf if is_array(leaf) else _Leaf(leaf)

    return skeleton.part._map(fill, _is_leaf)


def _is_leaf(value: object) -> bool:
    return is_array(value) or isinstance(value, (_Placeholder, _Leaf))
