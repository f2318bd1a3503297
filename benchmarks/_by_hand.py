"""Calls of every family of scores with short sequences, and the same work written by hand in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import normalize, scaled_dot_product_attention

from benchmarks._calls import Call
from qkv import masks, scores
from qkv.scores.position_bias import bucket

__all__ = ["FAMILIES", "Short", "entmax15", "make_score", "make_short", "sparsemax", "top_weights"]

Logits: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Forward: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Short:
    """A call, and functions of query, key and value that compute the same by hand.

    Attributes:
        call: the call of qkv.
        by_hand: the hand-written versions by name.
        fused: PyTorch's fused attention, if the score is a scaled inner product.
    """

    call: Call
    by_hand: dict[str, Forward]
    fused: Forward | None


def _draw(*shape: int, size: float, trains: bool) -> Tensor:
    return (torch.randn(*shape) * size).requires_grad_(trains)


def _dot(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT


def _scaled(q: Tensor, k: Tensor) -> Tensor:
    return (q / math.sqrt(q.shape[-1])) @ k.mT


def _l1(q: Tensor, k: Tensor) -> Tensor:
    return -(q[..., :, None, :] - k[..., None, :, :]).abs().sum(-1)


def _l1_by_cdist(q: Tensor, k: Tensor) -> Tensor:
    return -torch.cdist(q, k, p=1.0)


def _cosine_gap(q: Tensor, k: Tensor) -> Tensor:
    return -((q @ k.mT / math.sqrt(q.shape[-1]) - 1.0).square())


def _relative(n: int) -> Tensor:
    index = torch.arange(n)
    return index[None, :] - index[:, None]


Made: TypeAlias = tuple[scores.Score, tuple[Tensor, ...], dict[str, Logits]]
"""A score, its trained parameters, and its logits written by hand."""


def _scaled_dot(n: int, width: int, trains: bool) -> Made:
    return scores.ScaledDot(), (), {"matrix products": _scaled}


def _bilinear(n: int, width: int, trains: bool) -> Made:
    w = _draw(width, width, size=1 / width, trains=trains)
    return scores.Bilinear(w), (w,), {"matrix products": lambda q, k: q @ w @ k.mT}


def _projected(n: int, width: int, trains: bool) -> Made:
    w, u = (_draw(width, width, size=width**-0.5, trains=trains) for _ in range(2))
    score = scores.Projected(scores.ScaledDot(), w, u)
    return score, (w, u), {"matrix products": lambda q, k: _scaled(q @ w.T, k @ u.T)}


def _gaussian(n: int, width: int, trains: bool) -> Made:
    twice = 2 * width**0.5
    return (
        scores.Gaussian(width**0.25),
        (),
        {
            "expanded square": lambda q, k: (q @ k.mT - 0.5 * k.square().sum(-1)[..., None, :]) * (2 / twice),
            "cdist": lambda q, k: torch.cdist(q, k).square() / -twice,
        },
    )


def _cosine(n: int, width: int, trains: bool) -> Made:
    t = torch.tensor(0.1, requires_grad=trains)
    return scores.Cosine(t), (t,), {"normalize": lambda q, k: normalize(q, dim=-1) @ normalize(k, dim=-1).mT / t}


def _softcap(n: int, width: int, trains: bool) -> Made:
    return scores.Softcap(scores.ScaledDot(), 5.0), (), {"tanh": lambda q, k: 5.0 * torch.tanh(_scaled(q, k) / 5.0)}


def _gated(n: int, width: int, trains: bool) -> Made:
    w, u = (_draw(width, size=width**-0.5, trains=trains) for _ in range(2))

    def gated(q: Tensor, k: Tensor) -> Tensor:
        return torch.sigmoid((q @ w)[..., :, None] + (k @ u)[..., None, :]) * (q @ k.mT)

    return scores.Gated(w, u), (w, u), {"sigmoid": gated}


def _separable_gate(n: int, width: int, trains: bool) -> Made:
    w, u = (_draw(width, size=width**-0.5, trains=trains) for _ in range(2))

    def gated(q: Tensor, k: Tensor) -> Tensor:
        return (q * torch.sigmoid(q @ w)[..., None]) @ (k * torch.sigmoid(k @ u)[..., None]).mT

    return scores.SeparableGate(w, u), (w, u), {"sigmoid": gated}


def _additive(n: int, width: int, trains: bool) -> Made:
    w, u = (_draw(width, width, size=width**-0.5, trains=trains) for _ in range(2))
    v = _draw(width, size=1.0, trains=trains)

    def broadcast(q: Tensor, k: Tensor) -> Tensor:
        return torch.tanh((q @ w.T)[..., :, None, :] + (k @ u.T)[..., None, :, :]) @ v

    return scores.Additive(w, u, None, v), (w, u, v), {"broadcast": broadcast}


def _laplace(n: int, width: int, trains: bool) -> Made:
    def exact(q: Tensor, k: Tensor) -> Tensor:
        return torch.cdist(q, k, compute_mode="donot_use_mm_for_euclid_dist") / -2.0

    return scores.Laplace(2.0), (), {"cdist": lambda q, k: torch.cdist(q, k) / -2.0, "exact cdist": exact}


def _alibi(n: int, width: int, trains: bool) -> Made:
    def biased(q: Tensor, k: Tensor) -> Tensor:
        return _scaled(q, k) - (0.1 * _relative(n).abs()).to(q.dtype)

    return scores.ALiBi(scores.ScaledDot(), 0.1), (), {"bias": biased}


def _bias_table(n: int, width: int, trains: bool) -> Made:
    table = _draw(32, size=1.0, trains=trains)

    def biased(q: Tensor, k: Tensor) -> Tensor:
        return _scaled(q, k) + table[bucket(_relative(n), 32, True, 128)]  # type: ignore[index,arg-type]

    return scores.RelativePosition(scores.ScaledDot(), table), (table,), {"bias": biased}


def _biased(n: int, width: int, trains: bool) -> Made:
    bias = _draw(n, n, size=1.0, trains=trains)
    return scores.Biased(scores.ScaledDot(), bias), (bias,), {"bias": lambda q, k: _scaled(q, k) + bias}


def _custom(function: Logits) -> Callable[[int, int, bool], Made]:
    return lambda n, width, trains: (scores.Custom(function), (), {"the same function": function})


_MAKERS: dict[str, Callable[[int, int, bool], Made]] = {
    "scaled dot": _scaled_dot,
    "bilinear": _bilinear,
    "projected": _projected,
    "Gaussian": _gaussian,
    "cosine": _cosine,
    "separable gate": _separable_gate,
    "softcap": _softcap,
    "gated": _gated,
    "ALiBi": _alibi,
    "bias table": _bias_table,
    "bias": _biased,
    "additive": _additive,
    "Laplace": _laplace,
    "custom L1": _custom(_l1),
    "custom cdist": _custom(_l1_by_cdist),
    "custom product": _custom(_cosine_gap),
}
FAMILIES = tuple(_MAKERS)
"""The families of scores."""


def make_score(family: str, n: int, width: int, trains: bool, dtype: torch.dtype = torch.float32) -> Made:
    """Return a score of a family, its trained parameters, and its logits written by hand.

    Args:
        family: one of `FAMILIES`.
        n: number of queries and of keys.
        width: width of queries and keys.
        trains: whether the parameters require a gradient.
        dtype: dtype of the parameters.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return _MAKERS[family](n, width, trains)
    finally:
        torch.set_default_dtype(before)


