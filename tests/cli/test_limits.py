"""Files and streams that would take minutes, much memory or another file's place are refused before they are read."""

import gzip
import json
import os
import subprocess
import sys
import zlib

import numpy as np
import pytest

from qkv import store as stores
from qkv.core.container import read_container, write_container
from qkv.core.untrusted_json import parse_json
from qkv.database import Database
from qkv.errors import DamagedError, DataError
from qkv.search import read_texts
from tests.effort import sample

ROWS = "name,income\nAnn,1\nBob,2\n"


def test_a_compressed_file_that_grows_without_measure_is_refused_unless_the_limit_is_raised(tmp_path, monkeypatch):
    bomb = tmp_path / "bomb.csv.gz"
    bomb.write_bytes(gzip.compress(b"name,income\n" + b"A,1\n" * 2**24 + b"B,2\n" * 2**8, 9))
    for suffix in ("csv", "jsonl", "arrow", "txt"):
        path = tmp_path / f"bomb.{suffix}.gz"
        path.write_bytes(bomb.read_bytes())
        with pytest.raises(DataError, match="QKV_UNPACKED"):
            Database.open(path, "name", "income")
        with pytest.raises(DataError, match="QKV_UNPACKED"):
            Database.open(path, "name", "income", encoding="latin-1")
    (tmp_path / "texts.txt.gz").write_bytes(bomb.read_bytes())
    with pytest.raises(DataError, match="QKV_UNPACKED"):
        read_texts(tmp_path / "texts.txt.gz")
    small = tmp_path / "small.csv.gz"
    small.write_bytes(gzip.compress(b"name,income\n" + b"A,1\n" * 1000))
    assert len(Database.open(small, "name", "income")) == 1000
    monkeypatch.setenv("QKV_UNPACKED", "1 KiB")
    with pytest.raises(DataError, match="1 KiB"):
        Database.open(small, "name", "income")
    monkeypatch.setenv("QKV_UNPACKED", "1 MiB")
    assert len(Database.open(small, "name", "income")) == 1000


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_line_that_is_too_long_is_refused_by_its_place_unless_the_limit_is_raised(tmp_path, monkeypatch, end):
    path, count = tmp_path / "long.csv", 3_000_000
    path.write_text(f"name,income{end}Ann,1{end}{'x' * count},2{end}Bob,3{end}", newline="")
    start = len(f"name,income{end}Ann,1{end}")
    with pytest.raises(DataError, match=f"from byte {start} on"):
        Database.open(path, "name", "income")
    monkeypatch.setenv("QKV_LINE", "8 MiB")
    found = Database.open(path, "name", "income")
    assert [len(name) for name in found.column("name").cells] == [3, count, 3]


@pytest.mark.parametrize("name", ["~.csv", "~root.csv", "~", "file.csv", "a*b?.csv", "$HOME.csv", "%41.csv"])
def test_every_name_of_a_file_names_that_file(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name if name.endswith(".csv") else tmp_path / name / "a.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_text(ROWS)
    for given in (path, path.relative_to(tmp_path)):
        assert Database.open(str(given), "name", "income").ask("Bob").value == 2


def test_a_null_character_in_a_path_is_an_error_of_this_package(tmp_path):
    table = {"name": ["Ann"], "income": [1.0]}
    for call in (
        lambda path: Database.open(path, "name", "income"),
        lambda path: Database.open([path], "name", "income"),
        lambda path: Database.create(path, table, "name", "income"),
        stores.open,
        stores.verify,
        read_texts,
    ):
        for path in ("\0", "a\0.csv", str(tmp_path / "b\0" / "a.csv")):
            with pytest.raises(DataError):
                call(path)


def test_half_of_a_surrogate_pair_in_a_file_is_damage(tmp_path):
    path = tmp_path / "file"
    write_container(path, "example", {"text": "x"}, {"x": np.arange(3)})
    data = path.read_bytes()
    length = int(data[:64].split()[3])
    for change in ({"dtype": "\ud800"}, {"dtype": "<\udc00"}, {"name": "\ud800"}):
        manifest = json.loads(data[64 : 64 + length])
        manifest["parts"][0] |= change
        text = json.dumps(manifest).encode().ljust(length)
        line = b"qkv container 1 %d %08x" % (len(text), zlib.crc32(text))
        path.write_bytes(line.ljust(63) + b"\n" + text + data[64 + length :])
        with pytest.raises(DamagedError):
            read_container(path, "example", "Write it again.")
    for text in ('"\\ud800"', '{"\\uDC00": 1}', '["\\ud800x"]'):
        with pytest.raises(DamagedError):
            parse_json(text, "a.json")
    assert parse_json('"\\ud83d\\ude00 \\\\ud800"', "a.json") == "😀 \\ud800"


def run(arguments: str, folder, closed: str) -> subprocess.CompletedProcess[str]:
    command = f'exec "{sys.executable}" -m qkv {arguments} {closed}'
    environment = {**os.environ, "PYTHONPATH": os.path.abspath("src")}
    return subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


ASK = "ask a.csv Ann --key name --value income"


@pytest.mark.parametrize(
    ("arguments", "closed", "code", "printed"),
    [
        (ASK, ">&-", 2, "standard output must be open"),
        ("ask - Ann --key name --value income", "<&-", 2, "standard input, which is empty"),
        *sample(
            [
                (ASK, ">&- 2>&- <&-", 2, ""),
                (ASK, "2>&-", 0, "Ann → 1"),
                (ASK, "<&-", 0, "Ann → 1"),
                ("ask nope.csv Ann --key name --value income", "2>&-", 2, ""),
            ],
            4,
        ),
    ],
)
def test_closed_standard_streams_are_no_bug_and_lose_no_answer_in_silence(tmp_path, arguments, closed, code, printed):
    (tmp_path / "a.csv").write_text(ROWS)
    done = run(arguments, tmp_path, closed)
    assert done.returncode == code, done.stderr
    assert printed in done.stdout + done.stderr
    assert "bug" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert (tmp_path / "a.csv").read_text() == ROWS
