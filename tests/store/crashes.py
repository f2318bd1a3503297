"""A writer that is killed, and what must be left of its store."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from qkv import store as stores
from qkv.store import disk
from qkv.testing.stores import ids_of, numbered

__all__ = ["WRITER", "check_crash", "die_at", "expected", "killed"]

WRITER = Path(__file__).with_name("writer.py")


def expected(steps: int) -> list[int]:
    """The ids after this many steps of `writer.py crash`."""
    ids: list[int] = []
    for step in range(steps):
        kind = step % 4
        if kind in (0, 1):
            ids += range(100 * step, 100 * step + 50)
        elif kind == 2:
            ids = [i for i in ids if i % 7 != step % 7]
    return ids


def crash(path: Path, seed: int, backend: str) -> int:
    """Kill a writer at a random moment of its work; returns how many steps it had acknowledged."""
    shutil.rmtree(path, ignore_errors=True)
    stores.create(path, numbered(0, 1).schema, backend=backend)
    return killed([str(WRITER), "crash", str(path)], seed)


def killed(script: list[str], seed: int) -> int:
    """Kill a process that says `ready`, and then when a step is done, at a random moment; how many it did."""
    command = [sys.executable, *script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(random.Random(seed).uniform(0.0, 0.25))
        writer.send_signal(signal.SIGKILL)
        return len(writer.stdout.read().split())


def check_crash(path: Path, seed: int, backend: str) -> None:
    """What a killed writer leaves is what it acknowledged, or one step more; and it can be gone on with."""
    done = crash(path, seed, backend)
    store = stores.open(path)
    assert ids_of(store) in (expected(done), expected(done + 1)), f"after {done} steps"
    assert store.verify() == []
    # What the crash left behind is in nobody's way, and is swept up.
    rows = len(store)
    store.append(numbered(10**6, 10**6 + 3))
    store.compact(keep=1)
    assert len(stores.open(path)) == rows + 3
    assert not [p for p in path.rglob("*") if p.name.startswith(disk.TEMPORARY)]


def die_at(call: int) -> None:
    """Kill this process at its n-th sync, renaming or removal."""
    calls = 0

    def deadly(real):  # type: ignore[no-untyped-def]
        def counted(*args, **kwargs):  # type: ignore[no-untyped-def]
            nonlocal calls
            calls += 1
            if calls == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return counted

    os.fsync = deadly(os.fsync)
    Path.replace = deadly(Path.replace)  # type: ignore[method-assign]
    Path.rename = deadly(Path.rename)  # type: ignore[method-assign]
    Path.unlink = deadly(Path.unlink)  # type: ignore[method-assign]
