"""Contracts of all normalizers: each against its definition in plain numbers."""

import math

import numpy as np
import pytest

from qkv.core import random
from qkv.core.arrays import namespace
from qkv.core.tile import Tile
from qkv.errors import KindError, NegativeScoreError, OptionError, ShapeError
from qkv.normalizers import (
    Custom,
    Entmax,
    Entmax15,
    Hard,
    Identity,
    Mean,
    Sample,
    Sigmoid,
    Softmax,
    Sparsemax,
    Sum,
    TopK,
)
from qkv.testing import NormalizerContract
from qkv.testing.cases import Draw
from tests.core.reference_draws import reference_gumbel


def softmax(row):
    e = [math.exp(x - max(row)) for x in row]
    return [x / math.fsum(e) for x in e]


def best(row, count):
    """Indices of the largest, ties to the lowest index."""
    return sorted(range(len(row)), key=lambda j: (-row[j], j))[:count]


def one_hot(row, at):
    return [float(j == at) for j in range(len(row))]


def bisect(total_above):
    """The threshold at which what is above it adds up to 1."""
    low, high = -1.0, 0.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if total_above(middle) > 1 else (low, middle)
    return (low + high) / 2


class TestSoftmax(NormalizerContract):
    part = Softmax

    def formula(self, normalizer, row, at):
        return softmax(row)


class TestSoftmaxWithTemperature(NormalizerContract):
    part = Softmax

    def make(self, draw):
        return Softmax(draw.positive())

    def formula(self, normalizer, row, at):
        return softmax([x / normalizer.temperature for x in row])

    @pytest.mark.parametrize("temperature", [0, -1.0, float("nan"), "warm", None])
    def test_refuses_a_temperature_that_is_not_positive(self, temperature):
        with pytest.raises(OptionError, match=r"temperature of Softmax must be a positive number, got"):
            Softmax(temperature)


class TestSoftmaxWithTemperatureAndSink(NormalizerContract):
    part = Softmax

    def make(self, draw):
        return Softmax(draw.positive(), sink=draw())

    def formula(self, normalizer, row, at):
        return softmax([*(x / normalizer.temperature for x in row), float(normalizer.sink)])[:-1]


class TestSum(NormalizerContract):
    part = Sum
    non_negative_logits = True

    def formula(self, normalizer, row, at):
        return [x / math.fsum(row) for x in row]

    def test_mission_a2_shares_of_a_total(self):
        incomes = np.array([1000.0, 2000.0, 3000.0])
        assert Sum().weights(np.array([[0.9, 0.1, 0.0]])) @ incomes == pytest.approx(1100)
        assert Sum().weights(np.array([[1.0, 0.0, 0.0]])) @ incomes == pytest.approx(1000)

    def test_refuses_a_negative_score_and_names_it(self):
        with pytest.raises(NegativeScoreError, match=r"non-negative for Sum, got -0.5.*Softmax"):
            Sum().weights(np.array([[1.0, -0.5]]))

    def test_refuses_a_negative_score_with_gradients_without_a_warning(self):
        torch = pytest.importorskip("torch")
        before = torch.is_warn_always_enabled()
        torch.set_warn_always(True)
        try:
            with pytest.raises(NegativeScoreError, match=r"got -0\.5"):
                Sum().weights(torch.tensor([[1.0, -0.5]], requires_grad=True))
        finally:
            torch.set_warn_always(before)

    def test_under_jit_a_negative_score_makes_its_row_nan(self):
        jax = pytest.importorskip("jax")
        weights = jax.jit(Sum().weights)(np.array([[1.0, -0.5], [1.0, 1.0]], dtype=np.float32))
        assert np.isnan(weights).any(axis=-1).tolist() == [True, False]

    def test_row_whose_scores_are_all_zero_has_gradient_zero(self):
        torch = pytest.importorskip("torch")
        scores = torch.zeros((1, 3), requires_grad=True)
        (Sum().weights(scores) * torch.arange(3.0)).sum().backward()
        assert scores.grad.tolist() == [[0.0, 0.0, 0.0]]


