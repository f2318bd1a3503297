"""Tests of keys without a value: they decide who is meant, and neighbours never give their value."""

import numpy as np
import pyarrow as pa
import pytest

from qkv import masks
from qkv.database import Database
from tests.database.databases import every_database

FIRST = ["Jon", "John", "Joan", "Ann", "Anna", "Maria", "Mario", "José", "Jose"]
LAST = ["Smith", "Smyth", "Gonzales", "Gonzalez", "Ray", "Reyes"]
CITIES = ["Springfield", "Springfields", "Portland", "Niger", "Nigeria", "Iran", "Iraq"]
STATES = ["Illinois", "Missouri", "Oregon", "Maine"]


def _misspelt(rng: np.random.Generator, text: str) -> str:
    """Return a text with two neighbouring letters exchanged, words in another order, other case, or as it is."""
    at = int(rng.integers(1, len(text) - 1))
    swapped = text[: at - 1] + text[at] + text[at - 1] + text[at + 1 :]
    return str(rng.choice([text, text.upper(), " ".join(reversed(text.split())), swapped, text[: len(text) - 2]]))


def _table(rng: np.random.Generator, kind: str, rows: int = 40) -> tuple[dict[str, list], str, list[object]]:
    """Return a table whose value is the number of the row, the names of its key columns, and queries."""
    value = [float(row) for row in range(rows)]
    if kind == "names":
        names = [f"{rng.choice(FIRST)} {rng.choice(LAST)}" for _ in range(rows)]
        return {"name": names, "value": value}, "name", [_misspelt(rng, str(rng.choice(names))) for _ in range(40)]
    if kind == "two texts":
        city, state = ([str(rng.choice(each)) for _ in range(rows)] for each in (CITIES, STATES))
        asked = [(_misspelt(rng, str(rng.choice(CITIES))), str(rng.choice(STATES))) for _ in range(30)]
        return {"city": city, "state": state, "value": value}, "city,state", asked
    if kind == "identifiers":
        codes = [f"u{rng.integers(1, 25):04d}" for _ in range(rows)]
        return {"user_id": codes, "value": value}, "user_id", [f"u{number:04d}" for number in range(1, 30)]
    numbers = rng.integers(0, 20, rows).tolist()
    return {"order_id": numbers, "value": value}, "order_id", list(range(22))


def _without_some(rng: np.random.Generator, table: dict[str, list]) -> dict[str, list]:
    """Return the table with missing values: of some rows, and of all rows of some keys."""
    keys = list(zip(*(cells for name, cells in table.items() if name != "value"), strict=True))
    blank = {keys[row] for row in rng.integers(0, len(keys), 6).tolist()}
    drop = rng.random(len(keys)) < 0.2
    kept = [None if drop[row] or keys[row] in blank else cell for row, cell in enumerate(table["value"])]
    return {**table, "value": kept}


@pytest.mark.thinned
@pytest.mark.parametrize("kind", ["names", "two texts", "identifiers", "numbers of orders"])
@pytest.mark.parametrize("seed", range(3))
def test_the_key_that_is_meant_does_not_depend_on_which_values_are_missing(tmp_path, kind, seed):
    rng = np.random.default_rng([seed, len(kind)])
    table, key, queries = _table(rng, kind)
    columns = key.split(",")
    whole = Database.open(table, key=key, value="value").ask(queries, top=100)
    partly = _without_some(rng, table)
    for database in every_database(f"{tmp_path}/store", partly, key, "value"):
        seen = 0
        for meant, answer in zip(whole, database.ask(queries, top=100), strict=True):
            if not meant.found:
                assert not answer.found
                assert not answer.missing_rows
                assert set(answer.candidates) == set(meant.candidates)
                assert answer.reason == meant.reason or meant.candidates
                continue
            cells = [partly["value"][row.index] for row in meant.rows]
            present = [cell for cell in cells if cell is not None]
            missing = sorted(row.index for row, cell in zip(meant.rows, cells, strict=True) if cell is None)
            assert sorted(answer.missing_rows) == missing
            if present:
                assert answer.value == pytest.approx(np.mean(present))
                assert bool(answer.remarks) == bool(missing)
            else:
                seen += 1
                shown = ", ".join(str(meant.rows[0].record[name]) for name in columns)
                assert (answer.found, answer.value, answer.rows) == (False, None, ())
                assert "is in the table; its value is missing (row" in answer.reason
                assert answer.reason.casefold().startswith(shown.casefold())
        assert seen


