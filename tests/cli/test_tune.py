"""The command `qkv tune`."""

import json
from pathlib import Path

import pytest

from qkv.cli.main import run
from qkv.normalizers import Sigmoid
from qkv.plan.devices import processor_name


def test_tune_writes_a_table_that_the_planner_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = "qkv.tuning.measure"
    monkeypatch.setattr(f"{measured}._MAX_ELEMENTS", {"product": 1e4, "tanh": 1e5})
    monkeypatch.setattr(f"{measured}._NORMALIZERS", {"sigmoid": Sigmoid})
    monkeypatch.setattr(f"{measured}._MAX_PAIRS", 2e4)
    monkeypatch.setattr(f"{measured}._SLOW_SECONDS", 1e-4)
    file = tmp_path / "folder" / "times.json"
    assert run(["tune", "--seconds", "0.1", "--output", str(file)]) == 0
    content = json.loads(file.read_text())
    assert content["processor"] == processor_name()
    assert "batched, tanh, forward" in content["nanoseconds"]
    shown = capsys.readouterr().out
    assert "calls measured on" in shown
    assert str(file) in shown


@pytest.mark.parametrize("seconds", ["0", "-1"])
def test_tune_refuses_a_time_limit_that_is_not_positive(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", "--seconds", seconds]) == 2
    assert "--seconds must be positive" in capsys.readouterr().err
