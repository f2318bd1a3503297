"""Joins of one text column without labels: they find misspelt rows, and decline where the scores do not tell."""

from pathlib import Path

import numpy as np
import pytest
from examples.matching.without_labels import measure
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import norm

from qkv.join import SoftJoin
from qkv.join.expectation_maximization import BestMatchMixture, fit_best_matches
from tests.effort import cases

ROOT = Path(__file__).parents[2]
PEOPLE, GUESTS = (ROOT / "examples" / f"{name}.csv" for name in ("people", "guests"))
LETTERS = np.array(list("abcdefghijklmnoprstuvz"))


def names(draw, count):
    """Distinct names of two random words."""
    found = {}
    while len(found) < count:
        words = ("".join(draw.choice(LETTERS, draw.integers(5, 9))) for _ in range(2))
        found[" ".join(words)] = None
    return list(found)


def misspell(name, draw):
    place = int(draw.integers(1, len(name) - 1))
    return name[:place] + name[place + 1 :]


def found_pairs(joined):
    return {(pair.left, pair.right) for pair in joined}


@settings(max_examples=cases(24), deadline=None)
@given(st.integers(0, 10_000), st.integers(12, 60), st.integers(1, 3))
def test_one_column_finds_misspelt_names_and_no_stranger(seed, count, copies):
    draw = np.random.default_rng(seed)
    every = names(draw, 2 * count)
    right = every[:count]
    # Several left rows may match the same right row; half of the left rows match none.
    left = [misspell(name, draw) for name in right[: count // 2] for _ in range(copies)] + every[count:]
    true = {(place, place // copies) for place in range(copies * (count // 2))}
    joined = SoftJoin().join({"name": left}, {"name": right})
    found = found_pairs(joined)
    assert len(found & true) >= 0.9 * len(true)
    assert len(found - true) <= 1
    total = np.bincount(joined.rows, joined.weights, len(left)) + joined.no_match
    assert (total <= 1 + 1e-9).all()


@settings(max_examples=cases(24), deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 60), st.integers(2, 60))
def test_tables_without_a_common_name_have_no_match(seed, rows, keys):
    every = names(np.random.default_rng(seed), rows + keys)
    assert len(SoftJoin().join({"name": every[:rows]}, {"name": every[rows:]})) == 0


def test_the_guests_are_found_by_name_alone():
    joined = SoftJoin("name=guest").join(PEOPLE, GUESTS)
    pairs = {(joined.left["name"][i].as_py(), joined.right["guest"][k].as_py()) for i, k in found_pairs(joined)}
    assert {
        ("John Smith", "Jon Smith"),
        ("Zoë Müller", "Mueller Zoe"),
        ("Maria Gonzalez", "Maria Gonzales"),
        ("Benjamin Okafor", "Benjamin Okafor"),
        ("Emily Watson", "Emilie Watson"),
    } <= pairs
    assert not {right for _, right in pairs} & {"Peter Novak", "Hana Sato"}


def test_missing_cells_match_nothing():
    draw = np.random.default_rng(1)
    right = [*names(draw, 20), None, ""]
    left = [misspell(name, draw) for name in right[:10]] + [None, "", "-"]
    joined = SoftJoin("name").join({"name": left}, {"name": right})
    assert found_pairs(joined) == {(place, place) for place in range(10)}
    assert (joined.no_match[10:] > 0.99).all()


def test_duplicates_within_one_column_are_found_once():
    draw = np.random.default_rng(2)
    every = names(draw, 30)
    people = every + [misspell(name, draw) for name in every[:10]]
    assert found_pairs(SoftJoin().join({"name": people})) == {(place, 30 + place) for place in range(10)}
    assert len(SoftJoin().join({"name": every})) == 0


def test_equal_cells_everywhere_are_refused_with_a_reason():
    joined = SoftJoin("a").join({"a": ["x"] * 5}, {"a": ["x"] * 4})
    assert len(joined) == 0
    assert any("too far to tell them apart" in note for note in joined.notes)


@pytest.mark.parametrize(("match", "other", "deviation", "share"), [(0.8, 0.3, 0.1, 0.4), (0.7, 0.35, 0.08, 0.8)])
def test_the_mixture_recovers_the_distributions_that_it_was_drawn_from(match, other, deviation, share):
    draw = np.random.default_rng(3)
    matched = draw.random(20_000) < share
    best = np.where(matched, match, other) + deviation * draw.normal(size=len(matched))
    # The second candidates of matches are non-matches; others are not read, because their best is one.
    second = np.where(matched, other + deviation * draw.normal(size=len(matched)), np.nan)
    fitted = fit_best_matches(best, second)
    np.testing.assert_allclose(fitted, (match, other, deviation, share), atol=0.01)
    assert fitted.separated


def test_the_log_odds_are_those_of_two_normal_distributions():
    mixture = BestMatchMixture(0.8, 0.3, 0.12, 0.3)
    scores = np.linspace(0, 1, 9)
    densities = 0.3 * norm.pdf(scores, 0.8, 0.12), 0.7 * norm.pdf(scores, 0.3, 0.12)
    np.testing.assert_allclose(
        expit(mixture.slope * scores + mixture.intercept), densities[0] / sum(densities), atol=1e-12
    )
    assert not BestMatchMixture(0.5, 0.3, 0.12, 0.3).separated


def test_the_measuring_script_reports_the_f1_of_a_join(tmp_path):
    draw = np.random.default_rng(4)
    right = names(draw, 20)
    left = [misspell(name, draw) for name in right[:10]]
    for side, column in (("left", left), ("right", right)):
        (tmp_path / f"{side}.csv").write_text("\n".join(["name", *column]) + "\n", encoding="utf-8")
    # Five of ten matches are labelled with the right row, five with a wrong one: recall is one half.
    pairs = [f"{row},{row if row < 5 else row + 1},1" for row in range(10)]
    (tmp_path / "train.csv").write_text("\n".join(["left,right,match", *pairs]) + "\n", encoding="utf-8")
    assert measure(tmp_path, "name", ("train",)) == {"train": pytest.approx(2 * 5 / (5 + 10))}
