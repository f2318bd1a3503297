"""Claim: a query of a small table takes at most 2.5 times as long as importing the libraries that read it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks._claim import AtMost, Claim, Row, Setting
from benchmarks._race import race

ROOT = Path(__file__).parent.parent
BASE = "import numpy, pyarrow, duckdb"
PEOPLE = str(ROOT / "examples" / "people.csv")
COMMANDS = {
    BASE: [sys.executable, "-c", BASE],
    "qkv ask": [*[sys.executable, "-m", "qkv", "ask", PEOPLE], *["--key", "name", "--value", "income", "Jon Smiht"]],
    "import qkv": [sys.executable, "-c", "import qkv"],
}


def rows(setting: Setting) -> Iterator[Row]:
    """Measure whole processes in rotation, with compiled modules as after an installation."""
    with tempfile.TemporaryDirectory(prefix="qkv-bench") as compiled:
        implementations = {name: _command(command, compiled) for name, command in COMMANDS.items()}
        found = race(implementations, max(setting.rounds, 9))
    for clock in ("wall time", "CPU time"):
        yield found.row(f"qkv ask on a small table, {clock}", BASE, AtMost(2.5), ours="qkv ask", clock=clock)
    yield found.row("import qkv", BASE, ours="import qkv", clock="wall time")


def _command(command: list[str], compiled: str) -> Callable[[], object]:
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    settings["PYTHONPYCACHEPREFIX"] = compiled
    return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=settings)


CLAIM = Claim(
    "qkv ask on a small table takes at most 2.5 × the time of importing numpy, pyarrow and duckdb.",
    "at most 2.5 × the time of the imports",
    (BASE,),
    rows,
)
