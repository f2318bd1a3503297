"""Claim: the planner chooses the fastest kernel."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks import _calls
from benchmarks._calls import WrongError, apart
from benchmarks._claim import AtLeast, Claim, Row, Setting
from benchmarks._race import cpu_seconds, race

GAP = 1.1
"""Kernels nearer than this to the fastest count as equal to it."""
HOPELESS = 20
"""A kernel this many times slower than the fastest in its first run is not run again."""

TABLE: tuple[tuple[str, tuple[int, ...], tuple[int, ...], bool, str], ...] = (
    # call, query, key and value, with gradient, library
    ("scaled_dot", (8, 8, 32, 64), (8, 8, 32, 64), False, "torch"),
    ("scaled_dot", (8, 8, 128, 64), (8, 8, 128, 64), True, "torch"),
    ("scaled_dot", (1, 8, 512, 64), (1, 8, 512, 64), True, "torch"),
    ("scaled_dot", (1, 4, 2048, 64), (1, 4, 2048, 64), False, "torch"),
    ("scaled_dot", (1, 1, 4096, 64), (1, 1, 4096, 64), True, "torch"),
    ("scaled_dot", (8, 8, 1, 64), (8, 8, 2048, 64), False, "torch"),
    ("bilinear", (1, 4, 1024, 64), (1, 4, 1024, 64), True, "torch"),
    ("gaussian", (1, 4, 2048, 64), (1, 4, 2048, 64), True, "torch"),
    ("gaussian", (100, 2), (20_640, 2), False, "torch"),
    ("cosine", (1, 4, 256, 64), (1, 4, 256, 64), True, "torch"),
    ("gated", (1, 4, 256, 64), (1, 4, 256, 64), True, "torch"),
    ("gated", (1, 2, 2048, 64), (1, 2, 2048, 64), True, "torch"),
    ("softcap", (1, 4, 256, 64), (1, 4, 256, 64), False, "torch"),
    ("softcap", (1, 2, 2048, 64), (1, 2, 2048, 64), True, "torch"),
    ("additive", (32, 20, 64), (32, 24, 64), True, "torch"),
    ("additive", (1, 512, 64), (1, 512, 64), True, "torch"),
    ("additive", (1, 1024, 64), (1, 1024, 64), False, "torch"),
    ("alibi", (1, 4, 1024, 64), (1, 4, 1024, 64), False, "torch"),
    ("bias_table", (1, 4, 1024, 64), (1, 4, 1024, 64), True, "torch"),
    ("window", (1, 4, 512, 64), (1, 4, 512, 64), False, "torch"),
    ("window", (1, 2, 4096, 64), (1, 2, 4096, 64), False, "torch"),
    ("sparsemax", (1, 4, 256, 64), (1, 4, 256, 64), False, "torch"),
    ("sparsemax", (1, 1, 2048, 64), (1, 1, 2048, 64), True, "torch"),
    ("entmax15", (1, 2, 1024, 64), (1, 2, 1024, 64), False, "torch"),
    ("top_k", (1, 4, 256, 64), (1, 4, 256, 64), False, "torch"),
    ("top_k", (1, 1, 4096, 64), (1, 1, 4096, 64), False, "torch"),
    ("scaled_dot", (1, 64), (20_640, 64), False, "numpy"),
    ("scaled_dot", (512, 64), (512, 64), False, "numpy"),
    ("gaussian", (100, 2), (20_640, 2), False, "numpy"),
    ("additive", (512, 64), (512, 64), False, "numpy"),
    ("sparsemax", (512, 64), (2048, 64), False, "numpy"),
    ("top_k", (64, 64), (20_640, 64), False, "numpy"),
)


def rows(setting: Setting) -> Iterator[Row]:
    """Time every kernel that can run each call, and count how often the chosen one was the fastest."""
    right = counted = 0
    for name, query, key, gradient, library in setting.some(TABLE, 8):
        call = _calls.make(name, (query, key, key), gradient=gradient, library=library)
        plan = call.plan
        able = [plan.kernel.name, *(other for other, _ in plan.slower)]
        shape = f"{'×'.join(map(str, query))} to {key[-2]:,}"
        case = f"{name}, {shape}, {library}{', with backward' if gradient else ''}"
        if len(able) < 2:
            setting.say(f"{case}: only {able[0]} can")
            continue
        seconds = _times(call, able, setting)
        order = sorted(seconds.values())
        behind = seconds[plan.kernel.name] / order[0]
        # If the two fastest kernels tie, the row counts only if the chosen kernel is slower than both.
        counts = order[1] > GAP * order[0] or behind > GAP
        counted += counts
        right += counts and behind <= GAP
        yield Row(
            case,
            "chosen kernel / fastest kernel, CPU time",
            behind,
            seconds=seconds,
            kernel=plan.kernel.name,
            plan=str(plan),
            note="a row is counted if the fastest kernel is over 10 % faster than the second fastest, or than the "
            "chosen one",
        )
    yield Row(
        f"all, {right} of {counted} counted rows", "share of correct choices", right / max(1, counted), "", AtLeast(0.9)
    )


def _times(call: Any, able: list[str], setting: Setting) -> dict[str, float]:
    first, output = {}, call.run()[0]
    for kernel in able:
        if not apart(call.run(kernel)[0], output) <= 1e-3:
            raise WrongError(f"{kernel} gives another output of {call.name} than the chosen kernel")
        began = cpu_seconds()
        call.run(kernel)
        first[kernel] = cpu_seconds() - began
    close = [kernel for kernel in able if first[kernel] <= HOPELESS * min(first.values())]
    found = race({kernel: (lambda kernel=kernel: call.run(kernel)) for kernel in close}, setting.rounds)
    return first | {kernel: statistics.median(times) for kernel, times in found.cpu.items()}


CLAIM = Claim(
    "The planner chooses the fastest kernel.",
    "correct in at least 9 of 10 rows of a table of shapes in which the times differ by over 10 %",
    ("every other kernel of qkv",),
    rows,
)
