"""Rows of inner products: dot, causal, grouped heads, windows, modified logits, and decoding steps."""

# ruff: noqa: B023
# Functions that close over the variables of a loop are called within its step.

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

import qkv
from benchmarks._calls import Call
from benchmarks._claim import AtMost, Goal, Row
from benchmarks.gpu._contest import Contest, contest, reason_to_skip
from benchmarks.gpu._peers import available, flex, product_peers
from benchmarks.gpu._setting import DTYPES, Setting, make_call
from qkv import masks, scores

__all__ = ["TOLERANCE", "checked", "decode", "dot", "modified", "window"]

TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 3e-2, torch.float16: 4e-3}
"""Largest difference from the reference, relative to the largest element; float32 may be multiplied as TF32."""
ROUTES = ("SDPA flash", "SDPA efficient", "SDPA cuDNN", "FlexAttention")
"""PyTorch's own ways; the goals compare with the fastest of them."""


def checked(
    setting: Setting, call: Call, peers: dict[str, Callable[[], Any]], skipped: dict[str, str]
) -> dict[str, float]:
    """Return errors beside the reference and the peers; a peer that fails or disagrees is moved to `skipped`."""
    tolerance = TOLERANCE[call.query.dtype]
    errors = call.check(tolerance)
    for name in list(peers):
        try:
            errors |= call.check_against(name, peers[name](), 10 * tolerance)
        except Exception as error:
            skipped[name] = reason_to_skip(setting, error)
            del peers[name]
    return errors


def race_products(
    setting: Setting, call: Call, makers: dict[str, Callable[[], Any]]
) -> tuple[Contest, dict[str, float]]:
    """Check a call and its peers, and time all of them."""
    peers, skipped = available(setting, makers)
    errors = checked(setting, call, peers, skipped)
    return contest(setting, {"qkv": call.run, **peers}, skipped), errors


def _named(case: str, call: Call, found: Contest, errors: dict[str, float], goal: Goal, *among: str) -> Row:
    plan = call.plan
    return found.row(case, found.best(*among), goal, errors=errors, kernel=plan.kernel.name, plan=str(plan))


def dot(setting: Setting) -> Iterator[Row]:
    """Compare dot products, causal and with grouped heads, with every backend and library."""
    n = setting.size(32_768, 32)
    for kind in ("none", "causal", "grouped, causal"):
        for dtype_name, dtype in DTYPES.items():
            for gradient in (False, True):
                if gradient and kind == "none":
                    continue  # as causal, in twice the time
                shape: tuple[int, ...] = (1, 8, n, 64)
                key_shape = None
                if kind.startswith("grouped"):
                    shape, key_shape = (1, 2, 4, n, 64), (1, 2, 1, n, 64)
                options = {} if kind == "none" else {"mask": masks.Causal()}
                call = make_call(
                    setting,
                    "dot",
                    shape,
                    dtype=dtype,
                    gradient=gradient,
                    kernel="fused",
                    key_shape=key_shape,
                    **options,
                )
                flex_too = kind == "causal" and dtype == torch.bfloat16  # each takes many seconds to compile
                found, errors = race_products(setting, call, product_peers(setting, call, kind != "none", flex_too))
                case = f"{kind}, 8 × {n} × 64, {dtype_name}, {'forward + backward' if gradient else 'forward'}"
                yield _named(case, call, found, errors, AtMost(1.05), *ROUTES)


def window(setting: Setting) -> Iterator[Row]:
    """Compare a window of 1,024 keys over 64k tokens with compiled FlexAttention."""
    n, before = setting.size((65_536, 1024), (48, 9))
    for dtype_name, gradient in (("bf16", True), ("fp32", True), ("bf16", False)):
        mask = masks.Window(before, 0)
        call = make_call(
            setting, "dot", (1, 8, n, 64), dtype=DTYPES[dtype_name], gradient=gradient, kernel="flex", mask=mask
        )

        def inside(b: Any, h: Any, i: Any, j: Any) -> Any:
            return (j <= i) & (j >= i - before)

        found, errors = race_products(setting, call, {"FlexAttention": lambda: flex(setting, call, inside)})
        case = f"window of {before}, 8 × {n} × 64, {dtype_name}, {'forward + backward' if gradient else 'forward'}"
        yield _named(case, call, found, errors, AtMost(1.05))