NONE = None
KINDS = {
    "texts": ({"k": ["Iran", "Iraq", "Niger", "Nigeria"], "v": ["Tehran", NONE, NONE, "Abuja"]}, "k", "Iraq"),
    "categories": ({"k": pa.array(["a b", "a c", "a b"]).dictionary_encode(), "v": [NONE, 2.0, NONE]}, "k", "a b"),
    "booleans": ({"k": [True, False, True], "v": [NONE, 2.0, NONE]}, "k", True),
    "text and number": ({"k": ["A b", "A b", "C d"], "x": [1.0, 2.0, 1.0], "v": [1.0, 2.0, NONE]}, "k,x", ("C d", 1.0)),
    "category and number": (
        {"k": pa.array(["a", "a", "c"]).dictionary_encode(), "x": [1.0, 2.0, 1.5], "v": [1.0, 2.0, NONE]},
        "k,x",
        ("c", 1.5),
    ),
    "identifier and number": (
        {"user_id": [1, 1, 2], "x": [1.0, 2.0, 1.5], "v": [1.0, 2.0, NONE]},
        "user_id,x",
        (2, 1.5),
    ),
    "number far from others": ({"k": [1.0, 2.0, 3.0, 90.0], "v": [1.0, 2.0, 3.0, NONE]}, "k", 90.0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_without_a_value_is_answered_by_no_neighbour(tmp_path, kind):
    table, key, query = KINDS[kind]
    table = pa.table(table)
    missing = [row for row, cell in enumerate(table["v"].to_pylist()) if cell is None]
    texts = set()
    for database in every_database(f"{tmp_path}/s", table, key, "v"):
        (answer,) = database.ask([query])
        assert (answer.found, answer.value) == (False, None)
        assert set(answer.missing_rows) <= set(missing)
        assert answer.missing_rows
        texts.add(answer.reason)
        relation = (
            {name: [cell] for name, cell in zip(key.split(","), query, strict=True)} if "," in key else {key: [query]}
        )
        (row,) = database.ask_batches(relation).read_all().to_pylist()
        assert (row["found"], row["value"], row["reason"]) == (False, None, answer.reason)
    assert len(texts) == 1


@pytest.mark.parametrize("score", ["levenshtein", "jaro-winkler", "token-set-ratio", "exact", "spelling"])
@pytest.mark.parametrize("normalizer", [None, "softmax", "topk:2", "hard"])
def test_other_scores_of_texts_give_no_neighbour_either(score, normalizer):
    table = {"k": ["Iran", "Iraq", "Niger", "Nigeria"], "v": [1.0, None, None, 4.0]}
    answers = Database.open(table, key="k", value="v").ask(["Iraq", "Niger"], score=score, normalizer=normalizer)
    assert [answer.value for answer in answers] == [None, None]
    assert answers.missing_rows == [(1,), (2,)]


def test_neighbours_answer_for_a_number_and_the_answer_says_that_its_row_has_no_value():
    table = {"k": [1.0, 2.0, 3.0, 4.0, 5.0], "v": [10.0, 20.0, None, 40.0, 50.0]}
    exact, other = Database.open(table, key="k", value="v").ask([3.0, 2.9])
    assert exact.value == pytest.approx(30)
    assert (exact.missing_rows, other.missing_rows) == ((2,), ())
    assert exact.remarks == ("v is missing in 1 row of 3 (row 2); other keys give the value",)


def test_rows_that_the_predicate_or_the_mask_excludes_are_not_meant():
    table = {"k": ["Jon Smith", "John Smith", "Jon Smith"], "c": ["a", "a", "b"], "v": [None, 4.0, 5.0]}
    people = Database.open(table, key="k", value="v")
    assert people.ask("Jon Smith").missing_rows == (0,)
    assert people.ask("Jon Smith").value == 5.0
    selected = people.ask("Jon Smith", where="c = 'a'")
    assert (selected.found, selected.missing_rows) == (False, (0,))
    assert "2 rows satisfy the predicate, of which 1 left out (v missing in 1)" in selected.notes[0]
    for mask in (masks.AllowedKeys(np.array([False, True, True])), masks.AllowedPairs(np.array([[False, True, True]]))):
        masked = people.ask("Jon Smith", mask=mask)
        assert (masked.value, masked.missing_rows) == (5.0, ())
    alone = people.ask("Jon Smith", where="k = 'Jon Smith' and c = 'a'")
    assert alone.reason == "Jon Smith is in the table; its v is missing (row 0)"


def test_the_text_of_an_encoder_without_a_value_is_answered_by_no_neighbour(tmp_path):
    texts = ["psychology of mind", "physics of atoms", "chemistry of acids", "biology of cells", "history of rome"]
    table = {"k": texts, "v": [1.0, 2.0, None, 4.0, 5.0]}
    Database.create(f"{tmp_path}/s", table, "k", "v", encoder="latent:3")
    for memory in ("512 MiB", 1):
        answer = Database.open(f"{tmp_path}/s", memory=memory).ask("chemistry of acids")
        assert answer.reason == "chemistry of acids is in the table; its v is missing (row 2)"


def test_no_match_names_no_key_that_is_worse_than_one_without_a_value():
    table = {"k": ["Albert Ohm", "Rosa Parker"], "v": [None, 2.0]}
    reason = Database.open(table, key="k", value="v").ask("Albrecht Om").reason
    assert "'Albert Ohm'" in reason


def test_a_group_of_texts_states_its_own_bandwidth():
    rng = np.random.default_rng(1)
    day = rng.uniform(0, 10, 300)
    county = np.array(["Kent", "Essex", "Surrey"])[np.arange(300) % 3]
    value = np.select([county == "Kent", county == "Essex"], [np.sin(6 * day), 3 + rng.normal(0, 0.5, 300)], day)
    table = Database.open({"county": county, "day": day, "v": value}, key="county,day", value="v")
    widths = []
    for answer in table.ask([("Kent", 3.0), ("Essex", 3.0)], top=300):
        width = answer.calls[-1].bandwidth["day"]
        assert answer.remarks == (f"bandwidth of the group of this answer: {width:.3g} day",)
        weights = np.exp([-0.5 * ((row.record["day"] - 3.0) / width) ** 2 for row in answer.rows])
        assert answer.value == pytest.approx(weights @ [row.record["v"] for row in answer.rows] / weights.sum())
        widths.append(width)
    assert widths[1] > 5 * widths[0]
