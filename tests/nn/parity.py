"""Comparison of outputs and gradients with `torch.nn.MultiheadAttention` for one configuration."""

import itertools
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from qkv import nn, readouts

Tensor = torch.Tensor
BATCH, Q, K, WIDTH, HEADS = 2, 4, 5, 8, 2
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


@dataclass(frozen=True)
class Config:
    """The options of `nn.MultiheadAttention`, apart from dropout."""

    bias: bool
    kdim: int | None
    vdim: int | None
    add_bias_kv: bool
    add_zero_attn: bool
    attn_mask: str
    key_padding_mask: str
    need_weights: str
    batch_first: bool
    batch: int  # 0: no batch axis
    training: bool


MODULES = list(itertools.product((True, False), (None, 6), (None, 10), (False, True), (False, True)))
MASKS = list(itertools.product(("none", "bool 2", "float 2", "bool 3", "float 3"), ("none", "bool", "float")))
CALLS = list(itertools.product(("no", "average", "per head"), (True, False), (BATCH, 1, 0), (True, False)))
EVERY = [Config(*m, *masks, *call) for m in MODULES for masks in MASKS for call in CALLS]
# Each module with each pair of masks; the ways to call it take turns, with strides that reach all of them.
SOME = [
    Config(*m, *masks, *CALLS[(7 * i + 5 * j) % len(CALLS)])
    for i, m in enumerate(MODULES)
    for j, masks in enumerate(MASKS)
]


def compare(config: Config, dtype: torch.dtype) -> None:
    """Raise an error if output, weights or any gradient differ by more than the dtype's tolerance."""
    theirs = torch.nn.MultiheadAttention(
        WIDTH,
        HEADS,
        bias=config.bias,
        add_bias_kv=config.add_bias_kv,
        add_zero_attn=config.add_zero_attn,
        kdim=config.kdim,
        vdim=config.vdim,
        batch_first=config.batch_first,
        dtype=dtype,
    )
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    theirs.train(config.training)
    ours = nn.MultiHeadAttention.from_torch(theirs)
    assert ours.training == config.training
    lead = (config.batch,) if config.batch else ()
    inputs = [
        torch.randn(*lead, length, width or WIDTH, dtype=dtype)
        for length, width in ((Q, None), (K, config.kdim), (K, config.vdim))
    ]
    attn_mask = _mask(config.attn_mask, max(1, config.batch) * HEADS, dtype)
    padding = _padding(config.key_padding_mask, lead, dtype)
    factor = torch.randn(*lead, Q, WIDTH, dtype=dtype)
    sides = []
    for run in (_theirs, _ours):
        leaves = [x.clone().requires_grad_() for x in inputs]
        masks = [x if x is None or x.dtype == torch.bool else x.clone() for x in (attn_mask, padding)]
        if masks[0] is not None and masks[0].is_floating_point():
            masks[0].requires_grad_()
            leaves.append(masks[0])
        module: Any = theirs if run is _theirs else ours
        output, weights = run(module, config, leaves[:3], masks)
        (output * factor).sum().backward()
        sides.append([output, weights, *(x.grad for x in leaves)])
    sides[0] += _their_gradients(theirs)
    sides[1] += _our_gradients(ours)
    for a, b in zip(*sides, strict=True):
        if a is None and b is None:
            continue
        torch.testing.assert_close(b, a, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def _mask(kind: str, heads: int, dtype: torch.dtype) -> Tensor | None:
    if kind == "none":
        return None
    shape = (Q, K) if kind.endswith("2") else (heads, Q, K)
    out = torch.rand(shape) < 0.3
    out[..., 0] = False  # a key is left in every row: of empty rows there is a test of its own
    return out if kind.startswith("bool") else torch.randn(shape, dtype=dtype).masked_fill(out, -torch.inf)


def _padding(kind: str, lead: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
    if kind == "none":
        return None
    out = torch.zeros(*lead, K, dtype=torch.bool)
    out[..., -2:] = torch.rand(*lead, 2) < 0.5
    return out if kind == "bool" else torch.randn(*lead, K, dtype=dtype).masked_fill(out, -torch.inf)


def _theirs(
    module: torch.nn.MultiheadAttention, config: Config, inputs: list[Tensor], masks: list[Any]
) -> tuple[Tensor, Tensor | None]:
    turned = config.batch and not config.batch_first
    query, key, value = (x.transpose(0, 1) if turned else x for x in inputs)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Support for mismatched key_padding_mask")
        output, weights = module(
            query,
            key,
            value,
            attn_mask=masks[0],
            key_padding_mask=masks[1],
            need_weights=config.need_weights != "no",
            average_attn_weights=config.need_weights == "average",
        )
    return output.transpose(0, 1) if turned else output, weights


def _ours(
    module: nn.MultiHeadAttention, config: Config, inputs: list[Tensor], masks: list[Any]
) -> tuple[Tensor, Tensor | None]:
    masked = nn.torch_masks(*masks, heads=HEADS)
    if config.need_weights == "no":
        return module(*inputs, **masked), None
    seen = module(*inputs, **masked, readouts=[readouts.Dense()])
    weights = seen.readouts[0]
    return seen.output, weights.mean(-3) if config.need_weights == "average" else weights


def _their_gradients(module: torch.nn.MultiheadAttention) -> list[Any]:
    if module.in_proj_weight is not None:
        found = list(module.in_proj_weight.grad.chunk(3))
    else:
        found = [x.grad for x in (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)]
    if module.in_proj_bias is not None:
        found += [*module.in_proj_bias.grad.chunk(3), module.out_proj.bias.grad]
    found.append(module.out_proj.weight.grad)
    return found + [x.grad.flatten() for x in (module.bias_k, module.bias_v) if x is not None]


def _our_gradients(module: nn.MultiHeadAttention) -> list[Any]:
    maps = [module.query_map, module.key_map, module.value_map]
    found = [linear.weight.grad for linear in maps]
    if maps[0].bias is not None:
        found += [linear.bias.grad for linear in (*maps, module.output_map)]
    found.append(module.output_map.weight.grad)
    return found + [x.grad.flatten() for x in (module.extra_key, module.extra_value) if x is not None]
