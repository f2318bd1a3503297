"""`qkv ask --output` writes a relation of answers in four formats, whole or not at all."""

import csv
import datetime as dt
import json
import signal
import sys
import threading
import time
import weakref
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from qkv.cli import main
from qkv.core.progress import checkpoint, with_check
from qkv.database import Database
from tests.effort import sample

from .conftest import command, started

ASK = ("ask", "t.csv", "--key", "x", "--value")
DAYS = [dt.date(2024, 1, 1) + dt.timedelta(days=3 * i) for i in range(12)]


@pytest.fixture(name="folder")
def _folder(tmp_path):
    lines = [f"{i},{i * 7 % 5},{DAYS[i]},n{i}" for i in range(12)]
    (tmp_path / "t.csv").write_text("\n".join(["x,y,day,name", *lines]) + "\n")
    parquet.write_table(pa.table({"who": ["a", "b", "c"], "x": [1.5, None, 40.0]}), tmp_path / "q.parquet")
    return tmp_path


def read(path):
    """Return the rows of an output file, with the cells of CSV as JSON where they are."""
    if path.suffix == ".parquet":
        return parquet.read_table(path).to_pylist()
    if path.suffix == ".arrow":
        return feather.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    with path.open(newline="") as file:
        return [{n: cell(text) for n, text in row.items()} for row in csv.DictReader(file)]


