"""How long work tells what is done."""

from collections.abc import Callable

__all__ = ["Progress"]

Progress = Callable[[str, int, int], None]
"""Called as `progress(what, done, total)`; a total of 0 is not known."""
