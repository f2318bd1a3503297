"""What a column holds, and what is missing in it."""

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pytest

from qkv.database import Database
from qkv.encoders import columns
from qkv.encoders.arrow_columns import with_microseconds
from qkv.encoders.columns import Column, fold

UTC = dt.UTC
KINDS = [
    ("text", ["a", None, "b"]),
    ("text", pa.array(["a", None, "b"], pa.large_string())),
    ("category", pa.array(["a", None, "b"]).dictionary_encode()),
    ("number", [1, None, 3]),
    ("number", pa.array([1, None, 3], pa.uint8())),
    ("number", [1.5, None, 2.5]),
    ("number", pa.array(np.array([1.5, np.nan, 2.5], np.float16))),
    ("number", [1.5, float("nan"), float("2.5")]),
    ("number", [1.5, float("inf"), 2.5]),
    ("number", [decimal.Decimal("1.50"), None, decimal.Decimal("2.50")]),
    ("number", pa.array([1, None, 3]).dictionary_encode()),
    ("boolean", [True, None, False]),
    ("timestamp", [dt.date(2020, 1, 1), None, dt.date(2021, 1, 1)]),
    ("timestamp", pa.array([0, None, 86_400_000], pa.date64())),
    ("timestamp", [dt.datetime(2020, 1, 1), None, dt.datetime(2021, 1, 1)]),
    ("timestamp", [dt.datetime(2020, 1, 1, tzinfo=UTC), None, dt.datetime(2021, 1, 1, tzinfo=UTC)]),
    ("timestamp", [dt.time(12, 30), None, dt.time(1, 2)]),
    ("timestamp", [dt.timedelta(days=1), None, dt.timedelta(hours=1)]),
    ("vector", [[1.0, 2.0], None, [3.0, 4.0]]),
    ("vector", [[1.0, 2.0], [1.0, None], [3.0, 4.0]]),
    ("vector", pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2))),
]


@pytest.mark.parametrize(("kind", "cells"), KINDS)
def test_the_second_cell_is_missing_in_every_kind_and_in_every_slice(kind, cells):
    table = with_microseconds(pa.table({"c": cells}))
    doubled = pa.concat_tables([table, table.slice(1)])
    assert Column.from_table(table, "c").kind == kind
    assert Column.from_table(table, "c").missing.tolist() == [False, True, False]
    assert Column.from_table(doubled, "c").missing.tolist() == [False, True, False, True, False]
    assert np.array_equal(Column.from_table(doubled, "c").cells[[0, 2]], Column.from_table(table, "c").cells[[0, 2]])


@pytest.mark.parametrize(("kind", "cells"), [case for case in KINDS if case[0] == "timestamp"])
def test_moments_come_back_as_they_were(kind, cells):
    table = pa.table({"c": cells})
    column = Column.from_table(table, "c")
    assert [column.timestamp(column.cells[row]) for row in (0, 2)] == [table["c"][row].as_py() for row in (0, 2)]


def test_a_timestamp_with_a_zone_comes_back_in_its_zone():
    when = dt.datetime(2020, 7, 1, 12, tzinfo=UTC)
    for zone, hour in (("Europe/Oslo", 14), ("+05:30", 17), ("UTC", 12)):
        column = Column.from_table(pa.table({"c": pa.array([when], pa.timestamp("us", zone))}), "c")
        assert column.timestamp(0) == when
        assert column.timestamp(0).hour == hour


@pytest.mark.parametrize("text", ["john doe", "John  Doe", " JOHN\tDOE ", "Ｊｏｈｎ Doe"])
def test_case_space_and_width_do_not_tell_texts_apart(text):
    assert fold(text) == "john doe"


def test_case_tells_texts_apart_for_exact_or_without_folding():
    table = {"name": ["Li", "LI"], "n": [1, 2]}
    assert Database.open(table, key="name", value="n", fold=False).ask("LI", score="exact").value == 2.0
    assert Database.open(table, key="name", value="n").ask("LI", score="exact").value == 2.0
    # Without a score, a query that equals a key regardless of case is answered from the rows of this key.
    assert Database.open(table, key="name", value="n").ask("li", min_similarity=1).value == 1.5
    assert not Database.open(table, key="name", value="n").ask("lit", min_similarity=1).found


def test_rows_without_key_or_value_are_left_out_and_counted():
    table = {"name": ["a", None, "c", "  ", "e"], "n": [1.0, 2.0, None, 4.0, 5.0]}
    database = Database.open(table, key="name", value="n")
    assert len(database) == 2
    assert database.missing_cells == {"name": 2, "n": 1}
    answer = database.ask("a", normalizer="mean")
    assert answer.value == 3.0
    assert "3 left out (name missing in 2, n missing in 1)" in answer.notes[0]


@pytest.mark.parametrize("cells", [[3, 1, None, 4, 1, 5], ["b", "a", None, "c", "a", "d"], [[1.0], [2.0], None] * 2])
@pytest.mark.parametrize("slices", [0, 1000])
def test_some_rows_of_a_column_are_those_of_the_table(cells, slices, monkeypatch):
    monkeypatch.setattr(columns, "_MOST_SLICES", slices)
    table = pa.table({"x": pa.chunked_array([cells[:2], cells[2:]])})
    column = Column.from_table(table, "x")
    for rows in ([], [0], [0, 1, 2], [1, 2, 3, 5], [5, 0, 0, 3]):
        part = column.take(np.array(rows, np.int64))
        wanted = Column.from_table(table.take(pa.array(rows, pa.int64())), "x", like=column)
        assert part.cells.tolist() == wanted.cells.tolist()
        assert part.missing.tolist() == wanted.missing.tolist()
        assert (part.integers is None) == (wanted.integers is None)
        if part.integers is not None:
            assert part.integers.tolist() == wanted.integers.tolist()
