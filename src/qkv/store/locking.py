"""The writer lock of a store, which the operating system releases when the process that holds it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qkv.errors import StoreBusyError

__all__ = ["writer_lock"]

WAIT_SECONDS = 10.0


@contextmanager
def writer_lock(path: Path) -> Iterator[None]:
    """Hold the writer lock of a store for the duration of a `with` block.

    Raises:
        StoreBusyError: Another process has held the lock for ten seconds.
    """
    import filelock

    lock = filelock.FileLock(path / "writer.lock", timeout=WAIT_SECONDS)
    try:
        lock.acquire(poll_interval=0.01)
    except filelock.Timeout:
        raise StoreBusyError(
            f"another process has been writing to {path.name!r} for {WAIT_SECONDS:.0f} seconds. "
            "Wait until that process has finished and try again."
        ) from None
    try:
        yield
    finally:
        lock.release()
