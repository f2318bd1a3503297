"""Relations of queries give the answers of `ask`, whatever the source, the size of the parts and the database."""

import datetime as dt
import math
from decimal import Decimal

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from qkv.database import Database
from qkv.database.relations import answer_relation
from qkv.errors import DataError, OptionError, QueryError
from tests.effort import cases

DAYS = [dt.date(2020, 1, 1) + dt.timedelta(days=7 * i) for i in range(24)]
NAMES = ["Ann", "Bo", "Cy Young", "Di", "Édouard", "Flo", "Gus", "Hal"]
TABLE = {
    "years": [0.5 * (i % 11) for i in range(24)],
    "code": [2**60 + i % 7 for i in range(24)],
    "name": [NAMES[i % 8] for i in range(24)],
    "day": DAYS,
    "moment": [dt.datetime(2020, 1, 1 + i, 12, tzinfo=dt.UTC) for i in range(24)],
    "ok": [i % 3 == 0 for i in range(24)],
    "pay": [10.0 + (i * 7919 % 13) for i in range(24)],
    "point": [[float(i % 5), float(i % 3)] for i in range(24)],
    "id": [f"row {i}" for i in range(24)],
}
QUERIES = {
    "years": st.floats(-2, 9) | st.none(),
    "code": st.integers(2**60, 2**60 + 8) | st.none(),
    "name": st.sampled_from([*NAMES, "ann", "Cy", "Bob", "xyz", ""]) | st.none(),
    "day": st.dates(dt.date(2019, 12, 1), dt.date(2020, 9, 1)) | st.none(),
    "moment": st.datetimes(dt.datetime(2020, 1, 1), dt.datetime(2020, 2, 1), timezones=st.just(dt.UTC)) | st.none(),
    "ok": st.booleans() | st.none(),
    "point": st.lists(st.floats(-1, 5), min_size=2, max_size=2) | st.none(),
}
TYPES = {"moment": pa.timestamp("us", "UTC"), "point": pa.list_(pa.float64()), "day": pa.date32(), "ok": pa.bool_()}
TYPES |= {"name": pa.string(), "years": pa.float64(), "code": pa.int64()}
VALUES = ["pay", "day", "moment", "name", "ok", "point"]


def rows(answer):
    """Return the rows of a relation as `ask` states them."""
    out = []
    for one in answer:
        lower, upper = one.prediction_interval or (None, None)
        measure = one.measure
        out.append(
            {"value": one.value.tolist() if isinstance(one.value, np.ndarray) else one.value}
            | ({"probability": one.probabilities.get(one.value)} if isinstance(one.value, str | bool) else {})
            | {"standard_error": one.standard_error, "lower": lower, "upper": upper, "spread": one.spread}
            | {"effective_rows": one.effective_rows, "found": one.found, "reason": one.reason or None}
            | {
                "evidence": [
                    {"id": row.record["id"], "weight": row.weight}
                    | ({measure: getattr(row, measure)} if measure else {})
                    for row in one.rows
                ]
            }
        )
    return out


