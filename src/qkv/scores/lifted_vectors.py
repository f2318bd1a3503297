"""Functions of the vectors of queries and keys whose inner products are logits."""

from __future__ import annotations

from qkv.core.arrays import itemsize, namespace, zeros
from qkv.core.typing import Array, Num

__all__ = ["LIFT_RANGES", "column_of_ones", "concat_features", "lift_limits"]


LIFT_RANGES = {"float32": (2.0**8, 2.0**22), "float64": (2.0**24, 2.0**46)}
"""Largest squared lengths of lifted keys and of lifted queries for which a sum that cancels is accurate, by dtype.

The errors of logits are up to 3e-5 and 2e-9 with these lengths of keys. Those of the queries alone, which all logits of
a query share, change a logit by less than 1.
"""


def lift_limits(dtype: str) -> tuple[float, float]:
    """Return the limits of `LIFT_RANGES` for arrays of a dtype; half precision is computed in float32."""
    return LIFT_RANGES["float64" if itemsize(dtype) == 8 else "float32"]


def concat_features(*arrays: Num[Array, "*#batch #n _"]) -> Num[Array, "*batch n width"]:
    """Concatenate arrays along the last axis after broadcasting all other axes."""
    xp = namespace(*arrays)
    first = tuple(arrays[0].shape[:-1])
    # Broadcasting takes longer than the concatenation of short sequences. Under tracers, lengths may be unknown.
    if all(type(n) is int for n in first) and all(tuple(x.shape[:-1]) == first for x in arrays[1:]):
        return xp.concat(arrays, axis=-1)
    lead = xp.broadcast_arrays(*(x[..., :1] for x in arrays))[0].shape[:-1]
    return xp.concat([xp.broadcast_to(x, (*lead, x.shape[-1])) for x in arrays], axis=-1)


def column_of_ones(x: Num[Array, "*batch n width"]) -> Num[Array, "*batch n 1"]:
    """Return an array of ones with the axes of `x`, except that the last has length 1."""
    # Slicing needs no lengths, which are unknown under some tracers, but a width of 0 leaves nothing to slice.
    return namespace(x).ones_like(x[..., :1]) if x.shape[-1] else zeros(x, (*x.shape[:-1], 1)) + 1
