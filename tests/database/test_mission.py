"""The worked numbers of the mission, rows A1 to A8, asked of a table."""

import datetime as dt

import numpy as np
import pytest

from qkv import masks, normalizers, scores
from qkv.database import Database

AUTHORS = {
    "last": ["Zhang", "Lipton", "Li", "Smola", "Hu", "Werness"],
    "first": ["Aston", "Zachary", "Mu", "Alex", "Rachel", "Brent"],
}
INCOMES = {"name": ["John Smith", "Jane Roe", "Aisha Khan"], "income": [1000, 2000, 3000]}
MAJORS = {
    "name": ["John Doe", "Jane Roe", "Omar Haddad", "Grace Kim"],
    "major": ["psychology", "physics", "physics", "economics"],
}


def gpa_table():
    gpa = np.round(np.linspace(2.4, 4.0, 161), 2)
    return {"gpa": gpa, "salary": 30_000 + 40_000 / (1 + np.exp(-(gpa - 3.3) / 0.15))}


# A1: exact matching


def test_exact_weights_are_one_hot_on_the_equal_key():
    answer = Database.open(INCOMES, key="name", value="income").ask("Jane Roe", score="exact")
    assert [(row.index, row.weight) for row in answer.rows] == [(1, 1.0)]
    assert (answer.value, answer.spread, answer.perplexity) == (2000.0, 0.0, 1.0)


def test_john_doe_studies_psychology():
    assert Database.open(MAJORS, key="name", value="major").ask("John Doe", score="exact").value == "psychology"


def test_an_absent_name_gives_an_empty_answer_that_says_so():
    answer = Database.open(MAJORS, key="name", value="major").ask("Nobody", score="exact")
    assert (answer.found, answer.value, answer.rows, answer.perplexity) == (False, None, (), 0.0)
    assert "no key equals the query" in answer.reason


def test_li_is_mu():
    authors = Database.open(AUTHORS, key="last", value="first")
    assert authors.ask("Li").value == "Mu"
    assert authors.ask("Li", score="exact").value == "Mu"


def test_without_its_row_li_has_no_exact_answer():
    authors = Database.open(AUTHORS, key="last", value="first")
    assert not authors.ask("Li", score="exact", where="first <> 'Mu'").found


# A2: approximate matching


@pytest.mark.parametrize("score", [None, "jaro-winkler"])
def test_without_its_row_li_finds_lipton(score):
    authors = Database.open(AUTHORS, key="last", value="first")
    assert authors.ask("Li", score=score, where="first <> 'Mu'").value == "Zachary"


@pytest.mark.parametrize(("weights", "expected"), [([0.9, 0.1, 0.0], 1100.0), ([1.0, 0.0, 0.0], 1000.0)])
def test_scores_normalised_by_their_sum_weigh_the_incomes(weights, expected):
    given = scores.Custom(lambda query, key: np.array([weights]), accepts="text", elements=1)
    people = Database.open(INCOMES, key="name", value="income")
    answer = people.ask("Jon Smiht", score=given, normalizer=normalizers.Sum())
    assert answer.value == pytest.approx(expected, abs=1e-9)
    assert [row.weight for row in answer.rows] == pytest.approx([w for w in weights if w])


def test_a_misspelt_name_finds_its_person():
    answer = Database.open(INCOMES, key="name", value="income").ask("Jon Smiht")
    assert answer.rows[0].record["name"] == "John Smith"
    assert answer.value == pytest.approx(1000, abs=1)


# A3: top-k


def test_top_k_is_the_dense_answer_with_the_other_weights_zero_and_the_rest_renormalised():
    table = gpa_table()
    students = Database.open(table, key="gpa", value="salary")
    dense = students.ask(3.5, score="gaussian:0.1", normalizer="softmax", top=161)
    best = students.ask(3.5, score="gaussian:0.1", normalizer="topk:7", top=161)
    kept = dense.rows[:7]
    total = sum(row.weight for row in kept)
    assert {row.index for row in best.rows} == {row.index for row in kept}
    assert best.value == pytest.approx(sum(row.weight / total * row.record["salary"] for row in kept), rel=1e-12)


# A4: numbers as keys


def test_a_gpa_of_3_5_looks_mostly_at_its_neighbours_and_hardly_at_3_or_4():
    answer = Database.open(gpa_table(), key="gpa", value="salary").ask(3.5, top=161)
    near = sum(row.weight for row in answer.rows if 3.4 <= row.record["gpa"] <= 3.6)
    far = sum(row.weight for row in answer.rows if row.record["gpa"] <= 3.0 or row.record["gpa"] >= 4.0)
    assert near > 0.9
    assert far < 1e-6


