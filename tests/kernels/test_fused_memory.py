"""The fused kernel needs linear memory, measured by peaks; calls that would need quadratic memory are refused.

The list is of what `scaled_dot_product_attention` silently takes to its array of all pairs on a CPU. Each
call runs forward and backward in a process of its own, forked after the imports; its peak is read as VmHWM.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv import masks
from qkv.errors import RefusedError
from tests.effort import LONG
from tests.processes import run_python

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc to read the peak from"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

N = 6144
"""All pairs of one head in float32 are 151 MB; what is kept of them for a gradient is more."""

CASES = {
    "plain": "attend(made(n, 16), made(n, 16), made(n, 16))",
    "values of another width": "attend(made(n, 16), made(n, 16), made(n, 24))",
    "three axes": "attend(made(1, n, 16), made(1, n, 16), made(1, n, 16))",
    "five axes": "attend(made(1, 1, 1, n, 16), made(1, 1, 1, n, 16), made(1, 1, 1, n, 16))",
    "heads that share keys": "attend(made(1, 2, n, 16), made(1, 1, n, 16), made(1, 1, n, 16))",
    "a batch that shares keys": "attend(made(2, 1, n, 16), made(1, 1, n, 16), made(1, 1, n, 16))",
    "groups that share keys": "attend(made(1, 1, 2, n, 16), made(1, 1, 1, n, 16), made(1, 1, 1, n, 16))",
    "strided": "attend(made(16, n).mT, made(16, n).mT, made(16, n).mT)",
    "a learned bias of the key": "attend(made(n, 16), made(n, 16), made(n, 16), score=biased(made(1, n)))",
    "a mask of keys": "attend(made(n, 16), made(n, 16), made(n, 16), mask=keys)",
    "causal and a mask of keys": "attend(made(n, 16), made(n, 16), made(n, 16), mask=masks.Causal() & keys)",
    "causal from the end": "attend(made(n // 2, 16), made(n, 16), made(n, 16), mask=masks.Causal('end'))",
    "a lift": "attend(made(n, 16), made(n, 16), made(n, 16), score=scores.Gaussian(2.0))",
}

CASES = CASES if LONG else dict(list(CASES.items())[::3])

SCRIPT = """
import json, os, sys
import torch, qkv
import qkv.kernels
from qkv import masks, scores

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024

def made(*shape):
    return torch.randn(shape, requires_grad=True)

def biased(bias):
    return scores.Biased(scores.ScaledDot(), bias)

def attend(*sides, **options):
    return qkv.attend(*sides, kernel="fused", **options)

def run(code, n):
    keys = masks.AllowedKeys(torch.arange(n) % 3 > 0)
    eval(code, globals() | {"n": n, "keys": keys}).sum().backward()

n, cases = json.loads(sys.argv[1])
for code in cases.values():
    run(code, 8)  # lazy imports belong to the start
found = {}
for name, code in cases.items():
    read, write = os.pipe()
    if os.fork() == 0:
        before = peak()
        run(code, n)
        os.write(write, str(peak() - before).encode())
        os._exit(0)
    os.close(write)
    found[name] = int(os.read(read, 100))
    os.wait()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def peaks() -> dict[str, int]:
    """Bytes above the start, of each case."""
    found: dict[str, int] = json.loads(run_python("-c", SCRIPT, json.dumps([N, CASES])))
    return found


@pytest.mark.parametrize("case", CASES)
def test_peak_is_far_below_an_array_of_all_pairs(case: str, peaks: dict[str, int]) -> None:
    assert peaks[case] < N * N * 4 / 4


@pytest.mark.long
def test_measure_detects_the_quadratic_backend() -> None:
    code = "(torch.nn.functional.scaled_dot_product_attention(made(1, 1, n, 16), made(1, 1, n, 16), made(1, 1, n, 24)))"
    printed = run_python("-c", SCRIPT, json.dumps([N // 2, {"quadratic": code}]))
    assert json.loads(printed)["quadratic"] > N * N


@pytest.mark.parametrize(
    ("sentence", "options"),
    [
        ("with dropout PyTorch needs quadratic memory", {"dropout": 0.1}),
        ("would need an array of 64 × 64", {"mask": masks.Window(3, 3)}),
        ("would need an array of 64 × 64", {"mask": ~masks.Causal()}),
    ],
)
def test_calls_without_a_linear_form_are_refused(sentence: str, options: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match=sentence):
        qkv.explain((64, 4), (64, 4), (64, 4), library="torch", kernel="fused", gradient=True, **options)
