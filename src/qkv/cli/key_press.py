"""Read single key presses from the terminal, without waiting for the enter key."""

from __future__ import annotations

import os
import sys

__all__ = ["read_key"]


def read_key() -> str:
    """Return the next key that is pressed in the terminal, as one character; an empty string at the end of input.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    if sys.platform == "win32":
        import msvcrt

        key = msvcrt.getwch()
        if key == "\x03":
            raise KeyboardInterrupt
        return key
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        return os.read(descriptor, 1).decode("ascii", "replace")
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
