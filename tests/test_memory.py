"""Peak memory: it grows linearly where documented, and does not exceed that of the plan."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.effort import LONG
from tests.processes import run_python

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc to read the peak from"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

N = 6144
"""All pairs of one head in float32 are 151 MB; what is kept of them for a gradient is more."""
FUSED = {  # what `scaled_dot_product_attention` silently takes to its array of all pairs on a CPU
    "plain": "attend(made(n, 16), made(n, 16), made(n, 16))",
    "values of another width": "attend(made(n, 16), made(n, 16), made(n, 24))",
    "three axes": "attend(made(1, n, 16), made(1, n, 16), made(1, n, 16))",
    "five axes": "attend(made(1, 1, 1, n, 16), made(1, 1, 1, n, 16), made(1, 1, 1, n, 16))",
    "heads that share keys": "attend(made(1, 2, n, 16), made(1, 1, n, 16), made(1, 1, n, 16))",
    "a batch that shares keys": "attend(made(2, 1, n, 16), made(1, 1, n, 16), made(1, 1, n, 16))",
    "groups that share keys": "attend(made(1, 1, 2, n, 16), made(1, 1, 1, n, 16), made(1, 1, 1, n, 16))",
    "strided": "attend(made(16, n).mT, made(16, n).mT, made(16, n).mT)",
    "a learned bias of the key": "attend(*(made(n, 16) for _ in range(3)), "
    "score=scores.Biased(scores.ScaledDot(), made(1, n)))",
    "a mask of keys": "attend(made(n, 16), made(n, 16), made(n, 16), mask=keys)",
    "causal and a mask of keys": "attend(made(n, 16), made(n, 16), made(n, 16), mask=masks.Causal() & keys)",
    "causal from the end": "attend(made(n // 2, 16), made(n, 16), made(n, 16), mask=masks.Causal('end'))",
    "a lift": "attend(made(n, 16), made(n, 16), made(n, 16), score=scores.Gaussian(2.0))",
}
QUADRATIC = "torch.nn.functional.scaled_dot_product_attention(made(1, 1, n, 16), made(1, 1, n, 16), made(1, 1, n, 24))"

Case = tuple[str, list[Any], dict[str, Any], bool]
"""A function of `memory_cases.py`, the arguments after the length, the limits in bytes, and whether it is long."""


def planned(n: int, kernel: str, megabytes: int, *arguments: Any, long: bool = True) -> tuple[str, Case, int]:
    limits = {"kernel": kernel, "peak": megabytes * 10**6, "planned": megabytes * 10**6}
    return f"{kernel} of {n}", ("attention", list(arguments), limits, long), n


SOME = [
    # All pairs at once: 270 MB (n × n × hidden in float32), and 67 MB.
    planned(1024, "tiled", 130, "additive", True, "Softmax()", 64, long=False),
    planned(4096, "row_blocks", 50, "dot", False, "Sparsemax()", 8, long=False),
    # 1.1 GB, and the same for the gradient; n × n × hidden numbers would take 17 GB.
    planned(16_384, "fused", 120, "dot", True, "Softmax()", 64),
    planned(8192, "tiled", 400, "additive", True, "Softmax()", 64),
    planned(16_384, "row_blocks", 400, "dot", True, "Sparsemax()", 16),
    planned(8192, "row_blocks", 400, "dot", True, "TopK(8)", 16),
    # All weights: 67 MB, several times over, and 1.1 GB.
    ("maps of 4096", ("maps", [False], {"peak": 60 * 10**6}, False), 4096),
    ("maps of 16384", ("maps", [True], {"peak": 200 * 10**6}, True), 16_384),
    # All weights: 4 bytes of each pair.
    ("map of 8192 tokens", ("tiled_map", [], {"peak": 8192**2}, False), 8192),
    ("map of 65536 tokens", ("tiled_map", [], {"peak": 300 * 10**6}, True), 65_536),
    # A quarter of the q · k · h numbers of one tanh.
    ("additive units", ("units", [], {"peak": 1024**2 * 32}, False), 1024),
    # All pairs of the four elements would take 64 MiB.
    *(
        (f"vmap, {kernel}", ("mapped", [kernel], {"peak": 32 * 2**20}, kernel is not None), 2048)
        for kernel in (None, "row_blocks", "tiled")
    ),
    *((f"fused, {name}", ("fused", [FUSED[name]], {"peak": N**2}, n % 6 > 0), N) for n, name in enumerate(FUSED)),
]
CASES: dict[str, tuple[Case, int]] = {name: (case, n) for name, case, n in SOME if LONG or not case[3]}


def measure(*cases: tuple[str, int, list[Any]]) -> list[dict[str, Any]]:
    """Return the measurement of each function, length and other arguments, all in one process."""
    small = {"maps": 600, "tiled_map": 600, "mapped": 64, "units": 64}
    given = [(name, [small.get(name, 8), *more], [n, *more]) for name, n, more in cases]
    # Freed arrays return to the operating system at once: what the allocator keeps would hide later ones.
    settings = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), "65536")
    printed = run_python("-m", "tests.memory_cases", json.dumps(given), **settings)
    return [json.loads(line) for line in printed.splitlines()]


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    measured = measure(*((case[0], n, case[1]) for case, n in CASES.values()))
    return dict(zip(CASES, measured, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_peak_is_far_below_an_array_of_all_pairs_and_near_that_of_the_plan(name: str, found: dict[str, Any]) -> None:
    (function, _, limits, _), _ = CASES[name]
    seen = found[name]
    assert seen.get("kernel") == limits.get("kernel", seen.get("kernel")), seen
    assert all(seen[key] < limit for key, limit in limits.items() if key != "kernel"), seen
    if function == "maps":  # what the allocator keeps besides is no part of the plan: some MB, which small plans feel
        assert seen["peak"] < 1.25 * seen["planned"] + 8 * 10**6, seen
    if function == "tiled_map":
        assert seen["peak"] < 1.25 * seen["needs"] + 16 * 10**6, seen
        assert 0 < seen["most"] <= 1


@pytest.mark.long
def test_the_measurement_detects_an_array_of_all_pairs() -> None:
    (seen,) = measure(("fused", N // 2, [QUADRATIC]))
    assert seen["peak"] > N * N
