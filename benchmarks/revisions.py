"""`python -m benchmarks.revisions OLD CLAIM …`: time two checkouts against each other on the calls of claims.

Each checkout runs in a process of its own. Both build the same calls and wait; then they are timed in turn, pair by
pair, so that other load on the machine affects both alike. The peers of a claim are not run.

Example:
    git worktree add ../old v0.1.0
    python -m benchmarks.revisions ../old additive short --pairs 20
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

LEAST = 0.02
"""Minimum seconds of a sample; short calls are repeated."""
LIMIT = 1.05
"""Ratio above which a call is marked."""


def main() -> int:
    """Measure the claims, print a row for each call, and return 1 if a median is above the limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.revisions", description=__doc__.split("\n")[0])
    parser.add_argument("old", type=Path, help="root of the other checkout")
    parser.add_argument("claims", nargs="+", metavar="CLAIM", help="claims that both checkouts have")
    parser.add_argument("--pairs", type=int, default=20, help="timed pairs of each call (default: 20)")
    parser.add_argument("--quick", action="store_true", help="use the small shapes of the claims")
    asked = parser.parse_args()
    slower = 0
    for claim in asked.claims:
        print(f"{claim}: new / old, median (lowest to highest) of {asked.pairs} pairs, CPU time", flush=True)
        ratios = []
        for case, pairs in _claim(asked.old.resolve(), claim, asked.pairs, asked.quick):
            each = sorted(new / old for old, new in pairs)
            ratio, seconds = statistics.median(each), statistics.median(old for old, _ in pairs)
            ratios.append(ratio)
            mark = "  above" if ratio > LIMIT else ""
            print(f"  {ratio:.3f} ({each[0]:.2f} to {each[-1]:.2f}) {1e3 * seconds:10.3f} ms  {case}{mark}", flush=True)
        above = sum(ratio > LIMIT for ratio in ratios)
        slower += above
        if ratios:
            print(f"  {len(ratios)} calls, median {statistics.median(ratios):.3f}, {above} above {LIMIT}", flush=True)
    return int(slower > 0)


def _claim(old: Path, claim: str, pairs: int, quick: bool) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Yield the name of each call of a claim, and the seconds of both checkouts in each pair."""
    workers = [_start(root, claim, quick) for root in (old, Path(__file__).resolve().parent.parent)]
    waiting: list[list[tuple[float, float]]] = []
    try:
        while True:
            said = [_receive(worker) for worker in workers]
            if said[0].get("names") != said[1].get("names"):
                raise SystemExit(f"the checkouts build different calls: {said[0]} and {said[1]}")
            if "end" in said[0]:
                yield from ((f"call {n}", found) for n, found in enumerate(waiting))
                return
            if "row" in said[0]:
                yield from ((said[0]["row"] + (f", {n}" if n else ""), found) for n, found in enumerate(waiting))
                waiting = []
                continue
            loops = max(each["loops"] for each in said)
            found = []
            for turn in range(pairs):
                seconds = [0.0, 0.0]
                for which in (turn % 2, 1 - turn % 2):
                    _send(workers[which], loops)
                    seconds[which] = _receive(workers[which])["seconds"]
                found.append((seconds[0], seconds[1]))
            waiting.append(found)
            for worker in workers:
                _send(worker, 0)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _start(root: Path, claim: str, quick: bool) -> subprocess.Popen[str]:
    words = [sys.executable, str(Path(__file__).resolve()), "--worker", claim, *(["--quick"] if quick else [])]
    path = os.pathsep.join([str(root / "src"), str(root), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    settings = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "KERAS_BACKEND": "torch"}
    return subprocess.Popen(
        words, cwd=root, env=os.environ | settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _receive(worker: subprocess.Popen[str]) -> dict[str, Any]:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise SystemExit(f"a checkout ended with exit code {worker.wait()}; its error is printed above.")
    message: dict[str, Any] = json.loads(line)
    return message


def _send(worker: subprocess.Popen[str], loops: int) -> None:
    assert worker.stdin is not None
    worker.stdin.write(f"{loops}\n")
    worker.stdin.flush()


def _work(claim: str, quick: bool) -> None:
    """Build the calls of a claim and time them when the other process asks, instead of racing them against peers."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what is printed must not mix with the messages

    def say(**message: object) -> None:
        channel.write(json.dumps(message) + "\n")

    def serve(runs: Mapping[str, Callable[[], object]]) -> None:
        for run in (run for name, run in runs.items() if name.startswith("qkv")):
            run()
            start = time.perf_counter()
            run()
            say(names=list(runs), loops=max(1, round(LEAST / max(time.perf_counter() - start, 1e-6))))
            while loops := int(sys.stdin.readline() or 0):
                start = time.process_time()
                for _ in range(loops):
                    run()
                say(seconds=(time.process_time() - start) / loops)

    from benchmarks import _calls, _race

    def race(runs: Mapping[str, Callable[[], object]], *_: object) -> _race.Race:
        serve(runs)
        return _race.Race({name: [1.0] for name in runs}, {name: [1.0] for name in runs})

    def alternate(runs: Mapping[str, Callable[[], object]], *_: object) -> dict[str, float]:
        serve(runs)
        return dict.fromkeys(runs, 1.0)

    _race.race, _race.alternate = race, alternate  # type: ignore[assignment]
    for kind in vars(_calls).values():  # the claims check their results when they are measured alone
        if isinstance(kind, type) and hasattr(kind, "check"):
            kind.check = lambda *_, **__: collections.defaultdict(float)
    from benchmarks import short
    from benchmarks._claim import MissingError, Setting, load

    def measure(runs: Mapping[str, Callable[[], object]], *_: object) -> short._Measured:
        serve(runs)
        return short._Measured(dict.fromkeys(runs, 1.0), "CPU time")

    short._measure = measure  # type: ignore[assignment]
    short._random = lambda setting: iter(())  # which calls it draws depends on their times
    try:
        for row in load(claim).rows(Setting(quick)):
            say(row=row.case)
    except MissingError as missing:
        print(f"the rest of {claim} is not measured: {missing}", file=sys.stderr)
    say(end=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        sys.path.pop(0)  # the folder of this file, which is of the other checkout
        _work(sys.argv[2], "--quick" in sys.argv)
    else:
        sys.exit(main())
