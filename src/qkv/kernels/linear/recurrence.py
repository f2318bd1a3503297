"""The recurrence of linear attention, computed in chunks of steps, in every array library.

    state_t = state_{t−1} + k_t v_tᵀ          output_t = q_t state_t

Within a chunk the products of all pairs are computed at once; from chunk to chunk only the state is passed on:

    output = (Q Kᵀ, without later keys) V + Q state          next state = state + Kᵀ V

The cost is linear in the number of steps, and autograd differentiates each step.

Source: Katharopoulos et al. (2020), Transformers are RNNs, https://arxiv.org/abs/2006.16236; the computation in chunks:
Sun et al. (2023), Retentive Network, section 2.3, https://arxiv.org/abs/2307.08621.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from qkv.core.arrays import arange, library, namespace, where
from qkv.core.typing import Array, Bool, Float

__all__ = ["CHUNK", "CHUNK_OF_LOOPS", "chunk_step", "not_later", "recur"]

CHUNK = 32
"""Number of steps per chunk. The products of pairs grow with it, and the number of operations falls: on one core 16 and
128 steps took 1.1 and 1.3 times as long (PyTorch, 64 features, float32)."""
CHUNK_OF_LOOPS = 128
"""Number of steps per chunk in loops with one chunk per iteration, whose fixed cost matters (NumPy and JAX)."""


def not_later(reference: Array, size: int) -> Bool[Array, "size size"]:
    """Return the boolean matrix that is True for the pairs of a query and a key that is not later in the chunk."""
    steps = arange(reference, 0, size)
    return steps[None, :] <= steps[:, None]


def chunk_step(
    query: Float[Array, "*#batch n features"],
    key: Float[Array, "*#batch n features"],
    value: Float[Array, "*#batch n value_width"],
    state: Float[Array, "*#batch features value_width"],
) -> tuple[Float[Array, "*batch n value_width"], Float[Array, "*_ features value_width"]]:
    """Return the outputs of the steps of one chunk, and the state after it.

    Args:
        query: features of the queries.
        key: features of the keys.
        state: state before the chunk.
    """
    xp = namespace(query)
    pairs = xp.matmul(query, xp.matrix_transpose(key))
    pairs = where(not_later(query, query.shape[-2]), pairs, 0.0)
    output = xp.matmul(pairs, value) + xp.matmul(query, state)
    return output, state + xp.matmul(xp.matrix_transpose(key), value)


def recur(
    query: Float[Array, "*#batch n features"],
    key: Float[Array, "*#batch n features"],
    value: Float[Array, "*#batch n value_width"],
    state: Float[Array, "*#batch features value_width"],
) -> tuple[Float[Array, "*batch n value_width"], Float[Array, "*_ features value_width"]]:
    """Return the outputs of all steps, and the state after the last step.

    The arguments are those of `chunk_step`, for any number of steps.
    """
    xp, n = namespace(query), query.shape[-2]
    size = CHUNK_OF_LOOPS
    outputs, start = [], 0
    if library(query) == "jax" and n >= 2 * size:
        start = n - n % size
        output, state = _jax_loop()(query[..., :start, :], key[..., :start, :], value[..., :start, :], state)
        outputs.append(output)
    while start < n or not outputs:
        rows = slice(start, start + size)
        output, state = chunk_step(query[..., rows, :], key[..., rows, :], value[..., rows, :], state)
        outputs.append(output)
        start += size
    return (outputs[0] if len(outputs) == 1 else xp.concat(outputs, axis=-2)), state


@cache
def _jax_loop() -> Any:
    """Return `recur` as a compiled loop over whole chunks. It is defined on first use, because JAX is optional."""
    import jax
    import jax.numpy as jnp

    size = CHUNK_OF_LOOPS

    def step(state: Any, chunk: tuple[Any, Any, Any]) -> Any:
        query, key, value = chunk
        output, state = chunk_step(query, key, value, state)
        return state, output

    def loop(query: Any, key: Any, value: Any, state: Any) -> Any:
        def chunks(x: Any) -> Any:
            return jnp.moveaxis(x.reshape((*x.shape[:-2], x.shape[-2] // size, size, x.shape[-1])), -3, 0)

        batch = jnp.broadcast_shapes(key.shape[:-2], value.shape[:-2], state.shape[:-2])
        state = jnp.broadcast_to(state, (*batch, *state.shape[-2:]))  # its shape must stay the same in the loop
        # Save the states only, and compute the pairs of a chunk again in the backward pass.
        state, output = jax.lax.scan(jax.checkpoint(step), state, (chunks(query), chunks(key), chunks(value)))
        output = jnp.moveaxis(output, 0, -3)
        return output.reshape((*output.shape[:-3], output.shape[-3] * size, output.shape[-1])), state

    return loop
