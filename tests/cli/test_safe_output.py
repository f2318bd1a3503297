"""Text from files reaches the terminal without the characters that act on it, and formulas reach no spreadsheet."""

import csv
import io
import json
import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.core.formatting import format_value
from qkv.core.printable import escaped_json, printable, quoted_formula
from qkv.look.terminal import text_map
from qkv.testing.libraries import turn
from tests.cli.conftest import EXAMPLES

ACTING = "\x00\x07\x08\x1b\x7f\x85\x9b\u061c\u200e\u200f\u202a\u202e\u2028\u2066\u2069\ufeff"
HOSTILE = f"Jon \x1b[31mred\x1b]0;title\x07 {ACTING} end"
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def acting(text: str) -> set[str]:
    """The characters of a printed text that act on a terminal, without line breaks."""
    return {letter for letter in text if letter in ACTING or (letter < " " and letter not in "\n\t")}


@pytest.fixture(name="table")
def _table(tmp_path):
    path = tmp_path / "names.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["name", f"city{ACTING[3]}[2J", "note"])
        clean = HOSTILE.replace("\x00", "")
        writer.writerows([[clean, "Oslo", clean], ["Ann", "=cmd|' /C calc'!A0", "+1+1"], ["Bea", "-3", "ok"]])
    return str(path)


@pytest.mark.thinned
@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("query", ["Jon", "Ann", HOSTILE.replace("\x00", "")])
def test_an_answer_prints_no_character_that_acts_on_the_terminal(qkv, table, monkeypatch, query, color):
    if color:
        monkeypatch.setenv("FORCE_COLOR", "1")
    extras = [[], ["--explain"], ["--where", "name != 'Bea'"], ["--score", "exact"]]
    for extra in turn(extras, len(query) + color, 2):
        code, out, err = qkv("ask", table, "--key", "name", "--value", "note", query, *extra)
        assert code == 0
        assert not acting(STYLE.sub("", out)) | acting(STYLE.sub("", err))


def test_a_cell_is_printed_with_its_escapes_written_out(qkv, table):
    _, out, _ = qkv("ask", table, "--key", "name", "--value", "note", "Jon")
    assert r"Jon \x1b[31mred\x1b]0;title\x07" in out
    assert r"\u202e" in out


def test_json_escapes_acting_characters_and_means_the_same_text(qkv, table):
    _, out, _ = qkv("ask", table, "--key", "name", "--value", "note", "Jon", "--format", "json")
    assert not acting(out)
    assert json.loads(out)["rows"][0]["record"]["name"] == HOSTILE.replace("\x00", "")


@pytest.mark.parametrize("arguments", [["ask", "\x1b[31mmissing.csv"], ["ask", "people.csv", "--key", "\u202ename"]])
def test_an_error_message_prints_no_acting_character(qkv, arguments):
    code, _, err = qkv(*arguments, "--value", "income", "x")
    assert code == 2
    assert not acting(err)


def test_search_prints_titles_and_texts_without_acting_characters(qkv, tmp_path):
    lines = [
        {"_id": f"d{number}", "title": f"t {HOSTILE}", "text": f"wing {HOSTILE} flow {number}"} for number in (1, 2)
    ]
    (tmp_path / "docs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for extra in ([], ["--json"]):
        code, out, err = qkv("search", str(tmp_path / "docs.jsonl"), f"wing {HOSTILE}", *extra)
        assert code == 0, err
        assert not acting(out)


def test_joined_rows_are_printed_without_acting_characters(qkv, table):
    code, out, err = qkv("join", table, table, "--on", "name")
    assert code == 0, err
    assert not acting(out)


def test_tokens_of_a_map_are_printed_without_acting_characters():
    drawn = text_map(pa.array([0.5, 0.5]).to_numpy().reshape(1, 2), ["\x1b[2J"], ["\u202ea", "b"], color=False)
    assert not acting(drawn)


@given(st.text())
def test_printable_text_has_no_control_and_differs_only_in_them(text):
    shown = printable(text)
    assert not acting(shown)
    assert "\n" not in shown
    assert "\t" not in shown
    assert shown == text or any(letter in ACTING or letter < " " or letter > "\x7e" for letter in text)
    assert acting(printable(text, lines=True)) == set()


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_escaped_json_is_read_as_the_same_text(text):
    document = escaped_json(json.dumps(text, ensure_ascii=False))
    assert json.loads(document) == text
    assert not acting(document)


def test_letters_of_every_script_are_printed_as_they_are():
    for text in ("Ärger", "日本語", "עברית", "العربية", "हिन्दी", "👩‍🚀", "e\u0301"):
        assert format_value(text) == text


def test_formulas_are_quoted_in_csv_only_on_request(qkv, table):
    given = ["ask", table, "--key", "name", "--value", "note", "Ann", "--format", "csv"]
    plain, quoted = (list(csv.reader(io.StringIO(qkv(*given, *flag)[1]))) for flag in ([], ["--quote-formulas"]))
    assert plain[1][1] == "+1+1"
    assert quoted[1][1] == "'+1+1"
    code, _, err = qkv(*given[:-2], "--quote-formulas")
    assert code == 2
    assert "--quote-formulas must be used with --format csv" in err


def test_formulas_in_joined_pairs_are_quoted_on_request(qkv, tmp_path):
    people = tmp_path / "people.csv"
    people.write_text((EXAMPLES / "people.csv").read_text().replace("John Smith", "=John Smith"))
    given = ["join", str(people), "guests.csv", "--on", "name=guest,city=town"]
    for flag, expected in (([], "=John Smith"), (["--quote-formulas"], "'=John Smith")):
        out = tmp_path / f"pairs{len(flag)}.csv"
        code, _, err = qkv(*given, "--out", str(out), *flag)
        assert code == 0, err
        with out.open(encoding="utf-8") as file:
            assert expected in {row["left.name"] for row in csv.DictReader(file)}
    assert qkv(*given, "--quote-formulas")[0] == 2


@given(st.text(min_size=1))
def test_a_quoted_cell_starts_with_no_character_that_begins_a_formula(text):
    cell = quoted_formula(text)
    if cell != text:
        assert cell == f"'{text}"
    elif text.lstrip(" ")[:1] in tuple("=+-@"):
        float(text)
