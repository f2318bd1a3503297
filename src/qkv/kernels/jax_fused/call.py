"""Execution of a call by JAX's fused attention: order of axes, padding, and data that is not finite.

A masked key or value would be multiplied by 0, and NaN times 0 is NaN. Under a mask, keys and values that are not
finite are therefore set to 0, and NaN is added to the output of the queries that may attend to them, as on PyTorch's
fused operators. Queries that are not finite give NaN.
"""

from __future__ import annotations

import math
import typing
from importlib import import_module
from typing import Any

from qkv.core.equation import BoundCall
from qkv.core.typing import Array, Float

__all__ = ["fused_attention"]


def fused_attention(call: BoundCall, implementation: str) -> Float[Array, "*batch q value_width"]:
    """Return the output of a scaled dot product under softmax.

    Args:
        call: the call, without mask or with a causal one whose query 0 is at the position of key 0.
        implementation: "cudnn" or "xla" for `jax.nn.dot_product_attention`, or "tokamax".
    """
    import jax.numpy as jnp

    *lifted, scale = call.score.scaled_lift(call.query, call.key, call.tile)
    scale /= typing.cast("float", call.normalizer.temperature)
    query, key, value = (jnp.asarray(x) for x in (*lifted, call.value))
    poison: Any = (query * 0).sum(-1, keepdims=True)
    causal = call.mask is not None
    if causal:
        odd = (key * 0).sum(-1) + (value * 0).sum(-1)
        poison = poison + _until(odd, query.shape[-2])[..., None]
        key, value = (jnp.where(jnp.isfinite(x), x, 0) for x in (key, value))
    query = jnp.where(jnp.isfinite(query), query, 0)
    width, value_width = max(query.shape[-1], value.shape[-1]), value.shape[-1]
    if implementation != "tokamax":
        width += -width % 8
        query, key, value = (_padded(x, width) for x in (query, key, value))
    batch = call.tile.batch
    sides = _four_axes((query, key, value), batch)
    options: dict[str, Any] = {"scale": float(scale), "is_causal": causal}
    if implementation == "tokamax":
        tokamax = import_module("tokamax")
        # Without these names, tokamax may compute an array of all pairs.
        output = tokamax.dot_product_attention(*sides, **options, implementation=("mosaic", "triton"))
    else:
        from jax.nn import dot_product_attention

        output = dot_product_attention(*sides, **options, implementation=typing.cast("Any", implementation))
    output = jnp.swapaxes(output, 1, 2).reshape((*batch, query.shape[-2], output.shape[-1]))
    return typing.cast("Array", output[..., :value_width] + poison)


def _until(odd: Float[Array, "*#batch k"], q: int) -> Float[Array, "*#batch q"]:
    """Return for each query the sum over the keys up to its position, of numbers that are 0 or NaN."""
    import jax.numpy as jnp

    sums = jnp.cumsum(odd, axis=-1)
    taken: Array = jnp.take(sums, jnp.minimum(jnp.arange(q), sums.shape[-1] - 1), axis=-1)
    return taken


def _padded(x: Any, width: int) -> Any:
    import jax.numpy as jnp

    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])


def _four_axes(sides: tuple[Any, Any, Any], batch: tuple[int, ...]) -> list[Any]:
    """Return query, key and value with the axes (batch, length, heads, width).

    Query heads that share a key head, along the last batch axis, are not copied for each.
    """
    import jax.numpy as jnp

    query, key, value = sides
    shared = len(batch) > 1 and all(x.ndim == len(batch) + 2 and x.shape[-3] == 1 for x in (key, value))
    kept = 2 if shared else 1
    outer, heads = batch[:-kept], batch[-kept:]
    arrays = []
    for x, own in ((query, heads), *((x, (heads[0], 1) if shared else heads) for x in (key, value))):
        x = jnp.broadcast_to(x, (*outer, *own, *x.shape[-2:]))
        x = x.reshape((math.prod(outer), math.prod(own), *x.shape[-2:]))
        arrays.append(jnp.swapaxes(x, 1, 2))
    return arrays