def same(left, right):
    """Return whether nested values are equal, numbers up to rounding and durations up to a microsecond."""
    if isinstance(left, dict):
        assert {k for k, v in left.items() if v is not None} == {k for k, v in right.items() if v is not None}
        return all(same(value, right[name]) for name, value in left.items() if value is not None)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if hasattr(right, "nanoseconds"):  # DuckDB returns intervals
        right = dt.timedelta(days=right.days, microseconds=right.nanoseconds // 1000)
    if isinstance(left, float):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(left, dt.timedelta | dt.datetime):
        return abs(left - right) <= dt.timedelta(microseconds=2)
    return left == right


@settings(
    max_examples=cases(25), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_a_relation_is_answered_like_a_list_of_queries(monkeypatch, data):
    monkeypatch.setattr(answer_relation, "_ROWS", data.draw(st.integers(1, 5)))
    keys = data.draw(st.lists(st.sampled_from(list(QUERIES)), min_size=1, max_size=2, unique=True))
    value = data.draw(st.sampled_from([name for name in VALUES if name not in keys]))
    queries = data.draw(st.lists(st.tuples(*(QUERIES[key] for key in keys)), max_size=7))
    where = data.draw(st.sampled_from([None, "pay > 14", "pay > 99"]))
    cells = list(zip(*queries, strict=True)) or [()] * len(keys)
    columns = {key: pa.array(list(column), TYPES[key]) for key, column in zip(keys, cells, strict=True)}
    relation = pa.table({"number": pa.array(range(len(queries)), pa.int32()), **columns})
    database = Database.open(TABLE, keys, value)
    expected = [
        row
        for query in queries
        for row in rows(database.ask([query if len(keys) > 1 else query[0]], where=where, top=2, on_bad_query="report"))
    ]
    reader = database.ask_batches(relation, where=where, top=2, id="id")
    table = reader.read_all()
    assert table.schema == reader.schema
    assert table.column_names[: len(keys) + 1] == ["number", *(k if k != "value" else "query_value" for k in keys)]
    assert table["number"].to_pylist() == list(range(len(queries)))
    answers = table.drop_columns(["number", *keys]).to_pylist()
    assert same(expected, answers)
    connection = duckdb.connect()
    database.create_function(connection, "answer", where=where, top=2, id="id")
    connection.register("relation", relation)
    call = f"answer({', '.join(keys)})"
    unnested = connection.sql(f"select unnest({call}) from relation order by number").to_arrow_table().to_pylist()
    assert same(expected, unnested)


@pytest.fixture(name="stores", scope="module")
def _stores(tmp_path_factory):
    path = tmp_path_factory.mktemp("stores") / "rows"
    table = pa.table(TABLE)
    Database.create(path, table.slice(0, 10), "years", "pay").append(table.slice(10))
    return [Database.open(TABLE, "years", "pay"), Database.open(path), Database.open(path, memory=1)]


@pytest.mark.parametrize("where", [None, "ok"])
def test_stores_give_the_relation_of_a_table_in_memory(stores, where):
    queries = pa.table({"years": [0.0, 2.25, None, 99.0, 2.25]})
    tables = [database.ask_batches(queries, where=where, id="id").read_all() for database in stores]
    for table in tables[1:]:
        assert table.schema == tables[0].schema
        assert same(tables[0].to_pylist(), table.to_pylist())
    for database in stores:
        connection = duckdb.connect()
        database.create_function(connection, "pay", where=where, id="id")
        result = connection.sql("select unnest(pay(years)) from queries").to_arrow_table().to_pylist()
        assert same([{k: v for k, v in row.items() if k != "years"} for row in tables[0].to_pylist()], result)


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([1603584000000000, 1603587600000000], pa.timestamp("us", "Europe/Oslo")),
        pa.array([90_061, 3600], pa.duration("s")),
    ],
    ids=["the hour when clocks are set back", "durations, which DuckDB passes as intervals"],
)
def test_every_query_of_a_relation_and_of_a_function_has_its_own_answer(keys):
    queries = pa.table({"key": keys})
    database = Database.open(queries.append_column("value", pa.array([1.0, 2.0])), "key", "value")
    assert database.ask_batches(queries, score="exact").read_all()["value"].to_pylist() == [1, 2]
    connection = duckdb.connect()
    database.create_function(connection, "f", score="exact")
    connection.register("queries", queries)
    assert connection.sql("select f(key).value from queries").fetchall() == [(1,), (2,)]


def test_queries_are_read_no_further_than_their_answers():
    database = Database.open({"x": [1, 2, 3, 4], "y": [1, 4, 9, 16]}, "x", "y")
    read = []

    def batches():
        for number in range(1000):
            read.append(number)
            yield pa.record_batch({"x": np.full(1000, float(number % 5))})

    source = pa.RecordBatchReader.from_batches(pa.schema({"x": pa.float64()}), batches())
    reader = database.ask_batches(source)
    for number in range(5):
        assert reader.read_next_batch().num_rows == 1000
        assert len(read) == number + 1


