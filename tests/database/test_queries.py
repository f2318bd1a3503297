"""Parsing of queries in every accepted form."""

import datetime as dt
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from qkv.database import Database
from qkv.errors import OptionError, QueryError

POINTS = {"x": [0.0, 1.0, 2.0, 3.0], "y": [0.0, 1.0, 2.0, 3.0], "v": [1.0, 2.0, 3.0, 4.0]}
NAMES = {"first": ["Ann", "Bob"], "last": ["Lee", "Ray, Jr"], "v": [1.0, 2.0]}


def points(key="x,y"):
    return Database.open(POINTS, key=key, value="v")


PLACES = {"at": [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], "x": [1.0, 2.0, 3.0], "v": [1.0, 2.0, 3.0]}


@pytest.mark.parametrize(
    "query",
    [
        ([1.0, 0.0], 2),
        ((1, 0), 2.0),
        [np.array([1.0, 0.0]), 2],
        {"at": [1, 0], "x": 2},
        {"at": pa.scalar([1.0, 0.0]), "x": pa.scalar(2)},
        np.array([np.array([1.0, 0.0]), 2.0], object),
    ],
)
def test_a_vector_beside_a_number_is_one_query(query):
    database = Database.open(PLACES, "at,x", "v")
    one, several = database.ask(query), database.ask([query, ([0, 1], 1)])
    assert one.single
    assert not several.single
    assert one.value == database.ask([query]).value[0] == several.value[0]


def test_two_vectors_are_one_query_of_two_key_columns():
    database = Database.open({**PLACES, "to": PLACES["at"]}, "at,to", "v")
    assert database.ask(([1, 0], [1, 0])).single
    assert database.ask([([1, 0], [1, 0]), ([0, 1], [0, 1])]).value == pytest.approx([1.0, 2.0], abs=0.01)
    with pytest.raises(QueryError, match="must be a vector of 2 finite elements"):
        database.ask(([1, 0, 0], [1, 0]))


@pytest.mark.parametrize(
    "query",
    [
        (1, 2),
        [1.0, 2.0],
        "1,2",
        " 1 , 2 ",
        {"x": 1, "y": 2},
        {"y": "2", "x": "1"},
        np.array([1.0, 2.0]),
        (pa.scalar(1), 2),
    ],
)
def test_one_query_of_two_columns_however_it_is_written(query):
    answer = points().ask(query, score="gaussian:1")
    expected = points().ask((1, 2), score="gaussian:1")
    assert answer.single
    assert answer.value == expected.value


@pytest.mark.parametrize(
    "queries",
    [
        [(1, 2), (3, 3)],
        [[1, 2], [3, 3]],
        ["1,2", "3,3"],
        [{"x": 1, "y": 2}, {"x": 3, "y": 3}],
        np.array([[1.0, 2.0], [3.0, 3.0]]),
        pd.DataFrame({"y": [2.0, 3.0], "x": [1.0, 3.0]}),
        pa.table({"x": [1.0, 3.0], "y": [2.0, 3.0]}),
    ],
    ids=lambda queries: type(queries).__name__,
)
def test_two_queries_of_two_columns_however_they_are_written(queries):
    answer = points().ask(queries, score="gaussian:1")
    assert len(answer) == 2
    alone = [points().ask(query, score="gaussian:1").value for query in ((1, 2), (3, 3))]
    assert answer.value == pytest.approx(alone, rel=1e-14)


@pytest.mark.parametrize(
    "queries",
    [
        [1, 2.5],
        (1, 2.5),
        np.array([1, 2.5]),
        pa.array([1, 2.5]),
        pd.Series([1, 2.5]),
        ["1", "2.5"],
        torch.tensor([1, 2.5]),
        [torch.tensor(1), Fraction(5, 2)],
        [pa.scalar(1), pa.scalar(2.5)],
    ],
)
def test_many_queries_of_one_column(queries):
    answer = points("x").ask(queries, score="gaussian:1")
    alone = [points("x").ask(query, score="gaussian:1").value for query in (1, 2.5)]
    assert answer.value == pytest.approx(alone, rel=1e-14)


def test_a_comma_within_quotes_belongs_to_the_part():
    people = Database.open(NAMES, key="first,last", value="v")
    assert people.ask('Bob,"Ray, Jr"').value == pytest.approx(2.0, abs=1e-3)


def test_no_queries_have_no_answers():
    answer = points("x").ask([])
    assert (answer.value, len(answer), list(answer)) == ([], 0, [])
    assert answer.to_arrow().num_rows == 0


@pytest.mark.parametrize("truth", [True, np.bool_(False), np.array([True]), [True]])
@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([0, 1, 2], "a finite number"),
        ([0.5, 1.0, 2.0], "a finite number"),
        ([dt.timedelta(hours=1), dt.timedelta(days=1), dt.timedelta(days=2)], "a duration, in days"),
        ([dt.time(1), dt.time(2), dt.time(3)], "a time of day"),
    ],
)
def test_a_truth_value_is_no_number(truth, cells, said):
    with pytest.raises(QueryError, match=f"must be {said}, got (True|False)"):
        Database.open({"x": cells, "v": [1, 2, 3]}, "x", "v").ask(truth)


def test_truth_values_are_elements_of_vectors_of_them_alone():
    cells = [[True, False], [False, True]]
    assert Database.open({"x": cells, "v": [1, 2]}, "x", "v").ask([False, True], score="exact").value == 2
    with pytest.raises(QueryError, match="must be a vector of 2 finite elements, got"):
        Database.open({"x": np.array(cells, float), "v": [1, 2]}, "x", "v").ask([False, 1.0])


