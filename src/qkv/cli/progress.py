"""A progress bar on long work: on a terminal, and only once it is long."""

import sys
import time
from types import TracebackType
from typing import Any, Self

__all__ = ["ProgressBar"]

_PATIENCE = 0.5


class ProgressBar:
    """Called with what is being done, how much is done and of how much; draws on stderr."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}
        self._quiet = not sys.stderr.isatty()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` is done; a total of 0 is not known."""
        if self._quiet or (self._bar is None and time.monotonic() - self._began < _PATIENCE):
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._bar.start()
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=total or None)
        self._bar.update(self._tasks[what], completed=done, total=total or None)

    def clear(self) -> None:
        """Take the bar away, before an answer is printed."""
        if self._bar is not None:
            self._bar.stop()
            self._bar, self._tasks = None, {}
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
