"""Helpers that run the command in a process of its own, or in this process on the example tables."""

import atexit
import contextlib
import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.effort import LONG

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


STARTED = [sys.executable, "-c", "from qkv.cli.main import main; main()"]
"""The words that run `qkv` in a process with an interpreter of its own."""


@functools.cache
def forked():
    """Return the words that run `qkv` in a process forked from one that has imported it; in long tests `STARTED`."""
    if LONG:
        return STARTED
    script = Path(__file__).with_name("forked.py")
    folder = tempfile.TemporaryDirectory(prefix="qkv-forked-")
    address = str(Path(folder.name) / "socket")
    settings = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    server = subprocess.Popen(
        [sys.executable, str(script), address], env=settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )

    @atexit.register
    def stop():
        with server:
            server.stdin.close()
        folder.cleanup()

    assert server.stdout.readline() == b"ready\n"
    return [sys.executable, "-I", "-S", str(script), address]


def variables(env=None):
    """Return the variables of a process without those that colour its output, and with those of `env`."""
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return kept | {"PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8", **(env or {})}


@contextlib.contextmanager
def started(*arguments, cwd=EXAMPLES, env=None, **options):
    """Start `qkv` in a process of its own with pipes, and end it if the test fails before."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([*STARTED, *arguments], cwd=cwd, env=variables(env), **(pipes | options)) as process:
        try:
            yield process
        finally:
            process.kill()


def command(*arguments, cwd=EXAMPLES, stdin="", env=None, words=None, **options):
    """Run `qkv` in a forked process, or another command of some words, with its output as text."""
    return subprocess.run(
        [*(words or forked()), *arguments],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        env=variables(env),
        timeout=600,
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
