"""Identifiers, booleans, UUIDs and decimals as values: they vote, or are printed, with all their digits."""

import decimal
import json
import random
import uuid

import numpy as np
import pyarrow as pa
import pytest

from qkv.cli.main import run
from qkv.database import Database
from qkv.errors import OptionError
from tests.database.databases import every_database
from tests.effort import sample

BIG = 2**63 - 20
NOTE = "{} is read as an identifier, because {}: its values vote; aggregate mean averages them"
REASON = {"big": "it holds whole numbers of 2^53 or more", "user_id": "its whole numbers are named like identifiers"}


def random_table(seed, type_):
    draw = random.Random(seed)
    count = draw.randint(5, 40)
    ids = [BIG + draw.randint(0, 5) for _ in range(count)]
    return {
        "city": [draw.choice(["Oslo", "Rome", "Lima"]) for _ in range(count)],
        "age": [float(draw.randint(20, 30)) for _ in range(count)],
        "big": pa.array(ids, type_),
        "user_id": [id_ - BIG + 100 for id_ in ids],
    }


def shares(table, rows, value):
    """The share of each value among some rows, counted one by one."""
    values = [table[value][row] for row in rows]
    values = [value.as_py() if isinstance(value, pa.Scalar) else value for value in values]
    return {value: values.count(value) / len(values) for value in set(values)}


@pytest.mark.parametrize("value", ["big", "user_id"])
@pytest.mark.parametrize("seed", range(3))
def test_identifiers_vote_with_all_their_digits(value, seed, tmp_path):
    table = random_table(seed, [pa.int64(), pa.uint64(), pa.decimal128(25, 0)][seed])
    for database in every_database(tmp_path / "s", table, "city", value):
        assert database.votes
        for city in sorted(set(table["city"])):
            answer = database.ask(city, score="exact")
            expected = shares(table, [i for i, name in enumerate(table["city"]) if name == city], value)
            assert answer.votes
            assert answer.value in expected
            assert expected[answer.value] == max(expected.values())
            assert answer.probabilities == pytest.approx(expected)
            assert NOTE.format(value, REASON[value]) in answer.notes
            assert str(answer).startswith(f"{city} → {answer.value} (")
            assert answer.to_arrow().column("value").to_pylist() == [answer.value]


def test_a_mean_of_identifiers_and_a_vote_of_numbers_on_request(tmp_path):
    table = {"city": ["a", "a", "a"], "user_id": [1, 1, 4], "pay": [10.5, 10.5, 40.0]}
    for database in every_database(tmp_path / "s", table, "city", "user_id"):
        answer = database.ask("a", aggregate="mean")
        assert (answer.value, answer.votes) == (pytest.approx(2.0), False)
        assert "identifier" not in " ".join(answer.notes)
        assert database.ask("a").value == 1
        assert database.ask("a", aggregate="mean").value == pytest.approx(2.0)
    voted = Database.open(table, "city", "pay").ask("a", aggregate="vote")
    assert (voted.value, voted.probabilities[10.5]) == (10.5, pytest.approx(2 / 3))
    assert not Database.open(table, "city", "pay").ask("a").votes
    with pytest.raises(OptionError, match="aggregate must be one of mean, vote, local-linear, got 'median'"):
        Database.open(table, "city", "pay").ask("a", aggregate="median")
    with pytest.raises(OptionError, match="aggregate must be 'mean' for the value v, which holds vectors, got 'vote'"):
        Database.open({"k": ["a"], "v": np.ones((1, 2))}, "k", "v").ask("a", aggregate="vote")


def test_the_predicate_selects_rows_before_values_are_interpreted(tmp_path):
    table = {"k": ["a", "a", "b"], "v": [1, 2, 2**60 + 1]}
    for database in every_database(tmp_path / "s", table, "k", "v"):
        assert database.ask("b").value == 2**60 + 1
        answer = database.ask("a", where="v < 10")
        assert (answer.value, answer.votes) == (pytest.approx(1.5), False)
        again = database.ask("a", where="v < 10", aggregate="vote")
        assert (again.value, again.votes) == (1, True)