@pytest.mark.parametrize(
    ("score", "kernel"),
    [
        ("gaussian:0.2", lambda u: np.exp(-u * u / 2)),
        ("laplace:0.2", lambda u: np.exp(-u)),
        ("boxcar:0.2", lambda u: (u <= 1).astype(float)),
        ("epanechnikov:0.2", lambda u: np.maximum(0, 1 - u * u)),
        ("triangular:0.2", lambda u: np.maximum(0, 1 - u)),
        ("constant", lambda u: np.ones_like(u)),
    ],
)
def test_the_answer_is_the_nadaraya_watson_estimate(score, kernel):
    table = gpa_table()
    weights = kernel(np.abs(table["gpa"] - 3.456) / 0.2)
    weights /= weights.sum()
    expected = weights @ table["salary"]
    answer = Database.open(table, key="gpa", value="salary").ask(3.456, score=score)
    assert answer.value == pytest.approx(expected, rel=1e-12)
    assert answer.spread == pytest.approx(np.sqrt(weights @ (table["salary"] - expected) ** 2), rel=1e-9)
    positive = weights[weights > 0]
    assert answer.perplexity == pytest.approx(np.exp(-(positive * np.log(positive)).sum()), rel=1e-9)


@pytest.mark.parametrize("name", ["gaussian", "laplace", "boxcar", "epanechnikov", "triangular"])
def test_a_kernel_named_without_a_bandwidth_gets_one_that_beats_the_mean(name):
    table = gpa_table()
    answer = Database.open(table, key="gpa", value="salary").ask([2.8, 3.3, 3.8], score=name)
    truth = 30_000 + 40_000 / (1 + np.exp(-(np.array([2.8, 3.3, 3.8]) - 3.3) / 0.15))
    assert np.abs(np.array(answer.value) - truth).max() < 0.1 * table["salary"].std()


# A5: any data, and rows that change


def test_a_member_number_answers_with_the_date_joined():
    first = dt.date(2020, 1, 1)
    table = {"member": list(range(1, 101)), "joined": [first + dt.timedelta(days=10 * i) for i in range(100)]}
    answer = Database.open(table, key="member", value="joined").ask(50)
    assert answer.value == first + dt.timedelta(days=490)
    assert isinstance(answer.spread, dt.timedelta)


def test_the_same_query_gets_another_answer_when_the_rows_change():
    more = {"name": [*INCOMES["name"], "Jon Smith"], "income": [*INCOMES["income"], 9000]}
    before = Database.open(INCOMES, key="name", value="income").ask("Jon Smith").value
    after = Database.open(more, key="name", value="income").ask("Jon Smith").value
    assert before == pytest.approx(1000, abs=1)
    assert after > 7000


# A6: keys and values change places


def test_swap_asks_for_people_by_major_without_copying_the_table():
    students = Database.open(MAJORS, key="name", value="major")
    majors = students.swap()
    assert majors.table is students.table
    assert majors.ask("psychology").value == "John Doe"
    assert majors.swap().ask("John Doe").value == "psychology"


# A7: normalisation


@pytest.mark.parametrize("name", ["softmax", "topk:5", "hard", "sparsemax", "entmax15", "mean"])
def test_convex_weights_keep_the_answer_in_the_hull_of_the_values(name):
    table = gpa_table()
    students = Database.open(table, key="gpa", value="salary")
    answer = students.ask([2.4, 3.0, 3.7], score="gaussian:0.05", normalizer=name, top=161)
    for one in answer:
        assert sum(row.weight for row in one.rows) == pytest.approx(1, abs=1e-12)
        assert min(row.weight for row in one.rows) > 0
        assert table["salary"].min() <= one.value <= table["salary"].max()


def test_hard_attention_is_a_look_up():
    answer = Database.open(gpa_table(), key="gpa", value="salary").ask(3.501, score="gaussian:0.1", normalizer="hard")
    assert [row.weight for row in answer.rows] == [1.0]
    assert answer.value == answer.rows[0].record["salary"]


def test_weights_that_do_not_sum_to_one_have_no_support():
    answer = Database.open(gpa_table(), key="gpa", value="salary").ask(3.5, score="gaussian:0.1", normalizer="sigmoid")
    assert answer.perplexity is None
    assert answer.value > 0


# A8: average pooling


def test_average_pooling_is_the_mean_of_the_values_whatever_is_asked():
    table = gpa_table()
    students = Database.open(table, key="gpa", value="salary")
    answer = students.ask([3.5, 99.0], normalizer="mean", top=3)
    assert answer.value == pytest.approx([table["salary"].mean()] * 2, rel=1e-12)
    assert answer[0].perplexity == pytest.approx(161)
    assert [row.weight for row in answer[0].rows] == pytest.approx([1 / 161] * 3)


def test_a_mask_leaves_rows_out():
    table = gpa_table()
    first = np.arange(161) < 20
    answer = Database.open(table, key="gpa", value="salary").ask(3.5, normalizer="mean", mask=masks.AllowedKeys(first))
    assert answer.value == pytest.approx(table["salary"][:20].mean())
