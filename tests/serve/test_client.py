"""The client returns the answer that the database itself returns, field by field."""

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pytest

from qkv.database import Database
from qkv.database.answer import Answer, Entry
from qkv.encoders.arrow_columns import to_python
from qkv.errors import KindError, OptionError, QueryError, ServerError
from qkv.serve import Client, ServedStore, serve_in_thread

from .conftest import PAY

TOKEN = "0123456789abcdef-token"
DAY = dt.date(2020, 1, 1)
ROWS = pa.table(
    {
        "name": ["Ann Lee", "Bob Ray", "Cy Moe", "Di Fox", "Ed Poe"],
        "age": [31, 42, 53, 64, 75],
        "day": [DAY + dt.timedelta(days=9 * i) for i in range(5)],
        "moment": pa.array([10**18 + i for i in range(5)], pa.timestamp("ns")),
        "change": pa.array(
            [0, *(1603584000000000001 + 3600 * 10**9 * i for i in range(4))], pa.timestamp("ns", "Europe/Oslo")
        ),
        "view": pa.array(list("abcde"), pa.string_view()),
        "vector": pa.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [1.0, 3.0]], pa.list_(pa.float32(), 2)),
        "price": [decimal.Decimal("1.10"), decimal.Decimal("2.25"), None, decimal.Decimal("3.50"), decimal.Decimal(4)],
        "town": pa.array(["Oslo", "Rome", "Oslo", "Rome", "Oslo"]).dictionary_encode(),
        "good": [True, False, True, True, False],
        "tags": [["a"], [], None, ["b", "c"], ["d"]],
    }
)


def assert_equal(found: Answer, expected: Answer) -> None:
    """Check that two answers are equal field by field, with the text of the plan."""
    assert type(found) is type(expected) is Answer
    assert len(found) == len(expected)
    for mine, theirs in zip(found.entries, expected.entries, strict=True):
        for name in Entry.__dataclass_fields__:
            left, right = getattr(mine, name), getattr(theirs, name)
            np.testing.assert_equal(left, right, err_msg=name)
            assert type(left) is type(right) or name in ("value", "spread", "perplexity", "standard_error", "query"), (
                name
            )
        assert list(mine.probabilities) == list(theirs.probabilities)
    assert found.rows == expected.rows
    for name in ("single", "keys", "value_name", "measure", "notes", "column_notes", "votes"):
        assert getattr(found, name) == getattr(expected, name)
    assert (str(found.plan), repr(found)) == (str(expected.plan), repr(expected))
    assert found.to_arrow().equals(expected.to_arrow())


CASES = [
    ("age", "price", 40, {}),
    ("age", "price", [40, np.float64(55.5), None], {"top": 2}),
    ("age", "price", np.array([40.0, 50.0]), {"score": "laplace:0.5", "normalizer": "topk:3"}),
    ("age", "price", ["40", "x"], {"on_bad_query": "report"}),
    ("age", "town", [40, 70], {"where": "good"}),
    ("age", "age", 50, {"aggregate": "local-linear"}),
    ("age", "age", [50], {"normalizer": "sample", "seed": 5}),
    ("age", "day", [40, 70], {"score": "boxcar:0.5"}),
    ("age", "vector", [40, 70], {}),
    ("age", "good", [40, 70], {}),
    ("age", "moment", [40], {}),
    ("day", "age", [dt.date(2020, 1, 5), dt.date(2020, 2, 1)], {}),
    ("day", "age", "2020-02-01", {}),
    ("day", "town", dt.datetime(2020, 1, 20, 12), {}),
    ("moment", "age", ROWS["moment"][2].value, {"on_bad_query": "report"}),
    ("change", "age", to_python(ROWS["change"])[1:3], {"score": "exact"}),
    ("view", "age", ["a", "d"], {}),
    ("name", "age", "An Lee", {}),
    ("name", "town", ["Bob Rai", "Zoe"], {"min_similarity": 0.5}),
    ("name", "age", {"name": "Cy Moe"}, {"printed": True}),
    ("name", "age", pa.table({"name": ["Ann Lee", "Di Fox"]}), {}),
    ("vector", "age", [1.0, 0.5], {"score": "cosine"}),
    ("vector", "age", [[1.0, 0.5], [0.0, 1.0]], {"score": "cosine"}),
    (("name", "age"), "price", ("Ann Lee", 30), {}),
    (("name", "age"), "price", [("Ann Lee", 30), {"name": "Bob Ray", "age": 41}], {}),
    (("name", "age"), "price", "Ann Lee,30", {}),
    (("town", "good"), "age", [("Oslo", True), ("Rome", False)], {}),
]


@pytest.mark.parametrize(("key", "value", "queries", "options"), CASES, ids=lambda x: "".join(str(x)[:20].split()))
def test_an_answer_of_the_client_equals_that_of_the_database(key, value, queries, options):
    database = Database.open(ROWS, key, value)
    expected = database.ask(queries, **options)
    served = ServedStore(Database.open(ROWS, key, value))
    with served, serve_in_thread(served) as address, Client(address) as client:
        assert_equal(client.ask(queries, **options), expected)
        assert (client.key, client.value, client.votes) == (database.key, database.value, database.votes)
        assert len(client) == len(database)


@pytest.fixture(scope="module")
def address():
    """The address of a served table, without a token."""
    with ServedStore(Database.open(PAY, key="years", value="pay")) as served, serve_in_thread(served) as address:
        yield address


@pytest.mark.parametrize(
    ("queries", "options", "error"),
    [
        ("x", {}, QueryError),
        (1, {"where": "nope = 1"}, QueryError),
        (1, {"score": "nope"}, OptionError),
        (1, {"top": 0}, OptionError),
        (1, {"aggregate": "nope"}, OptionError),
        (1, {"on_bad_query": "nope"}, OptionError),
    ],
)
def test_an_error_of_the_client_is_that_of_the_database(address, queries, options, error):
    with pytest.raises(error) as expected:
        Database.open(PAY, key="years", value="pay").ask(queries, **options)
    with Client(address) as client, pytest.raises(error) as found:
        client.ask(queries, **options)
    assert str(found.value) == str(expected.value)


def test_a_part_that_is_no_name_is_refused_before_it_is_sent(address):
    from qkv.normalizers import TopK

    with Client(address) as client, pytest.raises(KindError, match="normalizer must be a name"):
        client.ask(1, normalizer=TopK(3))


def test_explain_returns_the_plan_of_the_database(address):
    with Client(address) as client:
        assert client.explain(2.0) == str(Database.open(PAY, key="years", value="pay").ask(2.0).plan)


def test_a_wrong_token_and_a_server_that_does_not_run_are_named():
    with ServedStore(Database.open(PAY, key="years", value="pay")) as served:
        with serve_in_thread(served, token=TOKEN) as address:
            with pytest.raises(ServerError, match="Authorization") as refused:
                Client(address, token="wrong")
            assert refused.value.status == 401
            with Client(address, token=TOKEN) as client:
                assert client.ask(2.0).found
                assert TOKEN not in repr(client)
        with pytest.raises(ServerError, match="qkv serve") as absent:
            Client(address)
        assert absent.value.status == 0