def test_many_queries_and_relations_hold_the_type_of_the_values():
    table = {"k": ["a", "b"], "v": pa.array([2**64 - 1, 2**64 - 2], pa.uint64())}
    database = Database.open(table, "k", "v")
    several = database.ask(["a", "b", "c"], score="exact")
    assert several.value == [2**64 - 1, 2**64 - 2, None]
    assert several.to_arrow().column("value").to_pylist() == several.value
    answers = database.ask_batches({"k": ["a", "b", "c"]}, score="exact").read_all()
    assert answers.schema.field("value").type == pa.uint64()
    assert answers.column("value").to_pylist() == several.value
    assert answers.column("probability").to_pylist() == [1.0, 1.0, None]


@pytest.mark.parametrize(
    ("cells", "aggregate", "shown"),
    [
        ([True, True], None, "true (100%, standard error 0.0%)"),
        ([str(uuid.UUID(int=2**100 + 7))] * 2, None, f"{uuid.UUID(int=2**100 + 7)} (100%, standard error 0.0%)"),
        ([decimal.Decimal("1234567.891")], None, "1,234,567.891"),
        ([decimal.Decimal("1234567.891")] * 3, None, "1,234,567.891 ± 0 (standard error)"),
        ([decimal.Decimal("12345678901234567890.5")], "vote", "12345678901234567890.5 (100%)"),
        ([0.123456789], None, "0.123456789"),
        ([1e-7], None, "1e-07"),
        ([1234567.25], None, "1,234,567.25"),
        ([2**63 - 1], None, "9223372036854775807 (100%)"),
    ],
)
def test_values_are_printed_in_full(cells, aggregate, shown):
    answer = Database.open({"k": ["a"] * len(cells), "v": cells}, "k", "v").ask("a", score="exact", aggregate=aggregate)
    assert str(answer).split("\n")[0].split("   ")[0] == f"a → {shown}"


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_the_command_prints_all_digits_and_how_to_average(form, tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_text("name,tweet\nann,9223372036854775807\nbob,9223372036854775806\nann,9223372036854775807\n")
    arguments = ["ask", str(path), "ann", "--key", "name", "--value", "tweet", "--format", form]
    assert run(arguments) == 0
    printed = capsys.readouterr().out
    if form == "table":
        assert printed.startswith("ann → 9223372036854775807 (100%")
        assert "aggregate mean averages them" in printed
        assert run([*arguments, "--aggregate", "mean"]) == 0
        assert "9.22337e+18" in capsys.readouterr().out
    elif form == "json":
        assert json.loads(printed)["value"] == 2**63 - 1
    else:
        assert printed.split("\n")[1].startswith("ann,9223372036854775807,1.0,")


NUMBERED = """
customer_no account_number phone invoice_number employee_no isbn13 serial zip order_id CustomerID userid c_custkey
zip_code phoneNumber SerialNumber Kundennr policy_number tracking_number soc_sec_id home_phone modelno
user.ids EAN13 postcode rec_id id userId
"""
COUNTED = """
number_of_rooms no_of_items num_items number total_rooms education-num serial_correlation serial_measurement
phone_minutes phones order_count order_total customer_age account_balance invoice_amount zip_population atomic_number
week_number paid valid grid covid members idea year fnlwgt capital-loss latitude median_house_value
item_count price_per_order key street_number hours-per-week capital-gain year room_count
"""
IDENTIFIERS, QUANTITIES = NUMBERED.split(), COUNTED.split()


@pytest.mark.parametrize("name", sample([*IDENTIFIERS, *QUANTITIES], 4))
def test_whole_numbers_vote_if_they_are_named_like_identifiers(name, tmp_path):
    draw = random.Random(name)
    cities = [draw.choice(["Oslo", "Rome"]) for _ in range(30)]
    numbers = [draw.randint(1000, 1003) for _ in cities]
    table = {"city": cities, name: numbers}
    path = tmp_path / "t.csv"
    path.write_text(f"city,{name}\n" + "".join(f"{city},{n}\n" for city, n in zip(cities, numbers, strict=True)))
    own = [n for city, n in zip(cities, numbers, strict=True) if city == "Oslo"]
    counts = {n: own.count(n) for n in own}
    for database in (*every_database(tmp_path / "s", table, "city", name), Database.open(path, "city", name)):
        answer = database.ask("Oslo")
        mean = database.ask("Oslo", aggregate="mean")
        assert mean.value == pytest.approx(np.mean(own))
        assert answer.votes is (name in IDENTIFIERS)
        if answer.votes:
            assert counts[answer.value] == max(counts.values())
            assert NOTE.format(name, REASON["user_id"]) in answer.notes
        else:
            assert answer.value == mean.value
