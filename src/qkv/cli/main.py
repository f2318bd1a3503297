"""The door of the command `qkv`: it loads the subcommands itself, so Ctrl-C leaves no traceback then either.

0    answered ("no match" is an answer)
1    a defect of qkv itself
2    a table, an option or a query that cannot be used: one sentence on stderr
130  interrupted
"""

import sys
from collections.abc import Sequence

__all__ = ["main", "run"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command, and end the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that cannot show an arrow shows a question mark, not a traceback.
            stream.reconfigure(errors="replace")
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; nothing is raised."""
    try:
        from qkv.cli.commands import answered

        return answered(arguments)
    except KeyboardInterrupt:
        return 130
