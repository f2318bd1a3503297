"""Entry point of the command `qkv`.

The subcommands are imported within the entry point, so that Ctrl-C never prints a traceback.

Exit codes:
    0    success, including the answer "no match"
    1    a missing package, or a bug in qkv
    2    invalid input: a table, an option or a query, explained in one sentence on stderr
    130  interrupted
"""

from __future__ import annotations

import _thread
import atexit
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from qkv.core.extras import require_packages
from qkv.core.progress import with_check
from qkv.errors import MissingPackageError

_IMPORTED_OBJECTS = 200_000
_THRESHOLDS = gc.get_threshold()
_interrupts: list[int] = []
"""The signals of Ctrl-C that came."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command `qkv` and exit the process with its exit code."""
    _open_closed_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that cannot encode an arrow gets a question mark instead of a traceback; a file loses nothing.
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")
    # Imported modules are no garbage: visiting them again and again takes a tenth of the time of a short command.
    gc.callbacks.append(_collect_as_usual)
    gc.set_threshold(_IMPORTED_OBJECTS, *_THRESHOLDS[1:])
    with with_check(_raise_again):
        code = run(arguments)
    _end_process(code)


def _collect_as_usual(phase: str, info: dict[str, int]) -> None:
    """Restore the thresholds of the garbage collector at the first collection."""
    gc.callbacks.remove(_collect_as_usual)
    gc.set_threshold(*_THRESHOLDS)


def _end_process(code: int) -> NoReturn:
    """End the process as `sys.exit` does, but leave the objects of all modules to the operating system.

    Python would visit and delete each of them, which takes a fifth of the time of a short command.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        sys.exit(code)  # an error or Ctrl-C at the end is reported as usual
    os._exit(code)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise a `KeyboardInterrupt` for Ctrl-C, but not within the import system.

    Python ignores what is raised while the import system releases a lock, and the command would go on as if Ctrl-C had
    not been pressed: one of 130 times while PyArrow imports pandas.
    """
    _interrupts.append(number)
    if frame is not None and frame.f_code.co_filename.startswith("<frozen importlib._bootstrap"):
        _thread.start_new_thread(_interrupt_soon, (_thread.get_ident(),))
    else:
        raise KeyboardInterrupt


def _raise_again() -> None:
    """Raise the `KeyboardInterrupt` of a Ctrl-C that was lost, as PyArrow ignores one while it imports pandas."""
    if _interrupts and sys.exc_info()[0] is None:
        raise KeyboardInterrupt


def _interrupt_soon(main_thread: int) -> None:
    """Repeat Ctrl-C after a millisecond."""
    time.sleep(0.001)
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main_thread, signal.SIGINT)  # also ends a system call, such as reading from a terminal
    else:
        _thread.interrupt_main()


def _open_closed_streams() -> None:
    """Open the standard streams that the caller closed (`>&-`), so that no other file takes their places.

    Nothing can be read from them. Writing to the standard output fails, and messages are discarded.
    """
    for name, mode, flags in (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8"))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command `qkv`, print errors to stderr, and return the exit code."""
    try:
        require_packages("the command needs", "ask", "typer", "rich")
        from qkv.cli.commands import run_command

        return run_command(arguments)
    except MissingPackageError as error:
        print(f"qkv: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
