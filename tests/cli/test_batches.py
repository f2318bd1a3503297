"""Queries from files and pipes: a line that cannot be read is answered by its reason."""

import csv
import io
import json
import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.cli.query_input import read_queries
from qkv.database import Database
from qkv.errors import DataError, OptionError, QueryError
from tests.effort import cases

from .conftest import EXAMPLES, command

GPA = ("ask", "gpa.csv", "--key", "gpa", "--value", "starting_salary")
LINES = st.lists(
    st.sampled_from([b"3.1", b"2.9", b"abc", b"", b"  ", b"\xff3", b"3,5", b"nan", b"inf", b"1e999", b"-7", b"\x00"]),
    max_size=12,
)


def read_in_pieces(content, sizes, path):
    """Return the lines that `read_queries` reads from a pipe to which the content is written in pieces."""
    os.mkfifo(path)

    def write():
        with open(path, "wb", buffering=0) as pipe:
            start = 0
            for size in [*sizes, len(content)]:
                pipe.write(content[start : start + size])
                start += size

    writer = threading.Thread(target=write)
    writer.start()
    lines = [line for chunk in read_queries([], str(path), ["gpa"]) for line in chunk]
    writer.join()
    path.unlink()
    return lines


@settings(max_examples=cases(30), deadline=None, derandomize=True)
@given(LINES, st.lists(st.integers(1, 9), max_size=12), st.booleans())
def test_the_speed_of_the_pipe_does_not_change_the_queries(tmp_path_factory, lines, sizes, ends):
    content = b"\n".join(lines) + b"\n" * ends
    path = tmp_path_factory.mktemp("pipe") / "queries"
    found = read_in_pieces(content, sizes, path)
    wanted = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    assert [(line.number, line.text) for line in found] == [(n, raw.decode("utf-8", "replace")) for n, raw in wanted]
    assert [line.decoded for line in found] == [raw != b"\xff3" for _, raw in wanted]


def answer_alone(database, query):
    """Return the answer to one query, or the error that refuses it."""
    try:
        return database.ask([query])[0]
    except QueryError as error:
        return error


@pytest.mark.parametrize("line", ["0.5,2", '"Doe, John"', '"' + "x" * 140_000 + '"'])
def test_a_line_of_a_csv_file_that_is_a_vector_or_one_text_is_a_query(tmp_path, line):
    path = tmp_path / "queries.csv"
    path.write_text(line)
    assert [query.text for query in next(read_queries([], str(path), ["key"]))] == [line]


@settings(max_examples=cases(15), deadline=None, derandomize=True)
@given(LINES)
def test_each_line_is_answered_as_alone_or_by_its_reason(tmp_path_factory, lines):
    from qkv.cli.main import run

    path = tmp_path_factory.mktemp("batch") / "queries"
    path.write_bytes(b"\n".join(lines))
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", out)
        patch.setattr("sys.stderr", io.StringIO())
        table = str(EXAMPLES / "gpa.csv")
        options = ["--queries", str(path), "--format", "csv"]
        assert run(["ask", table, "--key", "gpa", "--value", "starting_salary", *options]) == 0
    rows = list(csv.DictReader(io.StringIO(out.getvalue(), newline="")))
    gpa = Database.open(EXAMPLES / "gpa.csv", key="gpa", value="starting_salary")
    asked = [(number, raw) for number, raw in enumerate(lines, 1) if raw.strip()]
    assert len(rows) == len(asked)
    for row, (number, raw) in zip(rows, asked, strict=True):
        if raw == b"\xff3":
            assert row["reason"].startswith(f"line {number}: the query must be text in UTF-8")
            continue
        alone = answer_alone(gpa, raw.decode())
        if isinstance(alone, QueryError):
            assert (row["found"], row["reason"]) == ("false", f"line {number}: {alone}")
        else:
            assert row["reason"] == alone.reason
            value = float(row["value"]) if row["value"] else None
            assert value == (None if alone.value is None else pytest.approx(alone.value, rel=1e-12))


