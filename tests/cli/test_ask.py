"""`qkv ask` on the example tables."""

import csv
import io
import json
import os
import re
import shutil

import pytest

from qkv.core.checksums import digest
from qkv.database import Database, choice_cache

from .conftest import EXAMPLES, STARTED, command

PEOPLE = ("people.csv", "--key", "name", "--value", "income")
GPA = ("gpa.csv", "--key", "gpa", "--value", "starting_salary")


def test_the_table_shows_answer_spread_support_and_rows_with_bars(qkv):
    code, out, err = qkv("ask", *PEOPLE, "Jon Smiht")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert re.match(r"Jon Smiht → 48,2\d\d$", lines[0])
    assert re.match(r"  spread: \d+   effective rows: 1.0$", lines[1])
    del lines[1]
    assert lines[1].split() == ["weight", "similarity", "name", "income", "city"]
    assert lines[2].split() == ["████████████", "1.000", "0.84", "John", "Smith", "48,200", "Oslo"]
    assert not lines[3]
    assert "· 23 rows of people.csv; 1 left out (income missing in 1)" in lines
    assert "\x1b" not in out


def test_no_match_is_an_answer(qkv):
    code, out, err = qkv("ask", *PEOPLE, "xqzvkw")
    assert (code, err) == (0, "")
    assert out.startswith("xqzvkw → no match: the nearest key,")


def test_a_negative_number_is_a_query_not_an_option(qkv):
    code, out, _ = qkv("ask", *GPA, "-3.5")
    assert code == 0
    assert out.startswith("-3.5 → no match")


def test_several_queries_show_three_rows_each_and_top_says_otherwise(qkv):
    _, out, _ = qkv("ask", *GPA, "3.5", "2.5")
    assert sum("█" in line for line in out.splitlines()) == 6
    _, out, _ = qkv("ask", *GPA, "3.5", "2.5", "--top", "1")
    assert sum("█" in line for line in out.splitlines()) == 2


def test_json_is_one_object_per_line_that_holds_no_nan(qkv):
    code, out, _ = qkv("ask", "members.csv", "--key", "member", "--value", "joined", "1200", "9999", "--format", "json")
    first, second = [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]
    assert code == 0
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", first["value"])
    assert first["spread"] > 0
    assert set(first["rows"][0]) == {"weight", "distance", "record"}
    (call,) = second.pop("calls")
    assert (call["normalizer"], call["rows"]) == ("Softmax()", "all rows")
    assert second == {
        "query": "9999",
        "value": None,
        "standard_error": None,
        "prediction_interval": None,
        "spread": None,
        "effective_rows": 0.0,
        "found": False,
        "reason": second["reason"],
        "rows": [],
    }


