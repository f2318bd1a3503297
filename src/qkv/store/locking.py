"""The writer lock of a store, for which processes wait in the order in which they came.

    STORE/writer.lock                       locked by the process that writes
    STORE/writer.lock.0000000004.1b2c3d4e   locked by the process that waits as number 4

The operating system releases the locks of a process when it ends, so that a ticket without a lock is nobody's, and the
next process that waits removes it.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.errors import StoreBusyError

if TYPE_CHECKING:
    import filelock


WAIT_SECONDS = 10.0

LOCK = "writer.lock"
_POLL_SECONDS = 0.005
_MOST_POLL_SECONDS = 0.1


@contextmanager
def writer_lock(path: Path) -> Iterator[None]:
    """Hold the writer lock of a store for the duration of a `with` block.

    Processes get the lock in the order in which they began to wait for it. The time for which a process waits begins
    anew whenever another one gets the lock.

    Raises:
        StoreBusyError: Another process has held the lock for ten seconds.
    """
    lock = file_lock(path / LOCK)
    if _tickets(path) or not is_acquired(lock):
        _wait(path, lock)
    try:
        yield
    finally:
        lock.release()


def remove_lock(path: Path) -> None:
    """Remove the files of the lock from the folder of a store."""
    for file in path.glob(f"{LOCK}*"):
        file.unlink(missing_ok=True)


def _wait(path: Path, lock: filelock.BaseFileLock) -> None:
    ticket = _draw(path)
    # Without a ticket, which a full disk prevents, a process comes after all that have one.
    name = "~" if ticket is None else Path(ticket.lock_file).name
    try:
        before, since = None, time.monotonic()
        while True:
            ahead = [other for other in _tickets(path) if other < name]
            if not ahead and is_acquired(lock):
                return
            if ahead:
                _remove_abandoned(path / ahead[0])
            if ahead != before:
                before, since = ahead, time.monotonic()
            elif time.monotonic() - since > WAIT_SECONDS:
                raise StoreBusyError(
                    f"another process has been writing to {path.name!r} for {WAIT_SECONDS:.0f} seconds. "
                    "Wait until that process has finished and try again."
                )
            time.sleep(min(_POLL_SECONDS * (1 + len(ahead)), _MOST_POLL_SECONDS))
    finally:
        if ticket is not None:
            ticket.release()
            with suppress(OSError):
                Path(ticket.lock_file).unlink(missing_ok=True)


def _tickets(path: Path) -> list[str]:
    """Return the names of all tickets, in the order in which they were drawn."""
    return sorted(name for name in os.listdir(path) if name.startswith(f"{LOCK}."))


def _draw(path: Path) -> filelock.BaseFileLock | None:
    """Create a ticket after all others and lock it, or return None if no file can be created."""
    while True:
        last = _tickets(path)[-1:]
        number = 1 + max((int(name.split(".")[2]) for name in last if name.split(".")[2].isdigit()), default=0)
        try:
            ticket = file_lock(path / f"{LOCK}.{number:010d}.{secrets.token_hex(4)}")
            # Another process may lock and remove the ticket before this one locks it.
            if is_acquired(ticket):
                if Path(ticket.lock_file).exists():
                    return ticket
                ticket.release()
        except OSError:
            return None


def _remove_abandoned(ticket: Path) -> None:
    """Remove a ticket that no process has locked."""
    lock = file_lock(ticket)
    with suppress(OSError):
        if is_acquired(lock):
            lock.release()
            ticket.unlink(missing_ok=True)


def file_lock(path: Path) -> filelock.BaseFileLock:
    """Return the lock of a file, which is not locked yet."""
    import filelock

    return filelock.FileLock(path, timeout=0)


def is_acquired(lock: filelock.BaseFileLock) -> bool:
    """Lock a file without waiting, and return whether no other process had locked it."""
    import filelock

    try:
        lock.acquire()
    except filelock.Timeout:
        return False
    return True
