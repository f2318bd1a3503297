"""Queries by actors of Ray, in a process of its own: Ray leaves processes and settings behind."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from qkv.database.cluster import opening
from tests.effort import LONG

CASES = Path(__file__).with_name("ray_cases.py")


@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'qkv[ray]'")
def test_actors_of_ray_give_the_answers_of_one_process():
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", str(CASES), "-o", "addopts=-q", "--noconftest"]
    command += [] if LONG else ["-m", "not long"]
    inherited["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    run = subprocess.run(command, capture_output=True, text=True, env=inherited, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


@pytest.mark.parametrize("usable", [False, True])
def test_an_actor_computes_on_the_gpu_that_ray_reserved_if_pytorch_can_use_it(usable, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
    free = SimpleNamespace(get_gpu_ids=lambda: [0], available_resources=lambda: {"CPU": 3.0, "GPU": 2.0})
    monkeypatch.setitem(sys.modules, "ray", free)
    assert opening.gpu_share(3) == 0.5
    assert opening._reserved_gpu() == ("cuda" if usable else None)
