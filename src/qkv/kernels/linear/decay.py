"""The recurrence of linear attention with decays, computed in blocks of chunks, in every array library.

    state_t = e^(g_t) state_{t−1} + k_t v_tᵀ          output_t = q_t state_t

g_t is one number, or one for each feature. With G_t, the sum of g from the start of a chunk to t, a chunk computes

    output = (Q Kᵀ ∘ e^(G_i − G_j), without later keys) V + (Q ∘ e^(G_i)) state
    next state = e^(G_last) state + (K ∘ e^(G_last − G_j))ᵀ V

Nothing overflows, however strong the decays are: no exponent is positive, and each is the sum of its own terms, so that
no digits are lost. Decays per feature do not factor out of the product Q Kᵀ. For them a chunk is split
in halves: a later query and an earlier key meet at the last key m of the first half, as q e^(G_i − G_m) and
k e^(G_m − G_j), and pairs within a half are split again, down to `_LEAST` steps. Where the decays of a chunk or a half
are weak, −G_last ≤ `_MAX_WEAK`, all its pairs meet in the middle, as q e^(G_i − G_last / 2) and k e^(G_last / 2 − G_j),
and exponents of decays per step are differences of G.

PyTorch's backward computes each block again from the state before it, and needs memory linear in the number of steps.

Source: Yang et al. (2024), Gated linear attention transformers with hardware-efficient training, section 4,
https://arxiv.org/abs/2312.06635.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, cast

import numpy as np

from qkv.core.arrays import library, namespace, statically_known_true, where, zeros
from qkv.core.autograd_function import autograd_function
from qkv.core.typing import Array, Float, Tensor
from qkv.kernels.linear.recurrence import not_later
from qkv.kernels.runtime.gradients import gradients_of, leaves_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from qkv.core.autograd_function import Context


CHUNK_OF_DECAYS = 32
"""Number of steps per chunk, a power of 2."""
_BLOCK_PAIRS = 2**16
"""Number of pairs of the chunks that are computed at once."""
_MAX_WEAK = 8.0
"""Largest sum of the decays of a chunk, without the sign, up to which differences of sums are taken: in float32 the
error of outputs and gradients is then at most 4e-7 instead of 2e-7."""
_LEAST = 4
"""Number of steps whose pairs are computed for each feature, if features decay differently."""

Outputs = tuple[Array, Array]
"""Outputs of all steps and the state after the last step."""


def recur_with_decay(
    query: Float[Array, "*#batch n features"],
    key: Float[Array, "*#batch n features"],
    value: Float[Array, "*#batch n value_width"],
    log_decay: Float[Array, "*#batch n #features"],
    state: Float[Array, "*#batch features value_width"],
) -> tuple[Float[Array, "*batch n value_width"], Float[Array, "*_ features value_width"]]:
    """Return the outputs of all steps, and the state after the last step, with all derivatives.

    Args:
        query: features of the queries.
        key: features of the keys.
        log_decay: logarithms of the decays, at most 0, one for each step or one for each step and feature.
        state: state before the first step.
    """
    xp, n = namespace(query), query.shape[-2]
    batch = np.broadcast_shapes(*(x.shape[:-2] for x in (key, value, log_decay, state)))
    state = xp.broadcast_to(state, (*batch, *state.shape[-2:]))
    if n == 0:
        whole = np.broadcast_shapes(query.shape[:-2], batch)
        return zeros(value, (*whole, 0, value.shape[-1])), state
    size = min(CHUNK_OF_DECAYS, 1 << (n - 1).bit_length())
    # Steps without keys and with a decay of 1 do not change the state.
    query, key, value, log_decay = (_pad(x, -n % size) for x in (query, key, value, log_decay))
    run = {"torch": _torch_blocks, "jax": _jax_blocks}.get(library(query), _blocks)
    output, state = run(query, key, value, log_decay, state, size=size)
    return output[..., :n, :], state


def _pad(x: Float[Array, "*batch n width"], rows: int) -> Float[Array, "*batch m width"]:
    if not rows:
        return x
    return namespace(x).concat([x, zeros(x, (*x.shape[:-2], rows, x.shape[-1]))], axis=-2)


def _split(x: Float[Array, "*batch n width"], size: int) -> Float[Array, "*_ width"]:
    """Return the steps as `(*batch, chunks, size, width)`."""
    return namespace(x).reshape(x, (*x.shape[:-2], x.shape[-2] // size, size, x.shape[-1]))


def _block(
    query: Float[Array, "*#batch n features"],
    key: Float[Array, "*#batch n features"],
    value: Float[Array, "*#batch n value_width"],
    log_decay: Float[Array, "*#batch n #features"],
    state: Float[Array, "*#batch features value_width"],
    *,
    size: int,
) -> tuple[Float[Array, "*batch n value_width"], Float[Array, "*_ features value_width"]]:
    """Return the outputs of a block of chunks of `size` steps, and the state after it."""
    xp = namespace(query)
    q, k, v, g = (_split(x, size) for x in (query, key, value, log_decay))
    sums = _sums(g)
    last = sums[..., -1:, :]
    later = last - sums if _are_weak(last) else _later_sums(g)
    update = xp.matmul(xp.matrix_transpose(k * xp.exp(later)), v)
    factor = xp.matrix_transpose(xp.exp(last))
    before = []
    for n in range(q.shape[-3]):
        before.append(state[..., None, :, :])
        state = factor[..., n, :, :] * state + update[..., n, :, :]
    states = before[0] if len(before) == 1 else xp.concat(before, axis=-3)
    output = _within(q, k, v, g, sums) + xp.matmul(q * xp.exp(sums), states)
    return xp.reshape(output, (*output.shape[:-3], output.shape[-3] * output.shape[-2], output.shape[-1])), state


def _within(
    query: Float[Array, "*#batch n features"],
    key: Float[Array, "*#batch n features"],
    value: Float[Array, "*#batch n value_width"],
    log_decay: Float[Array, "*#batch n #features"],
    sums: Float[Array, "*#batch n #features"],
) -> Float[Array, "*batch n value_width"]:
    """Return the part of the outputs that comes from keys of the same chunk; `sums` are those up to each step."""
    xp, n = namespace(query), query.shape[-2]
    weak = _are_weak(sums[..., -1:, :])
    if log_decay.shape[-1] == 1:
        if weak:
            differences = sums - xp.matrix_transpose(sums)
            factors = xp.exp(where(not_later(query, n), differences, -math.inf))
        else:
            factors = _factors(log_decay)[..., 0]
        return xp.matmul(xp.matmul(query, xp.matrix_transpose(key)) * factors, value)
    if weak:
        middle = sums[..., -1:, :] / 2
        pairs = xp.matmul(query * xp.exp(sums - middle), xp.matrix_transpose(key * xp.exp(middle - sums)))
        return xp.matmul(where(not_later(query, n), pairs, 0.0), value)
    if n <= _LEAST:
        pairs = xp.sum(query[..., :, None, :] * _factors(log_decay) * key[..., None, :, :], axis=-1)
        return xp.matmul(pairs, value)
    q, k, v, g = (_split(x, n // 2) for x in (query, key, value, log_decay))
    sums = _sums(g)
    own = _within(q, k, v, g, sums)
    left = q[..., 1, :, :] * xp.exp(sums[..., 1, :, :])
    right = k[..., 0, :, :] * xp.exp(_later_sums(g[..., 0, :, :]))
    across = xp.matmul(xp.matmul(left, xp.matrix_transpose(right)), v[..., 0, :, :])
    return xp.concat([own[..., 0, :, :], own[..., 1, :, :] + across], axis=-2)


def _are_weak(last: Float[Array, "*batch 1 width"]) -> bool:
    """Return whether decays are so weak that differences of their sums are exact enough, given the sums of chunks."""
    return statically_known_true(namespace(last).all(last >= -_MAX_WEAK))


def _sums(x: Float[Array, "*batch n width"]) -> Float[Array, "*batch n width"]:
    """Return the sum up to each step."""
    return namespace(x).cumulative_sum(x, axis=x.ndim - 2)


def _later_sums(x: Float[Array, "*batch n width"]) -> Float[Array, "*batch n width"]:
    """Return the sum after each step, added from the last step on."""
    xp = namespace(x)
    later = xp.concat([x[..., 1:, :], xp.zeros_like(x[..., :1, :])], axis=-2)
    return xp.flip(_sums(xp.flip(later, axis=-2)), axis=-2)


def _factors(log_decay: Float[Array, "*batch n width"]) -> Float[Array, "*batch n n width"]:
    """Return the decay from each key to each query of a chunk, which is 0 for later keys.

    Each exponent is a sum of its own terms and not a difference of two sums, which loses digits if decays are strong.
    """
    xp, allowed = namespace(log_decay), not_later(log_decay, log_decay.shape[-2])
    later_than_key = (allowed & ~xp.matrix_transpose(allowed))[..., None]
    terms = where(later_than_key, log_decay[..., :, None, :], 0.0)
    exponents = xp.cumulative_sum(terms, axis=terms.ndim - 3)
    return where(allowed[..., None], xp.exp(exponents), 0.0)


def _chunks_per_block(n: int, size: int, batch: int) -> int:
    return max(1, min(n // size, _BLOCK_PAIRS // (size * size * max(1, batch))))


def _blocks(
    query: Array, key: Array, value: Array, log_decay: Array, state: Array, *, size: int
) -> tuple[Float[Array, "*batch n value_width"], Float[Array, "*_ features value_width"]]:
    """Return the outputs and the last state, block by block."""
    xp, arrays = namespace(query), (query, key, value, log_decay)
    steps = size * _chunks_per_block(query.shape[-2], size, math.prod(state.shape[:-2]))
    outputs = []
    for start in range(0, query.shape[-2], steps):
        q, k, v, g = (x[..., start : start + steps, :] for x in arrays)
        output, state = _block(q, k, v, g, state, size=size)
        outputs.append(output)
    return (outputs[0] if len(outputs) == 1 else xp.concat(outputs, axis=-2)), state


def _torch_blocks(query: Array, key: Array, value: Array, log_decay: Array, state: Array, *, size: int) -> Outputs:
    function = autograd_function(_forward, _backward)
    return cast("Outputs", function(query, key, value, log_decay, state, size))


def _forward(
    ctx: Context,
    query: Float[Tensor, "*#batch n features"],
    key: Float[Tensor, "*#batch n features"],
    value: Float[Tensor, "*#batch n value_width"],
    log_decay: Float[Tensor, "*#batch n #features"],
    state: Float[Tensor, "*_ features value_width"],
    size: int,
) -> tuple[Float[Tensor, "*batch n value_width"], Float[Tensor, "*_ features value_width"]]:
    arrays = (query, key, value, log_decay)
    batch = np.broadcast_shapes(query.shape[:-2], state.shape[:-2])
    output = value.new_empty((*batch, query.shape[-2], value.shape[-1]))
    steps = size * _chunks_per_block(query.shape[-2], size, math.prod(batch))
    current, saved = state, []
    for start in range(0, query.shape[-2], steps):
        saved.append(current)
        rows = slice(start, start + steps)
        q, k, v, g = (x[..., rows, :] for x in arrays)
        found, current = cast("tuple[Tensor, Tensor]", _block(q, k, v, g, current, size=size))
        output[..., rows, :] = found
    ctx.save_for_backward(*arrays, *saved)
    ctx.steps, ctx.size = steps, size  # type: ignore[attr-defined]
    return output, current


def _backward(
    ctx: Context, d_output: Float[Tensor, "*batch n value_width"], d_state: Float[Tensor, "*_ features value_width"]
) -> tuple[Float[Tensor, "*_"] | None, ...]:
    import torch

    inputs, saved = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
    steps, size = cast("tuple[int, int]", (ctx.steps, ctx.size))  # type: ignore[attr-defined]
    if torch.is_grad_enabled():  # the gradients will be differentiated themselves
        inputs = tuple(x.view_as(x) for x in (*inputs, saved[0]))  # may be one tensor
        outputs = cast("tuple[Tensor, Tensor]", _blocks(*inputs, size=size))
        differentiated = [x for x, needed in zip(inputs, ctx.needs_input_grad, strict=False) if needed]
        found = iter(gradients_of(outputs, (d_output, d_state), differentiated, create_graph=True))
        return tuple(next(found) if needed else None for needed in ctx.needs_input_grad)
    totals = [torch.empty_like(x) if needed else None for x, needed in zip(inputs, ctx.needs_input_grad, strict=False)]
    for n in reversed(range(len(saved))):
        rows = slice(n * steps, (n + 1) * steps)
        leaves = leaves_of([*(x[..., rows, :] for x in inputs), saved[n]], [*ctx.needs_input_grad[:4], True])
        with torch.enable_grad():
            outputs = cast("tuple[Tensor, Tensor]", _block(*leaves, size=size))
        *gradients, before = gradients_of(outputs, (d_output[..., rows, :], d_state), leaves)
        assert before is not None  # every block reads its state
        d_state = before
        for total, gradient in zip(totals, gradients, strict=True):
            if total is not None and gradient is not None:
                total[..., rows, :] = gradient
    return (*totals, d_state, None)


def _jax_blocks(query: Array, key: Array, value: Array, log_decay: Array, state: Array, *, size: int) -> Outputs:
    return _jax_loop()(query, key, value, log_decay, state, size)


@cache
def _jax_loop() -> Callable[..., Outputs]:
    """Return a compiled loop over chunks. It is defined on first use, because JAX is optional."""
    import jax
    import jax.numpy as jnp

    def loop(query: Array, key: Array, value: Array, log_decay: Array, state: Array, size: int) -> Outputs:
        def step(state: Array, chunk: tuple[Array, Array, Array, Array]) -> Outputs:
            output, state = _block(*chunk, state, size=size)
            return state, output

        # Save the states only, and compute the pairs of a chunk again in the backward pass.
        chunks = tuple(jnp.moveaxis(_split(x, size), -3, 0) for x in (query, key, value, log_decay))
        state, output = jax.lax.scan(jax.checkpoint(step), state, chunks)
        output = jnp.moveaxis(output, 0, -3)
        return output.reshape((*output.shape[:-3], output.shape[-3] * output.shape[-2], output.shape[-1])), state

    return loop
