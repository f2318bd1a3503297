"""Contracts of the wrappers: soft cap, biases, and what depends on positions."""

import math

import numpy as np
import pytest

from qkv.core.positions import Positions
from qkv.errors import KindError, OptionError, ShapeError
from qkv.scores import (
    ALiBi,
    Biased,
    ClassTable,
    Constant,
    Decay,
    Dot,
    Epanechnikov,
    QuadraticPosition,
    RelativePosition,
    Softcap,
)
from qkv.scores.position_bias import bucket
from qkv.testing import ScoreContract

from .test_inner_products import dot


class TestSoftcap(ScoreContract):
    part = Softcap

    def make(self, draw):
        return Softcap(Dot(), draw.positive())

    def formula(self, score, q, k, at):
        return score.cap * math.tanh(dot(q, k) / score.cap)

    def test_of_an_excluded_key_leaves_it_excluded(self):
        assert np.isneginf(Softcap(Epanechnikov(1.0))(np.zeros((1, 1)), np.array([[5.0]]))).all()

    def test_refuses_a_cap_that_is_not_positive(self):
        with pytest.raises(OptionError, match=r"cap of Softcap must be .*positive.*, got 0"):
            Softcap(Dot(), 0)


class TestBiasedByPair(ScoreContract):
    part = Biased

    def make(self, draw):
        return Biased(Dot(), draw(draw.q, draw.k))

    def formula(self, score, q, k, at):
        return dot(q, k) + score.bias[at.row, at.col]

    @pytest.mark.parametrize("both", [{}, {"bias": np.ones((2, 2)), "per_key": np.ones(2)}])
    def test_wants_exactly_one_of_its_two_forms(self, both):
        with pytest.raises(OptionError, match=r"exactly one of bias and per_key.*got (none|both)"):
            Biased(Dot(), **both)

    def test_refuses_a_bias_for_other_lengths_and_names_them(self):
        with pytest.raises(
            ShapeError, match=r"Biased must have shape \(\*batch, q, k\), where k.* is 3 or 1, got shape \(2, 9\)"
        ):
            Biased(Dot(), np.ones((2, 9)))(np.ones((2, 1)), np.ones((3, 1)))


class TestBiasedByKey(ScoreContract):
    part = Biased

    def make(self, draw):
        return Biased(Dot(), per_key=draw(draw.k))

    def formula(self, score, q, k, at):
        return dot(q, k) + score.per_key[at.col]


class TestALiBi(ScoreContract):
    part = ALiBi

    def make(self, draw):
        return ALiBi(Dot(), draw.positive())

    def formula(self, score, q, k, at):
        return dot(q, k) - score.slope * abs(at.i - at.j)


class TestQuadraticPosition(ScoreContract):
    part = QuadraticPosition

    def make(self, draw):
        return QuadraticPosition(Dot(), draw.positive())

    def formula(self, score, q, k, at):
        return dot(q, k) - score.coefficient * (at.i - at.j) ** 2


