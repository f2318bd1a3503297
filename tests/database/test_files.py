"""Several files, patterns, folders, compressed and encoded files, and open files give the table of one file."""

import contextlib
import gzip
import io
import json
import os
import random
import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather, parquet

from qkv.database import Database
from qkv.database.io.duckdb_file import _DATABASES
from qkv.database.io.read_options import ReadOptions
from qkv.database.io.sources import read, read_parts
from qkv.errors import DataError
from tests.effort import cases

from ..cli.conftest import command


def test_files_are_counted_once_and_named_in_the_notes(tmp_path):
    for name in ("a.csv", "b.csv", "c.csv"):
        (tmp_path / name).write_text("x,v\n1,2\n2,3\n")
    notes = [
        Database.open(source, "x", "v").ask(1).notes[0]
        for source in (tmp_path, f"{tmp_path}/*.csv", f"{tmp_path}/[ab].csv", [tmp_path / "a.csv", tmp_path / "b.csv"])
    ]
    several, two = "6 rows of 3 files (a.csv … c.csv)", "4 rows of 2 files (a.csv, b.csv)"
    assert notes == [several, several, two, two]
    (tmp_path / "B.csv.zst").write_bytes(pa.Codec("zstd").compress(b"x,v\n1,2\n", asbytes=True))
    assert Database.open(tmp_path, "x", "v").ask(1).notes[0].startswith("7 rows of 4 files")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"x,v\n1,2\n"))
    for source in (tmp_path, f"{tmp_path}/*", [tmp_path / "b.csv", tmp_path / "b.csv.gz"]):
        with pytest.raises(DataError, match=r"each table must be given once, got .*b\.csv' and .*b\.csv\.gz'"):
            read(source)
    parquet.write_table(pa.table({"x": [1], "v": [2]}), tmp_path / "a.parquet")
    assert read([tmp_path / "a.csv", tmp_path / "a.parquet"]).num_rows == 3
    with pytest.raises(DataError, match="may hold the same rows"):
        read(f"{tmp_path}/a.*")


ROWS = [("José", 3.5), ("Li", 4.25), ("Ørsted", -1.0), ("Zoë; the 2nd", 0.125)]
NAMES = [name for name, _ in ROWS]


def text(rows, delimiter=",", decimal="."):
    lines = [f"name{delimiter}pay"]
    for name, pay in rows:
        lines.append(f'"{name}"{delimiter}' + (f'"{pay}"' if decimal == delimiter else str(pay)).replace(".", decimal))
    return "\n".join(lines) + "\n"


def write(path, rows, compression, encoding="utf-8", **separators):
    content = text(rows, **separators).encode(encoding)
    if compression == ".gz":
        content = gzip.compress(content)
    elif compression == ".zst":
        content = pa.Codec("zstd").compress(content, asbytes=True)
    path.write_bytes(content)


@settings(max_examples=cases(40), deadline=None, derandomize=True)
@given(
    st.sampled_from(["utf-8", "utf-16", "utf-16-le", "latin-1", "cp1252"]),
    st.sampled_from(["", ".gz", ".zst"]),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from([".", ","]),
    st.integers(1, 3),
)
def test_encodings_compressions_and_separators_give_the_same_table(
    tmp_path_factory, encoding, compression, delimiter, decimal, parts
):
    if delimiter == decimal:
        return
    folder = tmp_path_factory.mktemp("parts")
    for index in range(parts):
        rows = ROWS[index::parts]
        path = folder / f"{index}.csv{compression}"
        write(path, rows, compression, encoding, delimiter=delimiter, decimal=decimal)
    given = {"encoding": encoding, "delimiter": delimiter, "decimal": decimal}
    sources = [folder, str(folder / "*.csv*"), sorted(folder.iterdir())]
    for source in sources:
        opened = Database.open(source, "name", "pay", **given)
        assert sorted(zip(*opened.table.to_pydict().values(), strict=True)) == sorted(ROWS)


