"""Keys of every type are compared exactly, and a printed key is read as the same key."""

import csv
import datetime as dt
import decimal
import io
import json
import math
import unicodedata
import zoneinfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkv.cli.main import run
from qkv.core.formatting import format_key
from qkv.database import Database
from qkv.database.io.identifiers import has_identifier_name
from qkv.encoders.arrow_columns import to_python
from qkv.encoders.columns import fold
from qkv.errors import DataError, QueryError
from tests.database.databases import every_database
from tests.effort import LONG, cases

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


def variants(text):
    """Texts that look or fold like a text: in case, white space, width, accents, and with escapes written out."""
    forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD")]
    wide = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)
    spaced = [f" {text}", f"{text} ", f"{text}\u00a0", text.replace(" ", "  "), f"{text}\n", f"\t{text}"]
    acting = [f"{text}\0", f"{text}\\x00", f"{text}\\x5cx00", f"{text}\x1b[31m", f"\u202e{text}"]
    return [text, text.upper(), text.lower(), text.swapcase(), text.casefold(), wide, *forms, *spaced, *acting]


WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).filter(fold)
SIMILAR = st.sampled_from(["Ab c", "É1", "straße", "ﬁ", "Ǆ", "C:\\x41\\new"]).flatmap(
    lambda text: st.sampled_from([form for form in variants(text) if fold(form)])
)
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
    (pa.decimal256(60, 0), decimals(60, 0)),
]
NANOSECONDS = st.sampled_from([1_600_000_000_123_456_789, 0, -1_000_000_001]).flatmap(
    lambda base: st.integers(base - 2000, base + 2000)
)
TIMES = [
    (pa.date32(), st.dates()),
    *(moments(unit) for unit in ("s", "ms", "us")),
    *(moments("us", zone) for zone in ZONES),
    *((pa.timestamp("ns", zone), NANOSECONDS) for zone in (None, *ZONES)),
    (pa.time64("us"), st.times()),
    (pa.duration("us"), st.timedeltas(dt.timedelta(days=-36_500), dt.timedelta(days=36_500))),
]
TEXTS = [
    (pa.string(), WORDS | SIMILAR),
    (pa.string(), SIMILAR),
    (pa.string(), st.uuids().map(str)),
    (pa.string(), st.integers(0, 10**9).map(lambda x: f"{x:09d}")),
    (pa.dictionary(pa.int32(), pa.string()), SIMILAR),
]
VECTORS = [(pa.list_(pa.int64(), 2), st.lists(near_limits(-(2**63), 2**63 - 1), min_size=2, max_size=2))]
MIXED = [(None, near_limits(-(2**70), 2**70) | st.floats(-1e6, 1e6).map(lambda x: round(x, 5)) | decimals(20, 20))]
OBJECTS = [(None, st.uuids()), (None, near_limits(-(2**200), 2**200))]
TYPES = [*INTEGERS, *FLOATS, *DECIMALS, *TIMES, *TEXTS, *VECTORS, (pa.bool_(), st.booleans())]


def identity(cell):
    """What two equal keys have in common: numbers their value, other cells their text."""
    if isinstance(cell, bool):
        return cell, "boolean"
    if isinstance(cell, float):
        return decimal.Decimal(repr(cell)) + 0
    return decimal.Decimal(cell) if isinstance(cell, int | decimal.Decimal) else str(cell)


@st.composite
def columns(draw, types=TYPES, most=8):
    """An Arrow array, or a list for objects of Python, of any different keys of a type."""
    type_, cells = draw(st.sampled_from(types))
    keys = draw(st.lists(cells, min_size=1, max_size=most, unique_by=identity))
    return keys if type_ is None else pa.array(keys, type_)


def ask_printed(database, text):
    """Ask for a key as it was printed, as the command does."""
    return database.ask([text], score="exact", top=3, printed=True)[0]