def t5_bucket(relative, buckets, bidirectional, max_distance):
    """The rule of T5's paper, in plain numbers."""
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if relative > 0 else 0
        distance = abs(relative)
    else:
        distance = max(-relative, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    share = math.log(distance / exact) / math.log(max_distance / exact)
    return first + min(exact + math.floor(share * (buckets - exact) + 1e-9), buckets - 1)


class TestRelativePosition(ScoreContract):
    part = RelativePosition

    def make(self, draw):
        return RelativePosition(Dot(), draw(8), max_distance=6)

    def formula(self, score, q, k, at):
        return dot(q, k) + score.table[t5_bucket(at.j - at.i, 8, True, 6)]

    @pytest.mark.parametrize("rule", [(32, True, 128), (32, False, 128), (8, True, 20), (16, False, 1000)])
    def test_buckets_are_those_of_t5_at_every_distance(self, rule):
        relative = np.arange(-2000, 2000)
        assert bucket(relative, *rule).tolist() == [t5_bucket(r, *rule) for r in relative.tolist()]

    def test_refuses_a_max_distance_of_one(self):
        with pytest.raises(OptionError, match=r"max_distance of RelativePosition must be .*larger than 1.*, got 1"):
            RelativePosition(Dot(), np.zeros(8), max_distance=1)


class TestRelativePositionOneDirection(TestRelativePosition):
    def make(self, draw):
        return RelativePosition(Dot(), draw(8), bidirectional=False, max_distance=6)

    def formula(self, score, q, k, at):
        return dot(q, k) + score.table[t5_bucket(at.j - at.i, 8, False, 6)]


class TestClassTable(ScoreContract):
    part = ClassTable

    def make(self, draw):
        return ClassTable(Dot(), draw(2, 3), draw.integers(2, draw.q), draw.integers(3, draw.k))

    def formula(self, score, q, k, at):
        return dot(q, k) + score.table[score.query_classes[at.row], score.key_classes[at.col]]


def test_a_start_of_its_own_for_each_batch_element_moves_its_queries():
    starts = Positions(query_start=np.array([0, 5]))
    logits = ALiBi(Constant(), 1.0)(np.ones((2, 1, 1)), np.ones((2, 7, 1)), starts)
    assert (-logits[:, 0]).tolist() == [[0, 1, 2, 3, 4, 5, 6], [5, 4, 3, 2, 1, 0, 1]]


@pytest.mark.parametrize(("side", "query", "key"), [("query", [2], [0]), ("key", [0], [-1])])
def test_a_class_outside_the_table_is_refused_and_its_side_is_named(side, query, key):
    score = ClassTable(Constant(), np.zeros((2, 3)), np.array(query), np.array(key))
    with pytest.raises(OptionError, match=rf"{side}_classes of ClassTable must be between 0 and"):
        score(np.ones((1, 1)), np.ones((1, 1)))


class TestDecay(ScoreContract):
    part = Decay

    def make(self, draw):
        return Decay(Dot(), np.asarray(-draw.positive()))

    def formula(self, score, q, k, at):
        return dot(q, k) * math.exp(score.log_decay * abs(at.i - at.j))

    @pytest.mark.parametrize("given", [{}, {"log_decay": -1.0, "log_decay_per_key": np.zeros((2, 1))}])
    def test_wants_exactly_one_decay(self, given):
        with pytest.raises(OptionError, match=r"exactly one of log_decay and log_decay_per_key.*got (none|both)"):
            Decay(Dot(), **given)

    def test_refuses_a_decay_that_grows(self):
        with pytest.raises(OptionError, match=r"log_decay of Decay must be a number of at most 0, got 0.5"):
            Decay(Dot(), 0.5)


def exponent(decay, at, keys):
    """Return the sum of the decays after the earlier and up to the later of two positions."""
    first, last = sorted((at.i, at.j))
    return sum(decay[t] for t in range(max(0, first + 1), min(last + 1, keys)))


class TestDecayPerKey(ScoreContract):
    part = Decay

    def make(self, draw):
        return Decay(Dot(), log_decay_per_key=-draw.positive(draw.k, 1))

    def formula(self, score, q, k, at):
        decay = [row[0] for row in score.log_decay_per_key]
        return dot(q, k) * math.exp(exponent(decay, at, len(decay)))

    def test_refuses_decays_of_other_keys_and_names_both(self):
        with pytest.raises(ShapeError, match=r"Decay must have shape \(\*batch, 3, 1\).* got shape \(2, 1\)"):
            Decay(Dot(), log_decay_per_key=np.zeros((2, 1)))(np.ones((3, 1)), np.ones((3, 1)))

    def test_sums_of_many_strong_decays_keep_their_digits_in_float32(self):
        decays = np.full((3000, 1), -7.3, dtype=np.float32)
        ones = np.ones((3000, 1), dtype=np.float32)
        assert abs(Decay(Dot(), None, decays)(ones, ones)[2999, 2998] / math.exp(np.float32(-7.3)) - 1) < 1e-6


class TestDecayPerFeature(TestDecayPerKey):
    def make(self, draw):
        return Decay(Dot(), log_decay_per_key=-draw.positive(draw.k, 3))

    def formula(self, score, q, k, at):
        decay, keys = score.log_decay_per_key, len(score.log_decay_per_key)
        pairs = enumerate(zip(q, k, strict=True))
        return math.fsum(a * b * math.exp(exponent(decay[:, f], at, keys)) for f, (a, b) in pairs)

    def test_refuses_another_number_of_features(self):
        with pytest.raises(ShapeError, match=r"log_decay_per_key of Decay must have width 1 or 1, .* got width 3"):
            Decay(Dot(), None, np.zeros((2, 3)))(np.ones((2, 1)), np.ones((2, 1)))

    def test_refuses_an_inner_score_without_features(self):
        with pytest.raises(KindError, match=r"score of Decay must be an inner product for a decay per feature"):
            Decay(ALiBi(Dot()), None, np.zeros((2, 3)))
