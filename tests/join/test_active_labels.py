"""Joins that ask for labels: the pairs they choose, what few labels change, and labels that say little."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from qkv.errors import DataError, OptionError
from qkv.join import SoftJoin
from qkv.join.active_learner import LabelledRows, fit_from_prior

from .test_soft_join import GUESTS, ON, PEOPLE, SAME, crowd


@pytest.fixture(scope="module", name="tables")
def _tables():
    return crowd(3)


def test_the_gradient_of_the_cross_entropy_is_its_derivative():
    draw = np.random.default_rng(0)
    rows = np.sort(draw.integers(0, 6, 30))
    places = draw.choice(30, 9)
    labelled = LabelledRows(rows, np.zeros((30, 1)), places, draw.integers(0, 2, 9), draw.exponential(size=9))
    logits = draw.normal(size=len(labelled.measures))
    expected = approx_fprime(logits, lambda logits: labelled.loss(logits)[0], 1e-7)
    assert np.allclose(labelled.loss(logits)[1], expected, atol=1e-5)


def test_many_labels_overrule_scores_without_labels():
    draw = np.random.default_rng(1)
    measures = draw.random((400, 2))
    match = (measures[:, 1] > 0.5).astype(int)  # the second measure decides, the prior trusts the first
    labelled = LabelledRows(np.arange(400), measures, np.arange(400), match)
    weights, bias = fit_from_prior(labelled, np.array([10.0, 0.0]), -5.0)
    assert ((measures @ weights + bias > 0) == match).mean() > 0.95
    assert (weights >= 0).all()


def test_labels_that_agree_with_the_scores_change_no_pair(tables):
    left, right, pairs = tables
    join = SoftJoin().fit(left, right)
    before = [(pair.left, pair.right) for pair in join.join(left, right)]
    asked = join.informative_pairs(6)
    labels = [{"left": p.left, "right": p.right, "match": (p.left, p.right) in pairs} for p in asked]
    after = [(pair.left, pair.right) for pair in join.refit(labels).join(left, right)]
    assert len(set(before) ^ set(after)) <= 1
    assert len(set(after) & set(pairs)) >= 29


def test_informative_pairs_are_new_and_have_different_left_rows(tables):
    left, right, _ = tables
    join = SoftJoin().fit(left, right)
    first = join.informative_pairs(5)
    assert len({pair.left for pair in first}) == 5
    known = {(pair.left, pair.right) for pair in first}
    labels = [{"left": i, "right": j, "match": 0} for i, j in sorted(known)[:3]]
    join.refit(labels)
    later = join.informative_pairs(50, skip=sorted(known)[3:])
    assert not known & {(pair.left, pair.right) for pair in later}
    assert all(0 <= pair.weight <= 1 for pair in later)


def test_refitting_equals_fitting_with_the_same_labels(tables):
    left, right, pairs = tables
    labels = [{"left": i, "right": j, "match": 1} for i, j in pairs[:3]] + [{"left": 0, "right": 5, "match": 0}]
    again, once = (
        SoftJoin().fit(left, right).refit(labels[:1]).refit(labels),
        SoftJoin().fit(left, right, labels=labels),
    )
    assert np.array_equal(again.model.learned, once.model.learned)
    assert (again.model.bias, again.model.notes) == (once.model.bias, once.model.notes)


@pytest.mark.parametrize(
    ("answers", "said"),
    [([0, 0, 0], "no label is a match"), ([1, 1, 1], "every label is a match"), ([], "estimated from the tables")],
)
def test_labels_of_one_kind_give_finite_weights_and_a_note(tables, answers, said):
    left, right, _ = tables
    join = SoftJoin().fit(left, right)
    asked = join.informative_pairs(3)
    labels = [{"left": p.left, "right": p.right, "match": a} for p, a in zip(asked, answers, strict=False)]
    join.refit(labels)
    assert any(said in note for note in join.model.notes)
    logits = join.informative_pairs(5)
    assert all(np.isfinite(pair.probability) for pair in logits)
    assert len(join.join(left, right)) > 10  # three labels do not undo what the tables say


def test_contradicting_labels_count_half_each_and_are_named(tables):
    left, right, pairs = tables
    i, j = pairs[0]
    labels = [{"left": i, "right": j, "match": match} for match in (1, 0)]
    join = SoftJoin().fit(left, right, labels=labels)
    assert "1 pair has contradicting labels" in join.model.notes
    assert np.isfinite(join.model.learned).all()


def test_one_column_that_declines_answers_once_labels_tell():
    draw = np.random.default_rng(0)
    words = [f"word{number}" for number in range(25)]
    left = [draw.choice(words, 6, replace=False) for _ in range(60)]
    right = [np.append(draw.choice(row, 3, replace=False), draw.choice(words, 3)) for row in left]
    tables = [{"title": [" ".join(row) for row in side]} for side in (left, right)]
    join = SoftJoin("title").fit(*tables)
    assert len(join.join(*tables)) == 0
    assert len(join.refit([{"left": 0, "right": 3, "match": 0}]).join(*tables)) == 0
    labels = [{"left": i, "right": j, "match": int(i == j)} for i in range(12) for j in (i, i + 1)]
    found = [(pair.left, pair.right) for pair in join.refit(labels).join(*tables)]
    assert sum(i == j for i, j in found) > len(found) / 4  # one in sixty by chance
    assert len(found) > 12


def test_a_pair_within_one_table_is_asked_once():
    names = ["Ann Ray", "Anne Ray", "Bo Li", "Bo Lee", "Al Fox", "Eve Day"]
    join = SoftJoin("name").fit({"name": names})
    asked = join.informative_pairs(20)
    rows = [row for pair in asked for row in (pair.left, pair.right)]
    assert len(rows) == len(set(rows))
    labels = [{"left": p.left, "right": p.right, "match": 1} for p in asked]
    later = {frozenset((p.left, p.right)) for p in join.refit(labels).informative_pairs(20)}
    assert not later & {frozenset((p.left, p.right)) for p in asked}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: SoftJoin(ON).fit(PEOPLE, GUESTS, SAME, labels=SAME), "labels must be None"),
        (lambda: SoftJoin(ON).informative_pairs(1), "Call fit(left, right)"),
        (lambda: SoftJoin(ON).fit(PEOPLE, GUESTS).informative_pairs(0), "count must be an integer of at least 1"),
        (lambda: SoftJoin(ON).fit(PEOPLE, GUESTS, labels=[{"left": 0, "right": 0}]), "must have the column match"),
    ],
)
def test_unusable_labels_are_refused(call, said):
    with pytest.raises((DataError, OptionError)) as error:
        call()
    assert said in str(error.value)
