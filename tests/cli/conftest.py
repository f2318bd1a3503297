"""Helpers that run the command in a fresh process, or in this process on the example tables."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def command(*arguments, cwd=EXAMPLES, stdin="", env=None, **options):
    """Run `qkv` in a fresh process, with its output as text."""
    run = "import sys; from qkv.cli.main import main; main()"
    settings = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    settings |= {"PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8", **(env or {})}
    return subprocess.run(
        [sys.executable, "-c", run, *arguments],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        env=settings,
        timeout=120,
        **options,
    )


@pytest.fixture(name="qkv")
def _qkv(capfd, monkeypatch):
    """Run `qkv` in this process, in the folder of examples: (code, stdout, stderr)."""
    from qkv.cli.main import run

    monkeypatch.chdir(EXAMPLES)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*arguments):
        code = run(list(arguments))
        printed = capfd.readouterr()
        return code, printed.out, printed.err

    return call