def cell(text):
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def plain(value):
    """Return a value as it is in JSON: dates as texts, and durations as days."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dt.timedelta):
        return pytest.approx(value / dt.timedelta(days=1), abs=1e-10)
    return value.isoformat() if isinstance(value, dt.date) else value


@pytest.mark.parametrize(
    ("value", "suffix"), sample(product(("y", "day", "name"), (".parquet", ".arrow", ".jsonl", ".csv")), 3)
)
def test_every_format_holds_the_relation_of_python(folder, value, suffix):
    expected = Database.open(folder / "t.csv", "x", value).ask_batches(folder / "q.parquet", id="name").read_all()
    output = folder / f"a{suffix}"
    run = command(*ASK, value, "--queries", "q.parquet", "--output", output.name, "--id", "name", cwd=folder)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines()[0] == f"a{suffix}: 3 answers, 1 with a match"
    assert [plain(row) for row in read(output)] == [plain(row) for row in expected.to_pylist()]


def test_lines_are_answered_with_their_numbers(folder):
    (folder / "q.txt").write_bytes(b"x\n3\n\n\xff4\noops\n99\n")
    run = command(*ASK, "y", "--queries", "q.txt", "--output", "a.jsonl", cwd=folder)
    assert run.stdout.splitlines()[0] == "a.jsonl: 4 answers, 1 with a match, 2 could not be read"
    rows = read(folder / "a.jsonl")
    assert [(row["line"], row["query"], row["found"]) for row in rows] == [
        (2, "3", True),
        (4, None, False),
        (5, "oops", False),
        (6, "99", False),
    ]
    assert "must be text in UTF-8" in rows[1]["reason"]
    assert "must be a finite number, got 'oops'" in rows[2]["reason"]
    assert "no match beyond" in rows[3]["reason"]


def test_formulas_of_queries_are_quoted(folder):
    (folder / "q.csv").write_text("x,note\n3,=1+2\n4,-5\n")
    arguments = (*ASK, "name", "--queries", "q.csv", "--output", "a.csv")
    for option, note in (((), "=1+2"), (("--quote-formulas",), "'=1+2")):
        assert command(*arguments, *option, cwd=folder).returncode == 0
        with (folder / "a.csv").open(newline="") as file:
            assert [row["note"] for row in csv.DictReader(file)] == [note, "-5"]


def test_answers_do_not_replace_a_file_of_a_pattern_of_queries(folder):
    before = (folder / "q.parquet").read_bytes()
    run = command(*ASK, "y", "--queries", "q.*", "--output", "./q.parquet", cwd=folder)
    assert (run.returncode, run.stdout) == (2, "")
    assert "--output must be another file than the table and the queries" in run.stderr
    assert (folder / "q.parquet").read_bytes() == before


def test_a_damaged_file_of_queries_leaves_the_old_answers(folder):
    queries = pa.table({"x": np.random.default_rng(0).uniform(0, 11, 300_000)})
    parquet.write_table(queries, folder / "q.parquet", row_group_size=100_000, compression="none", use_dictionary=False)
    content = bytearray((folder / "q.parquet").read_bytes())
    # The header of the page in the second row group.
    start = parquet.ParquetFile(folder / "q.parquet").metadata.row_group(1).column(0).data_page_offset
    content[start : start + 64] = b"\xff" * 64
    (folder / "q.parquet").write_bytes(content)
    (folder / "a.parquet").write_text("old")
    before = sorted(path.name for path in folder.iterdir())
    run = command(*ASK, "y", "--queries", "q.parquet", "--output", "a.parquet", "--score", "constant", cwd=folder)
    assert (run.returncode, run.stdout) == (2, "")
    assert len(run.stderr.splitlines()) == 1
    assert sorted(path.name for path in folder.iterdir()) == before
    assert (folder / "a.parquet").read_text() == "old"


def test_an_interrupted_command_leaves_the_old_answers(folder):
    (folder / "a.csv").write_text("old")
    before = sorted(path.name for path in folder.iterdir())
    with started(*ASK, "y", "--output", "a.csv", cwd=folder) as process:
        process.stdin.write(b"3\n4\n")
        process.stdin.flush()
        deadline = time.monotonic() + 300
        while not any(path.name.endswith(".part") for path in folder.iterdir()):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (130, b""), err
    assert sorted(path.name for path in folder.iterdir()) == before
    assert (folder / "a.csv").read_text() == "old"


def test_an_interrupt_within_the_import_system_is_raised_after_it():
    """Python ignores what is raised in the callback of a weak reference, which the import system has for its locks."""
    before = signal.signal(signal.SIGINT, main._interrupt)
    try:
        names = {"signal": signal}
        code = "def callback(reference): signal.raise_signal(signal.SIGINT)"
        exec(compile(code, "<frozen importlib._bootstrap>", "exec"), names)
        locks = [threading.Semaphore()]
        reference = weakref.ref(locks[0], names["callback"])
        locks.clear()
        with pytest.raises(KeyboardInterrupt):
            time.sleep(60)
        assert reference() is None
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_that_other_code_ignores_is_raised_at_the_next_checkpoint(monkeypatch):
    monkeypatch.setattr(main, "_interrupts", [])
    before = signal.signal(signal.SIGINT, main._interrupt)
    try:
        with with_check(main._raise_again):
            checkpoint()
            with pytest.raises(KeyboardInterrupt):  # as PyArrow does while it imports pandas
                signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                checkpoint()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.long
def test_a_million_queries_do_not_fill_memory(folder):
    code = (
        "import resource, sys; from qkv.cli.commands import run_command; "
        "assert run_command(sys.argv[1:]) == 0; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    # A file, because DuckDB shows a progress bar where there is none, as in an interactive session.
    (folder / "run.py").write_text(code)
    memory = []
    for count in (50_000, 1_000_000):
        queries = np.random.default_rng(0).integers(0, 2000, count) / 150
        parquet.write_table(pa.table({"x": queries, "id": np.arange(count)}), folder / "q.parquet")
        arguments = (*ASK, "y", "--queries", "q.parquet", "--output", "a.parquet")
        run = command("run.py", *arguments, cwd=folder, words=[sys.executable])
        assert run.returncode == 0, run.stderr
        assert run.stdout.startswith(f"a.parquet: {count:,} answers")
        memory.append(int(run.stdout.splitlines()[-1]))
    # The answers to a million queries take some 250 MB.
    assert memory[1] - memory[0] < 100


@pytest.mark.parametrize("suffix", [".arrow", ".parquet"])
def test_categories_of_queries_whose_batches_have_other_dictionaries_are_written(folder, monkeypatch, suffix):
    monkeypatch.chdir(folder)
    chunks = [pa.array([f"g{i}" for i in range(start, start + 9000)]).dictionary_encode() for start in (0, 9000)]
    table = pa.table({"x": np.arange(18_000.0) % 12, "guest": pa.chunked_array(chunks)})
    with pa.ipc.new_stream("q.arrow", table.schema) as writer:
        writer.write_table(table)
    assert main.run([*ASK, "y", "--queries", "q.arrow", "--output", f"out{suffix}"]) == 0
    assert [row["guest"] for row in read(folder / f"out{suffix}")] == [f"g{i}" for i in range(18_000)]
