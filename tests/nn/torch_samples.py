"""Runs the samples of PyTorch's own tests through qkv and prints what differed, as JSON.

A program of its own: importing `torch.testing._internal` changes settings of the whole process.

Each result is [suite, dtype, what the sample is, "agrees" or a deliberate difference or what differs].
"""

import json
import sys
import warnings
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

import qkv
from qkv import masks, nn, readouts, scores
from tests.effort import LONG

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# Relative to the largest number in the array: the samples hold numbers up to 9, and logits up to 100.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
DRAWS = 400 if LONG else 100


def differs(ours: list[Any], theirs: list[Any], exact: list[Any] | None = None) -> str:
    """Return "agrees" or the difference; in half precision, ours must be as close to the exact result as theirs."""
    if len(ours) != len(theirs):
        return "another number of gradients"
    for n, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        wanted = b if exact is None else exact[n]
        error = (a.double() - wanted.double()).abs().max().item()
        largest = max(1.0, wanted.abs().max().item())
        if exact is None:
            allowed = TOLERANCE[b.dtype] * largest
        else:
            allowed = 1.5 * (b.double() - wanted).abs().max().item() + torch.finfo(b.dtype).eps * largest
        if not error <= allowed or a.dtype != b.dtype:
            return f"off by {error}, {allowed} allowed"
    return "agrees"


def fused(sample: Any, dropout: float) -> dict[str, Any]:
    """Return the arguments of `qkv.attend` that correspond to this sample of PyTorch's function."""
    mask = sample.kwargs.get("attn_mask")
    known = {"attn_mask", "is_causal", "dropout_p"}
    assert set(sample.kwargs) <= known, f"a sample asks for more: {set(sample.kwargs) - known}"
    asked: dict[str, Any] = {"dropout": dropout}
    if mask is not None and mask.dtype == torch.bool:  # True means may attend, in this function of theirs
        asked["mask"] = masks.AllowedPairs(mask)
    elif mask is not None:
        asked["score"] = scores.Biased(scores.ScaledDot(), mask)
    if sample.kwargs.get("is_causal"):
        asked["mask"] = masks.Causal(align="start")
    return asked


def by_draws(sample: Any) -> str:
    """Return whether the mean output over dropout draws is the output without dropout, and each weight is 0 or scaled.

    Outputs are not compared with those of PyTorch, because the two libraries draw different random numbers.
    """
    query, key, value = (x.detach() for x in (sample.input, *sample.args))
    p = sample.kwargs["dropout_p"]
    plain = scaled_dot_product_attention(query, key, value, **{**sample.kwargs, "dropout_p": 0.0})
    axes = (1,) * (max(query.ndim, key.ndim) - query.ndim)
    many = query.reshape(*axes, *query.shape).expand(DRAWS, *axes, *query.shape)
    draws = qkv.attend(many, key, value, **fused(sample, p), seed=0)
    error = (draws.mean(0) - plain).abs()
    if not (error <= 6 * draws.std(0) / DRAWS**0.5 + 1e-6).all():
        return f"the mean over draws is off by {error.max()}"
    eye = torch.eye(key.shape[-2], dtype=value.dtype).expand(*key.shape[:-2], -1, -1)
    weights = qkv.attend(query, key, eye, **fused(sample, 0.0))
    dropped = qkv.attend(query, key, eye, **fused(sample, p), seed=0)
    kept = torch.isclose(dropped, weights / (1 - p), rtol=1e-4)
    return "dropout draws differ" if ((dropped == 0) | kept).all() else "a weight is neither kept nor dropped"


def attention_samples() -> list[list[str]]:
    from torch.testing._internal.common_methods_invocations import op_db

    (info,) = [op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention"]
    found = []
    for dtype in DTYPES:
        for sample in info.sample_inputs("cpu", dtype, requires_grad=True):
            said = f"{tuple(sample.input.shape)} {[tuple(x.shape) for x in sample.args]} {list(sample.kwargs)}"
            if sample.kwargs.get("dropout_p"):
                result = by_draws(sample) if dtype is torch.float32 else "dropout draws differ"
                found.append(["scaled_dot_product_attention", str(dtype), said, result])
                continue
            ours = with_gradients(lambda x: qkv.attend(x.input, *x.args, **fused(x, 0.0)), sample)
            theirs = with_gradients(torch_attention, sample)
            half = dtype in DTYPES[2:]
            exact = with_gradients(torch_attention, sample.transform(widened)) if half else None
            found.append(["scaled_dot_product_attention", str(dtype), said, differs(ours, theirs, exact)])
    return found


def torch_attention(sample: Any) -> torch.Tensor:
    return scaled_dot_product_attention(sample.input, *sample.args, **sample.kwargs)


def with_gradients(run: Any, sample: Any) -> list[Any]:
    leaves = [sample.input, *sample.args]
    bias = sample.kwargs.get("attn_mask")
    leaves += [] if bias is None or not bias.requires_grad else [bias]
    output = run(sample)
    factor = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
    return [output, *torch.autograd.grad((output * factor).sum(), leaves)]


def widened(x: Any) -> Any:
    if isinstance(x, torch.Tensor) and x.is_floating_point():
        return x.detach().double().requires_grad_(x.requires_grad)
    return x


def module_samples() -> list[list[str]]:
    from torch.testing._internal.common_modules import module_db

    (info,) = [m for m in module_db if m.module_cls is torch.nn.MultiheadAttention]
    found = []
    for dtype in DTYPES[:2]:
        for training in (True, False):
            for sample in info.module_inputs_func(info, "cpu", dtype, True, training):
                made = sample.constructor_input
                theirs = torch.nn.MultiheadAttention(*made.args, **made.kwargs).to(dtype).train(training)
                said = f"{'train' if training else 'eval'} {made.kwargs} {sorted(sample.forward_input.kwargs)}"
                found.append(["MultiheadAttention", str(dtype), said, one_module(theirs, sample, dtype)])
    return found


def one_module(theirs: torch.nn.MultiheadAttention, sample: Any, dtype: torch.dtype) -> str:
    ours = nn.MultiHeadAttention.from_torch(theirs)
    inputs, options = sample.forward_input.args, dict(sample.forward_input.kwargs)
    assert set(options) <= {"attn_mask", "key_padding_mask"}, options
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    output, weights = theirs(*leaves, **options)
    factor = torch.linspace(-1, 1, output.numel(), dtype=dtype).reshape(output.shape)
    wanted = [output, weights, *torch.autograd.grad((output * factor).sum(), leaves)]
    turned = not theirs.batch_first and inputs[0].ndim == 3
    given = [x.transpose(0, 1) if turned else x for x in leaves]
    masked = nn.torch_masks(options["attn_mask"], options["key_padding_mask"], heads=theirs.num_heads)
    seen = ours(*given, **masked, readouts=[readouts.Dense()])
    output = seen.output.transpose(0, 1) if turned else seen.output
    gradients = torch.autograd.grad((output * factor).sum(), leaves)
    got = [output, seen.readouts[0].mean(-3), *gradients]
    empty = wanted[1].isnan().any()
    return "an empty row is 0, not NaN" if empty else differs(got, wanted)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # PyTorch's test code warns of PyTorch
    torch.manual_seed(0)
    json.dump(attention_samples() + module_samples(), sys.stdout)
