"""Mutation testing on a random sample: changes to the code that no test detects.

    python -m tests.mutants [--seed 1] [--size 1500] [--least 150] [--package masks] [--seconds 10] [--resume]

mutmut changes one operator, number, name or argument of one function at a time and runs tests that call the function:
those of its own package first, then the others, the fastest first, up to `--seconds` in all. More tests could only
detect more mutants. The sample is stratified by package: at least `--least` mutants of each, the rest in proportion.
The report lists every mutant that no test detected.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("core", "masks", "normalizers", "store", "database", "estimators")
SURVIVED, NOT_CALLED = 0, 33
"""Exit codes of mutmut for undetected mutants: no test failed, or no test calls the function."""


def main() -> None:
    """Run the sample and print the share of mutants that a test detected, by package."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample")
    parser.add_argument("--size", type=int, default=1500, help="mutants in the sample")
    parser.add_argument("--least", type=int, default=150, help="mutants of each package, at least")
    parser.add_argument("--package", choices=PACKAGES, action="append", help="only this package; may be repeated")
    parser.add_argument("--seconds", type=float, default=10, help="duration of the tests of one mutant, at most")
    parser.add_argument("--resume", action="store_true", help="use the mutants of an earlier run of the same code")
    given = parser.parse_args()
    packages = tuple(given.package or PACKAGES)
    if not given.resume:
        mutmut("no-such-mutant")  # create the mutants, and record which tests call which function
        limit_tests(given.seconds)
    sample = drawn(packages, given.size, given.least, random.Random(given.seed))
    names = [name for some in sample.values() for name in some]
    mutmut(*names)
    report(sample)


def mutmut(*names: str) -> None:
    """Run mutmut on these mutants."""
    log = ROOT / "mutants" / "log.txt"
    log.parent.mkdir(exist_ok=True)
    with log.open("a") as file:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "mutmut", "run", *names]
        subprocess.run(command, cwd=ROOT, stdout=file, stderr=file, env=environment, check=False)


def limit_tests(seconds: float) -> None:
    """Keep, of the tests that call each function, the nearest and fastest that take `seconds` together."""
    path = ROOT / "mutants" / "mutmut-stats.json"
    stats = json.loads(path.read_text())
    for function, tests in stats["tests_by_mangled_function_name"].items():
        own = f"tests/{function.split('.')[1]}/"
        durations = {test: stats["duration_by_test"].get(test, 0.0) for test in tests}
        nearest = sorted(tests, key=lambda test: (not test.startswith(own), durations[test], test))
        total = list(accumulate(durations[test] for test in nearest))
        tests[:] = nearest[: max(1, bisect_right(total, seconds))]
    path.write_text(json.dumps(stats))


def results() -> Iterator[tuple[str, int | None]]:
    """Return the exit code of each mutant; None if it has not run."""
    for path in sorted((ROOT / "mutants").rglob("*.meta")):
        yield from json.loads(path.read_text())["exit_code_by_key"].items()


def drawn(packages: tuple[str, ...], size: int, least: int, draw: random.Random) -> dict[str, list[str]]:
    """Return the sample of each package."""
    known = {package: [name for name, _ in results() if name.split(".")[1] == package] for package in packages}
    missing = [package for package, names in known.items() if not names]
    if missing:
        raise SystemExit(f"mutmut made no mutants of {', '.join(missing)}; see mutants/log.txt.")
    rest = size - sum(min(least, len(names)) for names in known.values())
    free = sum(max(0, len(names) - least) for names in known.values())
    counts = {
        package: min(len(names), least) + round(max(0, len(names) - least) * max(0, rest) / max(1, free))
        for package, names in known.items()
    }
    return {package: draw.sample(names, min(counts[package], len(names))) for package, names in known.items()}


def report(sample: dict[str, list[str]]) -> None:
    """Print the number of detected mutants, and list the others."""
    codes = dict(results())
    survivors: list[str] = []
    total = noticed = 0
    for package, names in sample.items():
        here = [name for name in names if codes[name] in (SURVIVED, NOT_CALLED)]
        ran = sum(codes[name] is not None for name in names)
        total, noticed = total + ran, noticed + ran - len(here)
        print(f"{package:12s} {ran - len(here):5d} of {ran:5d} noticed  {(ran - len(here)) / max(1, ran):.1%}")
        survivors += here
    print(f"{'all':12s} {noticed:5d} of {total:5d} noticed  {noticed / max(1, total):.1%}")
    for name in survivors:
        print(f"not noticed: {name}" + ("  (no test calls it)" if codes[name] == NOT_CALLED else ""))


if __name__ == "__main__":
    main()
