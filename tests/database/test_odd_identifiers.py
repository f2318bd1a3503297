"""Columns of identifiers that are floats, or that have a few odd cells."""

import json
import random
import uuid

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from qkv.database import Database
from qkv.errors import DataError
from tests.database.databases import every_database

REMEDY = "; a score such as gaussian compares its numbers"
NAMED = f"user_id is read as an identifier, because its whole numbers are named like identifiers{REMEDY}"


def random_ids(draw, odd):
    """Cells of a column of identifiers as floats, with missing cells and some odd ones."""
    cells = [float(draw.randint(1000, 1020)) for _ in range(draw.randint(8, 30))]
    for _ in range(draw.randint(1, 3)):
        cells.insert(draw.randint(0, len(cells)), None)
    for number in odd:
        cells.insert(draw.randint(0, len(cells)), number)
    return cells


def as_frame(cells, folder):
    return pd.DataFrame({"user_id": pd.array(cells, "float64"), "v": [float(row) for row in range(len(cells))]})


def as_csv(cells, folder):
    path = folder / "t.csv"
    as_frame(cells, folder).to_csv(path, index=False)
    return path


def as_json(cells, folder):
    path = folder / "t.jsonl"
    rows = ({"user_id": cell, "v": row} for row, cell in enumerate(cells))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def as_parquet(cells, folder):
    pyarrow.parquet.write_table(pa.Table.from_pandas(as_frame(cells, folder)), folder / "t.parquet")
    return folder / "t.parquet"


@pytest.mark.thinned
@pytest.mark.parametrize("source", [as_frame, as_csv, as_json, as_parquet])
@pytest.mark.parametrize("odd", [(), (12.5,), (12.5, -0.25)])
def test_floats_named_like_identifiers_are_compared_by_equality(source, odd, tmp_path):
    cells = random_ids(random.Random(len(odd)), odd)
    table = source(cells, tmp_path)
    Database.create(tmp_path / "s", table, key="user_id", value="v")
    opened = Database.open(table, key="user_id", value="v")
    for database in (opened, Database.open(tmp_path / "s"), Database.open(tmp_path / "s", memory=1)):
        for key in sorted({cell for cell in cells if cell and cell > 1000}):
            rows = [row for row, cell in enumerate(cells) if cell == key]
            answer = database.ask(str(int(key)))
            assert answer.value == pytest.approx(sum(rows) / len(rows))
            assert answer.rows[0].record["user_id"] == key
            assert answer.perplexity == pytest.approx(len(rows))
        assert NAMED in answer.notes
        assert database.ask("1021").reason == "no key equals the query"
        assert database.ask(12.5).reason == "no key equals the query"
    notes = [note for note in opened.ask(1000).notes if note.endswith("left out") and "whole" in note]
    counted = "1 cell is not a whole number" if len(odd) == 1 else f"{len(odd)} cells are not whole numbers"
    assert [note.split(", such as")[0] for note in notes] == [f"user_id: {counted}"] * bool(odd)


@pytest.mark.parametrize("source", [as_frame, as_csv, as_json, as_parquet])
def test_an_odd_identifier_is_refused_or_makes_quantities_on_request(source, tmp_path):
    table = source([1001.0, 1002.0, 12.5, 1004.0], tmp_path)
    with pytest.raises(DataError, match=r"the cells of 'user_id' must be whole numbers in .*, got '12.5'"):
        Database.open(table, key="user_id", value="v", on_bad_cell="refuse")
    kept = Database.open(table, key="user_id", value="v", on_bad_cell="text").ask(12.5)
    assert kept.value == pytest.approx(2.0, abs=0.1)
    assert not any("identifier" in note for note in kept.notes)


def test_quantities_of_other_names_and_columns_of_fractions_stay_quantities():
    for name, cells in (("age", [1.0, 2.0, 3.0, None]), ("user_id", [1.5, 2.5, 3.0, 4.0])):
        answer = Database.open({name: cells, "v": [1.0, 2.0, 3.0, 4.0]}, key=name, value="v").ask(2.2)
        assert answer.found
        assert not any("identifier" in note for note in answer.notes)


def test_float_identifiers_as_values_vote():
    answer = Database.open(pd.DataFrame({"k": list("aab"), "id": [7.0, 7.0, None]}), key="k", value="id").ask("a")
    assert (answer.value, answer.votes) == (7, True)


CODES = [str(uuid.UUID(int=2**100 + i)) for i in range(4)]


@pytest.mark.parametrize(
    ("name", "cells", "query", "reason"),
    [
        ("code", [*CODES, "unknown"], CODES[2].upper(), "more than half of its texts are UUIDs"),
        ("code", [*CODES, "unknown"], "unknown", "more than half of its texts are UUIDs"),
        ("zip", ["02139", "02140", "n/a"], "02140", "nearly every text consists of digits"),
        ("code", [f"{i:05d}" for i in range(20)] + ["A12"], "A12", "nearly every text consists of digits"),
    ],
)
def test_texts_with_a_few_odd_ones_are_identifiers_and_the_odd_ones_keys(name, cells, query, reason, tmp_path):
    table = {name: cells, "v": [float(row) for row in range(len(cells))]}
    expected = [cell.lower() for cell in cells].index(query.lower())
    for database in every_database(tmp_path / "s", table, name, "v"):
        answer = database.ask(query)
        assert (answer.value, answer.perplexity) == (expected, 1.0)
        assert f"{name} is read as an identifier, because {reason}" in answer.notes
        assert database.ask(query + "0").reason == "no key equals the query"


@pytest.mark.parametrize("name", ["part_no", "Postleitzahl"])
def test_identifiers_with_an_exponent_are_the_texts_that_were_written(name, tmp_path):
    draw = random.Random(name)
    cells = [*("1E05", "100000", "2E3", "2000"), *map(str, draw.sample(range(10**4, 10**6), 20))]
    draw.shuffle(cells)
    (tmp_path / "t.csv").write_text(f"{name},v\n" + "".join(f"{cell},{row}\n" for row, cell in enumerate(cells)))
    database = Database.open(tmp_path / "t.csv", key=name, value="v")
    assert [database.ask(cell).value for cell in cells] == list(range(24))


def test_texts_of_which_some_are_digits_stay_names():
    answer = Database.open({"house": ["12", "14", "14 B", "Mill"], "v": [1, 2, 3, 4]}, key="house", value="v").ask(
        "mil"
    )
    assert answer.value == pytest.approx(4)