WRITERS = {
    "csv": lambda table, path: path.write_text(text(ROWS)),
    "csv.gz": lambda table, path: write(path, ROWS, ".gz"),
    "csv.zst": lambda table, path: write(path, ROWS, ".zst"),
    "jsonl": lambda table, path: path.write_text("\n".join(map(json.dumps, table.to_pylist()))),
    "json": lambda table, path: path.write_text(json.dumps(table.to_pylist())),
    "parquet": parquet.write_table,
    "arrow": feather.write_feather,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_an_open_file_is_recognized_by_its_first_bytes(tmp_path, kind):
    WRITERS[kind](pa.table({"name": NAMES, "pay": [pay for _, pay in ROWS]}), tmp_path / "t")
    with (tmp_path / "t").open("rb") as file:
        assert read(file)["pay"].to_pylist() == [pay for _, pay in ROWS]
    with pytest.raises(DataError, match="which is empty"):
        read(io.BytesIO())


def test_files_of_one_table_may_lack_columns_that_are_not_asked_for(tmp_path):
    (tmp_path / "a.csv").write_text("name,pay\nLi,1\n")
    (tmp_path / "b.csv").write_text("pay,name,city\n2.5,Hu,Oslo\n")
    table = read(tmp_path, ("name", "pay"))
    assert table.to_pydict() == {"name": ["Li", "Hu"], "pay": [1.0, 2.5], "city": [None, "Oslo"]}
    assert sum(part.num_rows for part in read_parts(tmp_path)) == 2
    with pytest.raises(DataError, match=r"b.csv, got 'wage'|must be one of"):
        Database.open(tmp_path, "name", "wage")
    (tmp_path / "c.csv").write_text("name\nHu\n")
    with pytest.raises(DataError, match=r"must be one of name in .*c.csv, got 'pay'"):
        read(tmp_path, ("name", "pay"))
    (tmp_path / "c.csv").write_text("name,pay\nHu,much\n")
    with pytest.raises(DataError, match="files must have columns of the same types"):
        read(tmp_path)
    (tmp_path / "c.csv").write_text("name,pay\n")
    assert read(tmp_path).num_rows == 2


def test_whole_numbers_in_one_file_and_dates_in_another_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("d,v\n20240101,1\n20240102,2\n")
    (tmp_path / "b.csv").write_text("d,v\n7,1\n20240102,2\n")
    with pytest.raises(DataError, match=r"got date32\[day\] \(in the format %Y%m%d\) and int64 for 'd' in 2 files"):
        read(tmp_path, ("d", "v"))
    with pytest.raises(DataError, match=r"must fit the column types of 'store'.* d date32"):
        Database.create(tmp_path / "store", tmp_path, "d", "v")
    assert not (tmp_path / "store").exists()


def test_a_truncated_zstd_file_is_refused(tmp_path):
    content = "name,pay\n" + "".join(f"n{i},{i * 7919 % 1000}\n" for i in range(300_000))
    packed = pa.Codec("zstd").compress(content.encode(), asbytes=True)
    path = tmp_path / "t.csv.zst"
    path.write_bytes(packed)
    assert read(path).num_rows == 300_000
    # DuckDB returns 73,236 rows of this file without an error.
    path.write_bytes(packed[: len(packed) * 3 // 10])
    for source in (path, io.BytesIO(path.read_bytes())):
        with pytest.raises(DataError, match="must be a complete zstd file"):
            read(source)


@pytest.mark.thinned
@pytest.mark.parametrize("encoding", [None, "utf-8", "latin-1"])
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_damaged_gzip_files_are_refused_or_read_as_before(tmp_path, kind, encoding):
    rows = [f"{i},{i * 7919 % 1000}" for i in range(3_000)]
    content = "\n".join(["name,pay", *rows]) if kind == "csv" else json.dumps([{"v": row} for row in rows])
    packed = gzip.compress(content.encode(), mtime=0)
    path, options = tmp_path / f"t.{kind}.gz", ReadOptions(encoding=encoding)
    path.write_bytes(packed)
    whole = read(path, (), options)
    draw = random.Random(1)
    for _ in range(25):
        cut = draw.choice([True, False])
        at = draw.randrange(len(packed))
        damaged = packed[:at] if cut else packed[:at] + bytes([packed[at] ^ 1 << draw.randrange(8)]) + packed[at + 1 :]
        path.write_bytes(damaged)
        if cut or at >= 10:  # the header has a bit for text, a time, and the system
            with pytest.raises(DataError, match=re.escape(path.name)):
                read(path, (), options)
        else:
            with contextlib.suppress(DataError):
                assert read(path, (), options).equals(whole)


def test_the_command_reads_patterns_of_the_shell_and_standard_input(tmp_path):
    (tmp_path / "a.csv").write_text("name,pay\nLi,1\n")
    (tmp_path / "b.csv").write_text("name,pay\nHu,2\n")
    options = ("--key", "name", "--value", "pay", "--score", "exact", "--format", "csv")
    expanded = command("ask", "a.csv", "b.csv", "Hu", *options, cwd=tmp_path)
    assert [line[:6] for line in expanded.stdout.splitlines()] == ["query,", "Hu,2.0"]
    (tmp_path / "parts").mkdir()
    parquet.write_table(pa.table({"name": ["Ann"], "pay": [3.0]}), tmp_path / "c.parquet")
    write(tmp_path / "parts" / "d.csv", [("Eve", 4.0)], "")
    mixed = command("ask", "a.csv", "b.csv", "c.parquet", "parts/", "Eve", "Ann", *options, cwd=tmp_path)
    assert [line[:7] for line in mixed.stdout.splitlines()[1:]] == ["Eve,4.0", "Ann,3.0"]
    # A query may have the name of a folder.
    folder = command("ask", "a.csv", "parts", *options, cwd=tmp_path)
    assert folder.stdout.splitlines()[1].startswith("parts,,")
    piped = command("ask", "-", "Li", *options, cwd=tmp_path, stdin="name,pay\nLi,7\n")
    assert piped.stdout.splitlines()[1].startswith("Li,7.0")
    both = command("ask", "-", *options, cwd=tmp_path, stdin="name,pay\nLi,7\n")
    assert (both.returncode, both.stdout) == (2, "")
    assert "QUERY must be given if standard input is the table" in both.stderr


def test_a_repeated_column_that_is_asked_for_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,note,X,v,note\n1,a,2,3,b\n4,c,5,6,d\n")
    for opened in (lambda: Database.open(path, "x", "v"), lambda: Database.create(tmp_path / "s", path, "x", "v")):
        with pytest.raises(DataError, match=r"column names must be unique in '.*t.csv', got 'x' more than once"):
            opened()
    path.write_text("x,note,v,note\n1,a,3,b\n4,c,6,d\n")
    assert Database.open(path, "x", "v").ask(4, score="exact").value == 6


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_file_that_was_replaced_with_the_same_size_and_time_is_read_anew(tmp_path, kind):
    path = tmp_path / f"t.{kind}"
    for value in (1.5, 2.5):
        if kind == "parquet":
            parquet.write_table(pa.table({"v": [value]}), path)
        else:
            path.write_text(f"v\n{value}\n" if kind == "csv" else f'{{"v": {value}}}\n')
        os.utime(path, (1_000_000_000, 1_000_000_000))
        assert read(path)["v"].to_pylist() == [value]


def test_files_are_read_after_the_database_of_duckdb_has_failed(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("v\n1\n")
    read(path)
    _DATABASES[os.getpid()].close()  # as after an internal error, no statement runs in it
    assert read(path)["v"].to_pylist() == [1]