def test_sources_of_queries_give_the_same_relation(tmp_path):
    database = Database.open({"name": ["Li", "Hu", "Zoë"], "pay": [1, 2, 3]}, "name", "pay")
    queries = pa.table({"name": ["zoë", "Hu"]})
    (tmp_path / "q.csv").write_text("name\nzoë\nHu\n")
    (tmp_path / "q.jsonl").write_text('{"name": "zoë"}\n{"name": "Hu"}\n')
    parquet.write_table(queries, tmp_path / "q.parquet")
    connection = duckdb.connect()
    sources = [queries, queries.to_batches()[0], queries.to_reader(), queries.to_pandas(), queries.to_pylist()]
    sources += [queries.to_pydict(), connection.sql("select unnest(['zoë', 'Hu']) as name")]
    sources += [tmp_path / "q.csv", str(tmp_path / "q.jsonl"), tmp_path / "q.parquet"]
    expected = database.ask_batches(queries).read_all()
    assert expected["found"].to_pylist() == [True, True]
    for source in sources:
        assert database.ask_batches(source).read_all().to_pylist() == expected.to_pylist()
    whole = database.ask_batches([tmp_path / "q.csv", tmp_path / "q.parquet"]).read_all()
    assert whole.to_pylist() == expected.to_pylist() * 2


def test_a_late_cell_of_another_type_is_answered_by_its_reason(tmp_path):
    database = Database.open({"x": [1, 2, 3, 4], "y": [1, 4, 9, 16]}, "x", "y")
    lines = [str(1 + i % 4) for i in range(24_000)]
    lines[22_000] = "oops"
    (tmp_path / "q.csv").write_text("x\n" + "\n".join(lines) + "\n")
    table = database.ask_batches(tmp_path / "q.csv").read_all()
    assert table.num_rows == 24_000
    bad = [i for i, found in enumerate(table["found"].to_pylist()) if not found]
    assert bad == [22_000]
    assert "must be a finite number, got 'oops'" in table["reason"][22_000].as_py()


def test_each_part_draws_other_numbers_and_the_first_part_those_of_ask(monkeypatch):
    monkeypatch.setattr(answer_relation, "_ROWS", 10)
    database = Database.open({"x": [0.0] * 50, "y": range(50)}, "x", "y")
    options = {"score": "constant", "normalizer": "sample", "seed": 3}
    values = database.ask_batches({"x": [0.0] * 30}, **options).read_all()["value"].to_pylist()
    assert values[:10] == database.ask([0.0] * 10, **options).value
    assert len({tuple(values[i : i + 10]) for i in (0, 10, 20)}) == 3
    assert values == database.ask_batches({"x": [0.0] * 30}, **options).read_all()["value"].to_pylist()


def test_columns_of_queries_are_matched_by_name(tmp_path):
    database = Database.open({"name": ["Li", "Hu"], "age": [30, 40], "pay": [1, 2]}, "name,age", "pay")
    queries = {"guest": ["Li"], "age": [30], "value": ["kept"], "found": [7]}
    for on in ("name=guest", "name=guest, age", {"name": "guest"}, {"name": "guest", "age": "age"}):
        row = database.ask_batches(queries, on=on).read_all().to_pylist()[0]
        assert (row["guest"], row["query_value"], row["query_found"], row["found"]) == ("Li", "kept", 7, True)
    for on, message in [
        (None, "the queries must have the column 'name'"),
        ("name=gest", "Did you mean 'guest'"),
        ("pay=guest", "on must name the key columns name, age, got 'pay'"),
    ]:
        with pytest.raises(QueryError, match=message):
            database.ask_batches(queries, on=on)
    with pytest.raises(QueryError, match="must have different names"):
        database.ask_batches({"name": ["Li"], "age": [1], "value": [1], "query_value": [2]})
    with pytest.raises(QueryError, match="the column 'name' of the queries must hold texts, like the key 'name'"):
        database.ask_batches({"name": [1], "age": [1]})
    with pytest.raises(DataError, match="id must be one of name, age, pay, got 'ID'"):
        database.ask_batches({"name": ["Li"], "age": [1]}, id="ID")
    single = Database.open({"name": ["Li", "Hu"], "pay": [1, 2]}, "name", "pay")
    assert single.ask_batches({"guest": ["Li"]}).read_all()["value"].to_pylist() == [1.0]
    # The first line of a file with one column may be a query.
    (tmp_path / "q.csv").write_text("Li\nHu\n")
    with pytest.raises(QueryError, match="the queries must have the column 'name'"):
        single.ask_batches(tmp_path / "q.csv")


