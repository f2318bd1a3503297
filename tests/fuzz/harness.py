"""Run faults in worker processes, and collect their outcomes; the crash of a worker is an outcome too."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from .targets import TARGETS

__all__ = ["make_files", "run_faults"]

_SECONDS = 60
_FIRST_SECONDS = 600
"""Time for the first answer of a process, which imports PyTorch for some targets."""
_WRITES = 3


def make_files(base: Path, targets: Iterable[str], seed: int = 0) -> None:
    """Write the intact files of targets, the files as they were earlier, and those of another seed."""
    for target in targets:
        for name, own, writes in (("new", seed, _WRITES), ("old", seed, 1), ("foreign", seed + 1, _WRITES)):
            folder = base / target / name
            folder.mkdir(parents=True)
            TARGETS[target].make(folder, own, writes)


class _Worker:
    """A worker process, which is started again after it crashed."""

    def __init__(self, base: Path, scratch: Path, seed: int) -> None:
        command = [sys.executable, "-m", "tests.fuzz.worker", str(base), str(scratch), str(seed)]
        self.log = (scratch / "errors.txt").open("w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=os.environ
        )
        self.seconds = _FIRST_SECONDS

    def run(self, target: str, number: int) -> dict[str, object]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{target} {number}\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], self.seconds)
        self.seconds = _SECONDS
        line = self.process.stdout.readline() if ready else ""
        if line:
            outcome: dict[str, object] = json.loads(line)
            return outcome
        if not ready:
            self.process.kill()
        code = self.process.wait()
        self.log.seek(0)
        detail = f"{'no answer in time' if not ready else f'exit {code}'}: {self.log.read()[-1500:]}"
        return {"target": target, "number": number, "fault": "?", "file": "?", "outcome": "crash", "detail": detail}

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait()
        self.process.stdout.close()  # type: ignore[union-attr]
        self.log.close()


def run_faults(
    base: Path, scratch: Path, faults: Iterable[tuple[str, int]], seed: int = 0
) -> Iterator[dict[str, object]]:
    """Yield the outcome of each fault, given as the name of a target and a number."""
    worker = None
    try:
        for target, number in faults:
            if worker is None:
                scratch.mkdir(parents=True, exist_ok=True)
                worker = _Worker(base, scratch, seed)
            outcome = worker.run(target, number)
            if outcome["outcome"] == "crash":
                worker.close()
                worker = None
                shutil.rmtree(scratch, ignore_errors=True)
            yield outcome
    finally:
        if worker is not None:
            worker.close()
