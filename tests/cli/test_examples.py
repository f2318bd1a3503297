"""`make ask`: the example script answers from three tables, with public data and without."""

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
    return subprocess.run(script, env=settings, capture_output=True, encoding="utf-8", timeout=120)


def answers(text):
    return [line for line in text.splitlines() if " → " in line]


def test_without_public_data_the_third_table_is_the_one_that_comes_with_python(tmp_path):
    done = ask_script(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    name, gpa, character = answers(done.stdout)
    assert name.startswith("Jon Smiht → 48,2")
    assert gpa.startswith("3.5 → 73,020 ± 710 (standard error)")
    assert character.startswith("grek small leter lamda → λ")
    assert "kernel" in done.stdout


@pytest.mark.skipif("QKV_DATA" not in os.environ, reason="QKV_DATA does not name the folder of public data")
def test_with_public_data_the_third_table_is_california(tmp_path):
    done = ask_script(tmp_path, QKV_DATA=os.environ["QKV_DATA"])
    assert (done.returncode, done.stderr) == (0, "")
    assert answers(done.stdout)[2].startswith("-122.43,37.77 → 352,000 ± 13,000 (standard error)")
    assert "leave-one-out over 20,640 rows" in done.stdout
    assert "kernel" in done.stdout
