"""A process that damages files and reads them, for faults that may crash it; one line of JSON per fault."""

import contextlib
import faulthandler
import json
import random
import resource
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

from .faults import FAULTS, make_fault
from .targets import TARGETS, as_text

__all__ = ["check_fault", "main"]

_BYTES = 3 * 2**30
"""Memory that damaged files may make a reader allocate, beyond what the process has mapped."""


def check_fault(base: Path, scratch: Path, target: str, seed: int, number: int, truth: str) -> dict[str, object]:
    """Make a fault to a copy of the files of a target, read them, and return what happened.

    Args:
        base: the folders of intact files, `base/<target>/new`, `old` and `foreign`.
        scratch: an empty folder.
        target: a name in `TARGETS`.
        seed, number: choose the fault.
        truth: what is read of the intact files.

    Returns:
        The fault, and the outcome: "same", "refused", "changed" (an answer that differs from the truth) or
        "foreign" (an error that is not a `QkvError`).
    """
    from qkv.errors import QkvError

    draw = random.Random(f"{seed} {target} {number}")
    folder = scratch / f"{number}"
    shutil.copytree(base / target / "new", folder, symlinks=True)
    name = draw.choice(FAULTS)
    kind = TARGETS[target]
    fault: dict[str, object] = {"target": target, "number": number, "fault": name}
    fault["file"] = make_fault(name, folder, base / target / "old", base / target / "foreign", draw)
    started = time.process_time()
    try:
        with _limited_memory(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = as_text(kind.read(folder))
    except QkvError as error:
        fault |= {"outcome": "refused", "detail": f"{type(error).__name__}: {error}"}
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        trace = traceback.extract_tb(error.__traceback__)
        place = " < ".join(f"{Path(each.filename).name}:{each.lineno}" for each in trace[::-1][:6])
        fault |= {"outcome": "foreign", "detail": f"{type(error).__name__}: {str(error)[:200]} at {place}"}
    else:
        allowed = ("craft", "older", "foreign") if kind.single else ("craft",)
        same = found == truth or not kind.checked or name in allowed or (kind.subset and _is_subset(found, truth))
        detail = "" if same else f"{_difference(found, truth)}"
        fault |= {"outcome": "same" if same else "changed", "detail": detail}
    fault["seconds"] = time.process_time() - started
    shutil.rmtree(folder, ignore_errors=True)
    return fault


@contextlib.contextmanager
def _limited_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _is_subset(found: str, truth: str) -> bool:
    rows = {as_text(row) for row in json.loads(truth)}
    return all(as_text(row) in rows for row in json.loads(found))


def _difference(found: str, truth: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(found, truth, strict=False)) if a != b), min(len(found), len(truth)))
    return f"…{found[max(0, at - 40) : at + 60]} in place of …{truth[max(0, at - 40) : at + 60]}"


def main() -> None:
    """Read lines `target number` from the input, and print the outcome of each fault."""
    base, scratch, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    faulthandler.enable()
    truths: dict[str, str] = {}
    for line in sys.stdin:
        target, _, number = line.strip().rpartition(" ")
        if target not in truths:
            truths[target] = as_text(TARGETS[target].read(base / target / "new"))
        outcome = check_fault(base, scratch, target, seed, int(number), truths[target])
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
