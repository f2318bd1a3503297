"""The defaults for each kind of key, and the queries that they call unlike every key."""

import datetime as dt
import itertools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from qkv import scores
from qkv.database import Database
from qkv.database.keys.comparisons import MatchLimits
from qkv.errors import OptionError


def notes(answer):
    return "; ".join(answer.notes)


# -- text


def test_the_limit_of_a_match_can_be_moved():
    people = Database.open({"k": ["john smith"], "v": [1.0]}, key="k", value="v")
    assert not people.ask("jan smid").found
    assert people.ask("jan smid", min_similarity=0.5).found
    assert not people.ask("john smyth", min_similarity=0.99).found


@pytest.mark.parametrize(
    ("key", "query", "how", "refusal"),
    [
        (
            [1.0, 2.0],
            1.0,
            {"min_similarity": 0.9},
            "min_similarity must be None for the key k, .* by distance, got 0.9. Pass max_distance instead",
        ),
        (
            ["a b", "c d"],
            "a b",
            {"max_distance": 2},
            "max_distance must be None for .* by similarity, got 2. Pass min_similarity instead",
        ),
        (
            ["a b", "c d"],
            "a b",
            {"score": "exact", "min_similarity": 0.9},
            "min_similarity must .* by Exact.*, got 0.9. Omit it",
        ),
        (
            [[1.0, 0.0]],
            [1.0, 0.0],
            {"score": "dot", "max_distance": 1},
            "max_distance must .* by Dot.*, got 1. Omit it",
        ),
    ],
)
def test_a_limit_that_the_comparison_does_not_have_is_refused(key, query, how, refusal):
    database = Database.open({"k": key, "v": np.arange(len(key)) + 0.5}, key="k", value="v")
    with pytest.raises(OptionError, match=refusal):
        database.ask([query], **how)


# -- category and boolean


def test_a_category_is_compared_by_equality():
    table = pa.table({"k": pa.array(["red", "blue", "red"]).dictionary_encode(), "v": [1.0, 2.0, 3.0]})
    colours = Database.open(table, key="k", value="v")
    assert colours.ask("RED").value == 2.0
    assert not colours.ask("rod").found
    assert "compared by equality" in notes(colours.ask("red"))


# -- numbers


SQUARES = {"x": np.linspace(0, 10, 201), "y": np.linspace(0, 10, 201) ** 2}


def test_a_number_far_from_every_key_is_no_match_and_says_how_far():
    database = Database.open(SQUARES, key="x", value="y")
    answer = database.ask(40.0)
    assert not answer.found
    assert answer.reason.startswith("the nearest key, 10, is 30 away; no match beyond a distance of 0.")
    assert database.ask(10.05).found
    assert not database.ask(5.0, where="x > 8").found


def test_the_reach_can_be_moved():
    database = Database.open(SQUARES, key="x", value="y")
    assert database.ask(12.0, max_distance=5.0).found
    assert not database.ask(3.0001, max_distance=1e-9).found


def test_a_given_bandwidth_counts_in_the_units_of_the_table():
    table = {"km": [0.0, 1000.0, 2000.0], "v": [0.0, 1.0, 2.0]}
    near = Database.open(table, key="km", value="v").ask(400.0, score="gaussian:1000")
    weights = np.exp(-np.square(np.array([0.4, 0.6, 1.6])) / 2)
    assert near.value == pytest.approx(weights @ [0, 1, 2] / weights.sum())
    assert near.rows[0].distance == 400.0


def test_scales_of_columns_do_not_matter_by_default():
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=300), draw.normal(size=300)
    plain = Database.open({"x": x, "y": y, "v": x + y}, key="x,y", value="v").ask((0.1, 0.2))
    scaled = Database.open({"x": x * 1e6, "y": y / 1e6, "v": x + y}, key="x,y", value="v").ask((1e5, 2e-7))
    assert scaled.value == pytest.approx(plain.value, rel=1e-6)


def test_dates_are_keys_and_their_distances_are_days():
    first = dt.date(2020, 1, 1)
    table = {"day": [first + dt.timedelta(days=i) for i in range(100)], "n": np.arange(100.0)}
    answer = Database.open(table, key="day", value="n").ask("2020-02-01")
    assert answer.value == pytest.approx(31, abs=0.5)
    assert answer.rows[0].distance == pytest.approx(0, abs=1e-9)
    assert answer.rows[1].distance == pytest.approx(1)
    assert "days" in Database.open(table, key="day", value="n").ask("1999-01-01").reason


