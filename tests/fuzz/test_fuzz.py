"""Damaged files are read correctly or refused: a sample of the faults of `make fuzz`."""

from importlib.util import find_spec
from pathlib import Path

from .harness import make_files
from .targets import TARGETS, as_text
from .worker import check_fault

NEEDED = {"index": "bm25s", "sparse index": "bm25s", "lance": "lance", "encoded store": "sklearn", "join": "sklearn"}
NEEDED |= {"estimator": "sklearn", "key-value cache": "safetensors"}
READY = [name for name in TARGETS if name not in ("lance", "uneven cache", "classifier")]


def test_no_fault_crashes_a_reader_or_changes_its_answer(tmp_path: Path) -> None:
    targets = [name for name in READY if name not in NEEDED or find_spec(NEEDED[name])]
    base = tmp_path / "base"
    make_files(base, targets)
    outcomes = []
    for target in targets:
        truth = as_text(TARGETS[target].read(base / target / "new"))
        for number in range(3 if TARGETS[target].slow else 40):
            outcomes.append(check_fault(base, tmp_path / "scratch", target, 0, number, truth))
    assert [outcome for outcome in outcomes if outcome["outcome"] not in ("same", "refused")] == []
    for target in targets:
        # Damaged times of kernels are ignored, because those of the package remain.
        expected = {"same"} if target == "tuned times" else {"same", "refused"}
        found = {outcome["outcome"] for outcome in outcomes if outcome["target"] == target}
        assert found == expected or TARGETS[target].slow, target
