"""Claim: all cores shorten a call by at least .9 times the factor by which they shorten PyTorch's fused attention."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks import _calls
from benchmarks._calls import WrongError, apart
from benchmarks._claim import AtLeast, Claim, Row, Setting
from benchmarks._race import race

CALLS = ("additive", "gated", "entmax15", "sparsemax", "top_k", "gaussian", "alibi", "pooled_map")
SHAPES = ((8, 8, 512, 32), (1, 8, 2048, 64))
"""Batch elements, heads, tokens and width."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if platform.system() == "Linux" else os.cpu_count() or 1


def on_threads(run: Callable[[], Any], count: int) -> Callable[[], Any]:
    """Return the function with another number of PyTorch's threads."""

    def runs() -> Any:
        torch.set_num_threads(count)
        return run()

    return runs


def rows(setting: Setting) -> Iterator[Row]:
    """Measure every call and PyTorch's fused attention with one thread and with one for each core."""
    most = cores()
    for shape in setting.some(SHAPES, 2):
        for gradient in (False, True):
            fused = _calls.make("scaled_dot", (shape,) * 3, gradient=gradient)
            sdpa = torch.nn.functional.scaled_dot_product_attention
            for name in setting.some(CALLS, 3):
                call = _calls.make(name, (shape,) * 3, gradient=gradient)
                one, all_ = (on_threads(call.run, count)() for count in (1, most))
                error = max(float(apart(a.detach(), b.detach())) for a, b in zip(all_, one, strict=True))
                if not error <= 1e-4:
                    raise WrongError(f"{name} of {shape} with {most} threads is {error:.2g} from that with one.")
                peer = partial(fused.run_with, sdpa)
                contest = {
                    "qkv": on_threads(call.run, 1),
                    "qkv, all cores": on_threads(call.run, most),
                    "SDPA": on_threads(peer, 1),
                    "SDPA, all cores": on_threads(peer, most),
                }
                wall = {side: min(seconds) for side, seconds in race(contest, setting.rounds, 0.2).wall.items()}
                gains = {side: wall[side] / wall[f"{side}, all cores"] for side in ("qkv", "SDPA")}
                yield Row(
                    f"{name}, {'×'.join(map(str, shape))}, forward{' + backward' if gradient else ''}, {most} cores",
                    "gain of qkv / gain of SDPA, wall time, minima",
                    gains["qkv"] / gains["SDPA"],
                    goal=AtLeast(0.9) if most > 1 else None,
                    wall=wall,
                    errors={"one thread": error},
                    kernel=call.plan.kernel.name,
                    note=f"{gains['qkv']:.2f} × for qkv, {gains['SDPA']:.2f} × for SDPA",
                )
    torch.set_num_threads(1)


CLAIM = Claim(
    "All cores shorten a call by at least .9 times the factor by which they shorten PyTorch's fused attention.",
    "at least .9 × the gain of SDPA from one thread to one for each core, in wall time on an idle machine",
    ("torch.nn.functional.scaled_dot_product_attention",),
    rows,
)
