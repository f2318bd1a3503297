"""Maps and received mass are put together strip by strip: neither weights nor a list of maps are kept."""

import importlib.util
import json
from pathlib import Path

import pytest

from tests.processes import run_python

SCRIPT = """
import gc, json, sys
import torch, qkv
from qkv import readouts

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024

n, gradient = json.loads(sys.argv[1])
query, key, value = (torch.randn(n, 8, requires_grad=gradient) for _ in range(3))

def step(query, key, value):
    maps = [readouts.PooledMap(512), readouts.PooledMap(512, "max")]
    wanted = [*maps, readouts.ColumnSum(), readouts.MeanDistance()]
    seen = qkv.observe(query, key, value, readouts=wanted, kernel="tiled")
    if gradient:
        sum(x.square().sum() for x in seen.readouts).backward()
    return seen.plan

step(*(x[:600].detach().requires_grad_(gradient) for x in (query, key, value)))
gc.collect()
before = peak()
plan = step(query, key, value)
print(json.dumps({"planned": plan.cost.peak, "peak": peak() - before}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc to read the peak from")
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize(
    ("length", "gradient", "megabytes"),
    [
        # All weights: 67 MB, several times over.
        (4096, False, 60),
        pytest.param(16_384, True, 200, marks=pytest.mark.long),  # 1.1 GB
    ],
)
def test_maps_and_received_mass_take_memory_linear_in_the_keys(length: int, gradient: bool, megabytes: int) -> None:
    found = json.loads(run_python("-c", SCRIPT, json.dumps([length, gradient])))
    assert found["peak"] < megabytes * 10**6, found
    # What the allocator keeps besides is no part of the plan: some MB, which small plans feel.
    assert found["peak"] < 1.25 * found["planned"] + 8 * 10**6, found
