"""Contracts of the scores that are inner products of lifted vectors."""

import math

import numpy as np
import pytest

import qkv
from qkv.errors import OptionError, ShapeError
from qkv.kernels import NumpyBlocksKernel
from qkv.scores import Bilinear, Cosine, Dot, Features, Gaussian, Laplace, Projected, ScaledDot, SeparableGate, SumOf
from qkv.testing import ScoreContract


def dot(x, y):
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def sigma(x):
    return 1 / (1 + math.exp(-x))


def apply(matrix, x):
    return [dot(row, x) for row in matrix]


class TestDot(ScoreContract):
    part = Dot

    def formula(self, score, q, k, at):
        return dot(q, k)


class TestScaledDot(ScoreContract):
    part = ScaledDot
    widths = (5, 5)

    def formula(self, score, q, k, at):
        return dot(q, k) / math.sqrt(5)

    def test_unit_variance_inputs_give_unit_variance_logits_at_any_width(self):
        rng = np.random.default_rng(0)
        for width in (4, 64, 1024):
            logits = ScaledDot()(rng.normal(size=(200, width)), rng.normal(size=(200, width)))
            assert abs(logits.std() - 1) < 0.03

    def test_half_precision_does_not_overflow_where_the_logits_fit(self):
        ones = np.full((1, 1024), 16, dtype=np.float16)
        assert ScaledDot()(ones, ones)[0, 0] == np.float16(8192)


class TestDotWithAScale(ScoreContract):
    part = Dot

    def make(self, draw):
        return Dot(scale=0.3)

    def formula(self, score, q, k, at):
        return 0.3 * dot(q, k)

    def test_refuses_a_scale_that_is_not_finite(self):
        with pytest.raises(OptionError, match=r"scale of Dot must be a finite number, got nan"):
            Dot(scale=math.nan)


class TestScaledDotWithAScale(TestDotWithAScale):
    part = ScaledDot

    def make(self, draw):
        return ScaledDot(scale=0.3)

    def test_refuses_a_scale_that_is_not_finite(self):
        with pytest.raises(OptionError, match=r"scale of ScaledDot must be a finite number or None, got inf"):
            ScaledDot(scale=math.inf)


class TestBilinear(ScoreContract):
    part = Bilinear
    widths = (3, 5)

    def make(self, draw):
        return Bilinear(draw(3, 5))

    def formula(self, score, q, k, at):
        return math.fsum(q[a] * score.weight[a, b] * k[b] for a in range(3) for b in range(5))

    def test_refuses_factors_of_different_ranks_and_names_both(self):
        score = Bilinear(np.ones((3, 2)), np.ones((5, 4)))
        with pytest.raises(ShapeError, match=r"same rank, got 2 and 4"):
            score(np.ones((1, 3)), np.ones((1, 5)))


class TestBilinearOfLowRank(ScoreContract):
    part = Bilinear
    widths = (3, 5)

    def make(self, draw):
        return Bilinear(draw(3, 2), draw(5, 2))

    def formula(self, score, q, k, at):
        return dot(apply(score.weight.T, q), apply(score.key_factor.T, k))


class TestCosine(ScoreContract):
    part = Cosine

    def make(self, draw):
        return Cosine(draw.positive())

    def formula(self, score, q, k, at):
        return dot(q, k) / (math.hypot(*q) * math.hypot(*k) * score.temperature)

    def test_of_a_zero_vector_with_anything_is_zero(self):
        assert (Cosine()(np.zeros((1, 3)), np.ones((2, 3))) == 0).all()
        assert (Cosine()(np.ones((2, 3)), np.zeros((1, 3))) == 0).all()

    @pytest.mark.parametrize("length", [1e-30, 1e30])
    def test_does_not_depend_on_lengths_whose_squares_leave_float32(self, length):
        x = np.array([[3, 4]], dtype=np.float32)
        assert Cosine()(x * np.float32(length), x) == pytest.approx(1.0)

    @pytest.mark.parametrize("temperature", [0.0, -1, float("nan"), True, "1"])
    def test_refuses_a_temperature_that_is_not_positive(self, temperature):
        with pytest.raises(OptionError, match=r"temperature of Cosine must be .*positive.*, got"):
            Cosine(temperature)


class TestGaussian(ScoreContract):
    part = Gaussian

    def make(self, draw):
        return Gaussian(draw.positive())

    def formula(self, score, q, k, at):
        return -math.fsum((a - b) ** 2 for a, b in zip(q, k, strict=True)) / (2 * score.bandwidth**2)

    def test_far_from_the_origin_keeps_its_digits(self):
        rng = np.random.default_rng(0)
        near = rng.normal(size=(2, 8, 3))
        far = np.round((near + 1000) * 2**10) / 2**10  # exact in float32
        wanted = Gaussian()(*far)
        got = Gaussian()(*far.astype(np.float32))
        assert np.abs(got - wanted).max() <= 2e-6 * np.abs(wanted).max()


class TestSeparableGate(ScoreContract):
    part = SeparableGate

    def make(self, draw):
        return SeparableGate(draw(3), draw(3), draw(), draw())

    def formula(self, score, q, k, at):
        left = sigma(dot(score.query_weight, q) + score.query_bias)
        return left * sigma(dot(score.key_weight, k) + score.key_bias) * dot(q, k)

    def test_refuses_a_gate_for_another_width_and_names_both(self):
        with pytest.raises(ShapeError, match=r"SeparableGate must have width 3.*got width 2.*\(3,\)"):
            SeparableGate(np.zeros(3), np.zeros(2))(np.ones((1, 3)), np.ones((1, 3)))


