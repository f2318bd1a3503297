"""Long computations: the callback type `Progress`, a progress bar for terminals, and checkpoints that may end them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias, TypeVar

if TYPE_CHECKING:
    import rich.progress


Item = TypeVar("Item")

Progress: TypeAlias = Callable[[str, int, int], None]
"""A callback `progress(task, done, total)`: name of the task, finished steps and all steps, or 0 if unknown."""

_DELAY_SECONDS = 0.5


_checks = threading.local()


def checkpoint() -> None:
    """Call the check of this thread, which may wait, or raise an exception to end the computation.

    Computations call it at least every 50 ms where the time depends on what is asked.

    Example:
        >>> def stop():
        ...     raise TimeoutError
        >>> with with_check(stop):
        ...     checkpoint()
        Traceback (most recent call last):
        TimeoutError
    """
    check = getattr(_checks, "function", None)
    if check is not None:
        check()


def current_check() -> Callable[[], None] | None:
    """Return the check of this thread, which a computation in several threads gives to each of them."""
    return getattr(_checks, "function", None)


@contextmanager
def with_check(check: Callable[[], None] | None) -> Iterator[None]:
    """Let `checkpoint` call a function in this thread during a `with` block; None: no function."""
    before, _checks.function = current_check(), check
    try:
        yield
    finally:
        _checks.function = before


def report(progress: Progress | None, task: str, done: int, total: int) -> None:
    """Call `progress(task, done, total)` if it is not None, and `checkpoint`."""
    checkpoint()
    if progress is not None:
        progress(task, done, total)


def track(items: Collection[Item], task: str, progress: Progress | None) -> Iterator[Item]:
    """Yield the elements of `items`, and call `progress` after the caller has processed each of them.

    Example:
        >>> list(track(["a", "b"], "reading", lambda task, done, total: print(task, done, total)))
        reading 1 2
        reading 2 2
        ['a', 'b']
    """
    for done, item in enumerate(items, 1):
        yield item
        report(progress, task, done, len(items))


class ProgressBar:
    """Progress bar on stderr with one line per task, for use as a `Progress` callback.

    The bar appears after half a second if stderr is a terminal, and is removed at the end of the `with` block.

    Args:
        always: show the bar immediately, even if stderr is not a terminal, and do not remove it at the end.

    Example:
        >>> with ProgressBar() as progress:
        ...     progress("reading", 1, 2)
    """

    def __init__(self, *, always: bool = False) -> None:
        self._always = always
        self._start = time.monotonic()
        self._bar: rich.progress.Progress | None = None
        self._tasks: dict[str, rich.progress.TaskID] = {}
        self._hidden = not (always or sys.stderr.isatty())

    def __call__(self, task: str, done: int, total: int, note: str = "") -> None:
        """Show that `done` of `total` steps of a task are finished, with an optional note after the bar."""
        if self._hidden:
            return
        if self._bar is None:
            if not self._always and time.monotonic() - self._start < _DELAY_SECONDS:
                return
            self._bar = _rich_bar(transient=not self._always)
            self._bar.start()
        if task not in self._tasks:
            self._tasks[task] = self._bar.add_task(task, total=total or None, note=note)
        self._bar.update(self._tasks[task], completed=done, total=total or None, note=note)

    def clear(self) -> None:
        """Stop the bar, so that other output can be printed, and erase it unless `always` is True."""
        if self._bar is not None:
            self._bar.stop()
            self._bar, self._tasks = None, {}
        self._start = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()


def _rich_bar(transient: bool) -> rich.progress.Progress:
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    columns = (*Progress.get_default_columns(), TextColumn("{task.fields[note]}"))
    return Progress(*columns, console=Console(stderr=True), transient=transient)