def modified(setting: Setting) -> Iterator[Row]:
    """Compare a soft cap, ALiBi and documents with compiled FlexAttention."""
    n, heads = setting.size(8192, 32), 8
    slopes = (2.0 ** -torch.arange(1.0, heads + 1)).to(setting.device)
    ids = torch.arange(n, device=setting.device) * 7 // n

    def softcap(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return 20.0 * torch.tanh(s / 20.0)

    def alibi(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s - slopes[h] * (i - j).abs()

    def same(b: Any, h: Any, i: Any, j: Any) -> Any:
        return ids[i] == ids[j]

    kinds: dict[str, tuple[dict[str, Any], Any, Any]] = {
        "softcap": ({"score": scores.Softcap(scores.ScaledDot(), 20.0)}, None, softcap),
        "ALiBi": ({"score": scores.ALiBi(scores.ScaledDot(), slopes[None])}, None, alibi),
        "documents": ({"mask": masks.Documents(ids, ids)}, same, None),
    }
    for gradient in (True, False):
        for name, (options, mask, change) in kinds.items():
            call = make_call(
                setting, "dot", (1, heads, n, 64), dtype=torch.bfloat16, gradient=gradient, kernel="flex", **options
            )
            makers = {"FlexAttention": lambda: flex(setting, call, mask, change)}
            found, errors = race_products(setting, call, makers)
            case = f"{name}, {heads} × {n} × 64, bf16, {'forward + backward' if gradient else 'forward'}"
            yield _named(case, call, found, errors, AtMost(1.05))


def decode(setting: Setting) -> Iterator[Row]:
    """Compare one query against 32k keys, launched one by one and replayed as a CUDA graph."""
    n, steps = setting.size((32_768, 16), (48, 2))
    for dtype_name, graph in itertools.product(DTYPES, (False, True)):
        shape, dtype = (8, 1, 64), DTYPES[dtype_name]
        call = make_call(setting, "dot", shape, dtype=dtype, key_shape=(8, n, 64), kernel="fused")
        peers, skipped = available(setting, product_peers(setting, call))
        errors = checked(setting, call, peers, skipped)
        runs: dict[str, Callable[[], Any]] = {"qkv": call.run, **peers}
        if not graph:
            prepared = _prepared(call)
            runs["qkv, prepared"] = prepared
        if graph and not setting.on_gpu:
            skipped |= {f"{name}, graph": "CUDA graphs need a GPU" for name in runs}
        elif graph:
            runs, failed = available(
                setting, {name: (lambda run=run: _graph(run, steps)) for name, run in runs.items()}
            )
            skipped |= failed
            if "qkv" not in runs:
                raise RuntimeError(f"CUDA graphs must capture a decoding step, got {failed['qkv']}.")
        found = contest(setting, runs, skipped)
        case = f"decode, 1 query, 8 × {n} × 64, {dtype_name}, {f'CUDA graph of {steps} steps' if graph else 'eager'}"
        yield _named(case, call, found, errors, AtMost(1.05), *ROUTES)
        if not graph:
            yield found.row(f"{case}, prepared", found.best(*ROUTES), AtMost(1.05), ours="qkv, prepared")


def _prepared(call: Call) -> Callable[[], Any]:
    """Return a function that runs a call planned once."""
    options = {key: x for key, x in call.options.items() if key != "kernel"}
    spec = qkv.Spec(options["score"], options["normalizer"], options.get("mask"))
    shapes = [tuple(x.shape) for x in call.leaves[:3]]
    name = str(call.query.dtype).removeprefix("torch.")
    run = qkv.prepare(spec, shapes, library="torch", dtype=name, device=str(call.query.device.type))
    return lambda: (run(*call.leaves[:3]).output,)


def _graph(run: Callable[[], Any], steps: int) -> Callable[[], Any]:
    """Return a function that replays a CUDA graph of some calls."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(steps):
            run()
    return graph.replay