@pytest.mark.parametrize("missing", [None, float("nan"), np.datetime64("NaT"), pd.NaT, pd.NA, "", "  "])
def test_a_missing_query_is_no_match(missing):
    answer = points("x").ask(missing)
    assert not answer.found
    assert answer.reason == "the query is missing"
    assert points("x").ask([1, missing]).found == [True, False]


DATES = {"day": [dt.date(2020, 1, 1), dt.date(2020, 1, 11), dt.date(2020, 1, 21)], "n": [1.0, 2.0, 3.0]}
TIMES = {"at": [dt.datetime(2020, 1, 1, 6, tzinfo=dt.UTC), dt.datetime(2020, 1, 2, 6, tzinfo=dt.UTC)], "n": [1.0, 2.0]}


@pytest.mark.parametrize(
    "query",
    [
        "2020-01-11",
        dt.date(2020, 1, 11),
        dt.datetime(2020, 1, 11, 8),
        np.datetime64("2020-01-11"),
        pa.scalar(dt.date(2020, 1, 11)),
        pa.scalar(1578700800 * 10**9, pa.timestamp("ns")),
    ],
)
def test_a_date_however_it_is_written(query):
    assert Database.open(DATES, key="day", value="n").ask(query, score="exact").value == 2.0


@pytest.mark.parametrize("query", ["2020-01-02T06:00:00+00:00", "2020-01-02 08:00+02:00", dt.datetime(2020, 1, 2, 6)])
def test_a_timestamp_with_a_time_zone_however_it_is_written(query):
    assert Database.open(TIMES, key="at", value="n").ask(query, score="exact").value == 2.0


@pytest.mark.parametrize(("query", "expected"), [(True, 1.0), ("yes", 1.0), ("False", 2.0), (0, 2.0), ("T", 1.0)])
def test_a_boolean_however_it_is_written(query, expected):
    table = {"member": [True, False], "n": [1.0, 2.0]}
    assert Database.open(table, key="member", value="n").ask(query).value == expected


VECTORS = {"at": [[1.0, 0.0], [0.0, 1.0]], "n": [1.0, 2.0]}
MISFITS = [
    (POINTS, "x", dt.date(2020, 1, 1), "must be a finite number"),
    (
        POINTS,
        "x,y",
        "1",
        r"must have 2 parts, one for each of x, y, got 1 in '1'\. Pass one value per key column, such as 2,2",
    ),
    (POINTS, "x,y", (1, 2, 3), "got 3 in"),
    (POINTS, "x,y", {"x": 1}, "must have the key column 'y'"),
    (POINTS, "x,y", 7, "got 1 in 7"),
    (NAMES, "first", 42, "the query for the key 'first' must be a text, got 42"),
    (DATES, "day", 3.5, "must be a timestamp"),
    (VECTORS, "at", [1.0, 2.0, 3.0], "must be a vector of 2 finite elements"),
    (VECTORS, "at", "north", "must be a vector of 2 finite elements"),
]


@pytest.mark.parametrize(("table", "key", "query", "said"), MISFITS)
def test_a_query_of_another_kind_than_its_key_is_refused(table, key, query, said):
    value = next(reversed(table))
    with pytest.raises(QueryError, match=said) as error:
        Database.open(table, key=key, value=value).ask(query)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("cells", "example"),
    [
        ([1.0, 2.5, 4.0], "2.5"),
        ([123456.789, 0.0], "0"),
        ([None, 7.0, None], "7"),
        ([True, False, True], "true"),
        ([dt.date(2020, 1, 2), dt.date(2020, 3, 4)], "2020-03-04"),
        ([[1.0, 2.0], [3.25, 4.0]], "[3.25, 4]"),
        ([[1.0, 2.0, 3.0, 4.0, 5.0]], "[1, 2, 3, 4, …]"),
    ],
)
def test_a_refused_query_is_shown_the_middle_cell_of_the_key_as_an_example(cells, example):
    with pytest.raises(QueryError) as error:
        Database.open({"k": cells, "v": list(range(len(cells)))}, key="k", value="v").ask(object())
    assert str(error.value).endswith(f"Use, for example, {example}.")


def test_a_frame_of_queries_without_the_key_is_refused_with_its_columns():
    with pytest.raises(QueryError, match="must have the key column 'y', got the columns x, z"):
        points().ask(pd.DataFrame({"x": [1.0], "z": [2.0]}))


@pytest.mark.parametrize("top", [0, -1, 2.5])
def test_top_is_a_positive_number(top):
    with pytest.raises(OptionError, match="top must be"):
        points("x").ask(1, top=top)


def test_a_record_is_shown_in_the_order_of_the_key_columns():
    database = Database.open({"k": ["a", "b"], "n": [1, 2], "v": [5.0, 6.0]}, key="k,n", value="v")
    answer = database.ask({"n": 2, "other": 0, "k": "b"}, score="exact")
    assert (answer.query, answer.value) == (("b", 2), 6.0)
    assert answer.to_arrow().to_pylist()[0]["query_k"] == "b"


def test_a_text_with_escapes_is_a_key_as_it_is_unless_it_was_printed():
    keys = ["a\tb", "c\\x09d", "C:\\x41\\new"]
    database = Database.open({"k": keys, "v": [0.0, 1.0, 2.0]}, key="k", value="v")
    assert database.ask(keys, score="exact").value == [0.0, 1.0, 2.0]
    printed = "a\\x09b"
    reason = "no key equals the query; printed=True reads the escapes in the query"
    assert database.ask(printed, score="exact").reason == reason
    answer = database.ask(printed, score="exact", printed=True)
    assert (answer.value, answer.query, answer.single) == (0.0, printed, True)
    # The text as it is matches better than the text with its escapes read.
    assert database.ask("C:\\x41\\new", printed=True).value == 2.0
