"""Keys of every type are compared exactly, and a printed key is read as the same key."""

import datetime as dt
import decimal
import json
import math
import uuid

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkv.core.printable import printable
from qkv.database import Database
from qkv.database.io.formatting import format_key
from qkv.database.keys.columns import fold
from qkv.database.keys.identifiers import has_identifier_name
from qkv.errors import QueryError

SETTINGS = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
ZONES = ("UTC", "Europe/Oslo", "America/New_York", "+05:30")


def near_limits(least, most):
    """Integers of a range, often neighbors at its ends and near powers of 2, where floats merge them."""
    powers = [sign * 2**power + step for power in (24, 31, 53, 62, 63) for step in (-1, 0, 1, 2) for sign in (1, -1)]
    special = [*(least + i for i in range(3)), *(most - i for i in range(3)), *powers]
    return st.sampled_from([x for x in special if least <= x <= most]) | st.integers(least, most)


def decimals(digits, scale):
    most = 10**digits - 1
    context = decimal.Context(prec=digits + 1)
    return near_limits(-most, most).map(lambda x: decimal.Decimal(x).scaleb(-scale, context))


def moments(unit, zone=None):
    least, most = (dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1)) if zone else (dt.datetime.min, dt.datetime.max)
    cut = {"s": 0, "ms": 1000, "us": 1}[unit]
    whole = st.datetimes(least, most).map(
        lambda t: t.replace(microsecond=t.microsecond // cut * cut if cut else 0, tzinfo=dt.UTC if zone else None)
    )
    return pa.timestamp(unit, zone), whole


INTEGERS = [
    (pa.from_numpy_dtype(np.dtype(name)), near_limits(int(np.iinfo(name).min), int(np.iinfo(name).max)))
    for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
]
FLOATS = [
    (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    (pa.float32(), st.floats(allow_nan=False, allow_infinity=False, width=32)),
]
DECIMALS = [
    (pa.decimal128(5, 2), decimals(5, 2)),
    (pa.decimal128(38, 0), decimals(38, 0)),
    (pa.decimal128(38, 20), decimals(38, 20)),
    (pa.decimal256(70, 30), decimals(70, 30)),
]
TIMES = [
    (pa.date32(), st.dates()),
    *(moments(unit) for unit in ("s", "ms", "us")),
    *(moments("us", zone) for zone in ZONES),
    (pa.time64("us"), st.times()),
    (pa.duration("us"), st.timedeltas(dt.timedelta(days=-36_500), dt.timedelta(days=36_500))),
]
TEXTS = [
    (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(fold)),
    (pa.string(), st.uuids().map(str)),
    (pa.string(), st.integers(0, 10**9).map(lambda x: f"{x:09d}")),
    (pa.dictionary(pa.int32(), pa.string()), st.text("abcXY 1", min_size=1).filter(fold)),
]
VECTORS = [(pa.list_(pa.int64(), 2), st.lists(near_limits(-(2**63), 2**63 - 1), min_size=2, max_size=2))]
TYPES = [*INTEGERS, *FLOATS, *DECIMALS, *TIMES, *TEXTS, *VECTORS, (pa.bool_(), st.booleans())]


@st.composite
def columns(draw):
    """An Arrow array of different keys of a type."""
    type_, cells = draw(st.sampled_from(TYPES))
    same = fold if pa.types.is_string(type_) or pa.types.is_dictionary(type_) else str
    same = (lambda x: x + 0.0) if pa.types.is_floating(type_) else same
    return pa.array(draw(st.lists(cells, min_size=1, max_size=8, unique_by=same)), type_)


def check_keys(database, keys):
    for row, key in enumerate(keys.to_pylist()):
        # Control characters of texts are printed as escapes, which a terminal cannot act on.
        escaped = isinstance(key, str) and printable(key) != key
        for query in ([key] if isinstance(key, list) else key, key if escaped else format_key(key)):
            answer = database.ask(query, score="exact", top=3)
            answer = answer if answer.single else answer[0]
            assert answer.found, (key, query, answer.reason)
            assert [evidence.index for evidence in answer.rows] == [row], (key, query)
            assert answer.value == row


@given(keys=columns())
@settings(SETTINGS, max_examples=250)
def test_different_keys_are_not_merged_and_a_printed_key_is_read_as_itself(keys):
    table = pa.table({"k": keys, "v": np.arange(len(keys), dtype=float)})
    check_keys(Database.open(table, key="k", value="v"), keys)


@given(keys=columns())
@settings(SETTINGS, max_examples=25)
def test_a_store_read_block_by_block_compares_keys_as_exactly(keys, tmp_path_factory):
    table = pa.table({"k": keys, "v": np.arange(len(keys), dtype=float)})
    folder = tmp_path_factory.mktemp("store") / "s"
    Database.create(folder, table, key="k", value="v")
    stored = Database.open(folder, memory=1)
    assert stored.streams
    check_keys(stored, keys)


@given(first=columns(), second=columns())
@settings(SETTINGS, max_examples=60)
def test_keys_of_several_columns_are_compared_exactly(first, second):
    count = min(len(first), len(second))
    rows = [(a, b) for a in first.to_pylist()[:count] for b in second.to_pylist()[:count]]
    table = {"a": pa.array([a for a, _ in rows], first.type), "b": pa.array([b for _, b in rows], second.type)}
    database = Database.open({**table, "v": np.arange(len(rows), dtype=float)}, key=["a", "b"], value="v")
    assert [database.ask([row], score="exact").value[0] for row in rows] == list(range(len(rows)))


@pytest.mark.parametrize(
    ("type_", "key", "query"),
    [
        (pa.int64(), 2**53, 2**53 + 1),
        (pa.int64(), 2**53, "9007199254740993"),
        (pa.int64(), 2**63 - 1, 2**63),
        (pa.int64(), -1, 2**64 - 1),
        (pa.uint64(), 2**64 - 1, -1),
        (pa.uint8(), 1, 257),
        (pa.int32(), 2, 2.5),
        (pa.decimal128(5, 2), decimal.Decimal("1.10"), "1.101"),
        (pa.decimal128(38, 0), decimal.Decimal(10**37), str(10**37 + 1)),
        (pa.timestamp("s"), dt.datetime(2020, 1, 1), "2020-01-01 00:00:00.5"),
        (pa.float64(), 1.0, math.nextafter(1.0, 2.0)),
    ],
)
def test_a_query_that_no_cell_of_the_type_equals_is_no_match(type_, key, query):
    database = Database.open(pa.table({"k": pa.array([key], type_), "v": [1.0]}), key="k", value="v")
    assert database.ask(key, score="exact").value == 1.0
    assert database.ask(query, score="exact").reason == "no key equals the query"


@pytest.mark.parametrize(("query", "row"), [("1.10", 0), (1.1, 0), (1, 1), ("1e0", 1), (decimal.Decimal("1.100"), 0)])
def test_a_decimal_however_it_is_written(query, row):
    keys = pa.array([decimal.Decimal("1.10"), decimal.Decimal("1.00")], pa.decimal128(5, 2))
    assert (
        Database.open(pa.table({"k": keys, "v": [0.0, 1.0]}), key="k", value="v").ask(query, score="exact").value == row
    )


def test_zero_and_minus_zero_are_equal():
    assert Database.open({"k": [0.0, 1.0], "v": [5.0, 6.0]}, key="k", value="v").ask(-0.0, score="exact").value == 5.0


# -- identifiers


@pytest.mark.parametrize(
    ("name", "identifier"),
    [
        ("id", True),
        ("user_id", True),
        ("userId", True),
        ("ZIP Code", True),
        ("idea", False),
        ("paid", False),
        ("year", False),
    ],
)
def test_whole_numbers_named_like_identifiers_are_compared_by_equality(name, identifier):
    assert has_identifier_name(name) is identifier
    database = Database.open({name: [1, 2, 3, 4, 5], "v": [1.0, 2.0, 3.0, 4.0, 5.0]}, key=name, value="v")
    answer = database.ask([3, 7])
    assert (answer.value[0] == 3.0 and answer.support[0] == 1.0) is identifier
    stated = f"{name} is read as an identifier, because its whole numbers are named like identifiers"
    assert (stated in answer.notes) is identifier
    assert "identifier" not in " ".join(database.ask(3, score="gaussian:1").notes)
    assert database.ask(3, score="gaussian:1").support > 1.5


def stored_and_in_memory(table, key, tmp_path):
    Database.create(tmp_path / "s", table, key=key, value="v")
    return Database.open(table, key=key, value="v"), Database.open(tmp_path / "s", memory=1)


def test_large_whole_numbers_uuids_and_digits_are_identifiers_in_memory_and_streamed(tmp_path):
    codes = [str(uuid.UUID(int=2**100 + i)) for i in range(300)]
    table = {
        "big": [2**62 + i for i in range(300)],
        "code": codes,
        "digits": [f"{i:05d}" for i in range(300)],
        "v": [float(i) for i in range(300)],
    }
    for key, query, reason in (
        ("big", 2**62 + 7, "it holds whole numbers of 2^53 or more"),
        ("code", codes[7].upper().replace("-", ""), "every text is a UUID"),
        ("digits", "00007", "every text consists of digits"),
    ):
        (tmp_path / key).mkdir()
        for database in stored_and_in_memory(table, key, tmp_path / key):
            answer = database.ask(query)
            assert (answer.value, answer.support) == (7.0, 1.0)
            assert f"{key} is read as an identifier, because {reason}" in answer.notes
            assert database.ask("7" if key != "code" else "seven").reason == "no key equals the query"


def test_filters_choose_the_interpretation_of_the_table_filtered_beforehand(tmp_path):
    table = {"k": [1, 2, 3, 2**60], "v": [1.0, 2.0, 3.0, 9.0]}
    for database in stored_and_in_memory(table, "k", tmp_path):
        assert database.ask(2).support == 1.0
        filtered = Database.open({"k": [1, 2, 3], "v": [1.0, 2.0, 3.0]}, key="k", value="v").ask(2.4)
        assert database.ask(2.4, where="k < 10").value == pytest.approx(filtered.value, abs=1e-9)


def test_an_identifier_beside_another_key_matches_its_own_rows_only(tmp_path):
    table = {
        "user_id": [2**60, 2**60, 2**60 + 1, 2**60 + 1],
        "age": [20.0, 21.0, 20.0, 21.0],
        "v": [1.0, 2.0, 8.0, 9.0],
    }
    for database in stored_and_in_memory(table, "user_id,age", tmp_path):
        assert database.ask((2**60 + 1, 20.0)).value == pytest.approx(8.5, abs=0.5)
        assert "no key equals the query" in database.ask((2**60 + 2, 20.0)).reason


# -- time zones and formats of dates


def test_a_query_without_a_time_zone_is_read_in_that_of_the_column():
    noon = dt.datetime(2020, 7, 1, 10, tzinfo=dt.UTC)
    table = pa.table({"at": pa.array([noon], pa.timestamp("us", "Europe/Oslo")), "v": [1.0]})
    database = Database.open(table, key="at", value="v")
    for query in ("2020-07-01 12:00", "2020-07-01 10:00Z", dt.datetime(2020, 7, 1, 12), noon):
        assert database.ask(query, score="exact").value == 1.0
    assert "at is in the time zone Europe/Oslo; queries without a time zone are read in it" in database.ask(noon).notes


@pytest.mark.parametrize("query", ["2020-07-01 10:00Z", dt.datetime(2020, 7, 1, tzinfo=dt.UTC)])
def test_a_query_with_a_time_zone_is_refused_by_a_column_without(query):
    database = Database.open({"at": [dt.datetime(2020, 7, 1)], "v": [1.0]}, key="at", value="v")
    with pytest.raises(QueryError, match="must be a timestamp without a time zone"):
        database.ask(query)


def test_json_holds_all_digits_of_decimals():
    from qkv.cli.json_csv import to_json

    values = [decimal.Decimal(2**64 - 1), decimal.Decimal("1.5"), decimal.Decimal("0.12345678901234567890")]
    assert json.loads(json.dumps(to_json(values))) == [2**64 - 1, 1.5, "0.12345678901234567890"]
