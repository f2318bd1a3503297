"""Define the subcommands of `qkv`, and convert exceptions to error messages and exit codes."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from qkv.cli.shared_options import expand_options
from qkv.core.printable import printable
from qkv.errors import MissingPackageError, OptionError, QkvError


def use_plain_converters(group: Any, help_names: tuple[str, ...]) -> Any:
    """Make the commands of a group convert their parameters by `int`, `float` and `str` instead of by pydantic.

    Returns:
        The group. Parsing raises an `OptionError` for an option that is not a number or is less than its `min`.
    """
    try:
        from typer._coercion import RuntimeParam
    except ImportError:
        return group

    class Converted(RuntimeParam):
        """A Typer parameter that converts its value by calling the type of its annotation, such as `int`."""

        def _coerce_value(self, value: Any, param: Any, ctx: object) -> object:
            kind = _plain_kind(self.annotation)
            if kind is list:
                return [str(item) for item in value]
            name, least = max(param.opts, key=len), self.parameter_info.min
            try:
                number = kind(value)
            except ValueError:
                noun = "an integer" if kind is int else "a number"
                raise OptionError(f"{name} must be {noun}, got {value!r}. See --help.") from None
            if least is not None and kind in (int, float) and number < least:
                raise OptionError(f"{name} must be at least {least}, got {value}. See --help.")
            return number

    # With a context, the parameters of each command include --help.
    context = typer.Context(group, help_option_names=list(help_names))
    subcommands = [each for command in group.commands.values() for each in getattr(command, "commands", {}).values()]
    for command in (group, *group.commands.values(), *subcommands):
        for parameter in command.get_params(context):
            descriptor: Any = getattr(parameter, "type_descriptor", None)
            if parameter.param_type_name == "argument" and hasattr(parameter, "display_type_rich"):
                # Hide `<list[str]>` after an argument, because the help is not only for Python programmers.
                parameter.display_type_rich = lambda ctx: None
            if hasattr(parameter, "_runtime_param") and _plain_kind(getattr(descriptor, "annotation", None)):
                parameter._runtime_param = Converted(descriptor.parameter_info, descriptor.annotation)
    return group


def _plain_kind(annotation: object) -> Any:
    """Return the type that an annotation names, or None unless it is one of int, float, str, bool and list.

    An optional annotation, such as `int | None`, counts as the type without None.
    """
    options = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds = [get_origin(option) or option for option in options if option is not NoneType]
    return kinds[0] if len(kinds) == 1 and kinds[0] in (int, float, str, bool, list) else None


_HELP_NAMES = ("-h", "--help")
_SUMMARIES = {
    "ask": "Query a table by similarity.",
    "explain": "Show the execution plan of a call.",
    "look": "Show what the attention heads of a model attend to.",
    "roles": "Measure the roles of attention heads.",
    "search": "Search texts and show the matching words.",
    "evaluate": "Evaluate rankings against relevance judgements.",
    "join": "Match the rows of two tables by similarity.",
    "fit": "Train a search index or a join model.",
    "store": "Create and maintain a database on disk.",
    "serve": "Answer questions to a store over HTTP.",
    "verify": "Compare saved files with their checksums.",
    "tune": "Measure the kernels on this machine.",
    "doctor": "Report what is installed and which kernels work.",
}
_EXAMPLES = (
    'qkv ask people.csv --key name --value income "Jon Smiht"',
    'qkv search notes "how is the bandwidth chosen"',
    "qkv join people.csv guests.csv --on name=guest",
    'qkv look --text "When he saw his owner, the dog was happy"',
)


def create_app(names: Iterable[str] = tuple(_SUMMARIES), listed: bool = False) -> typer.Typer:
    """Return the Typer application with the named subcommands, which are without options if they are only listed."""
    # No rich markup: the examples in the help must keep their lines, so that they can be copied and run.
    app = typer.Typer(
        add_completion=True,
        invoke_without_command=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": list(_HELP_NAMES), "max_content_width": 100},
    )
    app.callback()(_qkv)
    for name in names:
        if listed:
            app.command(name, short_help=_SUMMARIES[name])(_qkv)
            continue
        command = getattr(import_module(f"qkv.cli.{'fit' if name == 'evaluate' else name}"), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, short_help=_SUMMARIES[name])
        else:
            # Unknown options are passed on to ask, because a query may be a negative number such as -122.23,37.88.
            settings = {"ignore_unknown_options": True} if name == "ask" else None
            app.command(name, short_help=_SUMMARIES[name], context_settings=settings)(expand_options(command))
    return app


def _print_version(requested: bool) -> None:
    if requested:
        from qkv.core.installation import own_version

        print(f"qkv {own_version()}")
        raise typer.Exit


def _qkv(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Query tables, search texts, join tables and inspect models by attention."""
    if context.invoked_subcommand is None:
        print(overview())


