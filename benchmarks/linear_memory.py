"""Claim: no call needs quadratic memory: at 16k, peaks are within 64 MB of the inputs and gradients."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import _calls
from benchmarks._claim import AtMost, Claim, MissingError, Row, Setting
from benchmarks._memory import peak

TRAINED = (
    *("scaled_dot", "bilinear", "gaussian", "cosine", "gated", "softcap", "additive"),
    *("alibi", "bias_table", "window", "sparsemax", "entmax15", "top_k"),
)
CASES = (
    # call, workload, library, with gradient
    *((name, "16k", "torch", False) for name in (*TRAINED, "pooled_map")),
    ("regression", "regression", "torch", False),
    ("regression", "regression", "numpy", False),
    ("scaled_dot", "one search", "numpy", False),
    ("scaled_dot", "search", "numpy", False),
    *((name, "16k", "torch", True) for name in TRAINED),
)


def rows(setting: Setting) -> Iterator[Row]:
    """Measure each call in a new process."""
    for name, workload, library, gradient in setting.some(CASES, 7):
        shape = _calls.shapes(workload, setting.quick)
        try:
            _calls.make(name, ((1, 2, 8),) * 3)
        except MissingError as missing:
            setting.say(f"{name}: {missing}")
            continue
        found = peak(name, shape, gradient=gradient, library=library)
        yield Row(
            f"{name}, {workload}, {library}, {'forward + backward' if gradient else 'forward'}",
            "peak memory above inputs and gradients",
            (found.growth - found.gradients) / 1e6,
            "MB",
            AtMost(64),
            seconds={"qkv": found.seconds},
            megabytes={"qkv": found.growth / 1e6, "planned": found.planned / 1e6},
            kernel=found.kernel,
            plan=found.plan,
            note="the output is included; at 16k an array of all pairs would take 1,074 MB for the logits alone",
        )


CLAIM = Claim(
    "Every score, normalizer and mask of these claims runs and trains in memory linear in the sequence length.",
    "at most 64 MB above inputs and gradients",
    ("none, the limit is absolute",),
    rows,
)