def check_keys(database, keys, raw=True):
    """Each key, and each printed key, is answered from its own row, whose cell is printed as the same text."""
    for row, key in enumerate(keys):
        own = database.ask([key], score="exact", top=3)[0] if raw else ask_printed(database, format_key(key))
        printed = ask_printed(database, format_key(own.rows[0].record["k"])) if own.found else own
        for answer in (own, printed):
            assert answer.found, (key, answer.query, answer.reason)
            assert [evidence.index for evidence in answer.rows] == [row], (key, answer.query)
            assert answer.value == row


def python_keys(keys):
    return keys if isinstance(keys, list) else to_python(keys)


def numbered(keys):
    return {"k": keys, "v": np.arange(len(keys), dtype=float)}


@given(keys=columns([*TYPES, *MIXED, *OBJECTS]))
@settings(SETTINGS, max_examples=cases(200))
def test_different_keys_are_not_merged_and_a_printed_key_is_read_as_itself(keys):
    check_keys(Database.open(numbered(keys), key="k", value="v"), python_keys(keys))


@given(keys=columns())
@settings(SETTINGS, max_examples=cases(25))
def test_a_store_read_block_by_block_compares_keys_as_exactly(keys, tmp_path_factory):
    folder = tmp_path_factory.mktemp("store") / "s"
    Database.create(folder, pa.table(numbered(keys)), key="k", value="v")
    stored = Database.open(folder, memory=1)
    assert stored.streams
    check_keys(stored, python_keys(keys))


# -- files, which do not all state types


def cell_text(key):
    return key if isinstance(key, str) else format_key(key)


def write_csv(path, keys):
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC if isinstance(keys[0], str) else csv.QUOTE_MINIMAL)
        lines.writerow(["k", "v"])
        lines.writerows([cell_text(key), row] for row, key in enumerate(keys))


def write_json(path, keys):
    exact = [key if isinstance(key, str | int | float) else format_key(key) for key in keys]
    path.write_text("".join(json.dumps({"k": key, "v": row}) + "\n" for row, key in enumerate(exact)))


def write_parquet(path, keys):
    pyarrow.parquet.write_table(pa.table(numbered(keys)), path)


def write_arrow(path, keys):
    pyarrow.feather.write_feather(pa.table(numbered(keys)), path)


TYPED = [*INTEGERS, *FLOATS, *TIMES, *TEXTS, DECIMALS[0], DECIMALS[1], DECIMALS[2], (pa.bool_(), st.booleans())]
NUMBERS_IN_JSON = near_limits(-(2**70), 2**70) | st.floats(-1e6, 1e6).map(lambda x: round(x, 5))
LETTERS = st.sampled_from(variants("Ab c")) | WORDS.map(lambda text: f"{text[:3]}ab{text[3:]}")
BY_FORMAT = {
    ".csv": (write_csv, [*MIXED, *DECIMALS, *FLOATS[:1], *OBJECTS, TEXTS[2], (pa.string(), LETTERS), *TIMES[1:4]]),
    ".jsonl": (write_json, [(None, NUMBERS_IN_JSON), FLOATS[0], TEXTS[2], (pa.string(), LETTERS)]),
    ".parquet": (write_parquet, TYPED),
    ".arrow": (write_arrow, TYPES),
}


BOOLEANS = [form(word) for word in ("true", "false", "yes", "no", "t", "f") for form in (str, str.upper, str.title)]


