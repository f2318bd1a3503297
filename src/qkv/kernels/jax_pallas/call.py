"""Attention with an additive score in JAX: preparation of its arrays, and the Pallas programs with their derivative.

Data is never read back. Queries, keys and values that are not finite are treated as by the programs for PyTorch
(`kernels/triton/additive.py`).
"""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Sequence
from typing import Any

from qkv.core.equation import BoundCall
from qkv.core.parts import expand_to_pairs
from qkv.core.typing import Array, Float
from qkv.kernels.jax_pallas.programs import Sizes, attend_queries, differentiate_keys, differentiate_queries
from qkv.kernels.runtime.split_mask import split_mask

__all__ = ["pallas_attention"]

_FAR = 43.0
"""Largest projection whose exponential is used; tanh of more than 9 is 1 in single precision."""


def pallas_attention(call: BoundCall, block: int, backend: str | None) -> Float[Array, "*batch q value_width"]:
    """Return the output of a call with an additive score under softmax, in single precision.

    Args:
        call: the call, whose arrays are in single precision.
        block: number of queries and keys of a tile.
        backend: compiler of the programs, "triton" for GPUs or "mosaic_tpu"; None to evaluate them as other code.
    """
    import jax.numpy as jnp

    batch, q, k = call.tile.batch, call.tile.q_total, call.tile.k_total
    keys, offset, _ = split_mask(call.mask, call.tile)
    query, key, value = (jnp.where(jnp.isfinite(x), x, 0.0) for x in (call.query, call.key, call.value))
    left, right = (_elements(x, batch) for x in call.score.project(query, key, call.tile))
    temperature = typing.cast("Any", call.normalizer.temperature)
    vector: Any = typing.cast("Any", call.score.tanh_vector) / expand_to_pairs(temperature)
    vector = vector[..., 0, :] if getattr(temperature, "ndim", 0) else vector
    vector = _elements(jnp.broadcast_to(vector, (*batch, vector.shape[-1]))[..., None, :], batch)
    allowed: Any = (
        jnp.ones((k,), bool) if keys is None else typing.cast("Any", keys.allowed(call.tile, value))[..., 0, :]
    )
    odd = ~jnp.isfinite(typing.cast("Any", call.key)).all(-1)
    key_bias = jnp.where(allowed, jnp.where(odd, math.nan, 0.0), -math.inf)
    row_bias = (typing.cast("Any", call.query) * 0).sum(-1)
    biases = (jnp.broadcast_to(x, (*batch, n)).reshape((-1, n)) for x, n in ((row_bias, q), (key_bias, k)))
    output = _attention()(block, offset, backend, left, right, vector[:, 0], _elements(value, batch), *biases)
    return typing.cast("Array", output.reshape((*batch, q, -1)) + _nonfinite_values(call, allowed, offset))


def _elements(x: Any, batch: tuple[int, ...]) -> Any:
    import jax.numpy as jnp

    return jnp.broadcast_to(x, (*batch, *x.shape[-2:])).reshape((-1, *x.shape[-2:]))


def _nonfinite_values(call: BoundCall, allowed: Any, offset: int | None) -> Any:
    """Return the sum of the values that are not finite, over the keys to which a query may attend; 0 for most."""
    import jax
    import jax.numpy as jnp

    value: Any = jax.lax.stop_gradient(call.value)
    found = jnp.where(jnp.isfinite(value) | ~allowed[..., None], 0.0, value)
    if offset is None:
        return found.sum(-2, keepdims=True)
    sums = jnp.cumsum(found, axis=-2)
    last = jnp.arange(call.tile.q_total) + offset
    taken = jnp.take(sums, jnp.clip(last, 0, sums.shape[-2] - 1), axis=-2)
    return jnp.where((last >= 0)[:, None], taken, 0.0)


@functools.cache
def _attention() -> Any:
    """Return the programs as one function with a derivative. It is defined on first use, because JAX is optional."""
    import jax

    attend = functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))(lambda *arguments: _forward(*arguments)[0])
    attend.defvjp(_forward, _backward)
    return jax.jit(attend, static_argnums=(0, 1, 2))


