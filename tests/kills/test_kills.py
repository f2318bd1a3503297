"""Killed and interrupted operations lose nothing and can be repeated: a sample of the points of `make kills`."""

import pytest

from tests.processes import run_python

from .operations import OPERATIONS

SAMPLE = ("append", "delete", "compact", "create", "copy", "repair")


def run(operations: tuple[str, ...], points: int, seed: int) -> str:
    """Return what the sweeps print, in a process without threads, which can be forked."""
    options = ("--points", points, "--seed", seed, "--operations", ",".join(operations))
    return run_python("-m", "tests.kills", *options)


def test_no_point_loses_an_acknowledged_step_or_stops_its_repetition() -> None:
    printed = run(SAMPLE, 2, 7)
    assert printed.count(" 2 points: ") == len(SAMPLE)
    assert printed.endswith("nothing acknowledged was lost, and each operation could be repeated\n")


@pytest.mark.long
@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_point_of_many_loses_anything(operation: str) -> None:
    if operation.startswith("Lance"):
        pytest.importorskip("lance")
    run((operation,), 100, 3)
