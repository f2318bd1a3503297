"""The command `make test-gpu` on a machine without a GPU."""

import pytest
import torch

from tests import gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_command_says_so_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main() == 1
    assert "No GPU" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_benchmark_says_so_and_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.gpu import __main__ as command

    monkeypatch.setenv("TRITON_INTERPRET", "1")  # the command sets it
    monkeypatch.setattr("sys.argv", ["benchmarks.gpu"])
    assert command.main() == 1
    assert "No GPU" in capsys.readouterr().err
