"""Claim: `explain` predicts the peak memory of a call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks._claim import AtMost, Claim, Row, Setting
from benchmarks._memory import peak

FROM = 64e6
"""Peaks below this number of bytes are outside the claim."""


def _square(length: int, heads: int = 1, width: int = 64) -> Any:
    return ((1, heads, length, width),) * 3


def _table(small: int) -> list[tuple[str, str, Any, dict[str, Any]]]:
    """Return calls with kernels, shapes and options; lengths are divided by `small`."""

    def side(length: int) -> int:
        return max(64, length // small)

    lots = {"memory": "8 GiB"}
    trained = {"gradient": True, **lots}
    plain = ((1, side(1024), 64),) * 3
    return [
        ("scaled_dot", "dense", _square(side(2048), 4), lots),
        ("scaled_dot", "dense", _square(side(4096)), lots),
        ("scaled_dot", "dense", _square(side(2048), 4), trained),
        ("scaled_dot", "dense", _square(side(4096)), {"library": "numpy", **lots}),
        ("softcap", "dense", _square(side(4096)), trained),
        ("gaussian", "dense", _square(side(4096)), trained),
        ("sparsemax", "dense", _square(side(2048), 2), lots),
        ("sparsemax", "dense", _square(side(2048), 2), trained),
        ("additive", "dense", plain, lots),
        ("additive", "dense", plain, trained),
        ("additive", "tiled", ((4, side(4096), 64),) * 3, trained),
        ("scaled_dot", "fused", _square(side(16_384), 8), lots),
        ("scaled_dot", "fused", _square(side(16_384), 8), trained),
        ("gaussian", "fused", _square(side(16_384), 8), trained),
        ("softcap", "tiled", _square(side(8192), 8), lots),
        ("softcap", "tiled", _square(side(8192), 4), trained),
        ("bias_table", "tiled", _square(side(8192), 4), trained),
        ("sparsemax", "row_blocks", _square(side(8192), 4), lots),
        ("entmax15", "row_blocks", _square(side(8192), 2), trained),
        ("top_k", "row_blocks", _square(side(8192), 4), lots),
        ("scaled_dot", "numpy_blocks", _square(side(8192), 8), {"library": "numpy", **lots}),
        ("sparsemax", "numpy_blocks", _square(side(4096), 2), {"library": "numpy", **lots}),
    ]


def rows(setting: Setting) -> Iterator[Row]:
    """Compare the peak and output of the plan with the memory growth of a new process, minus its gradients."""
    for name, kernel, shape, options in setting.some(_table(16 if setting.quick else 1), 7):
        way = "forward + backward" if options.get("gradient") else "forward"
        case = f"{name}, {kernel}, {'×'.join(map(str, shape[0]))}, {options.get('library', 'torch')}, {way}"
        try:
            found = peak(name, shape, kernel=kernel, **options)
        except RuntimeError as error:
            setting.say(f"{case}: {str(error).strip().splitlines()[-1]}")
            continue
        measured, planned = found.growth, found.planned
        yield Row(
            case,
            "|planned − measured| / measured, peak memory",
            abs(planned - measured) / max(1, measured),
            "",
            AtMost(0.25) if measured > FROM else None,
            megabytes={"planned": planned / 1e6, "measured": measured / 1e6},
            kernel=found.kernel,
            plan=found.plan,
            note="both exclude the inputs and include output and gradients; peaks up to 64 MB have no goal",
        )


CLAIM = Claim(
    "explain predicts the peak memory of a call.",
    "within 25 % of peaks over 64 MB",
    ("none, the limit is absolute",),
    rows,
)
