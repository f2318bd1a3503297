"""Progress of training: a bar on a terminal, lines elsewhere."""

import sys
from types import TracebackType
from typing import Any, Self

from examples.translate.checkpoints import State

__all__ = ["Shown"]


class Shown:
    """Callback that writes progress to stderr.

    Args:
        steps: to the end.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._bar: Any = None
        self._line = ""

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[line]}"),
                console=Console(stderr=True),
            )
            self._bar.add_task("training", total=self._steps, line="")
            self._bar.start()
        return self

    def __call__(self, state: State, report: dict[str, float] | None) -> None:
        """Report one more step."""
        if report is not None:
            speed = state.said / max(state.cpu_seconds, 1e-9)
            self._line = f"loss {report['loss']:.3f}, {speed:,.0f} subwords/s"
            if "watched_loss" in report:
                self._line += f", watched {report['watched_loss']:.3f}"
        if self._bar is not None:
            self._bar.update(0, completed=state.step, line=self._line)
        elif report is not None:
            print(f"step {state.step:,} of {self._steps:,}: {self._line}", file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
