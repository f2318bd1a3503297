"""Console of the command line, which prints control characters of cells, tokens and queries as escapes."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.segment import Segment

from qkv.core.printable import printable

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType


def new_console(width: int = 140, file: TextIO | None = None) -> Console:
    """Create a rich console that prints to stdout or to another stream.

    Rich omits colors if NO_COLOR is set or stdout is not a terminal.
    """
    console = _PrintableConsole(highlight=False, soft_wrap=False, file=file or sys.stdout)
    if not console.is_terminal and "COLUMNS" not in console._environ:
        console.width = width
    return console


class _PrintableConsole(Console):
    """Console whose text contains no escape sequences except those of its own styles."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, with the text of each made printable."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text, lines=True), segment.style)
