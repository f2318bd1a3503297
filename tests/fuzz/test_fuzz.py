"""Damaged files are read correctly or refused: a sample of the faults of `make fuzz`."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import make_files, run_faults
from .targets import TARGETS

NEEDED = {"index": "bm25s", "sparse index": "bm25s", "lance": "lance", "encoded store": "sklearn", "join": "sklearn"}
NEEDED |= {"estimator": "sklearn", "key-value cache": "safetensors"}
READY = [name for name in TARGETS if name not in ("lance", "uneven cache", "classifier")]


@pytest.mark.parametrize("target", READY)
def test_no_fault_crashes_a_reader_or_changes_its_answer(tmp_path: Path, target: str) -> None:
    if target in NEEDED:
        pytest.importorskip(NEEDED[target])
    make_files(tmp_path / "base", [target])
    faults = [(target, number) for number in range(5 if TARGETS[target].slow else 40)]
    outcomes = list(run_faults(tmp_path / "base", tmp_path / "scratch", faults))
    assert len(outcomes) == len(faults)
    assert [outcome for outcome in outcomes if outcome["outcome"] not in ("same", "refused")] == []
    # Damaged times of kernels are ignored, because those of the package remain.
    expected = {"same"} if target == "tuned times" else {"same", "refused"}
    assert {outcome["outcome"] for outcome in outcomes} == expected or TARGETS[target].slow
