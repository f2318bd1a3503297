"""Pages of the command line: one for each command, written from its definition."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from qkv.cli.commands import create_app

from .toctree import hidden_toctree


def commands() -> dict[str, Any]:
    """Return every command that does something by its words after `qkv`, such as `store create`."""
    return dict(_walk("", typer.main.get_command(create_app())))


def _walk(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield words, command
    for name, child in (children or {}).items():
        yield from _walk(f"{words} {name}".strip(), child)


def command_pages() -> dict[str, str]:
    """Return the text of every page by its file name."""
    found = commands()
    pages = {f"{words.replace(' ', '-')}.md": _page(words, command) for words, command in found.items()}
    rows = [
        f"| [`qkv {words}`]({words.replace(' ', '-')}.md) | {_first_line(command)} |"
        for words, command in found.items()
    ]
    entries = [words.replace(" ", "-") for words in found]
    pages["index.md"] = "\n".join(
        [
            "# The command line",
            "",
            "`qkv --help` lists the commands, and `qkv COMMAND --help` prints what these pages show. The exit code is",
            "0 for success (also for the answer “no match”), 1 for a missing package or a bug in qkv, 2 for invalid",
            "input, and 130 after Ctrl-C. `qkv --version` prints the version.",
            "",
            "| command | what it does |",
            "|---|---|",
            *rows,
            "",
            *hidden_toctree(entries),
        ]
    )
    return pages


def write_command_line(folder: Path) -> None:
    """Write all pages of the command line into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in command_pages().items():
        (folder / name).write_text(text)


def _first_line(command: Any) -> str:
    return " ".join((command.help or "").strip().split("\n\n")[0].split())


def _page(words: str, command: Any) -> str:
    context = command.make_context(f"qkv {words}", [], resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"# qkv {words}", "", "```text", f"qkv {words} {usage}", "```", "", *_help(command.help or "")]
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    if arguments:
        lines += ["", "## Arguments", ""]
        lines += [f"`{_argument_name(each)}`\n: {_escaped(each.help or '')}\n" for each in arguments]
    lines += ["", "## Options", "", f"```{{program}} qkv {words}", "```", ""]
    for each in command.get_params(context):
        record = each.get_help_record(context) if each.param_type_name == "option" else None
        if record:
            heads, description = record
            heads = heads.replace(" / ", ", ").replace("|", " or ").replace("[", "").replace("]", "")
            lines += [f"::::{{option}} {heads}", "", _escaped(" ".join(description.split())), "::::", ""]
    return "\n".join(lines)


def _argument_name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper()) + ("…" if argument.nargs != 1 else "")


def _help(text: str) -> list[str]:
    """Return paragraphs as text, and those that must keep their lines as code."""
    lines: list[str] = []
    for paragraph in text.strip().split("\n\n"):
        if "\b" in paragraph:
            lines += ["```text", *paragraph.replace("\b", "").strip("\n").splitlines(), "```", ""]
        else:
            lines += [_escaped(paragraph), ""]
    return lines


def _escaped(text: str) -> str:
    return text.replace("*", "\\*").replace("<", "\\<").replace("[", "\\[")
