"""The command in a pipe, in a fresh process."""

import functools
import json
import os
import subprocess
import sys
import time

import duckdb
import pytest

from . import conftest
from .conftest import STARTED

command = functools.partial(conftest.command, words=STARTED)
GPA = ("ask", "gpa.csv", "--key", "gpa", "--value", "starting_salary")


def test_queries_come_from_standard_input_and_keep_their_order():
    queries = [f"{2 + i / 1000:.3f}" for i in range(2000)]
    done = command(*GPA, "--format", "csv", stdin="\n".join(queries))
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(",")[0] for line in done.stdout.splitlines()] == ["query", *queries]


def test_an_answer_appears_before_the_next_query_is_asked():
    with conftest.started(*GPA, "--format", "json", encoding="utf-8") as process:
        for query in ("3.5", "2.5", "3.0"):
            process.stdin.write(f"{query}\n")
            process.stdin.flush()
            # Blocks until the answer arrives: the next query has not been written yet.
            assert json.loads(process.stdout.readline())["query"] == query
        process.stdin.close()
        assert process.wait(30) == 0


def test_a_closed_pipe_is_not_an_error():
    with conftest.started(*GPA, "--format", "csv") as process:
        process.stdin.write(b"3.5\n")
        process.stdin.flush()
        process.stdout.readline()
        process.stdout.close()
        time.sleep(0.05)
        try:
            process.stdin.write(b"3.1\n" * 20_000)
            process.stdin.close()
        except BrokenPipeError:
            pass
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_a_pipe_gets_no_colour_and_no_progress_bar():
    done = command(*GPA, "3.5")
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_a_pipe_loses_no_character_whatever_the_encoding_of_the_terminal():
    done = command(*GPA, "3.5", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "3.5 → 73,020" in done.stdout


@pytest.mark.parametrize(
    ("settings", "escapes", "arrow"),
    [({}, True, "→"), ({"NO_COLOR": "1"}, False, "→"), ({"NO_COLOR": "1", "PYTHONIOENCODING": "ascii"}, False, "?")],
)
def test_a_terminal_gets_the_colours_and_characters_that_it_shows(settings, escapes, arrow):
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    with conftest.started(*GPA, "3.5", env={"TERM": "xterm-256color", **settings}, **streams) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                block = os.read(ours, 65536)
            except OSError:
                break
            if not block:
                break
            seen += block
        os.close(ours)
        assert process.wait(60) == 0
    # Bold and dim are no colours; 30–37 and their bright twins are.
    import re

    assert bool(re.search(rb"\x1b\[[0-9;]*3[0-7]m", seen)) == escapes
    assert f" {arrow} " in seen.decode()


def test_a_query_of_a_small_table_imports_no_heavy_package():
    # DuckDB before 2.0 imports pyarrow.dataset, and that imports pandas.
    pandas = [] if int(duckdb.__version__.split(".")[0]) < 2 else ["pandas"]
    code = (
        "import sys; from qkv.cli.main import run; "
        f"run({[*GPA, '3.5']!r}); "
        f"heavy = {['torch', 'jax', *pandas, 'polars', 'matplotlib', 'scipy', 'sklearn']!r}; "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = command("-c", code, words=[sys.executable])
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_interrupt_during_start_leaves_no_traceback():
    code = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from qkv.cli.main import main\n"
        "main()\n"
    )
    done = command("-c", code, "ask", words=[sys.executable])
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_garbage_collector_works_as_usual_after_its_first_collection():
    code = """
import gc
from qkv.cli import main
usual, main._end_process = gc.get_threshold(), print
main.main(["--version"])
assert gc.get_threshold() > usual
gc.collect()
assert (gc.get_threshold(), gc.callbacks) == (usual, [])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