def test_errors_of_the_source_are_reported(tmp_path):
    database = Database.open({"x": [1, 2], "y": [1, 4]}, "x", "y")
    with pytest.raises(DataError, match="must be an existing file"):
        database.ask_batches(tmp_path / "q.parquet")

    def broken():
        yield pa.record_batch({"x": [1.0]})
        raise ValueError("the disk is gone")

    reader = database.ask_batches(pa.RecordBatchReader.from_batches(pa.schema({"x": pa.float64()}), broken()))
    assert reader.read_next_batch().num_rows == 1
    with pytest.raises(DataError, match="the disk is gone"):
        reader.read_next_batch()


def test_a_function_of_duckdb_reports_its_options_when_it_is_created():
    database = Database.open({"x": [1, 2], "y": [1, 4]}, "x", "y")
    connection = duckdb.connect()
    with pytest.raises(OptionError, match="score must be one of"):
        database.create_function(connection, "f", score="nope")
    with pytest.raises(OptionError, match="normalizer must not sample"):
        database.create_function(connection, "f", normalizer="sample")
    with pytest.raises(QueryError, match="the predicate 'z = 1' failed"):
        database.create_function(connection, "f", where="z = 1")
    database.create_function(connection, "f")
    with pytest.raises(OptionError, match="name must be that of a new function, got 'f'"):
        database.create_function(connection, "f")
    # Several threads of DuckDB call the function.
    total = connection.sql("select count(*), sum(f(i % 2 + 1).value) from range(50000) t(i)").fetchall()
    one, two = (database.ask(x).value for x in (1, 2))
    assert total[0][0] == 50_000
    assert total[0][1] == pytest.approx(25_000 * (one + two))


LARGE = 2**53
ROUNDED = {
    "integers": (pa.array([LARGE, LARGE + 1], pa.int64()), str(LARGE + 1), 2),
    "decimals of many digits": (
        pa.array([Decimal("1.0000000000000000001"), Decimal(2)]),
        "1.00000000000000000012",
        None,
    ),
    "decimals": (pa.array([Decimal("1.23"), Decimal("4.56")]), "1.234", None),
    "timestamps of seconds": (pa.array([1, 2], pa.timestamp("s")), "timestamp '1970-01-01 00:00:01.5'", None),
}


@pytest.mark.thinned
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("kind", ROUNDED)
def test_a_function_of_duckdb_does_not_round_a_query_to_a_key(kind, stored, tmp_path):
    keys, query, value = ROUNDED[kind]
    table = pa.table({"key": keys, "value": [1.0, 2.0]})
    if stored:
        Database.create(tmp_path / "store", table, "key", "value")
    database = Database.open(tmp_path / "store", memory=1) if stored else Database.open(table, "key", "value")
    connection = duckdb.connect()
    database.create_function(connection, "f", score="exact")
    assert connection.sql(f"select f({query}).value").fetchall() == [(value,)]


def test_durations_with_nanoseconds_are_refused_in_a_function_and_votes_over_dates_have_a_share_as_error():
    durations = Database.open(pa.table({"key": pa.array([1, 2], pa.duration("ns")), "v": [1.0, 2.0]}), "key", "v")
    with pytest.raises(OptionError, match="must have whole microseconds"):
        durations.create_function(duckdb.connect(), "f")
    days = Database.open({"x": [1, 1, 1], "day": [dt.date(2024, 1, 1)] * 2 + [dt.date(2024, 1, 2)]}, "x", "day")
    (row,) = days.ask_batches({"x": [1]}, aggregate="vote", score="exact").read_all().to_pylist()
    assert row["standard_error"] == pytest.approx(np.sqrt(2 / 9 / 2))


@pytest.mark.parametrize("type_", [pa.timestamp("ns"), pa.time64("ns"), pa.duration("ns")], ids=str)
def test_votes_of_a_relation_keep_their_nanoseconds(type_):
    times = pa.array([1_001, 2_002], pa.int64()).cast(type_)
    database = Database.open(pa.table({"key": ["a", "b"], "time": times}), "key", "time")
    answers = database.ask_batches({"key": ["b", "a", None]}, aggregate="vote").read_all()
    assert answers["value"].cast(pa.int64()).to_pylist() == [2_002, 1_001, None]
