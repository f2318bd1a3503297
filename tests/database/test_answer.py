"""Answers: single and many, with their evidence, in other forms, and as text."""

import datetime as dt
import sys

import numpy as np
import pytest

from qkv.core.formatting import format_length, format_query, format_value, number
from qkv.core.nanoseconds import with_nanoseconds
from qkv.database import Database, Evidence
from qkv.database.answer import format_estimate
from qkv.encoders.arrow_columns import records_of
from qkv.encoders.columns import fold
from qkv.errors import MissingPackageError, OptionError
from qkv.serve.answers import EvidenceRows

PEOPLE = {
    "name": ["John Smith", "Jane Roe", "Aisha Khan", "John Smyth"],
    "income": [1000, 2000, 3000, 1200],
    "city": ["Oslo", "Rome", "Oslo", None],
}


@pytest.fixture(name="people")
def _people():
    return Database.open(PEOPLE, key="name", value="income")


def test_one_query_has_single_fields_and_many_have_lists(people):
    one, many = people.ask("john smith"), people.ask(["john smith", "zzzzzz"])
    assert isinstance(one.value, float)
    assert (one.found, many.found) == (True, [True, False])
    assert many.value == [one.value, None]
    assert many.perplexity[1] == 0.0
    assert (many[0].value, many[-1].found) == (one.value, False)
    assert [answer.value for answer in many] == many.value
    assert many.query == ["john smith", "zzzzzz"]


def test_evidence_is_whole_rows_heaviest_first_with_weights_that_make_the_value(people):
    answer = people.ask("john smith")
    assert isinstance(answer.rows[0], Evidence)
    assert answer.rows[0].record == {"name": "John Smith", "income": 1000, "city": "Oslo"}
    weights = [row.weight for row in answer.rows]
    assert weights == sorted(weights, reverse=True)
    assert sum(weights) == pytest.approx(1)
    assert sum(row.weight * row.record["income"] for row in answer.rows) == pytest.approx(answer.value)
    assert all(PEOPLE["name"][row.index] == row.record["name"] for row in answer.rows)


def test_top_cuts_the_evidence_and_not_the_answer(people):
    full, cut = people.ask("john smith", top=4), people.ask("john smith", top=1)
    assert len(cut.rows) == 1
    assert (cut.value, cut.spread, cut.perplexity) == (full.value, full.spread, full.perplexity)


def test_many_queries_answer_as_each_alone(people, monkeypatch):
    queries = ["john smith", "jane", "aisha kahn", "nobody", None, "JOHN SMYTH"] * 3
    together = people.ask(queries)
    monkeypatch.setattr("qkv.database.execute.in_memory._QUERIES_AT_ONCE", 4)
    assert people.ask(queries).value == together.value
    for query, one in zip(queries, together, strict=True):
        alone = people.ask(query)
        assert alone.value == (None if one.value is None else pytest.approx(one.value, rel=1e-12))
        assert (alone.reason, alone.effective_rows) == (one.reason, pytest.approx(one.effective_rows))


def test_every_part_of_an_answer_is_shown():
    sizes = Database.open({"at": [1.0, 2.0, 4.0], "size": [10.0, 30.0, 50.0]}, key="at", value="size")
    one = sizes.ask(2.0, score="gaussian:1", normalizer="softmax", top=2)
    line, first, second = repr(one).splitlines()
    low, high = one.prediction_interval
    assert line == (
        f"2 → {one.value:.0f} ± {one.standard_error:.0f} (standard error)   "
        f"90% prediction interval: {low:.0f} to {high:.0f}   "
        f"spread: {one.spread:.0f}   effective rows: {one.effective_rows:.1f}"
    )
    assert [text.split() for text in (first, second)] == [
        [f"{row.weight:.3f}", "distance", f"{row.distance:.3g}", f"at={row.record['at']:g}", f"size={size}"]
        for row, size in zip(one.rows, (30, 10), strict=True)
    ]
    votes = Database.open(PEOPLE, key="name", value="city")
    assert repr(votes.ask("jane roe")).splitlines()[0] == "jane roe → Rome (100%)   effective rows: 1.0"
    total = repr(sizes.ask(2.0, score="gaussian:1", normalizer="identity")).splitlines()[0]
    assert "effective rows" not in total


def test_many_answers_show_the_first_ten_and_that_there_are_more(people):
    ten, eleven = (repr(people.ask(["jane roe"] * n)).splitlines() for n in (10, 11))
    assert (ten[0], eleven[0]) == ("10 answers (10 found)", "11 answers (11 found)")
    assert set(ten[1:]) == {"  " + repr(people.ask("jane roe")).splitlines()[0]}
    assert eleven[:-1] == ["11 answers (11 found)", *ten[1:]]
    assert eleven[-1] == "  …"
    assert "zzzzzz → no match: the nearest key" in repr(people.ask(["jane roe", "zzzzzz"]))


