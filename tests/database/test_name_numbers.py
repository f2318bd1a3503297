"""A number or code of a query has to be in the key, and columns of codes are compared by equality."""

import random
import uuid

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.database import Database
from qkv.database.execute import in_memory
from qkv.scores import Names
from qkv.scores.name_numbers import holds_numbers, query_numbers
from qkv.scores.name_words import NameWords
from tests.database.databases import every_database
from tests.effort import cases

ROMAN = {2: "II", 3: "III", 4: "IV", 5: "V", 6: "VI", 7: "VII", 8: "VIII", 9: "IX", 10: "X", 11: "XI", 14: "XIV"}


def opened(names):
    return Database.open({"name": names, "row": list(range(len(names)))}, key="name", value="row")


@pytest.mark.parametrize(
    ("query", "others"),
    [
        ("u1002", ["u1001", "u1003", "Ann u2001", "Bob"]),
        ("AB-101", ["AB-1001", "Depot AC-101", "Depot AB 102", "North Depot", "Menu 101"]),
        ("2024-Q1", ["2023-Q1 final", "2024-Q2 final", "Q1 report", "Plan"]),
        ("Ibuprofen 800mg", ["Ibuprofen 200mg", "Ibuprofen 400 mg", "Ibuprofen 80 mg", "Ibuprofen"]),
        ("Melatonin 5 mg", ["Melatonin 2.5 mg", "Melatonin 50 mg", "Melatonin 0.5mg"]),
        ("Melatonin .5 mg", ["Melatonin 5 mg", "Melatonin 1.5 mg"]),
        ("iPhone 12 Pro", ["iPhone 14 Pro", "iPhone 11 Pro", "iPhone 12", "iPhone Pro"]),
        ("Rocky II", ["Rocky", "Rocky III", "Rocky IV"]),
        ("Rocky V", ["Rocky", "Rocky II", "Rocky IV", "Rocky VI"]),
        ("The Godfather Part I", ["The Godfather Part II", "The Godfather Part III"]),
        ("The Godfather Part Two", ["The Godfather Part III", "The Godfather Part One"]),
        ("Henry VII", ["Henry VIII", "Henry VI", "Henry V"]),
        ("14 Main Street", ["12 Main Street", "114 Main Street", "140 Main Street", "1 Main Street"]),
        ("Apollo 1", ["Apollo 11", "Apollo 13"]),
        ("server 10.0.0.1", ["server 10.0.1.1", "server 10.0.0.10", "server 1.0.0.10"]),
        ("release 3.1", ["release 3.10", "release 31", "release 1.3"]),
        ("backup of 2024-01-12", ["backup of 2024-12-01", "backup of 2024-01-13"]),
        ("Cable 2m", ["Cable 2mm", "Cable 3m", "Cable m 2"]),
        ("Murder 1", ["Murder in the First", "First Murder"]),
        ("Murder One", ["Murder in the First", "Murder, 1st Day"]),
        ("Main Street 2", ["Main Street, Second Floor", "Main Street"]),
    ],
)
def test_names_with_other_numbers_are_not_found(query, others):
    answer = opened(others).ask(query)
    assert not answer.found, answer.rows[0].record
    assert not answer.candidates
    assert "contains" in answer.reason
    assert opened([*others, query]).ask(query.upper()).rows[0].record["name"] == query


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("Rocky 2", "Rocky II"),
        ("rocky two", "Rocky II"),
        ("42 street", "42nd Street"),
        ("42nd street", "42 Street"),
        ("5th avenue", "Fifth Avenue"),
        ("fifth avenue", "5th Avenue"),
        ("henry viii", "Henry the Eighth"),
        ("henry eighth", "Henry VIII"),
        ("murder in the 1st", "Murder in the First"),
        ("22nd 3rd", "3rd Day, 22nd"),
        ("James Bond 7", "James Bond 007"),
        ("Ibuprofen 800 mg", "Ibuprofen 800mg"),
        ("800mg ibuprofen", "Ibuprofen 800 mg"),
        ("Oceans 11", "Ocean's Eleven"),
        ("10000 maniacs", "10,000 Maniacs"),
        ("iphone12 pro", "iPhone 12 Pro"),
        ("2,5 mg melatonin", "Melatonin 2.5 mg"),
        ("AB101", "Depot AB-101"),
        ("2024-q1", "Report 2024 Q1"),
        ("sonykdl40inch1080ptv", "Sony KDL 40 inch 1080 p TV"),
        ("xi", "Xiaomi"),
        ("m v", "Maria Vega"),
        ("maria v", "Maria Vega"),
        ("٣ lions", "3 Lions"),
        ("10 x 12 tarp", "Tarp 10' × 12'"),
    ],
)
def test_other_spellings_of_a_number_find_it(query, name):
    others = ["Rocky", "Denver", "Smith", "Ibuprofen", "Melatonin", "James Bond", "Depot", "Vitamin C", "Xu"]
    answer = opened([*others, name]).ask(query)
    if query == "m v":  # single letters alone are not compared
        assert not answer.found
    else:
        assert answer.found, answer.reason
        assert answer.rows[0].record["name"] == name