def overview() -> str:
    """Return what `qkv` prints without arguments: every subcommand and some examples, on a screen of 24 × 80."""
    lines = ["Query tables, search texts, join tables and inspect models by attention.", ""]
    lines += [f"  {name:<8}  {summary}" for name, summary in _SUMMARIES.items()]
    lines += ["", "Examples:", *(f"  {example}" for example in _EXAMPLES), ""]
    return "\n".join([*lines, "qkv COMMAND --help shows the options; qkv --install-completion completes them."])


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run the command `qkv`, print errors to stderr, and return the exit code.

    The exit codes are listed in `qkv.cli.main`.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    encoding = sys.getfilesystemencoding()
    undecoded = [text for text in given if not text.isascii() and encoding != "utf-8" and not os.path.exists(text)]
    if any("\udc80" <= sign <= "\udcff" for text in undecoded for sign in text):
        return _fail(
            f"arguments must be in the encoding of the locale, {encoding}, got other bytes in {undecoded[0]!a}. "
            "Set PYTHONUTF8=1, or a locale in UTF-8 such as LC_ALL=C.UTF-8."
        )
    try:
        # Reading the options of all subcommands takes longer than many a query. Only the completion needs them.
        named = given[:1] and given[0] in _SUMMARIES
        app = create_app(given[:1]) if named else create_app(listed="_QKV_COMPLETE" not in os.environ)
        command = use_plain_converters(typer.main.get_command(app), _HELP_NAMES)
        code = command.main(args=given, prog_name="qkv", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except QkvError as error:
        return _fail(str(error), 1 if isinstance(error, MissingPackageError) else 2)
    except KeyboardInterrupt:
        return 130
    except typer.Abort as abort:
        # Typer raises this for Ctrl-C, and also for an unexpected EOFError, which is a bug.
        return _report_bug(abort.__cause__) if isinstance(abort.__cause__, EOFError) else 130
    except BrokenPipeError:
        return _ignore_closed_pipe()
    except SystemExit as leave:
        # Typer converts a broken pipe to a SystemExit.
        return _ignore_closed_pipe() if isinstance(leave.__context__, BrokenPipeError) else int(leave.code or 0)
    except typer.Exit as leave:
        return int(leave.exit_code)
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            return _fail(error.format_message()) if error.format_message() else 2
        if isinstance(error, MemoryError):
            return _fail("the memory must suffice for the rows. Use fewer rows, or a store and qkv ask --memory.")
        if isinstance(error, OSError) and error.errno == errno.EBADF and not error.filename:
            _ignore_closed_pipe()
            return _fail("standard output must be open, got a closed one. Redirect it to /dev/null to discard it.")
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            return _fail(f"{error.filename!r} cannot be used: {reason}." if error.filename else reason)
        return _report_bug(error)


def _report_bug(error: BaseException) -> int:
    if os.environ.get("QKV_TRACEBACK"):
        raise error
    return _fail(
        f"this is a bug in qkv: {type(error).__name__}: {error}. Set QKV_TRACEBACK=1 for a traceback, and report it.", 1
    )


def _ignore_closed_pipe() -> int:
    """Discard buffered output after a pipe was closed, by redirecting stdout to the null device. Return exit code 0."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _fail(message: str, code: int = 2) -> int:
    print("qkv: " + printable(" ".join(message.split())), file=sys.stderr)
    return code
