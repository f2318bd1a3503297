"""`make ask`: the example script answers from three tables."""

import os
import subprocess
import sys

import pytest

from .conftest import EXAMPLES, ROOT


def ask_script(tmp_path, **env):
    """Run examples/ask.sh with `qkv` and `python` in one folder, as in a virtual environment."""
    for name, code in (("qkv", '-c "from qkv.cli.main import main; main()" '), ("python", "")):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {code}"$@"\n')
        program.chmod(0o755)
    settings = {name: value for name, value in os.environ.items() if name != "QKV_DATA"} | env
    settings |= {"PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8"}
    script = ["sh", str(EXAMPLES / "ask.sh"), str(tmp_path / "qkv")]
    return subprocess.run(script, env=settings, capture_output=True, encoding="utf-8", timeout=600)


def answers(text):
    return [line for line in text.splitlines() if " → " in line]


@pytest.mark.parametrize("data", [None, pytest.param(os.environ.get("QKV_DATA", "nowhere"), marks=pytest.mark.long)])
def test_the_three_answers_are_those_that_the_readme_announces(tmp_path, data):
    done = ask_script(tmp_path, **({} if data is None else {"QKV_DATA": data}))
    assert (done.returncode, done.stderr) == (0, "")
    name, gpa, character = answers(done.stdout)
    assert name.startswith("Jon Smiht → 48,2")
    assert gpa.startswith("3.5 → 73,020 ± 710 (standard error)")
    assert character.startswith("grek small leter lamda → λ")
    assert "kernel" in done.stdout
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "three example queries: a misspelt name, a grade of 3.5, and a misspelt character name" in readme
