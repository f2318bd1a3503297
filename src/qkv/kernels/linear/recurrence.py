"""The recurrence of linear attention, computed in chunks of steps, in every array library.

    state_t = state_{t−1} + k_t v_tᵀ          output_t = q_t state_t

Within a chunk the products of all pairs are computed at once; from chunk to chunk only the state is passed on:

    forward:   per chunk   A = Q Kᵀ without later keys      O = A V + Q S           S ← S + Kᵀ V
    backward:  per chunk   dA = dO Vᵀ without later keys    dS ← dS + Qᵀ dO, from the last chunk to the first
               dQ = dA K + dO Sᵀ       dK = dAᵀ Q + V dSᵀ       dV = Aᵀ dO + K dS

The cost is linear in the number of steps. In PyTorch an autograd function computes several chunks at once, as many as
fit the processor's cache, and forward saves one state for each of these blocks. Second derivatives, and the gradients
of other libraries, are those of the steps of `recur`.

Source: Katharopoulos et al. (2020), Transformers are RNNs, https://arxiv.org/abs/2006.16236; the computation in chunks:
Sun et al. (2023), Retentive Network, section 2.3, https://arxiv.org/abs/2307.08621.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, cast

import numpy as np

from qkv.core.arrays import arange, library, namespace, where
from qkv.core.autograd_function import autograd_function
from qkv.core.typing import Array, Bool, Float, Tensor
from qkv.kernels.runtime.gradients import gradients_of

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
def _jax_loop() -> Callable[[Array, Array, Array, Array], tuple[Array, Array]]:
    """Return `recur` as a compiled loop over whole chunks. It is defined on first use, because JAX is optional."""
    import jax
    import jax.numpy as jnp

    size = CHUNK_OF_LOOPS

    def step(state: Array, chunk: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        query, key, value = chunk
        output, state = chunk_step(query, key, value, state)
        return state, output

    def loop(query: Array, key: Array, value: Array, state: Array) -> tuple[Array, Array]:
        def chunks(x: Array) -> object:
            return jnp.moveaxis(jnp.reshape(x, (*x.shape[:-2], x.shape[-2] // size, size, x.shape[-1])), -3, 0)

        batch = jnp.broadcast_shapes(key.shape[:-2], value.shape[:-2], state.shape[:-2])
        state = jnp.broadcast_to(state, (*batch, *state.shape[-2:]))  # its shape must stay the same in the loop
        # Save the states only, and compute the pairs of a chunk again in the backward pass.
        state, output = jax.lax.scan(jax.checkpoint(step), state, (chunks(query), chunks(key), chunks(value)))
        output = jnp.moveaxis(output, 0, -3)
        return output.reshape((*output.shape[:-3], output.shape[-3] * size, output.shape[-1])), state

    return loop


if TYPE_CHECKING:
    from qkv.core.autograd_function import Context


BLOCK_PAIRS = 2**16
"""Number of pairs of the chunks that are computed at once. Four times as many took 1.2 to 2 times as long, because they
leave the second-level cache (one core with 2 MiB, 64 features, float32)."""


def differentiable_recurrence(
    query: Float[Tensor, "*#batch n features"],
    key: Float[Tensor, "*#batch n features"],
    value: Float[Tensor, "*#batch n value_width"],
    state: Float[Tensor, "*#batch features value_width"],
) -> tuple[Float[Tensor, "*batch n value_width"], Float[Tensor, "*_ features value_width"]]:
    """Return the outputs of all steps and the state after the last step, as `recur` does, with all derivatives.

    The backward pass needs memory linear in the number of steps: the inputs, and a state for each block of chunks.
    """
    outputs = autograd_function(_forward, _backward)(query, key, value, state)
    return cast("tuple[Tensor, Tensor]", outputs)


def _blocks(n: int, elements: int) -> Iterator[tuple[int, int, int]]:
    """Yield the first step, the number of chunks and the number of steps per chunk of each block."""
    chunks = max(1, BLOCK_PAIRS // (CHUNK * CHUNK * max(1, elements)))
    whole = n // CHUNK
    for first in range(0, whole, chunks):
        yield first * CHUNK, min(chunks, whole - first), CHUNK
    if n % CHUNK:
        yield whole * CHUNK, 1, n % CHUNK


def _split(x: Float[Tensor, "*batch n width"], start: int, count: int, size: int) -> Float[Tensor, "*_ width"]:
    """Return a view of a block of steps as `(*batch, chunks, steps per chunk, width)`."""
    block = x[..., start : start + count * size, :]
    return block.view((*block.shape[:-2], count, size, block.shape[-1]))


def _copies(arrays: Sequence[Float[Tensor, "*_"]], start: int, count: int, size: int) -> Iterator[Float[Tensor, "*_"]]:
    """Yield a block of steps of each array, contiguous in memory, because each is in several products."""
    for x in arrays:
        yield _split(x, start, count, size).contiguous()


def _states(
    state: Float[Tensor, "*_"], update: Float[Tensor, "*_"], backward: bool = False
) -> tuple[Float[Tensor, "*_"], Float[Tensor, "*_"]]:
    """Return the states before the chunks of a block, and the state after the block; `backward` reverses time.

    Args:
        state: state before the block, `(*batch, features, value_width)`.
        update: what each chunk adds to the state, `(*batch, chunks, features, value_width)`.
        backward: whether the chunks follow each other from the last to the first.
    """
    import torch

    count = update.shape[-3]
    if count == 1:
        return state.unsqueeze(-3), state + update[..., 0, :, :]
    before = update.new_empty(update.shape)
    states, updates = before.unbind(-3), update.unbind(-3)
    if backward:
        states, updates = states[::-1], updates[::-1]
    states[0].copy_(state)
    for n in range(1, count):
        torch.add(states[n - 1], updates[n - 1], out=states[n])
    return before, states[-1] + updates[-1]


def _forward(
    ctx: Context,
    query: Float[Tensor, "*#batch n features"],
    key: Float[Tensor, "*#batch n features"],
    value: Float[Tensor, "*#batch n value_width"],
    state: Float[Tensor, "*#batch features value_width"],
) -> tuple[Float[Tensor, "*batch n value_width"], Float[Tensor, "*_ features value_width"]]:
    import torch

    n = query.shape[-2]
    own = np.broadcast_shapes(key.shape[:-2], value.shape[:-2], state.shape[:-2])
    batch = np.broadcast_shapes(query.shape[:-2], own)
    output = value.new_empty((*batch, n, value.shape[-1]))
    current, saved = state.expand(*own, *state.shape[-2:]), []
    allowed = cast("Tensor", not_later(query, CHUNK)).to(query.dtype)
    for start, count, size in _blocks(n, math.prod(batch)):
        saved.append(current)
        q, k, v = _copies((query, key, value), start, count, size)
        before, current = _states(current, k.mT @ v)
        pairs = (q @ k.mT).mul_(allowed[:size, :size])
        torch.add(pairs @ v, q @ before, out=_split(output, start, count, size))
    ctx.save_for_backward(query, key, value, state, *saved)
    # A function must not return its input.
    return output, current.clone() if not saved else current


def _backward(
    ctx: Context, d_output: Float[Tensor, "*batch n value_width"], d_state: Float[Tensor, "*_ features value_width"]
) -> tuple[Float[Tensor, "*_"] | None, ...]:
    import torch

    query, key, value, state, *saved = ctx.saved_tensors
    inputs = (query, key, value, state)
    if torch.is_grad_enabled():  # the gradients will be differentiated themselves
        inputs = (
            query.view_as(query),
            key.view_as(key),
            value.view_as(value),
            state.view_as(state),
        )  # may be one tensor
        outputs = cast("tuple[Tensor, Tensor]", recur(*inputs))
        differentiated = [x for x, needed in zip(inputs, ctx.needs_input_grad, strict=True) if needed]
        found = iter(gradients_of(outputs, (d_output, d_state), differentiated, create_graph=True))
        return tuple(next(found) if needed else None for needed in ctx.needs_input_grad)
    d_query, d_key, d_value = (x.new_empty(x.shape) for x in inputs[:3])
    allowed = cast("Tensor", not_later(query, CHUNK)).to(query.dtype)
    blocks = list(_blocks(query.shape[-2], d_output.shape[:-2].numel()))
    for (start, count, size), current in zip(reversed(blocks), reversed(saved), strict=True):
        q, k, v, d_out = _copies((query, key, value, d_output), start, count, size)
        # Batch elements that share a state add to the same gradient.
        update = (q.mT @ d_out).sum_to_size((*d_state.shape[:-2], count, *d_state.shape[-2:]))
        _gradients_of_chunks(
            (q, k, v, d_out),
            _states(current, k.mT @ v)[0],
            (after := _states(d_state, update, backward=True))[0],
            allowed[:size, :size],
            tuple(_split(x, start, count, size) for x in (d_query, d_key, d_value)),
        )
        d_state = after[1]
    return d_query, d_key, d_value, d_state.sum_to_size(state.shape)


def _gradients_of_chunks(
    chunks: tuple[Float[Tensor, "*_"], ...],
    states: Float[Tensor, "*_"],
    d_states: Float[Tensor, "*_"],
    allowed: Float[Tensor, "size size"],
    targets: tuple[Float[Tensor, "*_"], ...],
) -> None:
    """Write the gradients of queries, keys and values of a block of chunks to `targets`.

    Args:
        chunks: queries, keys, values and the gradient of the outputs, `(*batch, chunks, steps, width)`.
        states: the states before the chunks.
        d_states: the gradients of the states after the chunks.
        allowed: 1 for the pairs of a chunk whose key is not later, 0 for the others.
        targets: arrays for the gradients.
    """
    q, k, v, d_out = chunks
    pairs = (q @ k.mT).mul_(allowed)
    d_pairs = (d_out @ v.mT).mul_(allowed)
    terms = ((d_pairs @ k, d_out @ states.mT), (d_pairs.mT @ q, v @ d_states.mT), (pairs.mT @ d_out, k @ d_states))
    for target, (one, other) in zip(targets, terms, strict=True):
        # Gradients of arrays that batch elements share are summed over these elements, in each term over its own.
        target.copy_(one.sum_to_size(target.shape).add_(other.sum_to_size(target.shape)))
