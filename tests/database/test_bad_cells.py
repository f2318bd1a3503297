"""Cells of a file that are no finite numbers, and dates in the format of a file."""

import datetime as dt
import json
import random

import pyarrow as pa
import pytest

from qkv.database import Database
from qkv.errors import DataError, OptionError
from tests.effort import seeds

BAD = ("n/a", "-", "unknown", "inf", "-Infinity", "1 20", "3,5x", "#REF!")


def write(path, cells, header="x,v"):
    path.write_text("\n".join([header, *(f"{cell},{row}" for row, cell in enumerate(cells))]) + "\n", encoding="utf-8")
    return path


def random_cells(draw, kind):
    """Return cells of a column, with None for cells that are not of the kind, and the texts of all cells."""
    if kind == "date":
        days = [dt.date(2020, 1, 1) + dt.timedelta(draw.randint(0, 2000)) for _ in range(draw.randint(8, 40))]
        form = draw.choice(["%Y-%m-%d", "%d.%m.%Y", "%Y/%m/%d"])
        pairs = [(day, day.strftime(form)) for day in days]
    elif kind == "clock":
        start = dt.datetime(2020, 1, 1)
        times = [start + dt.timedelta(minutes=draw.randint(0, 90_000)) for _ in range(draw.randint(8, 40))]
        form = draw.choice(["%Y-%m-%d %H:%M", "%d.%m.%Y %H:%M", "%Y-%m-%dT%H:%M:%S"])
        pairs = [(time, time.strftime(form)) for time in times]
    elif kind == "whole":
        pairs = [(n, str(n)) for n in (draw.randint(-50, 50) for _ in range(draw.randint(8, 40)))]
    else:
        pairs = [(n, str(n)) for n in (round(draw.uniform(-5, 5), 3) for _ in range(draw.randint(8, 40)))]
    for _ in range(draw.randint(1, len(pairs) // 3)):
        pairs.insert(draw.randint(0, len(pairs)), (None, draw.choice([*BAD, ""])))
    return pairs


@pytest.mark.thinned
@pytest.mark.parametrize("kind", ["whole", "number", "date", "clock"])
@pytest.mark.parametrize("seed", seeds(6, 1))
@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_bad_cells_are_left_out_like_rows_removed_from_the_file(tmp_path, seed, kind, ending):
    pairs = random_cells(random.Random(seed), kind)
    if ending == ".jsonl":
        path = tmp_path / "t.jsonl"
        numbers = kind in ("whole", "number")
        cells = [cell if numbers and cell is not None else text or None for cell, text in pairs]
        path.write_text("".join(json.dumps({"x": cell, "v": row}) + "\n" for row, cell in enumerate(cells)))
    else:
        path = write(tmp_path / "t.csv", [f'"{text}"' if "," in text else text for _, text in pairs])
    good = [(cell, row) for row, (cell, _) in enumerate(pairs) if cell is not None]
    expected = Database.open({"x": [c for c, _ in good], "v": [float(r) for _, r in good]}, key="x", value="v")
    stored = Database.create(tmp_path / "s", path, key="x", value="v")
    bad = sum(cell is None and text != "" for cell, text in pairs)
    opened = Database.open(path, key="x", value="v")
    queries = [good[0][0], good[-1][0]]
    for database in (opened, stored, Database.open(tmp_path / "s", memory=1)):
        assert len(database) == len(good) if database is opened else len(pairs)
        answer, right = database.ask(queries), expected.ask(queries)
        assert answer.found == right.found
        assert list(answer.value) == pytest.approx(list(right.value))
        notes = opened.ask(queries).notes if database is opened else stored.cell_notes
        assert sum(note.startswith(f"x: {bad} cell") and note.endswith("left out") for note in notes) == (bad > 0)


def test_marks_of_missing_cells_do_not_make_a_column_texts(tmp_path):
    path = write(tmp_path / "t.csv", [*["-"] * 5, 4, 5])
    answer = Database.open(path, key="x", value="v").ask(4, score="exact")
    assert answer.value == 5
    assert "x: 5 cells are not finite numbers, such as '-', left out" in answer.notes


@pytest.mark.parametrize("mark", ["n/a", "N/A", r"\N", "**", "none", "n.a."])
def test_marks_of_missing_cells_among_texts_are_mentioned(mark, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"x,v\n1,red\n2,{mark}\n3,blue\n4,red\n")
    (note,) = Database.open(path, "x", "v").ask(2).column_notes
    assert note.startswith(f"v holds texts, and {mark!r} is one of them; --where ")
    answer = Database.open(path, "x", "v").ask(2, where=f"v <> '{mark}'", score="exact")
    assert not answer.found
    path.write_text("x,v\n1,red\n2,\n3,Unknown\n")
    assert Database.open(path, "x", "v").ask(1).column_notes == ()


def test_texts_that_are_partly_numbers_are_mentioned(tmp_path):
    cells = [*"abcdef", 1, 2, 3]
    note = "x holds texts, although 3 of 9 cells are numbers"
    path = write(tmp_path / "t.csv", cells)
    assert note in Database.open(path, key="x", value="v").ask("a").notes
    assert Database.create(tmp_path / "s", path, key="x", value="v").cell_notes == (note,)
    assert note in Database.sql(f"select * from '{path}'", key="x", value="v").ask("a").notes
    table = {"x": [*map(str, cells)], "v": [*range(9)]}
    assert note in Database.open(table, key="x", value="v").ask("a").notes
    assert not any("holds" in note for note in Database.open({"x": ["1", "2"], "v": [1, 2]}, "x", "v").ask("1").notes)


@pytest.mark.parametrize("column", ["x", "v"])
def test_infinite_cells_of_any_table_are_counted_or_refused(column):
    table = {"x": [1.0, 2.0, 3.0, None], "v": [1.0, 2.0, 3.0, 4.0]}
    table[column][1] = float("-inf")
    answer = Database.open(table, key="x", value="v").ask(1.0)
    assert f"{column}: 1 cell is not a finite number, such as '-inf', left out" in answer.notes
    with pytest.raises(DataError, match=f"the cells of '{column}' must be finite numbers in the dict, got '-inf'"):
        Database.open(table, key="x", value="v", on_bad_cell="refuse")


def test_a_refused_cell_leaves_no_store_and_no_rows(tmp_path):
    good, bad = write(tmp_path / "a.csv", [1, 2, 3]), write(tmp_path / "b.csv", [*range(21_000), "?"])
    with pytest.raises(DataError, match="must be finite numbers"):
        Database.create(tmp_path / "s", bad, key="x", value="v", on_bad_cell="refuse")
    assert not (tmp_path / "s").exists()
    database = Database.create(tmp_path / "s", good, key="x", value="v")
    with pytest.raises(DataError, match="must be finite numbers"):
        database.append(bad, on_bad_cell="refuse")
    assert len(Database.open(tmp_path / "s")) == 3
    database.append(bad)
    assert database.cell_notes == ("x: 1 cell is not a finite number, such as '?', left out",)
    assert database.ask(20_999, score="exact").value == 20_999
    assert not any("'?'" in note for note in database.ask(1, score="exact").notes)


def test_bad_cells_of_several_files_are_added(tmp_path):
    paths = [write(tmp_path / f"{n}.csv", cells) for n, cells in enumerate([[1, 2, "?"], [3, 4], [5, 6, "n/a", "?"]])]
    answer = Database.open(paths, key="x", value="v").ask(6, score="exact")
    assert answer.value == 1
    assert "x: 3 cells are not finite numbers, such as '?', left out" in answer.notes


def test_a_bad_cell_is_refused_or_makes_texts_on_request(tmp_path):
    path = write(tmp_path / "t.csv", [1, 2, "n/a", 3, "inf"])
    with pytest.raises(DataError, match=r"must be finite numbers in .*, got 'inf', one of 2 cells that are not"):
        Database.open(path, key="x", value="v", on_bad_cell="refuse")
    assert Database.open(path, key="x", value="v", on_bad_cell="text").ask("n/a").value == pytest.approx(2)
    with pytest.raises(OptionError, match="on_bad_cell must be"):
        Database.open(path, key="x", value="v", on_bad_cell="drop")


def test_a_bad_value_is_left_out_and_counted(tmp_path):
    path = write(tmp_path / "t.csv", [1, 2, "n/a", 4], "v,x")
    answer = Database.open(path, key="x", value="v").ask(1, normalizer="mean", score="constant")
    assert answer.value == pytest.approx(7 / 3)
    assert "v: 1 cell is not a finite number, such as 'n/a', left out" in answer.notes


@pytest.mark.parametrize("stored", [False, True])
def test_values_of_json_that_are_written_as_texts_are_mentioned(tmp_path, stored):
    def notes(values):
        rows = (json.dumps({"x": row, "v": value}) + "\n" for row, value in enumerate(values))
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        path.write_text("".join(rows))
        if stored:
            return Database.create(tmp_path / f"{path.stem}.store", path, key="x", value="v").cell_notes
        return Database.open(path, key="x", value="v").ask(1).notes

    mixed = ["2.5", 3.5, "4", 5, "n/a", 7.5]
    assert "v is read as numbers, 2 of which are texts, such as '2.5'" in notes(mixed)
    assert "v is read as numbers, 1 of which is a text, such as '2'" in notes([1, "2", 3])
    assert not any("v " in note for note in notes([2.5, 3.5, 4]))
    texts = "v holds texts, although its cells are numbers, such as '1.5'; convert them to compare numbers"
    assert texts in notes(["1.5", "2.5", "4"])
    # Digits alone may be codes.
    assert not any("v holds" in note for note in notes(["15", "25", "4"]))


@pytest.mark.parametrize(
    "cells",
    [["a", "b", "1"], ["02139", "10001", "n/a", "10002"], ["12", "12a", "14b", "x"], ["true", "false", "maybe"]],
)
def test_texts_and_codes_with_leading_zeros_stay_texts(tmp_path, cells):
    database = Database.open(write(tmp_path / "t.csv", cells), key="x", value="v")
    assert [database.ask(cell, score="exact").value for cell in cells] == list(range(len(cells)))


def test_large_whole_numbers_beside_a_bad_cell_stay_exact(tmp_path):
    cells = [2**63 - 1, 2**63 - 2, 2**64 - 1, "n/a"]
    database = Database.open(write(tmp_path / "t.csv", cells), key="x", value="v")
    assert [database.ask(str(cell)).value for cell in cells[:3]] == [0, 1, 2]


@pytest.mark.parametrize("kind", ["key", "value"])
def test_dates_of_other_years_than_1_to_9999_are_left_out_and_named(kind):
    days = pa.array([10**18, 0, 86_400_000_000], pa.int64()).cast(pa.timestamp("us"))
    table = pa.table({"x": [1.0, 2.0, 3.0], "day": days})
    key, value = ("day", "x") if kind == "key" else ("x", "day")
    answer = Database.open(table, key, value).ask(dt.datetime(1970, 1, 1) if kind == "key" else 2.0, normalizer="hard")
    assert answer.value == (2.0 if kind == "key" else dt.datetime(1970, 1, 1))
    said = "day: 1 cell is not a date of the years 1 to 9999, such as '33658-09-27T01:46:40.000000', left out"
    assert said in answer.notes
    assert "Infinity" not in repr(Database.open(table.append_column("n", pa.array([0, 1, 2])), "n", "x").ask(0))
    with pytest.raises(DataError, match="must be dates of the years 1 to 9999"):
        Database.open(table, key, value, on_bad_cell="refuse")


def test_averages_of_the_first_and_last_dates_are_dates_and_lines_beyond_them_are_means():
    last = dt.datetime.max
    for cells in ([last] * 3, [dt.datetime.min, last, last], [dt.date.max] * 3, [dt.date.min] * 3):
        days = Database.open({"x": [1.0, 2.0, 3.0], "day": cells}, "x", "day")
        for aggregate in ("mean", "local-linear"):
            assert days.ask(3.0, aggregate=aggregate, score="gaussian:0.3").value.year in (1, 9999)
    rising = {"x": range(10), "day": [dt.date(9999, 12, 22 + day) for day in range(10)]}
    answer = Database.open(rising, "x", "day").ask(10.0, aggregate="local-linear", score="gaussian:4", max_distance=9)
    assert answer.value == Database.open(rising, "x", "day").ask(10.0, score="gaussian:4", max_distance=9).value
    assert answer.fit_note == "weighted mean, because a line through the rows near the query leaves the range of times"
