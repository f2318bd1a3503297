"""Processes that are killed at each of their calls to the disk."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["killed_at_each_call"]


def killed_at_each_call(
    work: Callable[[], object],
    prepare: Callable[[], object] = lambda: None,
    calls: range = range(1, 300),
) -> Iterator[tuple[int, bool]]:
    """Let a forked process do some work and die at its n-th call to the disk, for each n until the work is done.

    Yields n, and whether the process died. Tests that fork ignore the warnings of JAX and Lance, which other tests of
    the same process may have loaded.

    Args:
        work: what the process does.
        prepare: runs in this process before each fork.
        calls: the numbers n.
    """
    for call in calls:
        prepare()
        pid = os.fork()
        if pid == 0:
            _die_at(call)
            try:
                work()
            finally:
                os._exit(0)
        died = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
        yield call, died
        if not died:
            return
    raise AssertionError(f"the work makes more than {calls[-1]} calls")


def _die_at(call: int) -> None:
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