def test_a_table_of_answers_holds_every_field(people):
    many = people.ask(["jane roe", "zzzzzz"])
    found, missing = many.to_arrow().to_pylist()
    assert found == {
        "query": "jane roe", "value": many[0].value, "standard_error": None, "lower": None, "upper": None,
        "spread": many[0].spread, "effective_rows": many[0].effective_rows,
        "found": True, "reason": None,
    }  # fmt: skip
    assert missing == {
        "query": "zzzzzz", "value": None, "standard_error": None, "lower": None, "upper": None, "spread": None,
        "effective_rows": 0.0, "found": False, "reason": many[1].reason,
    }  # fmt: skip
    assert many[1].reason


def test_a_table_of_answers_keeps_queries_given_as_one_text_and_names_the_columns_of_others():
    pairs = Database.open(PEOPLE, key="name,city", value="income")
    assert pairs.ask([("Jane Roe", "Rome")]).to_arrow().select([0, 1]).to_pylist() == [
        {"query_name": "Jane Roe", "query_city": "Rome"}
    ]
    assert pairs.ask(["Jane Roe, Rome"]).to_arrow().column_names[0] == "query"
    assert pairs.ask(["Jane Roe, Rome"]).to_arrow().column("query").to_pylist() == ["Jane Roe, Rome"]


def test_a_vector_of_values_is_a_list_in_a_table_of_answers():
    rows = Database.open({"at": [0.0, 1.0], "point": [[1.0, 2.0], [3.0, 4.0]]}, key="at", value="point")
    answer = rows.ask([0.0], score="gaussian:0.01", normalizer="softmax")
    assert answer.to_arrow().column("value").to_pylist() == [pytest.approx([1.0, 2.0])]
    points = rows.swap().ask([[1.0, 2.0], [3.0, 5.0]])
    assert points.to_arrow().column("query").to_pylist() == [[1.0, 2.0], [3.0, 5.0]]


def test_a_frame_is_of_pandas_or_else_of_polars(people, monkeypatch):
    assert type(people.ask("jane roe").to_frame()).__module__.startswith("pandas")
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert type(people.ask("jane roe").to_frame()).__module__.startswith("polars")
    message = "to_frame needs pandas, which is not installed. Run: pip install pandas, or use to_arrow()."
    with pytest.raises(MissingPackageError) as raised:
        people.ask("jane roe").to_frame("pandas")
    assert str(raised.value) == message
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingPackageError, match="pip install pandas"):
        people.ask("jane roe").to_frame()
    with pytest.raises(OptionError, match="'pandas', 'polars' or None"):
        people.ask("jane roe").to_frame("numpy")


def test_a_database_reads_as_what_it_maps():
    database = Database.open({"k": ["a", None], "v": [1, 2]}, key="k", value="v")
    assert repr(database) == "Database(the dict: k → v, 1 row, 1 left out)"


@pytest.mark.parametrize(
    ("value", "spread", "text"),
    [
        (52_345.678, 1_234.5, "52,300"),
        (48_222.2, 461.0, "48,220"),
        (1100.0, None, "1100"),
        (0.0, None, "0"),
        (-0.012345, None, "-0.012345"),
        (3.14159265, 0.01, "3.142"),
        (52_000.00004, 1e-9, "52,000.00004"),
        (55_000_029.27, 3.2, "55,000,029.3"),
        (500_000.12344, 0.0032, "500,000.1234"),
        (1_700_000_203.4, 230.0, "1,700,000,200"),
        (123_456_789.12, None, "123,456,789"),
        (1 / 3, 1e-17, "0.333333333333333"),
        (1e-12, None, "1e-12"),
        (1e15, None, "1e+15"),
        (999_999_999_999_999.0, None, "999,999,999,999,999"),
        (10_000.0, None, "10,000"),
        (9_999.0, None, "9999"),
        (2.0, 1e-3, "2.0000"),
        (2.0000001, None, "2"),
        (12_345.5, None, "12,345.5"),
        (float("nan"), None, "nan"),
        (123456789.0, None, "123,456,789"),
    ],
)
def test_a_number_is_shown_to_the_digits_that_its_spread_leaves(value, spread, text):
    assert number(value, spread) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        (True, "true"),
        ("a\n b", "a b"),
        (dt.date(2020, 1, 2), "2020-01-02"),
        (dt.datetime(2020, 1, 2, 3, 4), "2020-01-02 03:04:00"),
        ([1.0, 2.0, 3.0, 4.0, 5.0], "[1, 2, 3, 4, … 5 numbers]"),
    ],
)
def test_a_cell_is_shown_in_one_line(value, text):
    assert format_value(value) == text


