"""`qkv store`, and `qkv ask` on the stores it creates."""

import inspect
import json
import re
import shlex

import numpy as np
import pytest

from qkv import Database
from qkv.cli.store import _store

from .conftest import EXAMPLES

HELP = [line.strip() for line in inspect.getdoc(_store).splitlines() if line.startswith("  qkv ")]


@pytest.fixture(name="people")
def _people(qkv, tmp_path):
    """A store of the example people."""
    path = str(tmp_path / "people.qkv")
    assert qkv("store", "create", path, "people.csv", "--key", "name", "--value", "income")[0] == 0
    return path


def test_a_store_knows_its_key_and_value_and_answers_as_its_file(qkv, people):
    by_file = qkv("ask", "people.csv", "--key", "name", "--value", "income", "Jon Smiht", "--format", "json")
    by_store = qkv("ask", people, "Jon Smiht", "--format", "json")
    assert by_store == by_file
    code, out, _ = qkv("ask", people, "Jon Smiht", "--format", "json", "--memory", "1B", "--top", "10")
    assert code == 0
    near, far = json.loads(by_file[1]), json.loads(out)
    assert far["value"] == pytest.approx(near["value"])
    assert [row["record"] for row in far["rows"]] == [row["record"] for row in near["rows"]]


def test_a_store_is_queried_by_another_key_and_value(qkv, people):
    code, out, _ = qkv("ask", people, "Oslo", "--key", "city", "--value", "name")
    assert code == 0
    assert "compared by Names" in out


def test_explain_shows_that_blocks_are_streamed(qkv, people):
    out = qkv("ask", people, "Jon Smiht", "--memory", "1B", "--explain")[1]
    assert "streamed over 1 block" in out
    assert "in memory" in out
    assert "kernel      dense" in qkv("ask", people, "Jon Smiht", "--explain")[1]


def test_rows_are_appended_and_deleted_and_old_versions_queried(qkv, people):
    assert qkv("store", "append", people, "people.csv", "people.csv")[1].startswith("48 rows added; ")
    code, out, err = qkv("store", "delete", people, "name = 'John Smith'")
    assert (code, err) == (0, "")
    assert re.match(r"\d rows deleted; Database\(people\.qkv: name → income, \d\d rows, version 3\)", out)
    listed = qkv("store", "versions", people)[1].splitlines()
    assert [line.split()[0] for line in listed] == ["1", "2", "3"]
    assert [line.split()[3] for line in listed] == ["create", "append", "delete"]
    assert "name=John Smith" not in qkv("ask", people, "John Smith", "--format", "json")[1]
    old = json.loads(qkv("ask", people, "--version", "2", "John Smith", "--format", "json")[1])
    assert old["rows"][0]["record"]["name"] == "John Smith"
    code, out, _ = qkv("store", "compact", people, "--keep", "1")
    assert code == 0
    assert "freed" in out
    assert len(qkv("store", "versions", people)[1].splitlines()) == 1
    assert qkv("store", "verify", people)[1].startswith("all checksums match")


def test_a_store_with_an_encoder_is_queried_like_others_and_shows_no_vectors(qkv, tmp_path):
    path = str(tmp_path / "meant.qkv")
    made = ("store", "create", path, "people.csv", "--key", "name", "--value", "income")
    code, out, err = qkv(*made, "--encoder", "latent:24")
    assert (code, err) == (0, "")
    assert out == "Database(meant.qkv: name by latent → income, 24 rows, version 1)\n"
    for memory in ("512MiB", "1B"):
        code, out, _ = qkv("ask", path, "Smith", "Zorro", "--format", "json", "--memory", memory, "--top", "1")
        assert code == 0
        found, unknown = map(json.loads, out.splitlines())
        assert set(found["rows"][0]["record"]) == {"name", "income", "city"}
        assert "Smith" in found["rows"][0]["record"]["name"]
        assert unknown["reason"].startswith("the query has a zero or non-finite vector")
        assert "latent semantics (log-entropy)" in qkv("ask", path, "Smith", "--explain", "--memory", memory)[1]
    assert qkv("store", "append", path, "people.csv")[1].startswith("24 rows added; ")
    assert qkv("store", "verify", path)[0] == 0
    (tmp_path / "meant.qkv" / "attached" / "encoder.npz").unlink()
    code, out, err = qkv("ask", path, "Smith")
    assert (code, out) == (2, "")
    assert "attached/encoder.npz: missing" in err
    code, out, err = qkv("store", "verify", path)
    assert code == 2
    assert out.splitlines() == [
        "attached/encoder.npz",
        "  missing",
        "  lost: what is read from this file in versions 1 to 2, such as the encoder; no rows",
    ]
    assert "got 1 damaged file. Restore" in err