class TestProjectedOntoADotProduct(ScoreContract):
    part = Projected
    widths = (7, 5)

    def make(self, draw):
        return Projected(Dot(), draw(4, 7), draw(4, 5))

    def formula(self, score, q, k, at):
        return dot(apply(score.query_weight, q), apply(score.key_weight, k))

    @pytest.mark.parametrize("side", ["query", "key"])
    def test_refuses_a_map_for_another_width_and_names_the_side(self, side):
        score = Projected(Dot(), np.ones((4, 7 - (side == "query"))), np.ones((4, 5 - (side == "key"))))
        with pytest.raises(
            ShapeError, match=rf"{side} of width \d must match {side}_weight of Projected, got a weight for width \d"
        ):
            score(np.ones((1, 7)), np.ones((1, 5)))

    def test_refuses_maps_to_different_widths(self):
        with pytest.raises(ShapeError, match=r"same width for .*, got widths 4 and 3"):
            Projected(Dot(), np.ones((4, 7)), np.ones((3, 5)))(np.ones((1, 7)), np.ones((1, 5)))


class TestProjectedQueryAloneBeforeAGaussian(ScoreContract):
    part = Projected
    widths = (4, 3)

    def make(self, draw):
        return Projected(Gaussian(draw.positive()), query_weight=draw(3, 4))

    def formula(self, score, q, k, at):
        square = math.fsum((a - b) ** 2 for a, b in zip(apply(score.query_weight, q), k, strict=True))
        return -square / (2 * score.score.bandwidth**2)


class TestSumOf(ScoreContract):
    part = SumOf

    def make(self, draw):
        return SumOf((Dot(), Cosine(draw.positive()), Gaussian(draw.positive())))

    def formula(self, score, q, k, at):
        _, cosine, gaussian = score.scores
        square = math.fsum((a - b) ** 2 for a, b in zip(q, k, strict=True))
        cos = dot(q, k) / (math.hypot(*q) * math.hypot(*k) * cosine.temperature)
        return dot(q, k) + cos - square / (2 * gaussian.bandwidth**2)

    def test_a_sum_of_a_gaussian_and_a_score_without_a_lift_runs_tile_by_tile(self):
        """The blocks of NumPy have one reference point for each summed score, which was given to each whole."""
        draw = np.random.default_rng(0)
        query, key = draw.normal(size=(2, 5, 3)), draw.normal(size=(2, 7, 3))
        score = SumOf((Gaussian(1.3), SumOf((Laplace(0.7), Gaussian(2.0)))))
        square = ((query[:, :, None] - key[:, None]) ** 2).sum(-1)
        weights = np.exp(-square / (2 * 1.3**2) - np.sqrt(square) / 0.7 - square / 8)
        wanted = weights @ key / weights.sum(-1, keepdims=True)
        got = qkv.attend(query, key, key, score=score, kernel=NumpyBlocksKernel(budget=12))
        assert np.abs(got - wanted).max() < 1e-13

    @pytest.mark.parametrize("scores", [(), [Dot()], (Dot(), "dot")])
    def test_refuses_what_is_no_tuple_of_scores(self, scores):
        with pytest.raises(OptionError, match=r"tuple of one or more scores, got|must be a score, such as"):
            SumOf(scores)


def test_widths_that_differ_are_refused_with_the_two_ways_out():
    with pytest.raises(ShapeError, match=r"got widths 3 and 4.*Projected\(.*Bilinear\(weight\).*\(3, 4\)"):
        Dot()(np.ones((1, 3)), np.ones((1, 4)))


def test_mission_b9_unequal_widths_through_maps():
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(100, 10, 7)), rng.normal(size=(100, 20, 5))
    score = Projected(ScaledDot(), rng.normal(size=(6, 7)), rng.normal(size=(6, 5)))
    assert score(query, key).shape == (100, 10, 20)
    with pytest.raises(ShapeError, match=r"7.*5"):
        ScaledDot()(query, key)


def mapped(x, weight):
    return x @ weight.T


class TestFeatures(ScoreContract):
    part = Features

    def formula(self, score, q, k, at):
        return dot(*([x + 1 if x > 0 else math.exp(x) for x in side] for side in (q, k)))

    def test_features_of_very_negative_elements_keep_their_precision(self):
        got = Features()(np.array([[-60.0]], dtype=np.float32), np.zeros((1, 1), dtype=np.float32))
        assert abs(got[0, 0] / math.exp(-60) - 1) < 1e-6

    def test_refuses_an_unknown_function(self):
        with pytest.raises(OptionError, match=r"function of Features must be .*, got 'tanh'"):
            Features("tanh")


class TestFeaturesRelu(TestFeatures):
    def make(self, draw):
        return Features("relu")

    def formula(self, score, q, k, at):
        return dot(*([max(0.0, x) for x in side] for side in (q, k)))

    def special_inputs(self):
        return self.inputs()  # not the default, whose zeros are where the derivative is undefined

    def test_features_of_very_negative_elements_keep_their_precision(self):
        assert Features("relu")(np.array([[-60.0]]), np.ones((1, 1)))[0, 0] == 0


class TestFeaturesOfAFunction(ScoreContract):
    part = Features

    def make(self, draw):
        return Features(mapped, (draw.rng.normal(size=(5, 3)),), 5)

    def formula(self, score, q, k, at):
        return dot(apply(score.parameters[0], q), apply(score.parameters[0], k))

    def test_refuses_a_function_that_returns_another_number_of_features(self):
        with pytest.raises(ShapeError, match=r"must return an array of shape \(2, 4\), got \(2, 3\)\. Pass the number"):
            Features(lambda x: x, width=4)(np.ones((2, 3)), np.ones((2, 3)))