def test_a_spread_of_moments_is_shown_in_days_or_less():
    assert format_length(dt.timedelta(days=40)) == "40 days"
    assert format_length(dt.timedelta(seconds=90, microseconds=7)) == "0:01:30"
    assert format_length(dt.timedelta(microseconds=7)) == "0:00:00.000007"
    assert format_value(dt.timedelta(hours=-5)) == "-5:00:00"
    assert format_value(dt.timedelta(days=-1, seconds=3, microseconds=9), dt.timedelta(hours=2)) == "-23:59:57"
    assert format_value(with_nanoseconds(dt.timedelta(1), 7)) == "1 day, 0:00:00.000000007"


NAMES = ["anna", "Anna ", "anne", "ann", "hanna", "anna b", "bob", "Bobby", "ÅSA", "åsa"]


@pytest.mark.thinned
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("score", [None, "jaro-winkler", "levenshtein"])
def test_a_text_that_equals_a_key_is_answered_from_its_own_rows(seed, score, tmp_path):
    draw = np.random.default_rng(seed)
    count = int(draw.integers(5, 80))
    name = [NAMES[i] for i in draw.integers(0, len(NAMES), count)]
    pay = 10.0 ** draw.integers(-3, 6, count) * (1 + draw.random(count))
    table = {"name": name, "pay": pay, "odd": [i % 2 == 1 for i in range(count)]}
    Database.create(tmp_path / "s", table, "name", "pay")
    databases = Database.open(table, "name", "pay"), Database.open(tmp_path / "s", memory=1)
    for where, selected in ((None, np.ones(count, bool)), ("odd", np.arange(count) % 2 == 1)):
        for query in ("anna", "ASA", "åsa", "bobby", "anne", "bob"):
            own = selected & [fold(each) == fold(query) for each in name]
            for database in databases:
                answer = database.ask(query, score=score, where=where, top=count)
                if own.any():
                    assert answer.value == pytest.approx(pay[own].mean(), rel=1e-12)
                    assert sorted(row.index for row in answer.rows) == np.flatnonzero(own).tolist()
                    assert answer.spread == pytest.approx(pay[own].std(), rel=1e-9, abs=1e-12)
                elif answer.found:
                    assert answer.rows[0].similarity < 1


def test_a_normalizer_that_is_given_averages_similar_keys_too():
    table = {"name": ["anna", "anne"], "pay": [1.0, 3.0]}
    answer = Database.open(table, key="name", value="pay").ask("anna", normalizer="softmax")
    assert len(answer.rows) == 2


def vectors(width):
    draw = np.random.default_rng(0)
    return {
        "v": draw.normal(size=(20, width)),
        "w": draw.normal(size=(20, width)),
        "name": [f"n{i}" for i in range(20)],
    }


@pytest.mark.parametrize(
    "form", [list, np.asarray, tuple, lambda v: str(list(map(float, v))), lambda v: " ".join(map(str, v))]
)
def test_the_headline_of_a_vector_is_abbreviated(form):
    table = vectors(300)
    database = Database.open(table, "v", "w")
    answer = database.ask(form(table["v"][3].tolist()))
    headline = answer.headline(answer.entries[0])
    start = ", ".join(f"{x:.6g}" for x in table["v"][3][:4])
    assert headline.startswith(f"[{start}, … 300 numbers] → [")
    assert len(headline) < 250
    assert len(max(str(answer).splitlines(), key=len)) < 300


def test_short_vectors_names_and_keys_of_many_columns_are_shown_in_full():
    assert format_query((0.1, 0.2)) == "[0.1, 0.2]"
    assert format_query((1.5, 2.5, 3.5, 4.5, 5.5, 6.5), 6) == "1.5, 2.5, 3.5, 4.5, 5.5, 6.5"
    assert format_query(([0.5] * 7, "Oslo"), 2) == "[0.5, 0.5, 0.5, 0.5, … 7 numbers], Oslo"
    for name in ("1 2 3 4 5", "[a, b, c, d, e]", "Room 101", "2020-01-01", "[1, 2]"):
        assert format_query(name) == name


def test_a_negligible_spread_of_one_effective_row_adds_no_digits():
    days = {"day": [1.0, 2.0, 3.0, 9.0], "pay": [1.5, 2.5, 3.5, 4.5]}
    answer = Database.open(days, "day", "pay").ask(2, score="gaussian:0.13")
    assert 0 < answer.spread < 1e-6 * answer.value
    assert answer.standard_error is None
    assert format_estimate(answer) == "2.5"


def test_rows_of_a_table_and_of_a_store_are_read_as_the_same_records(tmp_path):
    store = Database.create(tmp_path / "people", PEOPLE, key="name", value="income")
    streamed = Database.open(tmp_path / "people", memory="1 KiB")
    expected = Database.open(PEOPLE, key="name", value="income").ask("jane roe").rows[0].record
    for each in (store, streamed):
        answer = each.ask("jane roe")
        assert answer.rows[0].record == expected
        assert records_of(answer.table, [3, 1])[1] == expected
    assert EvidenceRows.of(streamed.ask("jane roe")).records([1]) == [expected]