def test_the_refusal_names_the_number():
    table = opened(["12 Main Street", "14 Oak Lane"])
    assert table.ask("16 Main Street").reason == "no key contains 16"
    assert table.ask("Main Street 14").reason == (
        "no similar key contains 14: the nearest key, '14 Oak Lane', has similarity 0.15, under 0.8"
    )
    assert opened(["Rocky II", "Rocky III"]).ask("rocky vi").reason == "no key contains VI"
    assert opened(["Depot u1001", "Ann"]).ask("U1002, Depot 3").reason == "no key contains u1002 and 3"


def _written(number, draw):
    return draw.choice([str(number), f"0{number}", f"{number}th", ROMAN.get(number, str(number))])


@settings(derandomize=True, deadline=None, max_examples=cases(120))
@given(st.randoms(use_true_random=False))
def test_an_answer_has_the_number_of_the_query(draw):
    words = ["Rocky", "Henry", "Street", "Apollo", "Part", "Main", "Flight", "Louis"]
    entities = {(draw.choice(words), draw.choice(words), draw.choice([*ROMAN, 12, 112, 800])) for _ in range(12)}
    keys = {(one, two, n): f"{one} {two} {_written(n, draw)}" for one, two, n in sorted(entities)}
    table = opened(list(keys.values()))
    one, two, n = draw.choice(sorted(keys))
    asked = draw.choice([n, n + 1, n - 1, 10 * n])
    answer = table.ask(f"{one} {two} {_written(asked, draw)}")
    if (one, two, asked) in keys:
        assert answer.found, (answer.query, keys, answer.reason)
        assert answer.rows[0].record["name"] in (keys[one, two, asked], keys.get((two, one, asked)))
    elif (two, one, asked) not in keys:
        assert not answer.found or asked in {m for (a, b, m), k in keys.items() if k == answer.rows[0].record["name"]}
        assert all(any(k == each and m == asked for (_, _, m), k in keys.items()) for each in answer.candidates)


TOKENS = [
    *("rocky", "main", "ii", "iii", "v", "2", "12", "0012", "u1002", "u1001", "800mg", "800", "mg", "two"),
    *("q1-2024",),
]


@settings(derandomize=True, deadline=None, max_examples=cases(150))
@given(
    st.lists(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=4), min_size=1, max_size=8),
    st.lists(st.sampled_from([*TOKENS, "21", "ix", "1080ptv", "1002"]), min_size=1, max_size=3),
)
def test_a_key_holds_numbers_alike_alone_and_among_others(names, query):
    keys, text = [" ".join(name) for name in names], " ".join(query)
    words, numbers = NameWords(keys), query_numbers(text)
    held = holds_numbers(numbers, words, words.codes, words.counts)
    alone = [holds_numbers(numbers, one, one.codes, one.counts)[0] for one in map(NameWords, [[key] for key in keys])]
    np.testing.assert_array_equal(held, alone)
    logits = Names()(np.array([text], object), np.array(keys, object))[0]
    assert (logits[~held] == 0).all()
    assert not numbers or (logits[held] > 0).all()
    assert held[[at for at, key in enumerate(keys) if key == text]].all()


