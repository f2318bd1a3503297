"""Rows of whole uses: soft retrieval from memory, a training step, and launches."""

# ruff: noqa: B023
# Functions that close over the variables of a loop are called within its step.

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import qkv
from benchmarks._calls import WrongError, apart
from benchmarks._claim import AtMost, Row
from benchmarks.gpu._contest import contest
from benchmarks.gpu._setting import Setting, make_call
from benchmarks.gpu.products import TOLERANCE
from qkv import normalizers, scores

__all__ = ["model", "overhead", "retrieval"]


def retrieval(setting: Setting) -> Iterator[Row]:
    """Compare soft retrieval over 100 million keys with reading them once, and with the two matrix products."""
    n, width = setting.size(100_000_000, 256), 128
    torch.manual_seed(0)
    keys = torch.empty(n, width, dtype=torch.bfloat16, device=setting.device)
    for start in range(0, n, 2**22):
        keys[start : start + 2**22].normal_()
    for q, value_width in ((1, 1), (64, width)):
        query = setting.randn(q, width, dtype=torch.bfloat16)
        values = keys if value_width == width else keys[:, :1].contiguous()

        def ours() -> Any:
            with torch.no_grad():
                return qkv.attend(query, keys, values)

        def products() -> Any:
            chunks = [query @ keys[start : start + 2**20].mT for start in range(0, n, 2**20)]
            return [x @ values[i * 2**20 : (i + 1) * 2**20] for i, x in enumerate(chunks)]

        reference = {"sum of the keys": lambda: keys.sum()} if q == 1 else {"two matrix products": products}
        errors = _check_retrieval(query, keys, values, ours())
        found = contest(setting, {"qkv": ours, **reference})
        plan = qkv.explain(query, keys, values)
        yield found.row(
            f"{q} of {width} over {n} keys, bf16", next(iter(reference)), AtMost(1.3 if q == 1 else 1.5),
            errors=errors, kernel=plan.kernel.name, plan=str(plan),
        )  # fmt: skip


def _check_retrieval(query: Any, keys: Any, values: Any, got: Any) -> dict[str, float]:
    """Return the difference from float64, in chunks of keys."""
    query = query.double() / math.sqrt(query.shape[-1])
    total, output = torch.zeros_like(query[:, :1]), 0.0
    # The logits of normal keys and queries are far below the 709 whose exponential overflows.
    for start in range(0, len(keys), 2**20):
        weights = (query @ keys[start : start + 2**20].double().mT).exp()
        total += weights.sum(-1, keepdim=True)
        output = output + weights @ values[start : start + 2**20].double()
    distance = apart(got, output / total)
    if not distance <= TOLERANCE[torch.bfloat16]:
        raise WrongError(f"the output is {distance:.2g} from the float64 oracle's.")
    return {"oracle, output": distance}


def model(setting: Setting) -> Iterator[Row]:
    """Compare a training step of six layers with the same model on PyTorch's fused attention."""
    from benchmarks.model import _check, _models

    width, heads, n, batch = setting.size((1024, 16, 2048, 4), (32, 2, 12, 1))
    ours, theirs = (each.to(setting.device) for each in _models(width, heads, None))
    x = setting.randn(batch, n, width)
    errors = _check(ours, theirs, None, x[:1, :96])
    for dtype in (torch.bfloat16, torch.float32):

        def step(net: Any, dtype: torch.dtype = dtype) -> None:
            net.zero_grad(set_to_none=True)
            with torch.autocast(setting.device, dtype, enabled=dtype != torch.float32):
                loss = net(x).float().square().mean()
            loss.backward()

        found = contest(setting, {"qkv": lambda: step(ours), "PyTorch": lambda: step(theirs)})
        name = "autocast to bf16" if dtype == torch.bfloat16 else "fp32"
        yield found.row(
            f"6 layers, {batch} × {n} × {width}, {name}, training step", "PyTorch", AtMost(1.03), errors=errors
        )


def overhead(setting: Setting) -> Iterator[Row]:
    """Measure the time to launch a short call of each kernel, without waiting for its result."""
    shape = setting.size((8, 64, 64), (2, 32, 16))
    plain = make_call(setting, "dot", shape, kernel="fused")
    normalizer, cap = normalizers.Sparsemax(), scores.Softcap(scores.ScaledDot(), 20.0)
    calls = {
        "fused": plain,
        "triton": make_call(setting, "additive", shape, kernel="triton"),
        "triton_products": make_call(setting, "dot", shape, kernel="triton_products", normalizer=normalizer),
        "flex": make_call(setting, "dot", (1, *shape), kernel="flex", score=cap),
    }
    sdpa = torch.nn.functional.scaled_dot_product_attention
    runs: dict[str, Callable[[], Any]] = {"SDPA": lambda: plain.run_with(sdpa)}
    runs |= {f"qkv, {name}": call.run for name, call in calls.items()}
    size = " × ".join(map(str, shape))
    for name, run in runs.items():
        errors = {} if name == "SDPA" else calls[name.removeprefix("qkv, ")].check(TOLERANCE[torch.float32])
        seconds = _launch_seconds(setting, run)
        yield Row(f"{name}, {size}", "time to launch a call", 1e6 * seconds, "µs", errors=errors)


def _launch_seconds(setting: Setting, run: Callable[[], Any]) -> float:
    times = setting.size(200, 1)
    for _ in range(setting.size(3, 1)):
        run()
    setting.synchronize()
    samples = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(times):
            run()
        samples.append((time.perf_counter() - start) / times)
        setting.synchronize()
    return sorted(samples)[1]
