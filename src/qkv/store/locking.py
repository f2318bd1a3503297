"""The lock of the one writing process. The operating system releases it when that process dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qkv.errors import StoreBusyError

__all__ = ["writer_lock"]

WAIT_SECONDS = 10.0


@contextmanager
def writer_lock(path: Path) -> Iterator[None]:
    """Hold the writer's lock of a store.

    Raises:
        StoreBusyError: Another process holds it for ten seconds.
    """
    import filelock

    lock = filelock.FileLock(path / "writer.lock", timeout=WAIT_SECONDS)
    try:
        lock.acquire(poll_interval=0.01)
    except filelock.Timeout:
        raise StoreBusyError(
            f"another process has been writing to {path.name!r} for {WAIT_SECONDS:.0f} seconds. "
            "Wait until it has finished and repeat."
        ) from None
    try:
        yield
    finally:
        lock.release()
