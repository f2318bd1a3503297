"""Claim: `qkv ask` on a small table answers in at most 2.5 × the time of `import numpy, pyarrow, duckdb`.

Both are whole processes, run in turn; the ratio of the medians is what is claimed. Run by `make bench`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
REPEATS = 15
COMMANDS = {
    "import numpy, pyarrow, duckdb": [sys.executable, "-c", "import numpy, pyarrow, duckdb"],
    "qkv ask": [
        *[sys.executable, "-m", "qkv", "ask", str(ROOT / "examples" / "people.csv")],
        *["--key", "name", "--value", "income", "Jon Smiht"],
    ],
    "import qkv": [sys.executable, "-c", "import qkv"],
}


def main() -> None:
    """Interleave the commands, print medians and ratios."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(REPEATS):
        for name, command in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - start)
    base = statistics.median(seconds["import numpy, pyarrow, duckdb"])
    print(f"start-up, median of {REPEATS} interleaved runs")
    for name, times in seconds.items():
        middle = statistics.median(times)
        print(f"  {name:<32}{middle:7.3f} s   {middle / base:5.2f} ×")


if __name__ == "__main__":
    main()
