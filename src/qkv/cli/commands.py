"""The subcommands of `qkv`, and what becomes of errors."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from qkv.cli.ask import ask
from qkv.cli.evaluate import evaluate
from qkv.cli.explain import explain
from qkv.cli.fit import fit
from qkv.cli.join import join
from qkv.cli.look import look
from qkv.cli.plain_converters import use_plain_converters
from qkv.cli.roles import roles
from qkv.cli.search import search
from qkv.cli.store import store
from qkv.errors import QkvError

__all__ = ["answered", "app"]

_HELP_NAMES = ("-h", "--help")

# No rich markup: examples in the help must keep their lines, so that they can be copied and run.
app = typer.Typer(
    add_completion=False,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": list(_HELP_NAMES), "max_content_width": 100},
)
# Unknown options pass through: a query may be a negative number, -122.23,37.88.
app.command("ask", short_help="Ask a table soft questions.", context_settings={"ignore_unknown_options": True})(ask)
app.command("explain", short_help="See how a call would run, from its shapes.")(explain)
app.command("look", short_help="See where the heads of a model look.")(look)
app.command("search", short_help="Search texts, and see the words that were attended.")(search)
app.command("evaluate", short_help="Measure rankings against judgements.")(evaluate)
app.command("join", short_help="Find which rows of two tables are the same thing.")(join)
app.add_typer(fit, name="fit", short_help="Learn from examples what is alike.")
app.add_typer(store, name="store", short_help="Make and keep a database on disk.")
app.command("roles", short_help="Measure what heads do, over many sentences.")(roles)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"qkv {version('qkv')}")
        except PackageNotFoundError:
            print("qkv (not installed: run from its source)")
        raise typer.Exit


@app.callback()
def _qkv(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Attention as a query engine: ask tables, search texts, join rows, see where a model looks."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def answered(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code, of which `qkv.cli.main` tells; nothing is raised."""
    try:
        command = use_plain_converters(typer.main.get_command(app), _HELP_NAMES)
        code = command.main(args=arguments, prog_name="qkv", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except QkvError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130
    except typer.Abort as abort:
        # Typer turns Ctrl-C into this, and the end of a file that wanted more, which is a defect.
        return _defect(abort.__cause__) if isinstance(abort.__cause__, EOFError) else 130
    except BrokenPipeError:
        return _unread()
    except SystemExit as leave:
        # Typer turns a broken pipe into an exit of its own.
        return _unread() if isinstance(leave.__context__, BrokenPipeError) else int(leave.code or 0)
    except typer.Exit as leave:
        return int(leave.exit_code)
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            return _fail(error.format_message()) if error.format_message() else 2
        if isinstance(error, OSError):
            why = error.strerror or str(error)
            return _fail(f"{error.filename!r} cannot be used: {why}." if error.filename else why)
        return _defect(error)


def _defect(error: BaseException) -> int:
    if os.environ.get("QKV_TRACEBACK"):
        raise error
    _fail(f"a defect of qkv: {type(error).__name__}: {error}. Set QKV_TRACEBACK=1 to see where, and report it.")
    return 1


def _unread() -> int:
    """`| head` has seen enough, which is no error. What is still buffered must not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _fail(message: str) -> int:
    print("qkv: " + " ".join(message.split()), file=sys.stderr)
    return 2
