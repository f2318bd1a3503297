"""Peak memory of a new process: it grows linearly where documented, and does not exceed the plan's peak."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run_python

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc to read the peak from"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

SCRIPT = """
import gc, json, sys
import torch, qkv
import qkv.kernels, qkv.masks
from qkv import scores, normalizers

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024

n, width, gradient, score, normalizer, kernel = json.loads(sys.argv[1])
torch.manual_seed(0)
def made(*shape):
    return torch.randn(shape, requires_grad=gradient)
additive = scores.Additive(made(64, width), made(64, width), made(64), made(64))
score = additive if score == "additive" else scores.ScaledDot()
normalizer = eval(normalizer, vars(normalizers))
query, key, value = made(n, width), made(n, width), made(n, width)
small = [x[:8].detach().requires_grad_(gradient) for x in (query, key, value)]

def step(query, key, value):
    seen = qkv.observe(query, key, value, score=score, normalizer=normalizer, kernel=kernel)
    if gradient:
        seen.output.sum().backward()
    return seen.plan

step(*small)  # lazy imports and the thread pool belong to the start
gc.collect()
before = peak()
plan = step(query, key, value)
print(json.dumps({"kernel": plan.kernel.name, "planned": plan.cost.peak, "peak": peak() - before}))
"""
"""VmHWM is read after imports and inputs, so that the difference is the output and the allocations of the call."""


def measure(
    n: int,
    width: int = 64,
    gradient: bool = True,
    score: str = "additive",
    normalizer: str = "Softmax()",
    kernel: Any = None,
) -> dict[str, Any]:
    """Return kernel, planned peak and measured peak in bytes of one call in a new process."""
    arguments = json.dumps([n, width, gradient, score, normalizer, kernel])
    found: dict[str, Any] = json.loads(run_python("-c", SCRIPT, arguments))
    return found


LIMITS: list[tuple[dict[str, Any], str, int]] = [
    # All pairs at once: 270 MB (n × n × hidden in float32).
    ({"n": 1024}, "tiled", 130),
    # 67 MB.
    ({"n": 4096, "score": "dot", "gradient": False, "normalizer": "Sparsemax()", "width": 8}, "row_blocks", 50),
]
"""A call, the kernel that the planner chooses for it, and its limit in MB above the start."""

LONG_LIMITS: list[tuple[dict[str, Any], str, int]] = [
    # 1.1 GB, and the same for the gradient; short runs measure the kernel in `kernels/test_fused_memory.py`.
    ({"n": 16_384, "score": "dot"}, "fused", 120),
    # n × n × hidden numbers would take 17 GB.
    ({"n": 8192}, "tiled", 400),
    ({"n": 16_384, "score": "dot", "normalizer": "Sparsemax()", "width": 16}, "row_blocks", 400),
    ({"n": 8192, "score": "dot", "normalizer": "TopK(8)", "width": 16}, "row_blocks", 400),
]


@pytest.mark.parametrize(("call", "kernel", "megabytes"), LIMITS)
def test_peak_is_far_below_that_of_all_pairs(call: dict[str, Any], kernel: str, megabytes: int) -> None:
    found = measure(**call)
    assert found["kernel"] == kernel
    assert found["peak"] < megabytes * 10**6
    assert found["planned"] < megabytes * 10**6


@pytest.mark.long
@pytest.mark.parametrize(("call", "kernel", "megabytes"), LONG_LIMITS)
def test_peak_of_long_sequences_stays_below_400_megabytes(call: dict[str, Any], kernel: str, megabytes: int) -> None:
    found = measure(**call)
    assert found["kernel"] == kernel
    assert found["peak"] < megabytes * 10**6