@pytest.mark.parametrize("format_", ["table", "csv", "json"])
def test_bad_lines_are_counted_on_stderr(format_):
    done = command(*GPA, "--format", format_, stdin="3.1\nabc\n2.9\n\nx\n")
    assert done.returncode == 0
    assert done.stderr == "qkv: 2 queries could not be read; the reasons are in the answers.\n"
    assert "line 2: the query for the key 'gpa' must be a finite number, got 'abc'." in done.stdout
    assert "line 5:" in done.stdout
    if format_ == "json":
        assert [json.loads(line)["found"] for line in done.stdout.splitlines()] == [True, False, True, False]


def test_two_lines_without_commas_are_two_queries_of_a_key_with_two_columns():
    options = ("--key", "member,city", "--value", "active", "--format", "csv")
    done = command("ask", "members.csv", *options, stdin="1200\nOslo\n")
    reasons = [row["reason"] for row in csv.DictReader(io.StringIO(done.stdout))]
    assert [reason[:45] for reason in reasons] == [
        f"line {n}: the query must have 2 parts, one for each"[:45] for n in (1, 2)
    ]


@pytest.mark.parametrize("format_", ["table", "csv", "json"])
def test_one_of_several_bad_queries_of_the_command_line_has_its_reason_and_the_others_answers(qkv, format_):
    code, out, err = qkv(*GPA, "3.1", "abc", "2.9", "--format", format_)
    assert (code, err) == (0, "qkv: 1 query could not be read; the reasons are in the answers.\n")
    assert "the query for the key 'gpa' must be a finite number, got 'abc'." in out
    assert "line" not in out
    alone = [qkv(*GPA, query, "--format", format_, "--top", "3")[1] for query in ("3.1", "2.9")]
    # The digits after these are rounded differently in one call of several queries.
    line, shown = (1, 14) if format_ == "csv" else (0, 30)
    assert all(each.splitlines()[line][:shown] in out for each in alone)


def test_arguments_without_commas_are_queries_of_their_own_where_the_key_has_two_columns(qkv):
    code, out, err = qkv("ask", "members.csv", "--key", "member,city", "--value", "active", "1200", "Oslo", "1200,Oslo")
    assert code == 0
    assert out.count("the query must have 2 parts, one for each of member, city, got 1") == 2
    assert "\n1200,Oslo → true" in out
    assert err.startswith("qkv: 2 queries could not be read")


def test_queries_in_utf_16_are_refused_with_the_remedy(tmp_path, qkv):
    (tmp_path / "q").write_bytes("3.1\n".encode("utf-16"))
    with pytest.raises(DataError, match=r"got UTF-16 in .*iconv -f utf-16"):
        list(read_queries([], str(tmp_path / "q"), ["gpa"]))


@pytest.mark.parametrize("memory", ["512 MiB", "64 KiB"])
def test_stores_report_bad_queries_as_tables_do(tmp_path, memory):
    table = {"x": np.arange(8_000) / 40, "y": np.arange(8_000.0)}
    Database.create(tmp_path / "s", table, key="x", value="y")
    queries = ["1.5", "two", None, "7"]
    whole = Database.open(table, key="x", value="y").ask(queries, score="gaussian:0.1", on_bad_query="report")
    stored = Database.open(tmp_path / "s", memory=memory)
    found = stored.ask(queries, score="gaussian:0.1", on_bad_query="report")
    assert found.invalid == whole.invalid == [False, True, False, False]
    # The example at the end of the reason is a key of the sample.
    assert found.reason[1].split(" Use,")[0] == whole.reason[1].split(" Use,")[0] != ""
    assert found.reason[2] == "the query is missing"
    assert found.value[1] is None
    assert [found.value[0], found.value[3]] == pytest.approx([whole.value[0], whole.value[3]], rel=1e-6)
    with pytest.raises(QueryError, match="two"):
        stored.ask(queries)
    with pytest.raises(OptionError, match="on_bad_query"):
        stored.ask(queries, on_bad_query="skip")


def test_an_encoded_store_reports_bad_queries(tmp_path):
    table = {"a": [1.0, 2.0, 3.0, 4.0], "b": ["x", "y", "x", "y"], "v": [1, 2, 3, 4]}
    store = Database.create(tmp_path / "s", table, key=["a", "b"], value="v", encoder="table")
    found = store.ask(["1,x", "one,x", "2"], on_bad_query="report")
    assert found.invalid == [False, True, True]
    assert found.found[0]
    assert "must be a finite number" in found.reason[1]
    assert "must have 2 parts" in found.reason[2]
