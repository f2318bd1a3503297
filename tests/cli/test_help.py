"""The examples in the help run as they stand."""

import inspect
import os
import re
import shlex
import subprocess

import pytest

from qkv.cli.ask import ask
from qkv.cli.commands import _SUMMARIES
from qkv.cli.explain import explain

from .conftest import EXAMPLES, ROOT, forked

LINES = [
    line.strip().replace("\\\\n", "\\n")
    for command in (ask, explain)
    for line in inspect.getdoc(command).splitlines()
    if re.match(r"  (printf .*\| )?qkv ", line)
]


def test_both_commands_have_examples():
    assert sum(" ask " in line for line in LINES) >= 8
    assert sum(" explain " in line for line in LINES) >= 5


# A page is served until it is interrupted, see test_page_of_answers.py.
@pytest.mark.parametrize("line", [line for line in LINES if not line.endswith(" --page")])
def test_an_example_of_the_help_runs(line, tmp_path):
    program = tmp_path / "qkv"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(forked())} "$@"\n')
    program.chmod(0o755)
    settings = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    settings["PYTHONIOENCODING"] = "utf-8"
    done = subprocess.run(
        line, shell=True, cwd=EXAMPLES, env=settings, capture_output=True, encoding="utf-8", timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
    assert "→ no match" not in done.stdout


@pytest.mark.parametrize("command", ["ask", "explain"])
def test_the_help_shows_every_example_in_one_line(qkv, command):
    code, out, _ = qkv(command, "--help")
    assert code == 0
    for line in LINES:
        if f"qkv {command} " in line:
            assert line in out


@pytest.mark.parametrize("command", [("ask",), ("search",), ("join",), ("roles",), ("store", "append")])
def test_arguments_are_shown_without_types_of_python(qkv, command):
    code, out, _ = qkv(*command, "--help")
    assert code == 0
    assert re.search(r"^Arguments:$", out, re.MULTILINE)
    assert not re.search(r"<(list\[)?str|\.\.\.\S*\.\.\.", out)


def test_the_minimum_of_an_option_is_shown_and_enforced(qkv):
    for arguments, least in (
        (("search", "x", "--top", "0"), 1),
        (("search", "x", "--passage", "-1"), 0),
        (("join", "people.csv", "--top", "-1"), 0),
        (("roles", "x", "--max", "-1"), 0),
        (("look", "--text", "x", "--generate", "-1"), 0),
        (("store", "compact", "x", "--keep", "0"), 1),
    ):
        code, out, err = qkv(*arguments)
        assert (code, out) == (2, "")
        assert err == f"qkv: {arguments[-2]} must be at least {least}, got {arguments[-1]}. See --help.\n"
        names = arguments[: 2 if arguments[0] == "store" else 1]
        assert f"x>={least}]" in qkv(*names, "--help")[1]


def test_without_arguments_every_command_and_some_examples_fit_one_screen(qkv):
    lines = qkv()[1].splitlines()
    assert len(lines) <= 23  # the prompt is the 24th
    assert max(map(len, lines)) <= 80
    assert {line.split()[0] for line in lines[2:15]} == set(_SUMMARIES)


@pytest.mark.parametrize(("words", "found"), [("qkv st", "store"), ("qkv ask --norm", "--normalizer")])
def test_the_shell_completes_commands_and_options(qkv, monkeypatch, words, found):
    monkeypatch.setenv("_QKV_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert qkv()[1].split() == [found]
