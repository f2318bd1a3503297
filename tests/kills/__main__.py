"""Kill or interrupt each operation at many points, and check what it leaves: `python -m tests.kills`."""

import argparse
import math
import os
import sys
import tempfile
import time
from pathlib import Path

from .operations import OPERATIONS
from .sweep import Sweep, sweep

__all__ = ["main"]


def main() -> int:
    """Run the sweeps, and print what the points left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=500, help="points of each operation; a fifth of it for Lance")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--operations", default=",".join(OPERATIONS))
    parser.add_argument("--shown", type=int, default=5, help="failures shown of each operation")
    options = parser.parse_args()
    started, failures = time.monotonic(), 0
    place = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    for name in options.operations.split(","):
        points = math.ceil(options.points / 5) if OPERATIONS[name].slow else options.points
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=place) as folder:
            found = sweep(name, points, options.seed, Path(folder))
        failures += len(found.failures)
        print(_line(name, found, time.monotonic() - began), flush=True)
        for failure in found.failures[: options.shown]:
            print(f"    {failure}")
    print(f"{time.monotonic() - started:.0f} s, seed {options.seed}")
    print(
        f"{failures:,} failures" if failures else "nothing acknowledged was lost, and each operation could be repeated"
    )
    return 1 if failures else 0


def _line(name: str, found: Sweep, seconds: float) -> str:
    kinds = ", ".join(f"{kind} {found.outcomes[kind]:,}" for kind in ("before", "after", "too late"))
    return f"{name:<14} {sum(found.outcomes.values()) + len(found.failures):>4} points: {kinds}; {seconds:.0f} s"


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # DuckDB prints what it leaks when the process exits
