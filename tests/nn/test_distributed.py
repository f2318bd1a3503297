"""Training in two processes gives the gradients of training in one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.nn.two_processes import batch, loss, model

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.long  # short runs train in two processes in `kernels/test_ring.py`
@pytest.mark.skipif(not dist.is_available(), reason="this PyTorch was built without torch.distributed")
def test_gradients_of_two_processes_equal_those_of_one(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["src", *sys.path]), "OMP_NUM_THREADS": "1"}
    meet = tmp_path / "meet"
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.nn.two_processes", f"{rank}", meet, tmp_path / f"{rank}"],
            cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    for process in running:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said[-2000:]
    alone = model()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.01)
    loss(alone, batch()).backward()
    optimizer.step()
    for rank in range(2):
        saved = torch.load(tmp_path / f"{rank}", weights_only=True)
        assert saved["gradients"].keys() == dict(alone.named_parameters()).keys()
        for name, parameter in alone.named_parameters():
            assert parameter.grad.abs().max() > 0, name
            torch.testing.assert_close(saved["gradients"][name], parameter.grad, atol=1e-12, rtol=1e-10)
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(saved["state"][name], value, atol=1e-12, rtol=1e-10)