def test_csv_of_a_vote_has_its_probability(qkv):
    _, out, _ = qkv("ask", "students.csv", "--key", "major", "--value", "name", "psychology", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert row["value"] == "John Doe"
    assert float(row["probability"]) == pytest.approx(1, abs=1e-3)


def test_explain_prints_the_plan(qkv):
    _, out, _ = qkv("ask", *PEOPLE, "Jon Smiht", "--explain")
    assert re.search(r"^kernel +(dense|streamed)", out, re.MULTILINE)
    assert "score       Names()" in out


@pytest.mark.parametrize("format_", ["json", "csv"])
def test_explain_stays_out_of_output_for_programs(qkv, format_):
    _, out, err = qkv("ask", *GPA, "3.5", "--format", format_, "--explain")
    assert "kernel" not in out
    assert "kernel" in err


def test_score_normalizer_where_and_similarity_reach_the_database(qkv):
    ask = ("ask", *PEOPLE, "Mario", "--format", "json")
    values = [
        json.loads(qkv(*ask, *options)[1])
        for options in (
            ("--where", "city = 'Lisbon'"),
            ("--score", "exact"),
            ("--normalizer", "mean"),
            ("--min-similarity", "0.99", "--score", "levenshtein"),
        )
    ]
    assert values[0]["rows"][0]["record"]["name"] == "Mario Gonzales"
    assert values[1]["reason"] == "no key equals the query"
    assert values[2]["effective_rows"] == pytest.approx(23)
    assert "under 0.99" in values[3]["reason"]


def test_hours_go_round_at_midnight(qkv, tmp_path, monkeypatch):
    monkeypatch.setattr("qkv.look.answers.saved_answers._PLACES", 5)
    (tmp_path / "clock.csv").write_text("hour,load\n1,4\n23,6\n12,50\n")
    arguments = ["ask", str(tmp_path / "clock.csv"), "--key", "hour", "--value", "load", "0", "--score", "gaussian:1"]
    assert "0 → 5.0" in qkv(*arguments, "--cyclic", "hour=24")[1]
    assert "--cyclic must be COLUMN=PERIOD, got 'hour'" in qkv(*arguments, "--cyclic", "hour")[2]
    store, page = str(tmp_path / "clock.qkv"), str(tmp_path / "clock.html")
    assert qkv("store", "create", store, *arguments[1:6], "--cyclic", "hour=24")[0] == 0
    assert "got a store. Pass it to qkv store create.\n" in qkv("ask", store, "0", "--cyclic", "hour=24")[2]
    exported = qkv(*arguments, "--cyclic", "hour=24", "--export", page)
    assert exported[0] == 0, exported
    assert (tmp_path / "clock.html").stat().st_size


def test_sql_takes_the_place_of_the_file(qkv):
    query = "select name, income / 12 as monthly from 'people.csv'"
    code, out, _ = qkv("ask", "--sql", query, "--key", "name", "--value", "monthly", "john doe", "--format", "json")
    assert code == 0
    assert json.loads(out)["value"] == pytest.approx(52_000 / 12, rel=1e-3)


def test_a_file_without_queries_prints_nothing(qkv, tmp_path):
    (tmp_path / "q.txt").touch()
    assert qkv("ask", *GPA, "--queries", str(tmp_path / "q.txt"), "--explain") == (0, "", "")


def test_queries_come_from_a_file_with_or_without_a_header(qkv, tmp_path):
    for text in ("3.5\n2.5\n", "gpa\n3.5\n\n2.5", "\ufeff3.5\r\n2.5\r\n"):
        (tmp_path / "q.txt").write_text(text, encoding="utf-8")
        _, out, _ = qkv("ask", *GPA, "--queries", str(tmp_path / "q.txt"), "--format", "csv")
        assert [line.split(",")[0] for line in out.splitlines()] == ["query", "3.5", "2.5"]


@pytest.mark.parametrize(
    ("error", "expected", "said"),
    [
        (ZeroDivisionError("division by zero"), 1, "qkv: this is a bug in qkv: ZeroDivisionError"),
        # A truncated file is not taken for an interrupt.
        (EOFError("no data left in file"), 1, "qkv: this is a bug in qkv: EOFError: no data left in file"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_a_bug_is_reported_in_one_sentence_and_an_interrupt_by_its_exit_code(qkv, monkeypatch, error, expected, said):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(Database, "ask", fail)
    code, out, err = qkv("ask", *GPA, "3.5")
    assert (code, out) == (expected, "")
    assert err.strip().startswith(said)
    assert len(err.splitlines()) <= 2
    assert "Traceback" not in err


def test_a_plot_is_written_whole_and_a_failed_one_leaves_nothing(qkv, tmp_path, monkeypatch):
    code, _, _ = qkv("ask", *GPA, "3.5", "--plot", str(tmp_path / "gpa.png"))
    assert code == 0
    assert (tmp_path / "gpa.png").read_bytes().startswith(b"\x89PNG")

    from matplotlib.figure import Figure

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    code, _, err = qkv("ask", *GPA, "3.5", "--plot", str(tmp_path / "other.png"))
    assert code == 2
    assert "No space left" in err
    assert [path.name for path in tmp_path.iterdir()] == ["gpa.png"]


def test_the_version_is_printed(qkv):
    code, out, _ = qkv("--version")
    assert code == 0
    assert out.startswith("qkv ")


def test_a_bare_command_shows_its_help(qkv):
    code, out, _ = qkv()
    assert code == 0
    assert "explain" in out


def test_json_lists_the_keys_that_match_equally_well(qkv, tmp_path):
    table = tmp_path / "places.csv"
    table.write_text("name,height\nSan Jose,26\nSan Diego,19\nOakland,13\n")
    _, out, _ = qkv("ask", str(table), "--key", "name", "--value", "height", "San", "Oakland", "--format", "json")
    first, second = map(json.loads, out.splitlines())
    assert set(first["candidates"]) == {"San Jose", "San Diego"}
    assert first["value"] is None
    assert "candidates" not in second


@pytest.mark.parametrize("kind", ["file", "store"])
def test_no_cache_neither_reads_nor_writes_what_was_chosen(qkv, tmp_path, monkeypatch, kind):
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(choice_cache, "_FEWEST_ROWS", 100)
    table = tmp_path / "gpa.csv"
    shutil.copy(EXAMPLES / "gpa.csv", table)
    os.utime(table, (1_700_000_000, 1_700_000_000))
    if kind == "store":
        Database.create(tmp_path / "gpa", str(table), "gpa", "starting_salary")
    question = ("ask", str(tmp_path / "gpa"), "3.5")
    if kind == "file":
        question = ("ask", str(table), "--key", "gpa", "--value", "starting_salary", "3.5")
    folder = tmp_path / "gpa" / "notes" if kind == "store" else tmp_path / "cache" / "choices"
    code, wanted, err = qkv(*question, "--no-cache")
    assert (code, err) == (0, "")
    assert not list(folder.glob("*.json"))
    assert qkv(*question)[1] == wanted
    changed = 0
    for path in folder.glob("*.json"):
        entry = json.loads(path.read_bytes())
        if "method" in entry["content"]:
            entry["content"]["value"] *= 4
            entry["digest"] = digest(choice_cache._json(entry["content"]))
            path.write_bytes(choice_cache._json(entry))
            changed += 1
    assert changed == 1
    before = {path: path.read_bytes() for path in folder.glob("*.json")}
    assert qkv(*question)[1] != wanted  # the changed bandwidth was read
    assert qkv(*question, "--no-cache")[1] == wanted
    assert {path: path.read_bytes() for path in folder.glob("*.json")} == before


@pytest.mark.parametrize("format_", ["csv", "json", "table"])
def test_every_format_says_how_columns_are_read(tmp_path, qkv, format_):
    (tmp_path / "t.csv").write_text("shop_id,day,v\n" + "".join(f"{i % 2},0{i}.02.2024,{i}\n" for i in range(1, 9)))
    read = "shop_id is read as an identifier, because its whole numbers are named like identifiers"
    dates = "day is read in the format %d.%m.%Y, day first"
    arguments = (tmp_path / "t.csv", "--key", "shop_id,day", "--value", "v", "1,03.02.2024", "--format", format_)
    code, out, err = qkv("ask", *map(str, arguments))
    assert code == 0
    notes = err if format_ == "csv" else out
    assert notes.count(read) == 1
    assert dates in notes
    assert "shop_id: shop_id" not in notes
    assert (err == "") == (format_ != "csv")
    assert all(line.startswith("qkv: ") for line in err.splitlines())


def test_an_argument_in_another_encoding_than_that_of_the_locale_is_an_error_with_a_remedy():
    words = ("ask", "people.csv", "José", "--key", "name", "--value", "income")
    done = command(*words, words=STARTED, env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    assert done.returncode == 2
    assert "must be in the encoding of the locale, ascii, got other bytes in" in done.stderr
    assert "Set PYTHONUTF8=1" in done.stderr