class TestMean(NormalizerContract):
    part = Mean
    reads_logits = False

    def formula(self, normalizer, row, at):
        return [1 / len(row)] * len(row)


class TestIdentity(NormalizerContract):
    part = Identity
    signed = True

    def formula(self, normalizer, row, at):
        return list(row)


class TestSigmoid(NormalizerContract):
    part = Sigmoid

    def make(self, draw):
        return Sigmoid(draw())

    def formula(self, normalizer, row, at):
        return [1 / (1 + math.exp(-x - normalizer.bias)) for x in row]

    def test_small_weights_keep_their_digits_in_single_precision(self):
        """The recommended bias is −log of the number of keys: with a million keys weights are around 1e-6."""
        row = np.array([[-14.0, -13.0]], dtype=np.float32)
        wanted = [1 / (1 + math.exp(14)), 1 / (1 + math.exp(13))]
        assert Sigmoid().weights(row)[0].tolist() == pytest.approx(wanted, rel=1e-6)


class TestHard(NormalizerContract):
    part = Hard

    def formula(self, normalizer, row, at):
        return one_hot(row, best(row, 1)[0])


class TestTopK(NormalizerContract):
    part = TopK

    def make(self, draw):
        return TopK(3)

    def formula(self, normalizer, row, at):
        kept = best(row, normalizer.k)
        shares = dict(zip(kept, softmax([row[j] for j in kept]), strict=True))
        return [shares.get(j, 0.0) for j in range(len(row))]

    @pytest.mark.parametrize("k", [0, -1, 2.0, True, "3"])
    def test_refuses_a_k_that_is_no_whole_number_of_at_least_one(self, k):
        with pytest.raises(OptionError, match=r"k of TopK must be an integer of at least 1"):
            TopK(k)

    def test_refuses_an_inner_normalizer_that_is_none(self):
        with pytest.raises(OptionError, match=r"got 'softmax'.*such as Softmax\(\)"):
            TopK(3, normalizer="softmax")


class TestTopKOfSoftmaxWithSink(NormalizerContract):
    part = TopK

    def make(self, draw):
        return TopK(2, normalizer=Softmax(draw.positive(), sink=draw()))

    def formula(self, normalizer, row, at):
        kept = best(row, 2)
        inner = [*(row[j] / normalizer.normalizer.temperature for j in kept), float(normalizer.normalizer.sink)]
        shares = dict(zip(kept, softmax(inner), strict=False))
        return [shares.get(j, 0.0) for j in range(len(row))]


class TestTopKOfSum(NormalizerContract):
    part = TopK
    non_negative_logits = True

    def make(self, draw):
        return TopK(2, normalizer=Sum())

    def formula(self, normalizer, row, at):
        kept = best(row, 2)
        total = math.fsum(row[j] for j in kept)
        return [row[j] / total if j in kept else 0.0 for j in range(len(row))]


class TestTopKOfSigmoid(NormalizerContract):
    part = TopK

    def make(self, draw):
        return TopK(2, normalizer=Sigmoid(draw()))

    def formula(self, normalizer, row, at):
        return [
            1 / (1 + math.exp(-x - normalizer.normalizer.bias)) if j in best(row, 2) else 0.0 for j, x in enumerate(row)
        ]


class TestTopKOfHard(NormalizerContract):
    part = TopK

    def make(self, draw):
        return TopK(3, normalizer=Hard())

    def formula(self, normalizer, row, at):
        return one_hot(row, best(row, 1)[0])


class TestTopKOfSparsemax(NormalizerContract):
    part = TopK

    def make(self, draw):
        return TopK(2, normalizer=Sparsemax())

    def formula(self, normalizer, row, at):
        kept = best(row, 2)
        shares = dict(zip(kept, sparsemax([row[j] for j in kept]), strict=True))
        return [shares.get(j, 0.0) for j in range(len(row))]


def sparsemax(row):
    z = [x - max(row) for x in row]
    tau = bisect(lambda t: math.fsum(max(0.0, x - t) for x in z))
    return [max(0.0, x - tau) for x in z]


class TestSparsemax(NormalizerContract):
    part = Sparsemax

    def formula(self, normalizer, row, at):
        return sparsemax(row)