@pytest.mark.parametrize("where", [None, "row % 3 = 1"])
def test_index_store_and_group_agree_about_numbers(monkeypatch, tmp_path, where):
    draw = random.Random(3)
    names = [" ".join(draw.choices([*TOKENS, "smith", "denver"], k=draw.randint(1, 4))) for _ in range(150)]
    table = {"name": names, "place": ["here"] * len(names), "row": [float(at) for at in range(len(names))]}
    Database.create(tmp_path / "store", table, key="name", value="row")
    queries = [*names[:20], "rocky vi", "main 21", "smith u1002", "denver 1002", "800 mg smith", "rocky iii main 12"]
    plain = Database.open(table, key="name", value="row").ask(queries, where=where)
    streamed = Database.open(tmp_path / "store", memory=1)
    assert streamed.streams
    monkeypatch.setattr(in_memory, "_INDEXED_ROWS", 1)
    indexed = Database.open(table, key="name", value="row")
    for other in (streamed, indexed):
        for one, two in zip(plain, other.ask(queries, where=where), strict=True):
            assert (one.found, one.reason, set(one.candidates)) == (two.found, two.reason, set(two.candidates))
            assert (one.value is None) == (two.value is None)
            if one.value is not None:
                assert one.value == pytest.approx(two.value, rel=1e-12)  # the order of the sum differs
    group = Database.open(table, key=["name", "place"], value="row")
    for query, one in zip(queries, plain, strict=True):
        two = group.ask({"name": query, "place": "here"}, where=where)
        assert one.found == two.found, (query, one.reason, two.reason)
        assert not one.found or one.value == pytest.approx(two.value)


# -- columns of identifiers


@pytest.mark.parametrize(
    ("column", "cells", "reason"),
    [
        ("user_id", ["u1001", "u1002", "u2001", "anonymous"], "it is named like an identifier"),
        ("ticker", ["AAPL", "AAP", "MSFT", "BRK B"], "it is named like an identifier"),
        ("Country Code", ["us", "uk", "ua"], "it is named like an identifier"),
        ("user", ["u1001", "u1002", "u2001"], "every text is a code of letters and digits"),
        ("quarter", ["2023-Q1", "2023-Q2", "2024-Q2"], "every text is a code of letters and digits"),
        ("sku", ["AB-1001", "AB-1002", "AC-1001"], "every text is a code of letters and digits"),
        ("code", [str(uuid.UUID(int=2**100 + i)) for i in range(30)], "every text is a UUID"),
        ("digits", [f"{i:05d}" for i in range(30)], "every text consists of digits"),
    ],
)
def test_columns_of_codes_are_compared_by_equality(column, cells, reason, tmp_path):
    table = {column: cells, "v": list(range(len(cells)))}
    for opened_ in every_database(tmp_path / "store", table, column, "v"):
        answer = opened_.ask(cells[1].upper())
        assert answer.value == 1
        assert f"{column} is read as an identifier, because {reason}" in answer.notes
        missing = opened_.ask(cells[0] + "0")
        assert (missing.found, missing.reason) == (False, "no key equals the query")
    named = Database.open(table, key=column, value="v").ask(cells[0], score="names")
    assert named.value == 0


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        ("title", ["Rocky II", "Rocky III", "Apollo 13", "iPhone 12"]),
        ("code_name", ["Overlord", "Barbarossa", "Market Garden"]),
        ("station_id", ["Denver Intl", "Dover Air Base", "San Diego Intl"]),
    ],
)
def test_names_are_no_identifiers(column, cells):
    answer = Database.open({column: cells, "v": [1.0 * at for at in range(len(cells))]}, key=column, value="v").ask(
        "a b"
    )
    assert not any("identifier" in note for note in answer.notes)


def test_two_keys_of_identifiers_are_both_compared_by_equality():
    table = {"user_id": ["u1001", "u1001", "u1002"], "sku": ["AB-1", "AB-2", "AB-1"], "v": [1.0, 2.0, 3.0]}
    here = Database.open(table, key=["user_id", "sku"], value="v")
    assert here.ask({"user_id": "U1001", "sku": "ab-2"}).value == 2.0
    assert not here.ask({"user_id": "u1002", "sku": "AB-2"}).found
    assert not here.ask({"user_id": "u1003", "sku": "AB-1"}).found


@settings(derandomize=True, deadline=None, max_examples=cases(40))
@given(st.randoms(use_true_random=False))
def test_an_identifier_that_is_not_in_the_table_is_never_answered(draw):
    pattern = draw.choice(["u{}", "AB-{}", "{}-Q{}", "X{}Y{}", "{}/{}"])
    cells = sorted({pattern.format(draw.randint(1, 60), draw.randint(1, 4)) for _ in range(20)})
    asked = pattern.format(draw.randint(1, 60), draw.randint(1, 4))
    names = draw.choice(["key", "id", "label"])
    for key in ((names,), (names, "other")):
        table = {names: cells, "other": ["Main Street"] * len(cells), "v": [1.0 * at for at in range(len(cells))]}
        answer = Database.open(table, key=list(key), value="v").ask(
            dict(zip(key, [asked, "main street"], strict=False))
        )
        assert answer.found == (asked in cells)
        assert not answer.found or answer.rows[0].record[names] == asked
