"""Linear attention written by hand in PyTorch, with and without decays: as a product, in chunks and token by token."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["chunked_decay", "chunked_form", "decaying_recurrence", "product_form", "recurrence"]

CHUNK = 64
"""Number of tokens in a chunk of the hand-written causal forms, its default in flash-linear-attention."""


def product_form(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return φ(Q) (φ(K)ᵀ V) / φ(Q) Σ φ(K)."""
    return (query @ (key.mT @ value)) / (query @ key.sum(-2).unsqueeze(-1))


def chunked_form(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return the causal product form, all chunks at once, as written with matrix products and a cumulative sum."""
    value = torch.cat([value, torch.ones_like(value[..., :1])], -1)
    q, k, v = (x.unflatten(-2, (-1, CHUNK)) for x in (query, key, value))
    states = (k.mT @ v).cumsum(-3)
    before = torch.cat([torch.zeros_like(states[..., :1, :, :]), states[..., :-1, :, :]], -3)
    output = ((q @ k.mT).tril() @ v + q @ before).flatten(-3, -2)
    return output[..., :-1] / output[..., -1:]


def recurrence(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return the recurrence token by token, rebuilt from the formula that flash-linear-attention publishes.

    S_t = S_{t−1} + k_t v_tᵀ, z_t = z_{t−1} + k_t, output_t = q_t S_t / q_t z_t. Its package is absent: it needs a GPU.
    """
    state = query.new_zeros((*query.shape[:-2], query.shape[-1], value.shape[-1]))
    total = query.new_zeros((*query.shape[:-2], query.shape[-1]))
    rows = []
    for q, k, v in zip(query.unbind(-2), key.unbind(-2), value.unbind(-2), strict=True):
        state = state + k.unsqueeze(-1) * v.unsqueeze(-2)
        total = total + k
        rows.append((q.unsqueeze(-2) @ state).squeeze(-2) / (q * total).sum(-1, keepdim=True))
    return torch.stack(rows, -2)


def decaying_recurrence(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor) -> Tensor:
    """Return S_t = e^(g_t) S_{t−1} + k_t v_tᵀ and output_t = q_t S_t, token by token.

    Args:
        query, key: features, `(*batch, n, width)`.
        value: values, `(*batch, n, value_width)`.
        log_decay: g, `(*batch, n, 1)` or `(*batch, n, width)`.
    """
    state = query.new_zeros((*query.shape[:-2], query.shape[-1], value.shape[-1]))
    rows = []
    factors = log_decay.exp().unsqueeze(-1)
    steps = zip(query.unbind(-2), key.unbind(-2), value.unbind(-2), factors.unbind(-3), strict=True)
    for q, k, v, factor in steps:
        state = factor * state + k.unsqueeze(-1) * v.unsqueeze(-2)
        rows.append((q.unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(rows, -2)


def chunked_decay(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor) -> Tensor:
    """Return the same in chunks, as the papers on RetNet, Mamba-2 and gated linear attention write it.

    Within a chunk the decays of pairs are e^(G_i − G_j) with the cumulative sum G. Decays per feature are multiplied to
    queries and keys, as e^(G_i) and e^(−G_j), which overflows for strong decays.
    """
    q, k, v, g = (x.unflatten(-2, (-1, CHUNK)) for x in (query, key, value, log_decay))
    sums = g.cumsum(-2)
    last = sums[..., -1:, :]
    update = (k * (last - sums).exp()).mT @ v
    factor = last.exp().mT
    state, before = torch.zeros_like(update[..., 0, :, :]), []
    for n in range(q.shape[-3]):
        before.append(state)
        state = factor[..., n, :, :] * state + update[..., n, :, :]
    decayed = q * sums.exp()
    if g.shape[-1] == 1:
        later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)
        pairs = (q @ k.mT) * (sums - sums.mT).masked_fill(later, -torch.inf).exp()
    else:
        pairs = (decayed @ (k * (-sums).exp()).mT).tril()
    return (pairs @ v + decayed @ torch.stack(before, -3)).flatten(-3, -2)