@pytest.mark.parametrize("ending", sorted(BY_FORMAT))
@given(data=st.data())
@settings(SETTINGS, max_examples=300 if LONG else 8)
def test_different_keys_of_a_file_are_not_merged(ending, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    write, types = BY_FORMAT[ending]
    keys = data.draw(columns(types, 5))
    path = folder / f"t{ending}"
    write(path, python_keys(keys) if ending in (".csv", ".jsonl") else keys)
    typed = ending in (".parquet", ".arrow")
    check_keys(Database.open(path, key="k", value="v"), python_keys(keys), raw=typed)
    if data.draw(st.booleans()):
        Database.create(folder / "s", path, key="k", value="v")
        check_keys(Database.open(folder / "s", memory=1), python_keys(keys), raw=typed)


@given(keys=st.lists(st.sampled_from([*BOOLEANS, "maybe"]), min_size=1, max_size=6, unique=True), data=st.data())
@settings(SETTINGS, max_examples=cases(40))
def test_spellings_of_booleans_are_different_keys(keys, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("booleans")
    (folder / "t.csv").write_text("k,v\n" + "".join(f"{key},{row}\n" for row, key in enumerate(keys)))
    check_keys(Database.open(folder / "t.csv", key="k", value="v"), keys, raw=False)
    parts = data.draw(st.integers(1, len(keys)))
    files = [folder / "a.csv", folder / "b.csv"]
    for path, start, stop in zip(files, (0, parts), (parts, len(keys)), strict=True):
        path.write_text("k,v\n" + "".join(f"{keys[row]},{row}\n" for row in range(start, stop)))
    used = files[: 1 + (parts < len(keys))]
    check_keys(Database.open(used, key="k", value="v"), keys, raw=False)
    Database.create(folder / "s", used, key="k", value="v")
    check_keys(Database.open(folder / "s", memory=1), keys, raw=False)


JSON_TEXTS = st.sampled_from(["1", "1.0", "1.5", "true", "null", '"1"', '"', "a", "[1]", '{"a":1}', "01", "-2", "1e0"])
JSON_NUMBERS = st.sampled_from([1, 2, -2, 1.5, 10**20, 1e30]) | NUMBERS_IN_JSON


@given(keys=st.lists(JSON_TEXTS | JSON_NUMBERS | st.booleans(), min_size=1, max_size=8, unique_by=identity))
@settings(SETTINGS, max_examples=cases(60))
def test_values_of_several_types_in_json_are_different_keys(keys, tmp_path_factory):
    path = tmp_path_factory.mktemp("json") / "t.jsonl"
    path.write_text("".join(json.dumps({"k": key, "v": row}) + "\n" for row, key in enumerate(keys)))
    for policy in ("exclude", "text"):
        database = Database.open(path, key="k", value="v", on_bad_cell=policy)
        Database.create(path.parent / policy, path, key="k", value="v", on_bad_cell=policy)
        for opened in (database, Database.open(path.parent / policy, memory=1)):
            present = [row for row, cell in enumerate(database.table["k"].to_pylist()) if cell is not None]
            for row in present:
                answer = ask_printed(opened, format_key(database.table["k"][row].as_py()))
                assert [evidence.index for evidence in answer.rows] == [row], (keys, keys[row])
        # Where most keys are numbers, only texts and booleans are left out.
        left_out = [keys[row] for row in set(range(len(keys))) - set(present)]
        assert not left_out or policy == "exclude"
        assert all(isinstance(key, str | bool) for key in left_out)


@given(keys=st.lists(WORDS | SIMILAR, min_size=1, max_size=6, unique=True))
@settings(SETTINGS, max_examples=cases(40))
def test_printed_keys_of_several_columns_are_read_as_themselves(keys, tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    table = {"k": keys, "n": [3] * len(keys), "v": np.arange(len(keys), dtype=float)}
    database = Database.open(table, key="k,n", value="v")
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows([format_key(key), 3] for key in keys)
    answer = database.ask(lines.getvalue().splitlines(), score="exact", printed=True)
    assert answer.value == list(range(len(keys)))
    (folder / "q.txt").write_text(lines.getvalue(), encoding="utf-8")
    pyarrow.parquet.write_table(pa.table(table), folder / "t.parquet")
    out = str(folder / "out.parquet")
    options = f"--key k,n --value v --score exact --queries {folder}/q.txt --output {out}"
    assert run(["ask", f"{folder}/t.parquet", *options.split()]) == 0
    assert pyarrow.parquet.read_table(out)["value"].to_pylist() == list(range(len(keys)))


@given(first=columns(), second=columns())
@settings(SETTINGS, max_examples=cases(60))
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


@pytest.mark.parametrize(("name", "identifier"), [("ZIP Code", True), ("year", False)])
def test_whole_numbers_named_like_identifiers_are_compared_by_equality(name, identifier):
    assert has_identifier_name(name) is identifier
    database = Database.open({name: [1, 2, 3, 4, 5], "v": [1.0, 2.0, 3.0, 4.0, 5.0]}, key=name, value="v")
    answer = database.ask([3, 7])
    assert (answer.value[0] == 3.0 and answer.perplexity[0] == 1.0) is identifier
    remedy = "a score such as gaussian compares its numbers"
    stated = f"{name} is read as an identifier, because its whole numbers are named like identifiers; {remedy}"
    assert (stated in answer.notes) is identifier
    assert "identifier" not in " ".join(database.ask(3, score="gaussian:1").notes)
    assert database.ask(3, score="gaussian:1").perplexity > 1.5


def test_filters_choose_the_interpretation_of_the_table_filtered_beforehand(tmp_path):
    table = {"k": [1, 2, 3, 2**60], "v": [1.0, 2.0, 3.0, 9.0]}
    for database in every_database(tmp_path / "s", table, "k", "v"):
        assert database.ask(2).perplexity == 1.0
        filtered = Database.open({"k": [1, 2, 3], "v": [1.0, 2.0, 3.0]}, key="k", value="v").ask(2.4)
        assert database.ask(2.4, where="k < 10").value == pytest.approx(filtered.value, abs=1e-9)


def test_an_identifier_beside_another_key_matches_its_own_rows_only(tmp_path):
    table = {
        "user_id": [2**60, 2**60, 2**60 + 1, 2**60 + 1],
        "age": [20.0, 21.0, 20.0, 21.0],
        "v": [1.0, 2.0, 8.0, 9.0],
    }
    for database in every_database(tmp_path / "s", table, "user_id,age", "v"):
        assert database.ask((2**60 + 1, 20.0)).value == pytest.approx(8.5, abs=0.5)
        assert "no key equals the query" in database.ask((2**60 + 2, 20.0)).reason


# -- time zones and formats of dates


def test_a_query_without_a_time_zone_is_read_in_that_of_the_column():
    noon = dt.datetime(2020, 7, 1, 10, tzinfo=dt.UTC)
    table = pa.table({"at": pa.array([noon], pa.timestamp("us", "Europe/Oslo")), "v": [1.0]})
    database = Database.open(table, key="at", value="v")
    for query in ("2020-07-01 12:00", "2020-07-01 10:00Z", dt.datetime(2020, 7, 1, 12), noon):
        assert database.ask(query, score="exact").value == 1.0
    zone = "at is in the time zone Europe/Oslo; queries without a time zone are read in it"
    changes = "an hour that occurs twice is the second one, and a skipped hour the next one"
    assert f"{zone}; {changes}" in database.ask(noon).notes


@pytest.mark.parametrize(("zone", "night"), [("Europe/Oslo", "2024-10-27"), ("America/New_York", "2024-03-10")])
def test_hours_at_which_clocks_change_are_the_same_in_queries_predicates_and_texts(zone, night, tmp_path):
    start = dt.datetime.fromisoformat(f"{night}T00:00Z") - dt.timedelta(hours=2)
    moments = [start + dt.timedelta(minutes=30 * step) for step in range(24)]
    table = pa.table({"hour": pa.array(moments, pa.timestamp("us", zone)), "v": range(24)})
    clocks = {moment.astimezone(zoneinfo.ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M") for moment in moments}
    few = sorted(clocks)[:: 1 if LONG else 5]
    for database in every_database(tmp_path / "s", table, "hour", "v"):
        for clock in (*few, f"{night} 02:00", f"{night} 02:30"):
            value = database.ask(clock, score="exact").value
            assert value == database.ask(dt.datetime.fromisoformat(clock), score="exact").value
            assert value == database.ask(f"{clock} {zone}", score="exact").value
            assert value == database.ask(moments[0], score="boxcar:9", where=f"hour = '{clock}'").value


@pytest.mark.parametrize("query", ["2020-07-01 10:00Z", dt.datetime(2020, 7, 1, tzinfo=dt.UTC)])
def test_a_query_with_a_time_zone_is_refused_by_a_column_without(query):
    database = Database.open({"at": [dt.datetime(2020, 7, 1)], "v": [1.0]}, key="at", value="v")
    with pytest.raises(QueryError, match="must be a timestamp without a time zone"):
        database.ask(query)


def test_json_holds_all_digits_of_decimals():
    from qkv.core.untrusted_json import to_json

    values = [decimal.Decimal(2**64 - 1), decimal.Decimal("1.5"), decimal.Decimal("0.12345678901234567890")]
    assert json.loads(json.dumps(to_json(values))) == [2**64 - 1, 1.5, "0.12345678901234567890"]


LONG_NUMBER = f"-{'9' * 40}.{'9' * 30}"


@pytest.mark.parametrize(
    ("name", "content", "queries"),
    [
        ("t.csv", "k,v\n9007199254740993.0,1\n9007199254740992.0,2\n", ("9007199254740993.0", "9007199254740992.0")),
        ("t.csv", f"k,v\n{LONG_NUMBER},1\n1.5,2\n", (LONG_NUMBER, "1.5")),
        ("t.csv", f"k,v\n{LONG_NUMBER},1\n0.12345678901234567890,2\n", (LONG_NUMBER, "0.12345678901234567890")),
        ("t.jsonl", '{"k": -1180591620717411303423, "v": 1}\n{"k": 1e-05, "v": 2}\n', (-1180591620717411303423, 1e-05)),
    ],
)
def test_numbers_of_a_text_file_that_are_one_float_or_have_more_digits_than_a_decimal_equal_themselves(
    name, content, queries, tmp_path
):
    (tmp_path / name).write_text(content)
    table = Database.open(tmp_path / name, key="k", value="v")
    assert [table.ask(query, score="exact").value for query in queries] == [1, 2]


def test_decimals_of_a_parquet_file_that_duckdb_would_round_are_refused(tmp_path):
    numbers = pa.array([decimal.Decimal("1" * 60), None], pa.decimal256(70, 2))
    pyarrow.parquet.write_table(pa.table({"k": [1, 2], "v": [1.0, 2.0], "n": numbers}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="must have at most 38 digits"):
        Database.open(tmp_path / "t.parquet", key="k", value="v")


@pytest.mark.parametrize(
    ("type_", "queries"),
    [
        (pa.duration("ns"), [pd.Timedelta(1001, "ns"), np.timedelta64(1002, "ns"), dt.timedelta(microseconds=1)]),
        (pa.time64("ns"), ["00:00:00.000001001", "00:00:00.000001002", dt.time(microsecond=1)]),
    ],
)
def test_a_query_with_nanoseconds_equals_the_cell_that_has_them(type_, queries):
    table = pa.table({"key": pa.array([1001, 1002, 1000], pa.int64()).cast(type_), "value": [0.0, 1.0, 2.0]})
    answers = Database.open(table, "key", "value").ask(queries, score="exact")
    assert [entry.value for entry in answers] == [0, 1, 2]


@pytest.mark.parametrize("score", ["exact", None, "gaussian:1"])
@pytest.mark.parametrize(
    ("type_", "query"),
    [
        (pa.timestamp("ns"), "9999-12-31"),
        (pa.timestamp("ns", "Asia/Tokyo"), "0001-01-02"),
        (pa.timestamp("ns"), dt.datetime.max),
        (pa.duration("us"), 1e12),
        (pa.duration("ns"), dt.timedelta.max),
    ],
    ids=str,
)
def test_a_time_beyond_the_range_of_the_column_equals_no_key(type_, query, score):
    database = Database.open(pa.table({"t": pa.array([1, 2], type_), "v": [1, 2]}), "t", "v")
    assert not database.ask(query, score=score).found
    assert database.ask([query, database.table["t"][0].as_py()], score=score)[1].found