def top_weights(count: int) -> Callable[[Tensor], Tensor]:
    """Return the softmax of the `count` largest logits of each row, with ties in any order."""

    def weights(z: Tensor) -> Tensor:
        largest, index = z.topk(min(count, z.shape[-1]))
        return torch.zeros_like(z).scatter(-1, index, largest.softmax(-1))

    return weights


def sparsemax(z: Tensor) -> Tensor:
    """Return the sparsemax of each row by sorting it."""
    z = z - z.amax(-1, keepdim=True)
    count = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype)
    ordered = z.sort(dim=-1, descending=True).values
    return (z - ((ordered.cumsum(-1) - 1) / count).amax(-1, keepdim=True)).relu()


def entmax15(z: Tensor) -> Tensor:
    """Return the 1.5-entmax of each row by sorting it."""
    z = (z - z.amax(-1, keepdim=True)) / 2
    count = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype)
    ordered = z.sort(dim=-1, descending=True).values.clamp_min(-1.0)  # no logit below −1 has weight
    mean = ordered.cumsum(-1) / count
    tau = mean - (1 / count - ordered.square().cumsum(-1) / count + mean * mean).clamp(min=0).sqrt()
    last = (tau <= ordered).sum(-1, keepdim=True) - 1
    return (z - tau.gather(-1, last)).relu().square()


def make_short(
    family: str, batch: int, n: int, width: int, *, gradient: bool, causal: bool, dtype: torch.dtype = torch.float32
) -> Short:
    """Return a call with normally distributed inputs, and its hand-written versions.

    Args:
        family: one of `FAMILIES`.
        batch: number of batch elements.
        n: number of queries and of keys.
        width: width of queries, keys and values.
        gradient: whether gradients of inputs and parameters are computed.
        causal: whether the mask is causal.
        dtype: dtype of inputs and parameters.
    """
    query, key, value = (torch.randn(batch, n, width, dtype=dtype, requires_grad=gradient) for _ in range(3))
    score, trained, logits = make_score(family, n, width, gradient, dtype)
    excluded = torch.ones(n, n, dtype=torch.bool).triu(1) if causal else None
    options = {"score": score, "mask": masks.Causal() if causal else None}
    towards = torch.randn(batch, n, width, dtype=dtype) if gradient else None
    call = Call(family, query, key, value, options, trained, towards)

    def by_hand(logits: Logits) -> Forward:
        def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            z = logits(q, k)
            if excluded is not None:
                z = z.masked_fill(excluded, -math.inf)
            return z.softmax(-1) @ v

        return forward

    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal)[0]

    versions = {name: by_hand(function) for name, function in logits.items()}
    return Short(call, versions, fused if family == "scaled dot" else None)
