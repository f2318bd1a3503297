"""Functions that make arrays vary over the same axes of a device mesh, as loops under `jax.shard_map` require.

Within `jax.shard_map` the type of an array tells over which axes of the mesh its elements differ between devices. The
arrays that a loop carries must have the same type before and after each step, and both branches of a conditional the
same types, although constants, such as the zeros with which a sum begins, are equal on all devices.

Source: https://docs.jax.dev/en/latest/notebooks/shard_map.html, section on varying manual axes.
"""

from __future__ import annotations

from typing import TypeVar

from qkv.core.typing import Array, Shaped

__all__ = ["vary_alike", "vary_like"]

Tree = TypeVar("Tree")


def vary_alike(tree: Tree) -> Tree:
    """Return a pytree in which each array varies over all mesh axes over which any array of the tree varies.

    Outside `jax.shard_map` the tree is returned unchanged.
    """
    import jax

    return _vary(tree, frozenset().union(*(_axes(x) for x in jax.tree.leaves(tree))))


def vary_like(tree: Tree, reference: Shaped[Array, "*_"]) -> Tree:
    """Return a pytree in which each array varies at least over the mesh axes over which `reference` varies."""
    return _vary(tree, _axes(reference))


def _vary(tree: Tree, axes: frozenset[str]) -> Tree:
    if not axes:
        return tree
    import jax

    def vary(x: Array) -> Array:
        missing = tuple(sorted(axes - _axes(x)))
        varied: Array = jax.lax.pcast(x, missing, to="varying") if missing else x
        return varied

    varied: Tree = jax.tree.map(vary, tree)
    return varied


def _axes(x: Shaped[Array, "*_"]) -> frozenset[str]:
    """Return the mesh axes over which an array varies; there are none in versions of JAX without such types."""
    import jax

    if not hasattr(jax, "typeof"):
        return frozenset()
    kind = jax.typeof(x)
    # Before version 0.10 the type had these axes as `vma`.
    axes: frozenset[str] = kind.manual_axis_type.varying if hasattr(kind, "manual_axis_type") else kind.vma
    return axes