def test_damaged_files_are_named_with_exit_code_2(qkv, people, tmp_path):
    (victim,) = (tmp_path / "people.qkv" / "rows").glob("*.arrow")
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    code, out, err = qkv("ask", people, "Jon")
    assert (code, out) == (2, "")
    assert f"rows/{victim.name}: the checksum does not match (24 rows)" in err
    code, out, err = qkv("store", "verify", people)
    assert code == 2
    assert out == f"rows/{victim.name}\n  the checksum does not match\n  lost: 24 rows of version 1, all columns\n"
    assert "got 1 damaged file and 24 of 24 rows lost. Restore the files" in err
    code, out, err = qkv("store", "verify", people, "--json")
    found = json.loads(out)
    assert (code, found["intact"], found["lost_rows"], found["versions"]) == (2, False, 24, [1])
    assert found["damaged"][0] == {
        "file": f"rows/{victim.name}",
        "problem": "the checksum does not match",
        "kind": "rows",
        "rows": 24,
        "versions": [1],
        "lost": "24 rows of version 1, all columns",
    }
    assert qkv("store", "versions", people)[0] == 2


def test_a_damaged_store_is_repaired(qkv, people, tmp_path):
    assert qkv("store", "repair", people) == (0, f"{people} is intact: version 1, 24 rows\n", "")
    assert qkv("store", "append", people, "people.csv")[0] == 0
    victim = min((tmp_path / "people.qkv" / "rows").glob("*.arrow"), key=lambda file: file.stat().st_mtime_ns)
    victim.write_bytes(victim.read_bytes()[:100])
    code, out, err = qkv("store", "repair", people, "--dry-run")
    assert (code, err) == (0, "")
    assert out.splitlines()[-2:] == [
        "lost: 24 rows of versions 1 to 2",
        "would keep 24 rows in version 3; nothing was written",
    ]
    assert qkv("store", "verify", people)[0] == 2
    code, out, err = qkv("store", "repair", people, "--json")
    done = json.loads(out)
    assert (code, err, done["rows"], done["version"]) == (0, "", 24, 3)
    assert done["lost_rows"] == {"1": 24, "2": 24}
    assert (tmp_path / "people.qkv" / "damaged").is_dir()
    assert qkv("store", "verify", people)[1].startswith("all checksums match: 24 rows, 3 versions")
    assert [line.split()[3:] for line in qkv("store", "versions", people)[1].splitlines()] == [
        ["create", "0", "rows,", "24", "lost"],
        ["append", "24", "rows,", "24", "lost"],
        ["repair", "24", "rows,", "24", "lost"],
    ]
    assert qkv("ask", people, "Jon Smiht")[0] == 0


def test_a_version_is_copied_and_exported(qkv, people, tmp_path):
    assert qkv("store", "append", people, "people.csv")[0] == 0
    for name, version in (("copy", "1"), ("rows.parquet", "1"), ("rows.arrow", "2")):
        command = "export" if "." in name else "copy"
        code, out, err = qkv("store", command, people, str(tmp_path / name), "--version", version)
        assert (code, err) == (0, "")
        assert out.startswith(f"{24 * int(version)} rows of version {version} of people.qkv ")
        code, out, err = qkv("store", command, people, str(tmp_path / name))
        assert (code, out) == (2, "")
        assert "path must be" in err
        assert qkv("store", command, people, str(tmp_path / name), "--overwrite")[0] == 0
    answers = [json.loads(qkv("ask", people, "Jon Smiht", "--format", "json")[1])]
    answers += [json.loads(qkv("ask", str(tmp_path / "copy"), "Jon Smiht", "--format", "json")[1])]
    for name in ("rows.parquet", "rows.arrow"):
        table = ("ask", str(tmp_path / name), "--key", "name", "--value", "income", "Jon Smiht", "--format", "json")
        answers.append(json.loads(qkv(*table)[1]))
    assert len({answer["value"] for answer in answers}) == 1


def test_the_examples_of_the_help_run_as_they_stand_one_after_another(qkv, tmp_path, monkeypatch):
    (tmp_path / "people.csv").write_bytes((EXAMPLES / "people.csv").read_bytes())
    monkeypatch.chdir(tmp_path)
    assert len(HELP) == 14
    for line in HELP:
        code, out, err = qkv(*shlex.split(line)[1:])
        assert (code, err) == (0, ""), line
        assert out.strip()


def test_the_help_lists_the_commands_and_the_examples(qkv):
    for arguments in (("store",), ("store", "--help")):
        code, out, _ = qkv(*arguments)
        assert code == 0
        for name in ("create", "append", "delete", "versions", "compact", "verify", "repair", "copy", "export"):
            assert f"\n  {name} " in out
        assert all(line in out for line in HELP)


def test_a_store_is_compressed_and_asked_with_a_tolerance(qkv, tmp_path):
    draw = np.random.default_rng(0)
    rows = {"key": draw.standard_normal((50, 32)).astype(np.float32), "value": np.arange(50.0)}
    path = str(Database.create(tmp_path / "vectors", rows, "key", "value").store.path)
    code, out, _ = qkv("store", "compress", path)
    assert (code, "of codes; Database(vectors: key → value, 50 rows" in out) == (0, True)
    query = ",".join(map(str, 4 * rows["key"][7]))
    asked = "ask", path, query, "--score", "dot", "--normalizer", "softmax", "--format", "json"
    code, out, _ = qkv(*asked, "--tolerance", "0.001")
    assert (code, round(json.loads(out)["value"])) == (0, 7)
    code, _, err = qkv(*asked, "--tolerance", "1")
    assert (code, "tolerance must be a number from 0 to below 1, got 1.0" in err) == (2, True)
