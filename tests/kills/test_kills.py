"""Killed and interrupted operations lose nothing and can be repeated: a sample of the points of `make kills`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .operations import OPERATIONS

SAMPLE = ("append", "compact")


def run(operations: tuple[str, ...], points: int, seed: int) -> str:
    """Return what the sweeps print, in a process without threads, which can be forked."""
    command = [sys.executable, "-m", "tests.kills", "--points", str(points), "--seed", str(seed)]
    done = subprocess.run([*command, "--operations", ",".join(operations)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_no_point_loses_an_acknowledged_step_or_stops_its_repetition() -> None:
    printed = run(SAMPLE, 3, 7)
    assert printed.count(" 3 points: ") == len(SAMPLE)
    assert printed.endswith("nothing acknowledged was lost, and each operation could be repeated\n")


@pytest.mark.long
@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_point_of_many_loses_anything(operation: str) -> None:
    if operation.startswith("Lance"):
        pytest.importorskip("lance")
    run((operation,), 100, 3)
