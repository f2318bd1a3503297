"""Interruptions of a process: by SIGKILL or Ctrl-C, at its n-th call that changes a file or at a time."""

import contextlib
import os
import random
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Counter", "Interruption", "draw_interruption"]

_EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "os.utime", "fcntl.flock"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class Interruption:
    """What happens to a process, and when.

    Attributes:
        kind: "kill", "cut" (killed in the middle of a write: the file that was just written is cut off),
            "interrupt" (Ctrl-C) or "twice" (Ctrl-C, and again before the process has ended).
        call: the number of the call before which it happens; None: at a time.
        seconds: the time, if `call` is None.
    """

    kind: str
    call: int | None
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind} at " + (f"call {self.call}" if self.call is not None else f"{self.seconds:.4f} s")


def draw_interruption(draw: random.Random, calls: int, seconds: float) -> Interruption:
    """Return a random interruption of an operation that makes some calls and takes some time."""
    kind = draw.choice(["kill", "kill", "cut", "interrupt", "interrupt", "twice"])
    if kind != "cut" and draw.random() < 0.3:
        return Interruption(kind, None, draw.uniform(0, seconds))
    return Interruption(kind, draw.randint(1, calls))


class Counter:
    """Count the calls of this process that change files or sync them, and interrupt it at one of them.

    Args:
        folder: calls outside of this folder are not counted.
        interruption: what happens; None: the calls are only counted.
    """

    def __init__(self, folder: Path, interruption: Interruption | None = None) -> None:
        self.calls = 0
        self._folder = str(folder)
        self._interruption = interruption
        self._written: str | None = None
        fsync = os.fsync

        def counted(handle: int) -> None:
            self._count()
            fsync(handle)

        os.fsync = counted  # raises no audit event
        sys.addaudithook(self._audit)
        if interruption is not None and interruption.call is None:
            handler = signal.SIG_DFL if interruption.kind == "kill" else signal.default_int_handler
            signal.signal(signal.SIGALRM, handler)
            again = 0.002 if interruption.kind == "twice" else 0.0
            signal.setitimer(signal.ITIMER_REAL, max(1e-6, interruption.seconds), again)

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITES and str(path).startswith(self._folder):
                self._count()
                self._written = str(path)
        elif event in _EVENTS and (event == "fcntl.flock" or str(arguments[0]).startswith(self._folder)):
            self._count()

    def _count(self) -> None:
        self.calls += 1
        written, self._written = self._written, None
        happening = self._interruption
        if happening is None or happening.call is None:
            return
        if self.calls == happening.call:
            if happening.kind == "cut" and written is not None:
                with contextlib.suppress(OSError):
                    size = os.stat(written).st_size
                    os.truncate(written, random.Random(self.calls).randint(0, size))
            os.kill(os.getpid(), signal.SIGKILL if happening.kind in ("kill", "cut") else signal.SIGINT)
        elif happening.kind == "twice" and self.calls == happening.call + 2:
            os.kill(os.getpid(), signal.SIGINT)
