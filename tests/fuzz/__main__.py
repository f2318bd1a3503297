"""Damage saved files in many ways, and check that readers answer correctly or refuse: `python -m tests.fuzz`."""

import argparse
import collections
import math
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .harness import make_files, run_faults
from .targets import TARGETS

__all__ = ["main"]


def main() -> int:
    """Run faults and print those whose outcome is a crash, a foreign error or a changed answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first fault of each target")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shown", type=int, default=10, help="faults shown of each kind")
    options = parser.parse_args()
    targets = options.targets.split(",")
    counts: dict[str, collections.Counter[str]] = {target: collections.Counter() for target in targets}
    bad: dict[tuple[str, str, str], list[dict[str, object]]] = collections.defaultdict(list)
    slowest: dict[str, object] = {"seconds": 0.0}
    started = time.monotonic()
    folder = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=folder) as place:
        base = Path(place) / "base"
        make_files(base, targets, options.seed)
        shares = {target: 0.1 if TARGETS[target].slow else 1.0 for target in targets}
        each = {target: math.ceil(options.faults * share / sum(shares.values())) for target, share in shares.items()}
        faults = [(target, options.first + number) for target in targets for number in range(each[target])]

        def run(worker: int) -> list[dict[str, object]]:
            scratch = Path(place) / f"scratch{worker}"
            return list(run_faults(base, scratch, faults[worker :: options.workers], options.seed))

        with ThreadPoolExecutor(options.workers) as pool:
            outcomes = [outcome for part in pool.map(run, range(options.workers)) for outcome in part]
    for outcome in outcomes:
        counts[str(outcome["target"])][str(outcome["outcome"])] += 1
        if outcome["outcome"] not in ("same", "refused"):
            detail = str(outcome["detail"])
            place_ = detail.split(" at ")[-1] if outcome["outcome"] == "foreign" else ""
            bad[str(outcome["target"]), str(outcome["outcome"]), place_].append(outcome)
        if float(str(outcome.get("seconds", 0))) > float(str(slowest["seconds"])):
            slowest = outcome
    for (target, kind, _), found in sorted(bad.items(), key=lambda pair: -len(pair[1])):
        first = found[0]
        print(f"{target}: {kind} × {len(found)}: fault {first['number']}, {first['fault']} of {first['file']}")
        print(f"    {first['detail']}")
        for more in found[1 : options.shown]:
            print(f"    also {more['number']}, {more['fault']} of {more['file']}")
    print(f"{len(outcomes):,} faults in {time.monotonic() - started:.0f} s, seed {options.seed}")
    for target, count in counts.items():
        print(f"  {target:<20} " + ", ".join(f"{kind} {number:,}" for kind, number in sorted(count.items())))
    print(f"  slowest: {slowest.get('seconds', 0):.2f} s, {slowest.get('target')} {slowest.get('number')}")
    failures = sum(len(found) for found in bad.values())
    print(f"{failures:,} failures" if failures else "no crash, no changed answer, no error outside the hierarchy")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
