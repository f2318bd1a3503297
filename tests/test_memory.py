"""Peak memory of a fresh process: what is said to be linear is linear, and a plan's peak is not exceeded."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
score = scores.Additive(made(64, width), made(64, width), made(64), made(64)) if score == "additive" else scores.ScaledDot()
normalizer = getattr(normalizers, normalizer)()
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
"""VmHWM is read after imports and inputs, so that what remains is the call's own: the output and all that it allocates."""


def measure(
    n: int, width: int = 64, gradient: bool = True, score: str = "additive", normalizer: str = "Softmax", kernel: Any = None
) -> dict[str, Any]:
    """Kernel, planned peak and peak in bytes, of one call in a fresh process."""
    arguments = json.dumps([n, width, gradient, score, normalizer, kernel])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, arguments],
        capture_output=True,
        text=True,
        check=False,
        # Small blocks are given back at once: the peak is what is in use, not what the allocator keeps.
        env=os.environ | {"OMP_NUM_THREADS": "2", "MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "0"},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
