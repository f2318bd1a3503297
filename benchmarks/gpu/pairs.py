"""Rows of scores that no library computes fast: additive, gated, top-k, entmax, and pooled maps."""

# ruff: noqa: B023
# Functions that close over the variables of a loop are called within its step.

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

import qkv
from benchmarks._calls import Call, WrongError, apart
from benchmarks._claim import AtLeast, AtMost, Row
from benchmarks.gpu._contest import contest, peak_megabytes, reason_to_skip
from benchmarks.gpu._peers import additive_by_hand, available, keops_additive, product_peers, sdpa, splash
from benchmarks.gpu._setting import Setting, make_call
from benchmarks.gpu.products import TOLERANCE, checked
from qkv import normalizers, readouts

__all__ = ["additive", "additive_long", "gated", "keops", "pooled_map", "sparse"]

_EAGER_HEADS = 2
"""Heads that the versions by hand compute: the array of all pairs and units of 16 heads would have 16 GiB."""


def additive(setting: Setting) -> Iterator[Row]:
    """Compare additive scores with eager and compiled versions by hand, one tanh for each pair, and PyKeOps."""
    n, heads = setting.size((2048, 16), (24, 3))
    for gradient in (False, True):
        call = make_call(setting, "additive", (heads, n, 64), gradient=gradient, kernel="triton")
        share = _EAGER_HEADS / heads
        by_hand, skipped = available(
            setting,
            {
                "eager": lambda: additive_by_hand(setting, call, _EAGER_HEADS, compiled=False),
                "compiled": lambda: additive_by_hand(setting, call, _EAGER_HEADS, compiled=True),
            },
        )
        whole = {} if gradient else {"one tanh": _one_tanh(call, setting.size((64, 64, 8), (16, 16, 4)))}
        errors = checked(setting, call, whole, skipped) | _check_heads(setting, call, by_hand, skipped)
        found = contest(setting, {"qkv": call.run, **by_hand, **whole}, skipped)
        for name in ("eager", "compiled"):
            if name in found.times:
                found.times[name] = [t / share for t in found.times[name]]
        plan = call.plan
        case = f"additive, {heads} × {n} × {n} × 64, fp32, {'forward + backward' if gradient else 'forward'}"
        more: dict[str, Any] = {"errors": errors, "kernel": plan.kernel.name, "plan": str(plan)}
        hand = f"Versions by hand compute {_EAGER_HEADS} of the heads; their times are multiplied."
        for name, goal in (("eager", 50), ("compiled", 10), ("one tanh", 2)):
            if name in found.times:
                note = hand if name in by_hand else ""
                yield found.row(case, name, AtLeast(goal), faster=True, note=note, **more)
        yield _beside_the_limit(case, call, found.times["qkv"], more)


_OPERATIONS = (13, 79)
"""Operations for each pair and hidden unit forward, and with backward, counted in the code of the programs."""
_SPECIAL_FUNCTIONS = (0.5, 2.5)
"""Divisions for each pair and hidden unit."""
_VECTOR_RATE, _SPECIAL_RATE = 61.8e12, 3.87e12
"""Operations and special functions per second of an H100 or H200 at the peak: 132 multiprocessors at 1.83 GHz."""


