"""Claim: additive attention trains over 64k × 64k pairs in less than 200 MB."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import _calls
from benchmarks._claim import AtMost, Claim, Row, Setting
from benchmarks._memory import peak


def rows(setting: Setting) -> Iterator[Row]:
    """Measure one head, forward and backward, once in a new process, and check some queries there."""
    shape = _calls.shapes("book", setting.quick)
    setting.say(f"{shape[0][-2]:,} × {shape[1][-2]:,} additive, forward + backward: one run, minutes")
    found = peak("additive", shape, gradient=True, check=True)
    yield Row(
        "64k × 64k, one head, forward + backward",
        "peak memory above inputs and gradients",
        (found.growth - found.gradients) / 1e6,
        "MB",
        AtMost(200),
        seconds={"qkv": found.seconds},
        megabytes={"qkv": found.growth / 1e6},
        errors=found.errors,
        kernel=found.kernel,
        plan=found.plan,
        note="measured once in a fresh process; an array of all pairs would take 1.1 TB",
    )


CLAIM = Claim(
    "Additive attention over 64k × 64k, one head, forward + backward, completes in 200 MB.",
    "completes with less than 200 MB above inputs and gradients",
    ("none, an array of all pairs would take 1.1 TB",),
    rows,
)
