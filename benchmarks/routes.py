"""Claim: calls that PyTorch's fused attention also computes take at most 1.15 times its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks._calls import WrongError, apart
from benchmarks._claim import AtMost, Claim, Row, Setting
from benchmarks._race import race

SHAPES = ((4, 8, 128, 32), (2, 4, 256, 32), (1, 8, 512, 64), (1, 4, 1024, 64))
"""Batch elements, heads, tokens and width."""
SAMPLE = 0.01
"""Seconds of a sample."""


def _cases(shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, tuple[dict[str, Any], Any]]:
    """Return options of a call, and the same as an argument `attn_mask`."""
    from qkv import masks, scores

    batch, heads, n, _ = shape
    pairs, own = torch.rand(n, n) > 0.3, torch.rand(batch, 1, n, n) > 0.3
    pairs[:, 0] = own[..., 0] = True
    bias, per_head = torch.randn(n, n, dtype=dtype), torch.randn(1, heads, n, n, dtype=dtype).expand(batch, -1, -1, -1)
    return {
        "no mask": ({}, None),
        "pairs": ({"mask": masks.AllowedPairs(pairs)}, pairs),
        "pairs per batch element": ({"mask": masks.AllowedPairs(own)}, own),
        "bias": ({"score": scores.Biased(scores.ScaledDot(), bias)}, bias),
        "bias per head": ({"score": scores.Biased(scores.ScaledDot(), per_head)}, per_head),
    }


def _contest(
    shape: tuple[int, ...], options: dict[str, Any], mask: Any, gradient: bool, dtype: torch.dtype
) -> tuple[dict[str, Callable[[], Any]], float]:
    """Return both calls, and the largest distance of their results, which are checked."""
    import qkv

    sides = [torch.randn(*shape).to(dtype).requires_grad_(gradient) for _ in range(3)]
    direction = torch.randn(*shape).to(dtype)

    def results(output: Any) -> list[Any]:
        return [output, *(torch.autograd.grad(output, sides, direction) if gradient else ())]

    calls = {
        "qkv": lambda: results(qkv.attend(*sides, **options)),
        "SDPA": lambda: results(scaled_dot_product_attention(*sides, attn_mask=mask)),
    }
    pairs = zip(calls["qkv"](), calls["SDPA"](), strict=True)
    error = max(float(apart(one.detach().float(), other.detach().float())) for one, other in pairs)
    if not error <= (1e-4 if dtype == torch.float32 else 2e-2):
        raise WrongError(f"a call of {shape} with {options} is {error:.2g} from that of PyTorch.")
    return calls, error


def rows(setting: Setting) -> Iterator[Row]:
    """Measure masks and biases in float32, forward and with backward, and bfloat16 forward."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kinds = ((torch.float32, False), (torch.float32, True), (torch.bfloat16, False))
    for shape in setting.some(SHAPES, 3):
        for dtype, gradient in kinds:
            cases = _cases(shape, dtype)
            for name in cases if dtype == torch.float32 else ("no mask",):
                calls, error = _contest(shape, *cases[name], gradient, dtype)
                measured = race(calls, setting.rounds, SAMPLE)
                direction = f"forward{' + backward' if gradient else ''}"
                case = f"{name}, {'×'.join(map(str, shape))}, {direction}" + (
                    ", bfloat16" if dtype.itemsize < 4 else ""
                )
                yield measured.row(case, "SDPA", AtMost(1.15), smallest=True, errors={"SDPA": error})


CLAIM = Claim(
    "Scaled dot products with any mask of pairs or bias take at most 1.15 × the time of PyTorch's fused attention, "
    "forward and with backward, and in bfloat16 forward.",
    "at most 1.15 × SDPA with the same attn_mask",
    ("torch SDPA",),
    rows,
)
