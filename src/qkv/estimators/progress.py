"""A bar for work that takes long, on stderr, with the error so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(shown: bool, what: str) -> Iterator[Callable[[int, int, float], None] | None]:
    """A function of steps made, steps at most and the error so far; None where nothing is shown."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("error {task.fields[error]:.4g}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=None, error=float("nan"))
        yield lambda done, total, error: bar.update(task, completed=done, total=total, error=error)
