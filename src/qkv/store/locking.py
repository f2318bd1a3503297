"""The lock of the one process that writes. The operating system frees it when that process dies."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qkv.errors import StoreBusyError

__all__ = ["held"]

WAIT_SECONDS = 10.0


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock of a store.

    Raises:
        StoreBusyError: another process has been writing for ten seconds.
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
