"""Contracts of the scores that compare a tile at a time, and of the functions of the user's own."""

import math

import numpy as np
import pytest

from qkv.core.arrays import namespace
from qkv.errors import OptionError, ShapeError
from qkv.scores import Additive, Constant, Custom, Dot, Exact, Gated
from qkv.testing import ScoreContract

from .test_inner_products import apply, dot, sigma


class TestAdditive(ScoreContract):
    part = Additive
    widths = (3, 5)

    def make(self, draw):
        return Additive(draw(6, 3), draw(6, 5), draw(6), draw(6))

    def formula(self, score, q, k, at):
        units = zip(apply(score.query_weight, q), apply(score.key_weight, k), score.bias, score.vector, strict=True)
        return math.fsum(v * math.tanh(a + b + c) for a, b, c, v in units)

    @pytest.mark.parametrize(
        ("score", "words"),
        [
            (Additive(np.ones((6, 3)), np.ones((6, 5)), None, None), "vector of Additive must be an array"),
            (
                Additive(np.ones((6, 3)), np.ones((4, 5)), None, np.ones(6)),
                "same number of hidden units, got .*4 in key_weight",
            ),
            (Additive(np.ones((6, 3)), np.ones((6, 4)), None, np.ones(6)), "key of width 5 must .*width 4"),
            (Additive(np.ones((6, 3)), None, None, np.ones(6)), "got 6 in query_weight, 5 in key, 6 in vector"),
        ],
    )
    def test_refuses_weights_that_do_not_fit_and_says_which(self, score, words):
        with pytest.raises(ShapeError, match=words):
            score(np.ones((1, 3)), np.ones((1, 5)))


class TestAdditiveOfProjectedKeys(ScoreContract):
    part = Additive
    widths = (3, 5)

    def make(self, draw):
        return Additive(draw(5, 3), None, None, draw(5))

    def formula(self, score, q, k, at):
        units = zip(apply(score.query_weight, q), k, score.vector, strict=True)
        return math.fsum(v * math.tanh(a + b) for a, b, v in units)


class TestGated(ScoreContract):
    part = Gated

    def make(self, draw):
        return Gated(draw(3), draw(3), draw())

    def formula(self, score, q, k, at):
        return sigma(dot(score.query_weight, q) + dot(score.key_weight, k) + score.bias) * dot(q, k)


class TestConstant(ScoreContract):
    part = Constant
    widths = (3, 5)
    compares_widths = False
    differentiable = False

    def formula(self, score, q, k, at):
        return 0.0

    def test_of_nan_is_zero_since_nothing_is_compared(self):
        assert (Constant()(np.full((2, 3), np.nan), np.ones((4, 3))) == 0).all()


class TestExact(ScoreContract):
    part = Exact
    differentiable = False

    def rows(self, draw, length, width):
        return draw.integers(2, length, width).astype(float)

    def formula(self, score, q, k, at):
        return float(all(a == b for a, b in zip(q, k, strict=True)))


class TestExactOnText(ScoreContract):
    part = Exact
    libraries = ("numpy",)
    dtypes = ("float64",)
    compares_widths = False
    differentiable = False

    def rows(self, draw, length, width):
        return np.array(["Zhang", "Li", "li", ""], dtype=object)[draw.integers(4, length)]

    def formula(self, score, q, k, at):
        return float(q == k)


def weighted_square(query, key, vector):
    difference = query[..., :, None, :] - key[..., None, :, :]
    return -namespace(query).sum(vector * difference * difference, axis=-1)


class TestCustom(ScoreContract):
    """A function of the user's own, with a learned array."""

    part = Custom
    compares_widths = False

    def make(self, draw):
        return Custom(weighted_square, parameters=(draw.rng.normal(size=3),))

    def formula(self, score, q, k, at):
        return -math.fsum(v * (a - b) ** 2 for v, a, b in zip(score.parameters[0], q, k, strict=True))

    def test_refuses_what_cannot_be_called(self):
        with pytest.raises(OptionError, match=r"must be callable, got"):
            Custom(3)

    def test_takes_a_list_of_parameters_as_the_tuple_it_means(self):
        assert Custom(weighted_square, [np.ones(3)]).parameters[0].shape == (3,)

    def test_prints_the_name_of_the_function(self):
        assert "weighted_square" in str(Custom(weighted_square))


def test_a_bare_vector_is_refused_with_the_shape_that_is_wanted():
    with pytest.raises(ShapeError, match=r"\(\*batch, length, width\).*\(5,\)"):
        Dot()(np.ones(5), np.ones((3, 5)))