def test_a_column_that_never_changes_does_not_decide():
    table = {"x": np.arange(20.0), "same": np.full(20, 7.0), "v": np.arange(20.0)}
    answer = Database.open(table, key="x,same", value="v").ask((5, 7))
    assert answer.value == pytest.approx(5, abs=0.5)


def test_numbers_and_dates_together_are_points_and_booleans_are_only_by_a_kernel():
    rows = 60
    table = {
        "x": np.arange(rows, dtype=float),
        "day": [dt.date(2020, 1, 1) + dt.timedelta(days=i) for i in range(rows)],
        "on": [i % 2 == 0 for i in range(rows)],
        "v": [float(i % 2) for i in range(rows)],
    }
    database = Database.open(table, key="x,day,on", value="v")
    answer = database.ask((30, "2020-01-31", "no"), top=rows)
    assert answer.value == 1.0
    assert {row.record["on"] for row in answer.rows} == {False}
    kernel = database.ask((30, "2020-01-31", "no"), score="gaussian", top=rows)
    assert {row.record["on"] for row in kernel.rows} == {False, True}
    assert Database.open(table, key="on", value="v").ask("no", score="gaussian").found


@pytest.mark.thinned
@pytest.mark.parametrize("key", ["name,on", "colour,on", "on,user_id", "on,off", "name,on,x", "on,x"])
@pytest.mark.parametrize("seed", range(3))
def test_a_boolean_beside_other_keys_selects_its_rows(key, seed, tmp_path):
    rng, rows = np.random.default_rng(seed), 30
    table = pa.table(
        {
            "name": [str(name) for name in rng.choice(["Oslo", "Rome"], rows)],
            "colour": pa.array([str(name) for name in rng.choice(["red", "blue"], rows)]).dictionary_encode(),
            "user_id": rng.integers(2, size=rows),
            "x": rng.normal(size=rows),
            "on": rng.random(rows) < 0.7,
            "off": rng.random(rows) < 0.2,
            "v": rng.normal(size=rows),  # of which booleans say nothing
        }
    )
    names = key.split(",")
    table = table.filter(~(pc.field("on") & (pc.field("name") == "Rome")))
    stored = Database.create(tmp_path / "s", table, key, "v")
    for database in (Database.open(table, key, "v"), stored, Database.open(tmp_path / "s", memory=1)):
        for record in itertools.product(*(table[name].unique().to_pylist()[:2] for name in names)):
            asked = dict(zip(names, record, strict=True))
            same = [row for row in table.to_pylist() if all(row[name] == asked[name] for name in names if name != "x")]
            answer = database.ask(asked, top=rows)
            assert {row.record["v"] for row in answer.rows} <= {row["v"] for row in same}
            if "x" not in names:
                assert answer.found == bool(same)
                assert not same or answer.value == pytest.approx(np.mean([row["v"] for row in same]))
                assert same or "no row" in answer.reason


# -- vectors


def test_a_vector_key_is_compared_by_cosine_with_a_stated_threshold():
    table = {"at": np.eye(3), "v": ["x", "y", "z"]}
    database = Database.open(table, key="at", value="v")
    answer = database.ask([10.0, 1.0, 0.0])
    assert answer.value == "x"
    assert answer.rows[0].similarity == pytest.approx(10 / np.sqrt(101))
    assert "no match under a cosine of 0.5" in notes(answer)
    assert "has similarity 0.00, under 0.5" in database.ask([0.0, 0.0, 0.0]).reason


# -- several kinds


MIXED = {
    "name": ["Ann Lee", "Ann Lee", "Bob Ray", "Bob Ray", "Cy Orr", "Di Poe"],
    "age": [20.0, 60.0, 20.0, 60.0, 40.0, 40.0],
    "pay": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
}


def test_a_key_of_several_kinds_is_compared_part_by_part():
    people = Database.open(MIXED, key="name,age", value="pay")
    assert people.ask(("Ann Le", 58)).rows[0].record["pay"] == 2.0
    assert people.ask("Bob Ray,21").rows[0].record["pay"] == 3.0