def _forward(
    block: int, offset: int | None, backend: str | None, left: Any, right: Any, vector: Any, value: Any, row_bias: Any,
    key_bias: Any,
) -> tuple[Any, Any]:  # fmt: skip
    arrays, near = _padded(block, left, right, vector, value, row_bias, key_bias)
    (elements, q, _), width = arrays[0].shape, arrays[3].shape[-1]
    outputs = [((elements, q, width), "query"), ((elements, q, 1), "query")]

    def run(is_near: bool, arrays: tuple[Any, ...]) -> Any:
        sizes = _sizes(block, offset, is_near, left, vector)
        return _launch(attend_queries, sizes, (elements, q // block), _ARRAYS, outputs, backend)(*arrays)

    output, log_sum_exp = _either(near, run, arrays)
    saved = left, right, vector, value, row_bias, key_bias, output, log_sum_exp
    return output[:, : left.shape[1], : value.shape[-1]], saved


def _backward(
    block: int, offset: int | None, backend: str | None, saved: tuple[Any, ...], gradient: Any
) -> tuple[Any, ...]:
    import jax.numpy as jnp

    *given, output, log_sum_exp = saved
    left, right, vector, value = given[:4]
    arrays, near = _padded(block, *given)
    gradient = _pad(gradient, output.shape)
    dots = (gradient * output).sum(-1, keepdims=True)
    arrays = (*arrays, gradient, log_sum_exp, dots)
    kinds = (*_ARRAYS, "query", "query", "query")
    (elements, q, hidden), (_, k, width) = arrays[0].shape, arrays[3].shape
    row_outputs = [((elements, q, hidden), "query")] * 2
    key_outputs = [((elements, hidden, k), "key across"), ((elements, k, width), "key")]

    def run(is_near: bool, arrays: tuple[Any, ...]) -> Any:
        sizes = _sizes(block, offset, is_near, left, vector)
        rows = _launch(differentiate_queries, sizes, (elements, q // block), kinds, row_outputs, backend)
        own = _launch(differentiate_keys, sizes, (elements, k // block), kinds, key_outputs, backend)
        return (*rows(*arrays), *own(*arrays))

    of_left, of_vector, of_right, of_value = _either(near, run, arrays)
    units, q, k = left.shape[-1], left.shape[1], right.shape[1]
    found = of_left[:, :q, :units], of_right.mT[:, :k, :units], of_vector.sum(1)[:, :units]
    return (*found, of_value[:, :k, : value.shape[-1]], *(jnp.zeros_like(x) for x in given[4:]))


_ARRAYS = ("query", "key across", "element", "key", "query", "key across")
"""Kind of each array of a program: along which axis a program takes a block of it."""


def _sizes(block: int, offset: int | None, near: bool, left: Any, vector: Any) -> Sizes:
    from jax.lax import Precision

    return Sizes(vector.shape[-1] + vector.shape[-1] % 2, left.shape[1], block, offset, near, Precision.HIGHEST)


def _either(near: Any, run: Any, arrays: tuple[Any, ...]) -> Any:
    """Run the programs for projections of moderate range, or those for any range, as the data decides."""
    import jax

    return jax.lax.cond(near, functools.partial(run, True), functools.partial(run, False), arrays)


def _launch(
    program: Any, sizes: Sizes, grid: tuple[int, int], kinds: tuple[str, ...],
    outputs: Sequence[tuple[tuple[int, ...], str]], backend: str | None,
) -> Any:  # fmt: skip
    """Return a function that runs a program for each block of queries, or of keys, of each element."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    own = "key" if program is differentiate_keys else "query"

    def spec(shape: tuple[int, ...], kind: str) -> Any:
        if kind.split()[0] != own:
            return pl.BlockSpec((1, *shape[1:]), lambda element, _: (element, 0, 0))
        if kind.endswith("across"):
            return pl.BlockSpec((1, shape[1], sizes.block), lambda element, n: (element, 0, n))
        return pl.BlockSpec((1, sizes.block, shape[2]), lambda element, n: (element, n, 0))

    def run(*arrays: Any) -> Any:
        return pl.pallas_call(
            functools.partial(program, sizes=sizes),
            grid=grid,
            in_specs=[spec(x.shape, kind) for x, kind in zip(arrays, kinds, strict=True)],
            out_specs=[spec(*each) for each in outputs],
            out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape, _ in outputs],
            interpret=backend is None,
            compiler_params=_compiler(backend),
        )(*arrays)

    return run


def _compiler(backend: str | None) -> Any:
    """Return options that choose the compiler: for GPUs Triton, because the programs are written for it."""
    if backend != "triton":
        return None
    from jax.experimental.pallas import triton

    return triton.CompilerParams(num_warps=4)


def _pad(x: Any, shape: tuple[int, ...], fill: float = 0.0) -> Any:
    import jax.numpy as jnp

    return jnp.pad(x, [(0, more - n) for n, more in zip(x.shape, shape, strict=True)], constant_values=fill)


def _power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least `n` and 16, the smallest side of a matrix product."""
    return max(16, 1 << (n - 1).bit_length())


def _padded(
    block: int, left: Any, right: Any, vector: Any, value: Any, row_bias: Any, key_bias: Any
) -> tuple[tuple[Any, ...], Any]:
    """Return the arrays of the programs, and whether all projections have a moderate range.

    Projections are shifted so that both sides have the same middle, and are replaced by exponentials if they have.
    """
    import jax.numpy as jnp

    (low, high), (least, most) = ((x.min(1, keepdims=True), x.max(1, keepdims=True)) for x in (left, right))
    shift = ((least + most) - (low + high)) / 4
    left, right = left + shift, right - shift
    reach, other = jnp.abs(left).max(1), jnp.abs(right).max(1)
    both = (reach <= _FAR) & (other <= _FAR)
    near = (both | (reach <= _FAR - 9) | (other <= _FAR - 9)).all() & (jnp.abs(vector).max() < 2.0**30)
    left, right = (jnp.where(near, jnp.exp(2 * jnp.clip(x, -_FAR, _FAR)), x) for x in (left, right))
    elements, q, units = left.shape
    k, hidden, width = right.shape[1], _power_of_two(units), _power_of_two(value.shape[-1])
    rows, cols = -(-q // block) * block, -(-k // block) * block
    return (
        _pad(left, (elements, rows, hidden)),
        _pad(right.mT, (elements, hidden, cols)),
        _pad(vector[:, None], (elements, 1, hidden)),
        _pad(value, (elements, cols, width)),
        _pad(row_bias[..., None], (elements, rows, 1)),
        _pad(key_bias[:, None], (elements, 1, cols), -math.inf),
    ), near