class TestEntmax15(NormalizerContract):
    part = Entmax15

    def formula(self, normalizer, row, at):
        z = [(x - max(row)) / 2 for x in row]
        tau = bisect(lambda t: math.fsum(max(0.0, x - t) ** 2 for x in z))
        return [max(0.0, x - tau) ** 2 for x in z]


class TestEntmax(NormalizerContract):
    part = Entmax

    def make(self, draw):
        return Entmax(np.asarray(1 + draw.positive()))

    def formula(self, normalizer, row, at):
        power = 1 / (normalizer.alpha - 1)
        z = [(x - max(row)) * (normalizer.alpha - 1) for x in row]
        tau = bisect(lambda t: math.fsum(max(0.0, x - t) ** power for x in z))
        return [max(0.0, x - tau) ** power for x in z]

    @pytest.mark.parametrize("alpha", [1, 0.5, float("nan"), float("inf"), "sparse", True])
    def test_refuses_an_alpha_that_is_not_greater_than_1(self, alpha):
        with pytest.raises(OptionError, match=r"alpha of Entmax must be a number greater than 1, got"):
            Entmax(alpha)


class TestEntmaxWithAFixedAlpha(TestEntmax):
    libraries = ("numpy", "torch")

    def make(self, draw):
        return Entmax(2.2)


class TestSample(NormalizerContract):
    part = Sample

    def make(self, draw):
        return Sample(draw.positive())

    def formula(self, normalizer, row, at):
        draws = [reference_gumbel(at.seed, random.SAMPLE, at.batch, at.row, key) for key in at.keys]
        rank = [x / normalizer.temperature + g for x, g in zip(row, draws, strict=True)]
        return one_hot(row, best(rank, 1)[0])

    def test_without_a_place_or_a_seed_it_says_that_it_draws(self):
        with pytest.raises(OptionError, match=r"tile must be given for Sample.*seed=0"):
            Sample().weights(np.zeros((1, 2)))

    def test_refuses_a_temperature_that_is_not_positive(self):
        with pytest.raises(OptionError, match=r"temperature.*must be a positive number, got 0"):
            Sample(0)


def squared_shares(logits, scale):
    xp = namespace(logits)
    squares = xp.maximum(logits, xp.zeros_like(logits)) ** 2
    return scale * squares / (1 + xp.sum(squares, axis=-1, keepdims=True))


def softmax_of_the_library(logits, temperature):
    xp = namespace(logits)
    e = xp.exp((logits - xp.max(logits, axis=-1, keepdims=True)) / 2)
    return temperature * e / xp.sum(e, axis=-1, keepdims=True)


class TestCustom(NormalizerContract):
    part = Custom

    def make(self, draw):
        return Custom(squared_shares, (Draw(1).positive(),))  # parameters have no batch axes

    def formula(self, normalizer, row, at):
        squares = [max(0.0, x) ** 2 for x in row]
        return [normalizer.parameters[0] * x / (1 + math.fsum(squares)) for x in squares]

    def test_refuses_what_is_no_function(self):
        with pytest.raises(OptionError, match=r"function of Custom must be callable, got 'softmax'"):
            Custom("softmax")

    def test_refuses_a_result_of_another_shape(self):
        with pytest.raises(ShapeError, match=r"must have the shape \(2, 3\) of the logits, got \(2,\)"):
            Custom(lambda logits: logits.sum(-1)).weights(np.zeros((2, 3)), Tile.whole(2, 3))

    @pytest.mark.parametrize("result", [lambda logits: None, lambda logits: logits.tolist()])
    def test_refuses_a_result_that_is_no_array(self, result):
        with pytest.raises(KindError, match=r"result of the function of Custom must be a numpy array, got type"):
            Custom(result).weights(np.zeros((2, 3)), Tile.whole(2, 3))


class TestCustomThatIsNanInRowsWithoutKeys(NormalizerContract):
    part = Custom

    def make(self, draw):
        return Custom(softmax_of_the_library, (Draw(1).positive(),))

    def formula(self, normalizer, row, at):
        return [normalizer.parameters[0] * x for x in softmax([y / 2 for y in row])]