@pytest.mark.parametrize(("query", "part"), [(("Zzzz", 20), "name: "), (("Ann Lee", 900), "age: ")])
def test_each_part_of_a_key_of_several_kinds_must_be_near(query, part):
    answer = Database.open(MIXED, key="name,age", value="pay").ask(query)
    assert not answer.found
    assert answer.reason.startswith(part)


def test_a_score_by_column_sees_the_columns_as_they_stand():
    score = scores.ByColumn((("name", scores.Exact(), 100.0), ("age", scores.Gaussian(5.0), 1.0)))
    answer = Database.open(MIXED, key="name,age", value="pay").ask(("bob ray", 59), score=score)
    assert answer.value == pytest.approx(4.0, abs=1e-6)


NOTES = {"k": ["ann", "bob"], "n": [1.0, 2.0], "x": [[1.0, 0.0], [0.0, 1.0]], "v": [1, 2]}


@pytest.mark.parametrize(
    ("key", "query", "options", "shown"),
    [
        ("k", "ann", {}, False),
        ("k", "ann", {"score": "spelling"}, True),
        ("k", "ann", {"score": "spelling", "normalizer": "softmax"}, False),
        ("x", [1.0, 0.0], {}, True),
        (["x", "n"], {"x": [1.0, 0.0], "n": 1.0}, {}, False),
    ],
)
def test_the_number_of_best_keys_is_noted_where_only_they_get_weight(key, query, options, shown):
    answer = Database.open(NOTES, key=key, value="v").ask(query, **options)
    assert ("the 10 best keys take part" in answer.notes) is shown


def test_the_comparison_of_every_part_of_a_key_is_noted():
    answer = Database.open(NOTES, key=["x", "n"], value="v").ask({"x": [1.0, 0.0], "n": 1.0})
    assert "x: compared by cosine" in answer.notes


# -- scores that do not fit


GIVEN = ["constant", "gaussian:0.1", "gaussian", "spelling", scores.Constant(), scores.Gaussian(0.1)]


@pytest.mark.parametrize("score", GIVEN, ids=str)
def test_one_score_for_a_text_and_a_number_is_refused_with_remedies_that_work(score):
    people = Database.open(MIXED, key="name,age", value="pay")
    with pytest.raises(OptionError, match=r"Omit score .* or pass") as error:
        people.ask(("bob ray", 59), score=score)
    assert people.ask(("bob ray", 59)).found
    remedy = str(error.value).split("or pass ")[1].rstrip(".")
    assert people.ask(("bob ray", 59), score=eval(remedy, {"scores": scores})).found


def test_a_score_of_the_users_own_compares_records():
    same = scores.Custom(lambda query, key: (query[:, None] == key[None, :]).astype(float), accepts="any")
    people = Database.open(MIXED, key="name,age", value="pay")
    assert people.ask(("bob ray", 20), score=same, normalizer="sum").found


def test_a_drawn_row_needs_a_seed_and_repeats_with_it():
    database = Database.open(SQUARES, key="x", value="y")
    first, second = (database.ask([5.0] * 4, normalizer="sample", seed=3, score="gaussian:1") for _ in range(2))
    assert first.value == second.value
    assert all(len(one.rows) == 1 for one in first)
    with pytest.raises(OptionError, match="seed"):
        database.ask(5.0, normalizer="sample")


def test_several_texts_of_a_key_share_the_weight_of_one():
    rows = {"a": ["x y", "z w"], "b": ["p q", "r s"], "n": [1.0, 2.0], "v": [1.0, 2.0]}
    weights = []
    for key in ("a,n", "a,b,n"):
        score = Database.open(rows, key=key, value="v")._executor.chooser.choose(None, MatchLimits(), None).score
        weights.append({name: weight for name, part, weight in score.columns if not isinstance(part, scores.Exact)})
    assert weights[1] == {"n": 1.0, "a": weights[0]["a"] / 2, "b": weights[0]["a"] / 2}


def test_evidence_of_several_kinds_of_keys_shows_no_distance_and_a_match_has_no_reason():
    rows = {"a": ["x y", "z w"], "n": [1.0, 2.0], "v": [1.0, 2.0]}
    answer = Database.open(rows, key="a,n", value="v").ask(("x y", 1.0))
    assert (answer.found, answer.reason) == (True, "")
    assert repr(answer).splitlines()[1].split() == [f"{answer.rows[0].weight:.3f}", "a=x", "y", "n=1", "v=1"]
