"""Claim: a pooled attention map of a long sequence adds at most 0.4 of SDPA's forward time."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks import _calls, _peers
from benchmarks._calls import Call, WrongError
from benchmarks._claim import AtMost, Claim, Row, Setting
from benchmarks._memory import peak
from benchmarks._race import race

NOTE = (
    "the time added is that of a forward with the map minus that of one without, divided by that of SDPA's "
    "forward; medians"
)


def rows(setting: Setting) -> Iterator[Row]:
    """Measure the additional time and memory of the readout."""
    for name in ("16k", "64k"):
        shape = _calls.shapes(name, setting.quick)
        call, plain = (_calls.make(what, shape) for what in ("pooled_map", "scaled_dot"))
        setting.say(f"{name}: a forward with the map, one without, and SDPA")
        errors = call.check() | _check(call)
        found = race({"with map": call.run, "without map": plain.run, "SDPA": _peers.sdpa(call)}, setting.rounds)
        seconds = {who: statistics.median(times) for who, times in found.cpu.items()}
        yield Row(
            f"PooledMap(512), {name}, time added",
            "(with map − without map) / SDPA, CPU time",
            (seconds["with map"] - seconds["without map"]) / seconds["SDPA"],
            goal=AtMost(0.4),
            spread=_spread(found.cpu),
            seconds=seconds,
            errors=errors,
            kernel=call.plan.kernel.name,
            plan=str(call.plan),
            note=NOTE,
        )
        # The kernel is fixed, so that the small call before it loads and measures what this kernel needs.
        kernel = call.plan.kernel.name
        del call, plain
        one = peak("pooled_map", shape, kernel=kernel)
        yield Row(
            f"PooledMap(512), {name}, memory",
            "peak memory of the forward with the map, above inputs",
            one.growth / 1e6,
            "MB",
            AtMost(50),
            megabytes={"qkv": one.growth / 1e6},
            kernel=one.kernel,
            plan=one.plan,
            note=NOTE,
        )


def _spread(cpu: dict[str, list[float]]) -> tuple[float, float]:
    added = [(a - b) / c for a, b, c in zip(cpu["with map"], cpu["without map"], cpu["SDPA"], strict=True)]
    return min(added), max(added)


def _check(call: Call) -> dict[str, float]:
    """Check some rows of cells against the means of dense weights in float64."""
    import qkv

    seen: Any = qkv.observe(call.query, call.key, call.value, **call.options).readouts[0]
    pooled = seen if torch.is_tensor(seen) else seen.mean
    pooled = pooled.reshape(*call.query.shape[:-2], *pooled.shape[-2:])
    queries, keys = call.query.shape[-2] // pooled.shape[-2], call.key.shape[-2] // pooled.shape[-1]
    query, key = call.query[..., : 2 * queries, :].double(), call.key.double()
    weights = torch.softmax(query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5, dim=-1)
    cells = weights.unflatten(-1, (-1, keys)).mean(-1).unflatten(-2, (2, queries)).mean(-2)
    error = float((pooled[..., :2, :].double() - cells).abs().max() / cells.abs().max())
    if not error <= 1e-3:
        raise WrongError(f"the pooled map is {error:.2g} from the means of the float64 weights")
    return {"oracle, map": error}


CLAIM = Claim(
    "A pooled map of 512 × 512 cells adds at most 0.4 of SDPA's forward time to a forward pass.",
    "adds at most 0.4 × SDPA's forward time at 16k and 64k; at most 50 MB",
    ("torch SDPA, forward alone",),
    rows,
)
