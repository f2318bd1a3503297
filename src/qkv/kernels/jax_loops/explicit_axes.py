"""Function that runs code without sharding rules on arrays whose types state how they are sharded.

On a mesh with explicit axes (`jax.sharding.AxisType.Explicit`) the type of an array tells how its axes are divided
among the devices, and every operation must follow rules of sharding, also those on constants. Loops begin with
constants, such as the zeros of a sum. They are therefore run with the axes of the mesh as automatic ones: the compiler
chooses the sharding of what is between the arguments and the output, whose sharding follows from the arguments.

Source: https://docs.jax.dev/en/latest/notebooks/explicit-sharding.html, section on mixing modes with `auto_axes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from qkv.core.typing import Array, Num

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec

__all__ = ["with_automatic_axes"]

Result = TypeVar("Result")


def with_automatic_axes(
    function: Callable[..., Result],
    query: Num[Array, "*#batch q query_width"],
    key: Num[Array, "*#batch k key_width"],
    value: Num[Array, "*#batch k value_width"],
    *others: object,
) -> Result:
    """Return `function(query, key, value, *others)`, run with automatic axes if the arrays have explicit ones.

    Args:
        function: function that returns a tuple of the output `(*batch, q, value_width)` and other arrays. The
            others are not sharded.
        query: queries.
        key: keys.
        value: values.
        *others: further arguments, pytrees of arrays.
    """
    import jax

    specs = [_explicit_spec(x) for x in (query, key, value)]
    if all(spec is None for spec in specs):
        return function(query, key, value, *others)
    rank = max(x.ndim for x in (query, key, value))
    of_query, of_key, of_value = (
        (None,) * rank if spec is None else (None,) * (rank - x.ndim) + tuple(spec) + (None,) * (x.ndim - len(spec))
        for spec, x in zip(specs, (query, key, value), strict=True)
    )
    used: set[object] = set()
    axes: list[object] = []
    for choices in (*zip(of_query[:-2], of_key[:-2], of_value[:-2], strict=True), of_query[-2:-1], of_value[-1:]):
        found = next((name for name in choices if name is not None), None)
        names = set(found) if isinstance(found, tuple) else {found}
        axes.append(None if names & used else found)
        used |= names - {None}
    spec = jax.sharding.PartitionSpec(*axes)
    automatic: Callable[..., Result] = jax.sharding.auto_axes(
        function, out_sharding=(spec, jax.sharding.PartitionSpec())
    )
    return automatic(query, key, value, *others)


def _explicit_spec(x: Num[Array, "*_"]) -> PartitionSpec | None:
    """Return how the type of an array says that its axes are sharded over explicit axes, or None if it does not."""
    import jax

    if not hasattr(jax, "typeof") or not hasattr(jax.sharding, "auto_axes"):
        return None
    sharding = getattr(jax.typeof(x), "sharding", None)
    kinds = getattr(getattr(sharding, "mesh", None), "axis_types", None) or ()
    if sharding is None or jax.sharding.AxisType.Explicit not in kinds:
        return None
    spec: PartitionSpec = sharding.spec
    return spec
