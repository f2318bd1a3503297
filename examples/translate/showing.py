"""Progress of training: a bar on a terminal, lines elsewhere."""

import sys
from types import TracebackType
from typing import Self

from examples.translate.checkpoints import State
from qkv.core.progress import ProgressBar

__all__ = ["TrainingProgress"]


class TrainingProgress:
    """Callback of training that writes the step, the loss and the speed to stderr.

    Args:
        steps: total number of steps.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._terminal = sys.stderr.isatty()
        self._bar = ProgressBar(always=self._terminal)
        self._line = ""

    def __enter__(self) -> Self:
        return self

    def __call__(self, state: State, report: dict[str, float] | None) -> None:
        """Report one more step."""
        if report is not None:
            speed = state.said / max(state.cpu_seconds, 1e-9)
            self._line = f"loss {report['loss']:.3f}, {speed:,.0f} subwords/s"
            if "watched_loss" in report:
                self._line += f", validation loss {report['watched_loss']:.3f}"
        step = f"step {state.step:,} of {self._steps:,}: {self._line}"
        self._bar("training", state.step, self._steps, step)
        if report is not None and not self._terminal:
            print(step, file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.clear()
