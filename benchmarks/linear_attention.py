"""Claim: linear attention takes at most 1.1 times the time of the product form that one writes by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks import _calls
from benchmarks._claim import AtMost, Claim, Row, Setting
from benchmarks._race import race
from qkv import masks, normalizers, scores

SHAPES = ((8, 1024, 64), (8, 4096, 64), (1, 4096, 64), (8, 16384, 64))
CHUNK = 64
"""Number of tokens in a chunk of the hand-written causal form, its default in flash-linear-attention."""


def product_form(query: Any, key: Any, value: Any) -> Any:
    """Return φ(Q) (φ(K)ᵀ V) / φ(Q) Σ φ(K)."""
    return (query @ (key.mT @ value)) / (query @ key.sum(-2).unsqueeze(-1))


def chunked_form(query: Any, key: Any, value: Any) -> Any:
    """Return the causal product form, all chunks at once, as written with matrix products and a cumulative sum."""
    value = torch.cat([value, torch.ones_like(value[..., :1])], -1)
    q, k, v = (x.unflatten(-2, (-1, CHUNK)) for x in (query, key, value))
    states = (k.mT @ v).cumsum(-3)
    before = torch.cat([torch.zeros_like(states[..., :1, :, :]), states[..., :-1, :, :]], -3)
    output = ((q @ k.mT).tril() @ v + q @ before).flatten(-3, -2)
    return output[..., :-1] / output[..., -1:]


def recurrence(query: Any, key: Any, value: Any) -> Any:
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


def rows(setting: Setting) -> Iterator[Row]:
    """Measure forward, and forward and backward, without a mask and causal, of features that are computed before."""
    torch.set_num_threads(1)
    for shape in setting.some(SHAPES, 4):
        for mask in (None, masks.Causal()):
            for gradient in (False, True):
                yield from _compare(shape, mask, gradient, setting)


def _compare(shape: tuple[int, ...], mask: masks.Mask | None, gradient: bool, setting: Setting) -> Iterator[Row]:
    call = _calls.make("scaled_dot", (shape, shape, shape), gradient=gradient)
    call.name = "linear"
    with torch.no_grad():
        for x in (call.query, call.key):
            x.copy_(scores.Features().lift(x, x, None)[0])  # type: ignore[arg-type]  # elu(x) + 1
    call.options = {"score": scores.Dot(), "normalizer": normalizers.Sum(), "mask": mask}
    errors = call.check()
    peers: dict[str, Callable[..., Any]] = {"product form": product_form if mask is None else chunked_form}
    if mask is not None and shape[-2] <= 1024:
        peers["recurrence"] = recurrence
    runs: dict[str, Callable[[], Any]] = {"qkv": call.run}
    for name, peer in peers.items():
        errors |= call.check_against(name, call.run_with(peer))
        runs[name] = lambda peer=peer: call.run_with(peer)  # type: ignore[misc]
    measured = race(runs, setting.rounds)
    what = f"{'×'.join(map(str, shape))}{'' if mask is None else ', causal'}"
    for name in peers:
        yield measured.row(
            f"{what}, forward{' + backward' if gradient else ''}",
            name,
            AtMost(1.1),
            errors=errors,
            kernel=call.plan.kernel.name,
            plan=str(call.plan),
        )


CLAIM = Claim(
    "Linear attention takes at most 1.1 × the time of the product form written by hand.",
    "at most 1.1 × the time of φ(Q) (φ(K)ᵀ V), and of its causal form in chunks; forward, and forward + backward",
    ("PyTorch's matrix products", "the recurrence of flash-linear-attention, rebuilt in PyTorch from its formula"),
    rows,
)
