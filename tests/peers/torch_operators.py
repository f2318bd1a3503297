"""Runs samples of PyTorch's attention operators (OpInfo) through qkv, and prints what differed as JSON.

A program of its own: importing `torch.testing._internal` changes settings of the whole process. The operators of
FlashAttention and of memory-efficient attention have no implementation on a CPU; their samples are compared with
`scaled_dot_product_attention` and the mask, bias and scale that they state. Samples with dropout run without it on both
sides, because the libraries draw different numbers.
"""

import json
import sys
import warnings
from typing import Any

import torch
from torch.nn.functional import linear, multi_head_attention_forward, scaled_dot_product_attention

import qkv
from qkv import masks
from qkv.scores import Biased, Dot, ScaledDot

DTYPES = (torch.float64, torch.float32)


def result(ours: Any, theirs: Any, leaves: list[Any], sides: list[Any]) -> str:
    """Return "agrees", or what differs in the outputs or in the gradients of the leaves.

    Logits are up to 1e5 in these samples: an error of one digit in them is an error of as much in a weight.
    """
    factor = torch.linspace(-1, 1, theirs.numel(), dtype=theirs.dtype).reshape(theirs.shape)
    found = [[x, *torch.autograd.grad((x * factor).sum(), leaves)] for x in (ours, theirs)]
    logit = float((sides[0] @ sides[1].transpose(-1, -2)).abs().max()) / sides[0].shape[-1] ** 0.5
    for mine, wanted in zip(*found, strict=True):
        error, largest = float((mine - wanted).abs().max()), max(1.0, float(wanted.abs().max()))
        allowed = 256 * torch.finfo(wanted.dtype).eps * (1 + logit) * largest
        if not error <= allowed or mine.dtype != wanted.dtype:
            return f"off by {error}, {allowed} allowed"
    return "agrees"


def multi_head(sample: Any) -> str:
    """Projections of a sample, a call of qkv, and the projection of the output."""
    names = (
        "key",
        "value",
        "width",
        "heads",
        "weight",
        "bias",
        "bias_k",
        "bias_v",
        "zero",
        "dropout",
        "out",
        "out_bias",
    )
    p = dict(zip(names, sample.args, strict=True)) | sample.kwargs
    leaves = [x.detach().clone().requires_grad_() for x in (sample.input, p["key"], p["value"])]
    rest = list(sample.args[2:])
    rest[names.index("dropout") - 2] = 0.0
    theirs = multi_head_attention_forward(*leaves, *rest, **{**sample.kwargs, "training": False})[0]
    separate = [p[f"{name}_proj_weight"] for name in "qkv"]
    weights = separate if p["use_separate_proj_weight"] else p["weight"].chunk(3)
    sides = [linear(x, w, b) for x, w, b in zip(leaves, weights, p["bias"].chunk(3), strict=True)]
    extra = (None, p["bias_k"], p["bias_v"])  # a learned key and value after the others
    for n, bias in enumerate(extra):
        x = sides[n] if sides[n].ndim == 3 else sides[n][:, None]
        x = x if bias is None else torch.cat([x, bias.expand(1, x.shape[1], -1)])
        sides[n] = x.unflatten(-1, (p["heads"], -1)).permute(1, 2, 0, 3)
    score: Any = ScaledDot()
    if (mask := p["attn_mask"]) is not None:
        mask = torch.nn.functional.pad(mask, (0, 1))
        score = Biased(
            score, (mask if mask.ndim == 3 else mask[None]).unflatten(0, (-1, p["heads"] if mask.ndim == 3 else 1))
        )
    output = qkv.attend(*sides, score=score)
    merged = linear(output.permute(2, 0, 1, 3).flatten(-2), p["out"], p["out_bias"])
    return result(merged if sample.input.ndim == 3 else merged[:, 0], theirs, leaves, sides)


def fused_operator(sample: Any) -> str:
    """A sample of an operator of CUDA, with axes (batch, length, heads, width)."""
    p = sample.kwargs
    leaves = [x.detach().clone().requires_grad_() for x in (sample.input, *sample.args[:2])]
    sides = [x.transpose(1, 2) for x in leaves]
    q, k = sides[0].shape[-2], sides[1].shape[-2]
    kind = p.get("custom_mask_type", 1 if p.get("is_causal") else 0)
    offsets = [p.get(name) for name in ("cu_seqlens_q", "cu_seqlens_k")]
    table, mask = None, None
    if offsets[0] is not None:
        ids = [torch.searchsorted(x[1:], torch.arange(n), right=True) for x, n in zip(offsets, (q, k), strict=True)]
        table, mask = ids[0][:, None] == ids[1], masks.Documents(*ids)
    elif kind:
        table = torch.ones(q, k, dtype=torch.bool).tril(0 if kind == 1 else k - q)
        mask = masks.Causal("start" if kind == 1 else "end")
    score: Any = ScaledDot() if p.get("scale") is None else Dot(scale=p["scale"])
    given = p.get("bias") if table is None else table
    if p.get("bias") is not None:
        score = Biased(score, p["bias"])
    theirs = scaled_dot_product_attention(*sides, attn_mask=given, scale=p.get("scale"))
    empty = False if table is None else ~table.any(-1)[:, None]
    wanted = theirs.masked_fill(torch.as_tensor(empty), 0)
    return result(qkv.attend(*sides, score=score, mask=mask), wanted, leaves, sides)


def public_operator(sample: Any) -> str:
    """A sample of `scaled_dot_product_attention`, in whose boolean masks True means may attend."""
    options = sample.kwargs | {"dropout_p": 0.0}
    assert set(options) <= {"attn_mask", "is_causal", "dropout_p"}, f"a sample asks for more: {set(options)}"
    given = options.get("attn_mask")
    leaves = [x.detach().clone().requires_grad_() for x in (sample.input, *sample.args)]
    score, mask = ScaledDot(), masks.Causal("start") if options.get("is_causal") else None
    if given is not None and given.dtype == torch.bool:
        mask = masks.AllowedPairs(given)
    elif given is not None:
        leaves.append(given.detach().clone().requires_grad_())
        score, options["attn_mask"] = Biased(score, leaves[-1]), leaves[-1]
    theirs = scaled_dot_product_attention(*leaves[:3], **options)
    return result(qkv.attend(*leaves[:3], score=score, mask=mask), theirs, leaves, leaves[:2])


def main() -> list[list[str]]:
    from torch.testing._internal import common_methods_invocations as samples_of

    operators = {op.name: op for op in samples_of.op_db}
    heads, public = (
        operators[f"nn.functional.{name}"] for name in ("multi_head_attention_forward", "scaled_dot_product_attention")
    )
    found = []
    for dtype in DTYPES:
        samples = [(heads.name, multi_head, x) for x in heads.sample_inputs("cpu", dtype)]
        efficient = samples_of.sample_inputs_efficient_attention_forward(None, "cpu", dtype, False)
        flash = samples_of.sample_inputs_flash_attention_forward(None, "cpu", dtype, False)
        samples += [("_efficient_attention_forward", fused_operator, x) for x in efficient]
        samples += [("_flash_attention_forward", fused_operator, x) for x in flash]
        samples += [(public.name, public_operator, x) for x in public.sample_inputs("cpu", dtype)]
        found += [[name, str(dtype), str(sample.kwargs.keys()), run(sample)] for name, run, sample in samples]
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    json.dump(main(), sys.stdout)