def _beside_the_limit(case: str, call: Call, times: list[float], more: dict[str, Any]) -> Row:
    """Return the ratio of our time to the limit of the kernel's instructions at the peak of the data sheet."""
    problem = call.plan.problem
    units = problem.axes.pairs * problem.elements_per_logit
    limit = max(
        units * _OPERATIONS[problem.gradient] / _VECTOR_RATE,
        units * _SPECIAL_FUNCTIONS[problem.gradient] / _SPECIAL_RATE,
    )
    note = f"The limit is {1e3 * limit:.3g} ms on an H200: multiply-adds or special functions at the peak."
    ratio = sorted(times)[len(times) // 2] / limit
    return Row(case, "qkv / arithmetic limit", ratio, "×", AtMost(1.5), note=note, **more)


def _check_heads(setting: Setting, call: Call, peers: dict[str, Any], skipped: dict[str, str]) -> dict[str, float]:
    """Return the differences from peers that compute some heads; one that fails or disagrees is moved to `skipped`."""
    ours, errors = call.run()[:4], {}
    for name in list(peers):
        try:
            for what, mine, its in zip(("output", "query", "key", "value"), ours, peers[name](), strict=False):
                distance = errors[f"{name}, {what}"] = apart(mine[: len(its)], its)
                if not distance <= 10 * TOLERANCE[its.dtype]:
                    raise WrongError(f"{what} is {distance:.2g} from that of qkv.")
        except Exception as error:
            skipped[name] = reason_to_skip(setting, error)
            del peers[name]
    return errors


def keops(setting: Setting) -> Iterator[Row]:
    """Compare the forward pass of additive scores with PyKeOps, which compiles for long."""
    n, heads = setting.size((2048, 16), (24, 2))
    call = make_call(setting, "additive", (heads, n, 64), kernel="triton")
    peers, skipped = available(setting, {"PyKeOps": lambda: keops_additive(call)})
    errors = checked(setting, call, peers, skipped)
    found = contest(setting, {"qkv": call.run, **peers}, skipped)
    case = f"additive, {heads} × {n} × {n} × 64, fp32, forward"
    yield found.row(case, found.best(), faster=True, errors=errors, kernel=call.plan.kernel.name, plan=str(call.plan))


def _one_tanh(call: Call, block: tuple[int, int, int]) -> Any:
    from benchmarks.gpu._tanh_program import attend_by_tanh

    return lambda: call.run_with(lambda q, k, v: attend_by_tanh(q, k, v, *call.trained, block))


def additive_long(setting: Setting) -> Iterator[Row]:
    """Measure the memory of an additive call of 64k × 64k, forward and backward."""
    n = setting.size(65_536, 40)
    call = make_call(setting, "additive", (1, n, 64), gradient=True, kernel="triton")
    plan, errors = call.plan, call.check(TOLERANCE[torch.float32])
    number = peak_megabytes(setting, call.run)
    yield Row(f"additive, 1 × {n} × {n} × 64, fp32, forward + backward", "qkv, memory beyond inputs", number, "MB",
              AtMost(200), errors=errors, kernel=plan.kernel.name, plan=str(plan))  # fmt: skip


def gated(setting: Setting) -> Iterator[Row]:
    """Compare gated products with PyTorch's attention without gates."""
    n = setting.size(4096, 24)
    for gradient in (False, True):
        call = make_call(
            setting, "gated", (1, 8, n, 64), dtype=torch.bfloat16, gradient=gradient, kernel="triton_products"
        )
        plain = make_call(setting, "dot", (1, 8, n, 64), dtype=torch.bfloat16, gradient=gradient)
        errors = call.check(TOLERANCE[torch.bfloat16])
        peers, skipped = available(setting, product_peers(setting, plain))
        found = contest(setting, {"qkv": call.run, **peers}, skipped)
        case = f"gated, 8 × {n} × 64, bf16, {'forward + backward' if gradient else 'forward'}"
        routes = [name for name in peers if name.startswith("SDPA")]
        plan = call.plan
        yield found.row(case, found.best(*routes), AtMost(1.5), errors=errors, kernel=plan.kernel.name, plan=str(plan))


def sparse(setting: Setting) -> Iterator[Row]:
    """Compare top-k and entmax with a flash forward of softmax, and with adasplash."""
    shape = setting.size((8, 16, 4096, 64), (1, 2, 24, 16))
    plain = make_call(setting, "dot", shape, dtype=torch.bfloat16)
    flash = sdpa(setting, plain, "SDPA flash")
    cases = {
        "top-32": (normalizers.TopK(setting.size(32, 5)), None),
        "1.5-entmax": (normalizers.Entmax15(), 1.5),
        "sparsemax": (normalizers.Sparsemax(), 2.0),
    }
    for name, (normalizer, alpha) in cases.items():
        call = make_call(setting, "dot", shape, dtype=torch.bfloat16, kernel="triton_products", normalizer=normalizer)
        peers, skipped = available(setting, {} if alpha is None else {"adasplash": lambda: splash(call, alpha)})
        errors = checked(setting, call, peers, skipped)
        found = contest(setting, {"qkv": call.run, "SDPA flash": flash, **peers}, skipped)
        case = f"{name}, {shape[0]} × {shape[1]} × {shape[2]} × {shape[3]}, bf16, forward"
        plan = call.plan
        more: dict[str, Any] = {"errors": errors, "kernel": plan.kernel.name, "plan": str(plan)}
        yield found.row(case, "SDPA flash", AtMost(2.0), **more)
        if "adasplash" in found.times:
            yield found.row(case, "adasplash", **more)


def pooled_map(setting: Setting) -> Iterator[Row]:
    """Compare a call that also returns a pooled map with the call without it."""
    n, cells = setting.size((16_384, 512), (24, 4))
    for dtype_name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        call = make_call(setting, "dot", (1, 8, n, 64), dtype=dtype)
        maps = [readouts.PooledMap(cells)]

        kernel = None if setting.on_gpu else setting.kernel("triton_readouts")

        def observed(call: Any = call, maps: Any = maps, kernel: Any = kernel) -> Any:
            with torch.no_grad():
                return qkv.observe(call.query, call.key, call.value, readouts=maps, kernel=kernel)

        errors = _check_map(call, observed().readouts[0], cells, TOLERANCE[dtype])
        found = contest(setting, {"qkv, map": observed, "qkv, plain": call.run})
        case = f"PooledMap({cells}), 8 × {n} × 64, {dtype_name}, forward"
        plan = qkv.explain(call.query, call.key, call.value, readouts=maps, kernel=kernel)
        yield found.row(
            case, "qkv, plain", AtMost(1.25), ours="qkv, map", errors=errors, kernel=plan.kernel.name, plan=str(plan)
        )


def _check_map(call: Call, got: Any, cells: int, tolerance: float) -> dict[str, float]:
    """Return the difference of the first row of a pooled map from its definition in float64."""
    query, key = call.query.double(), call.key.double()
    step, width = query.shape[-2] // cells, query.shape[-1]
    weights = (query[..., :step, :] @ key.mT / math.sqrt(width)).softmax(-1)
    wanted = weights.unflatten(-1, (cells, step)).mean((-3, -1))
    distance = apart(got[..., 0, :], wanted)
    if not distance <= tolerance:
        raise WrongError(f"the first row of the map is {distance:.2g} from its definition.")
    return {"oracle, map": distance}
