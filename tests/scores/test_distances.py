"""Contracts of the kernels of the distance."""

import math

import numpy as np
import pytest

from qkv.errors import OptionError
from qkv.normalizers import Softmax
from qkv.scores import Boxcar, Constant, Epanechnikov, Gaussian, Laplace, Score, Triangular
from qkv.testing import ScoreContract


def distance(q, k):
    return math.dist(q, k)


class CompactContract(ScoreContract):
    """A kernel that ends at the bandwidth; near there the logarithm goes to −inf, and rounding decides."""

    def edge(self, score, q, k, at):
        return abs(distance(q, k) / score.bandwidth - 1) < 0.05

    def make(self, draw):
        return self.part(np.asarray(2 * draw.positive()))

    def test_keys_beyond_the_bandwidth_are_excluded(self):
        logits = self.part(2.0)(np.zeros((1, 1)), np.array([[1.0], [2.5]]))
        assert np.isneginf(logits).tolist() == [[False, True]]
        assert Softmax().weights(logits).tolist() == [[1.0, 0.0]]


class TestLaplace(ScoreContract):
    part = Laplace
    second_derivatives = True

    def make(self, draw):
        return Laplace(draw.positive())

    def formula(self, score, q, k, at):
        return -distance(q, k) / score.bandwidth


class TestBoxcar(CompactContract):
    part = Boxcar
    differentiable = False

    def formula(self, score, q, k, at):
        return 0.0 if distance(q, k) <= score.bandwidth else -math.inf

    def test_includes_its_edge(self):
        assert Boxcar(2.0)(np.zeros((1, 1)), np.array([[2.0]])) == 0


class TestEpanechnikov(CompactContract):
    part = Epanechnikov

    def formula(self, score, q, k, at):
        u = distance(q, k) / score.bandwidth
        return math.log(1 - u * u) if u < 1 else -math.inf


class TestTriangular(CompactContract):
    part = Triangular

    def formula(self, score, q, k, at):
        u = distance(q, k) / score.bandwidth
        return math.log(1 - u) if u < 1 else -math.inf


KERNELS = [Gaussian, Laplace, Boxcar, Epanechnikov, Triangular]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_bandwidth_that_is_not_positive_is_refused_by_name(kernel):
    with pytest.raises(OptionError, match=rf"bandwidth of {kernel.__name__} must be .*positive.*, got -1"):
        kernel(-1)


@pytest.mark.parametrize(
    ("score", "kernel"),
    [
        (Gaussian(0.3), lambda u: math.exp(-u * u / 2)),
        (Laplace(0.3), lambda u: math.exp(-u)),
        (Boxcar(0.3), lambda u: float(u <= 1)),
        (Epanechnikov(0.3), lambda u: max(0.0, 1 - u * u)),
        (Triangular(0.3), lambda u: max(0.0, 1 - u)),
        (Constant(), lambda u: 1.0),
    ],
    ids=lambda x: str(x) if isinstance(x, Score) else "",
)
def test_mission_a4_softmax_over_a_kernel_is_the_nadaraya_watson_estimate(score, kernel):
    """Grade points as keys, salaries as values: a 3.5 looks mostly at 3.4 to 3.6, hardly at 3.0 or 4.0."""
    grades = np.array([2.9, 3.0, 3.3, 3.42, 3.5, 3.58, 3.9, 4.0])
    salaries = 20_000 + 12_000 * grades
    mass = [kernel(abs(3.5 - grade) / 0.3) for grade in grades]
    wanted = math.fsum(m * s for m, s in zip(mass, salaries, strict=True)) / math.fsum(mass)
    weights = Softmax().weights(score(np.array([[3.5]]), grades[:, None]))
    assert weights[0] @ salaries == pytest.approx(wanted, rel=1e-12)
    if not isinstance(score, Constant):
        assert weights[0, 3:6].sum() > weights[0, [0, 1, 6, 7]].sum()


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("keys", [1, 2])
def test_an_infinite_query_has_nan_as_all_gaussian_logits_wherever_the_keys_are(sign, keys):
    with np.errstate(invalid="ignore"):
        logits = Gaussian(1.0)(np.array([[np.inf, 0.0], [0.0, 0.0]]), sign * np.ones((keys, 2)))
    assert np.isnan(logits).tolist() == [[True] * keys, [False] * keys]


def test_a_bandwidth_whose_square_is_0_is_refused():
    with pytest.raises(OptionError, match="at least 1e-150, got 1e-300"):
        Gaussian(1e-300)


@pytest.mark.parametrize("score", [Laplace(9.0), Boxcar(9.0), Epanechnikov(9.0), Triangular(9.0)])
def test_the_logit_of_a_distance_that_is_not_known_is_not_known(score):
    points = np.array([[0.0], [np.nan], [1.0]])
    unknown = [[False, True, False], [True, True, True], [False, True, False]]
    assert (np.isnan(score(points, points)) == unknown).all()
