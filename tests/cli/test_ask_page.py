"""The commands of docs/ask.md and docs/ask/ print what the pages show, each in a shell of its own.

After a change of the output, correct the page and what it says about the numbers.
"""

import os
import re
import shlex
import shutil
import subprocess
import textwrap

import pytest

from .conftest import EXAMPLES, ROOT, forked

pytest.importorskip("duckdb")

PAGES = [ROOT / "docs" / "ask.md", *sorted((ROOT / "docs" / "ask").glob("*.md"))]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
BLOCKS = re.findall(r"^```console\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
# Commands further down, which stand alone; "…" stands for further lines.
SECTIONS = [
    (command, textwrap.dedent(shown).strip("\n"))
    for command, shown in re.findall(r"^    \$ (qkv .*)\n((?:(?:    .*)?\n)*)", TEXT, re.MULTILINE)
    if (ROOT / command.split()[2]).exists()
]


def steps(block):
    """Return the commands of a block of the page, each with the lines that it prints."""
    for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = step.partition("\n")
        yield command, shown.rstrip("\n")


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("newcomer")
    shutil.copytree(EXAMPLES, folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    program = folder / "bin" / "qkv"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.join(forked())} "$@"\n')
    program.chmod(0o755)
    return folder


def test_the_pages_have_ten_questions():
    questions = re.findall(r"^###? (\d+)\. .*\?$", TEXT, re.MULTILINE)
    assert sorted(questions, key=int) == [str(number) for number in range(1, 11)]
    assert len(BLOCKS) >= 10


def run(command, folder, program):
    """Return the lines that a command prints in a folder."""
    env = {name: value for name, value in os.environ.items() if name not in ("QKV_DATA", "NO_COLOR")}
    env |= {"PATH": f"{program}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    env |= {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(["sh", "-c", command], cwd=folder, env=env, capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    return [line.rstrip() for line in done.stdout.rstrip("\n").split("\n")]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0][2:60])
def test_a_command_prints_what_the_page_shows(folder, block):
    for command, shown in steps(block):
        assert run(command, folder, folder / "bin") == shown.split("\n")


@pytest.mark.parametrize(("command", "shown"), SECTIONS, ids=[command[:60] for command, _ in SECTIONS])
def test_a_command_of_a_section_prints_what_the_page_shows(folder, command, shown):
    lines, expected = run(command, folder, folder / "bin"), shown.split("\n")
    if expected[-1] == "…":
        expected = expected[:-1]
        lines = lines[: len(expected)]
    elif not any(line.startswith("·") for line in expected):
        lines = lines[: len(expected) + 1]
        assert lines.pop() == ""  # the notes follow
    assert lines == expected


def test_two_commands_of_the_sections_are_run():
    assert len(SECTIONS) >= 2
