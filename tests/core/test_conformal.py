"""Conformal quantiles against their definition: the share of the ranks of a new value that they contain."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.core.conformal import conformal_quantile


@given(st.integers(1, 60), st.integers(1, 99))
def test_the_probability_of_a_new_score_is_the_formula(count, percent):
    # Each of count + 1 different scores is equally likely the new one.
    scores = np.arange(count + 1.0)
    inside = [scores[new] <= conformal_quantile(np.delete(scores, new), percent / 100) for new in range(count + 1)]
    wanted = Fraction(percent, 100)
    assert Fraction(sum(inside), count + 1) == Fraction(math.ceil(wanted * (count + 1)), count + 1) >= wanted


@given(st.lists(st.integers(-3, 3), max_size=30), st.floats(0.01, 0.99), st.integers(1, 3))
def test_whole_weights_are_repeated_scores(scores, probability, weight):
    scores = np.array(scores, float)
    weights = np.full(len(scores), float(weight))
    repeated = conformal_quantile(np.repeat(scores, weight), probability)
    assert conformal_quantile(scores, probability, weights) == repeated


def test_zero_weights_take_no_part_and_equal_scores_are_all_below():
    assert conformal_quantile(np.array([1.0, 2.0, 9.0]), 0.5, np.array([1.0, 1.0, 0.0])) == 2.0
    assert conformal_quantile(np.ones(9), 0.9) == 1.0
    assert conformal_quantile(np.ones(8), 0.9) == math.inf
    assert conformal_quantile(np.zeros(0), 0.5) == math.inf


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_larger_probabilities_have_larger_quantiles(level):
    scores = np.random.default_rng(0).normal(size=50)
    assert conformal_quantile(scores, level) >= conformal_quantile(scores, level - 0.1)
