"""`qkv join` and `qkv fit join` on the example tables."""

import csv
import inspect
import re

import pyarrow.parquet as parquet
import pytest

from qkv.cli.fit import fit_join
from qkv.cli.join import join
from qkv.core.container import read_container

from .conftest import EXAMPLES

TABLES = ("people.csv", "guests.csv")
ON = ("--on", "name=guest,city=town")


def test_the_pairs_are_shown_by_decreasing_weight(qkv):
    code, out, err = qkv("join", *TABLES, *ON, "--top", "3")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert re.match(r"\d+ pairs of 24 and 13 rows, the 3 of largest weight:$", lines[0])
    assert lines[1].split() == ["weight", "left", "row", "right", "row"]
    weights = [float(line.split()[0]) for line in lines[2:5]]
    assert weights == sorted(weights, reverse=True)
    lines = qkv("join", *TABLES, *ON, "--top", "20")[1].splitlines()
    assert any("Katarzyna Wiśniewska, Kraków" in line and "Katarzyna Wisniewska, Krakow" in line for line in lines)
    assert "· all 24 × 13 pairs compared" in lines


def test_long_rows_do_not_truncate_weights_and_row_numbers(qkv, tmp_path):
    for name in TABLES:
        head, *rows = (EXAMPLES / name).read_text(encoding="utf-8").splitlines()
        place = head.split(",").index("city" if name == "people.csv" else "town")
        cells = [row.split(",") for row in rows]
        wide = [[cell * 30 if i == place else cell for i, cell in enumerate(row)] for row in cells]
        text = "\n".join([head, *(",".join(row) for row in wide)])
        (tmp_path / name).write_text(text + "\n", encoding="utf-8")
    code, out, err = qkv("join", *(str(tmp_path / name) for name in TABLES), *ON, "--top", "5")
    assert (code, err) == (0, "")
    _, head, *lines = out.splitlines()
    assert head.split() == ["weight", "left", "row", "right", "row"]
    found = [re.match(r"\s*([01]\.\d{3})\s+(\d+)  \S.*…\s+(\d+)  \S.*…", line) for line in lines[:5]]
    assert all(match and float(match[1]) > 0.9 for match in found)
    assert len({match[2] for match in found}) == 5


def test_a_join_without_pairs_gives_advice(qkv):
    code, out, _ = qkv("join", *TABLES, "--on", "city=guest")
    assert code == 0
    assert out.startswith("0 pairs of 24 and 13 rows\n")
    assert "· no pair is a match: compare more columns (--on)" in out


def test_a_fitted_model_joins_and_is_evaluated(qkv, tmp_path):
    model = str(tmp_path / "model.json")
    code, out, err = qkv("fit", "join", *TABLES, *ON, "--pairs", "same.csv", "--out", model)
    assert (code, err) == (0, "")
    assert "learned from 16 labelled pairs, 11 of them matches" in out
    code, out, _ = qkv("join", *TABLES, "--model", model, "--evaluate", "same.csv", "--one-to-one")
    assert code == 0
    precision, recall, f1 = map(float, re.search(r"precision ([\d.]+)   recall ([\d.]+)   F1 ([\d.]+)", out).groups())
    assert f1 == pytest.approx(2 * precision * recall / (precision + recall), abs=2e-3)
    assert f1 > 0.9


def test_a_model_can_be_estimated_without_pairs(qkv, tmp_path):
    code, out, _ = qkv("fit", "join", *TABLES, *ON, "--out", str(tmp_path / "model.json"))
    assert code == 0
    assert "estimated from the tables alone" in out
    assert "learned" not in read_container(tmp_path / "model.json", "a join model", "fit it again")
    assert qkv("join", *TABLES, "--model", str(tmp_path / "model.json"))[0] == 0


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow", "jsonl"])
def test_every_format_of_out_holds_every_pair(qkv, tmp_path, suffix):
    from qkv.database.io.sources import read

    path = tmp_path / f"pairs.{suffix}"
    code, out, _ = qkv("join", *TABLES, *ON, "--out", str(path), "--top", "0")
    assert code == 0
    count = int(re.match(r"(\d+) pairs", out)[1])
    table = parquet.read_table(path) if suffix == "parquet" else read(str(path))
    assert table.num_rows == count > 5
    assert {"left_row", "right_row", "weight", "probability", "left.name", "right.guest"} <= set(table.column_names)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_single_table_is_searched_for_duplicates(qkv, tmp_path):
    rows = [*csv.reader((EXAMPLES / "people.csv").read_text(encoding="utf-8").splitlines())]
    again = [*rows, ["Jon Doe", "52000", "Oslo"], ["Aisha Kahn", "66100", "London"], ["Wei Zang", "71200", "Shanghai"]]
    with (tmp_path / "people.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(again)
    code, out, _ = qkv("join", str(tmp_path / "people.csv"), "--on", "name,income,city")
    assert code == 0
    found = {tuple(sorted(pair)) for pair in re.findall(r"^ *[\d.]+ +(\d+)  .*? +(\d+)  ", out, re.MULTILINE)}
    assert {("0", "24"), ("25", "6"), ("26", "8")} <= found


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("join",), "LEFT"),
        (("join", *TABLES, "--on", "name"), "in guests.csv, got 'name'"),
        (("join", *TABLES, *ON, "--out", "x.txt"), "must end in"),
        (("join", *TABLES, *ON, "--out", "no-folder/x.csv"), "must exist, got 'no-folder'"),
        (("join", *TABLES, *ON, "--evaluate", "people.csv"), "must have the columns left and right"),
        (("join", *TABLES, *ON, "--model", "no.json"), "Omit --on"),
        (("join", *TABLES, "--model", "people.csv"), "must be a container"),
        (("fit", "join", *TABLES, *ON), "--out must be given"),
        (("fit", "join", *TABLES, *ON, "--out", "no-folder/m.json"), "must exist, got 'no-folder'"),
        (
            ("fit", "join", *TABLES, *ON, "--out", "m.json", "--pairs", "gpa.csv"),
            "must have the columns left and right",
        ),
    ],
)
def test_invalid_input_is_reported_in_one_sentence_and_nothing_is_written(qkv, arguments, said):
    before = sorted(path.name for path in EXAMPLES.iterdir())
    code, out, err = qkv(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in EXAMPLES.iterdir()) == before


@pytest.mark.parametrize("command", [join, fit_join])
def test_the_examples_of_the_help_run(qkv, command, tmp_path, monkeypatch):
    lines = [line.split() for line in inspect.getdoc(command).splitlines() if line.startswith("  qkv ")]
    assert len(lines) >= 2
    for line in lines:
        arguments = [str(tmp_path / word) if line[n] == "--out" else word for n, word in enumerate(line[1:])]
        code, out, err = qkv(*arguments)
        assert (code, err) == (0, ""), line
        assert out
