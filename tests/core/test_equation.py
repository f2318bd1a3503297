"""The oracle: worked numbers, identities, and the rules of meaning that stand in the equation itself."""

import numpy as np
import pytest

from qkv.core.equation import attend_dense, bind_call
from qkv.errors import KindError
from qkv.masks import Causal
from qkv.normalizers import Mean, Sample, Softmax, Sum
from qkv.scores import Biased, Bilinear, Constant, Dot, Exact, ScaledDot
from qkv.testing import Setting
from qkv.testing.libraries import LIBRARIES, to_float64

RNG = np.random.default_rng(0)


def attend(query, key, value, score=None, normalizer=None, **more):
    return attend_dense(query, key, value, score=score or Dot(), normalizer=normalizer or Softmax(), **more)


def test_mission_a1_exact_matching_finds_the_equal_name_and_nothing_else():
    last = np.array(["Zhang", "Lipton", "Li", "Smola", "Hu", "Werness"], dtype=object)
    seen = attend(np.array(["Li", "Jones"], dtype=object), last, np.arange(6.0)[:, None], Exact(), Sum())
    assert seen.weights.tolist() == [[0, 0, 1, 0, 0, 0], [0] * 6]
    assert seen.output.tolist() == [[2.0], [0.0]]


def test_mission_a8_average_pooling_is_the_mean_of_the_values():
    value = RNG.normal(size=(7, 3))
    for score, normalizer in ((Dot(), Mean()), (Constant(), Softmax())):
        seen = attend(RNG.normal(size=(2, 4)), RNG.normal(size=(7, 4)), value, score, normalizer)
        assert np.allclose(seen.weights, 1 / 7, rtol=1e-14)
        assert np.allclose(seen.output, value.mean(axis=0), rtol=1e-13)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_mission_a10_gradient_by_the_query_is_the_covariance_of_the_keys(scale):
    """With a(q, k) = qᵀk and values = keys, d output / d q = Σ w k kᵀ − (Σ w k)(Σ w k)ᵀ."""
    torch = pytest.importorskip("torch")
    query, key = torch.tensor(RNG.normal(size=(1, 5))), torch.tensor(RNG.normal(size=(40, 5)) * scale)
    seen = attend(query, key, key)
    mean = seen.weights @ key
    covariance = (key - mean).mT @ ((key - mean) * seen.weights.mT)
    jacobian = torch.func.jacrev(lambda q: attend(q, key, key).output)(query)[0, :, 0]
    assert torch.abs(jacobian - covariance).max() <= 1e-13 * max(1.0, float(covariance.abs().max()), scale**2)


@pytest.mark.parametrize("library", LIBRARIES)
def test_mission_c3_masked_self_attention_gives_the_printed_weights(library):
    """A value tensor in [0, 1]^(3×5), attending to itself by softmax(XXᵀ / √5) under a causal mask."""
    x = np.array([[0.67, 0.38, 0.26, 0.20, 0.79], [0.71, 0.51, 0.57, 0.47, 0.74], [0.68, 0.13, 0.67, 0.14, 0.64]])
    setting = Setting(library, "float64")
    with setting.active():
        x = setting.array(x)
        seen = attend(x, x, x, ScaledDot(), mask=Causal())
    printed = [[1, 0, 0], [0.4597, 0.5403, 0], [0.3136, 0.3519, 0.3345]]
    assert to_float64(seen.weights).round(4).tolist() == printed


def test_a_part_of_another_library_is_refused_with_what_to_convert():
    torch = pytest.importorskip("torch")
    x = torch.ones((2, 3))
    with pytest.raises(
        KindError, match=r"arrays of Biased must be torch arrays like query, key and value, got a numpy array"
    ):
        attend(x, x, x, Biased(Dot(), np.ones((2, 2))))


def test_mission_a9_the_score_function_estimate_agrees_with_the_exact_gradient():
    """E[(reward − baseline) ∇ log p_j] over drawn keys = ∇ Σ p_j reward_j, within five standard errors."""
    logits, reward = np.array([0.5, -1.0, 0.2, 1.3]), np.array([1.0, 3.0, -2.0, 0.5])
    p = np.exp(logits) / np.exp(logits).sum()
    exact = p * (reward - p @ reward)
    n = 40_000
    seen = attend(np.ones((n, 1)), logits[:, None], reward[:, None], normalizer=Sample(), seed=2)
    assert np.abs(seen.weights.mean(axis=0) - p).max() < 5 * np.sqrt(0.25 / n)
    estimates = (seen.output - p @ reward) * (seen.weights - p)
    error = estimates.std(axis=0) / np.sqrt(n)
    assert (np.abs(estimates.mean(axis=0) - exact) < 5 * error).all()


def test_a_tile_uses_the_score_and_the_projections_that_it_is_given():
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(n, 4)) for n in (3, 5, 5))
    bias = rng.normal(size=(3, 5))
    call = bind_call(query, key, value, score=Dot(), normalizer=Softmax())
    with_bias = call.logits((0, 3), (0, 5), score=Biased(Dot(), bias))
    np.testing.assert_allclose(with_bias, query @ key.T + bias, rtol=1e-12)
    mapped = bind_call(query, key, value, score=Bilinear(2 * np.eye(4)), normalizer=Softmax())
    shared = mapped.with_projections(*mapped.score.project(query, key, mapped.tile))
    np.testing.assert_allclose(shared.logits((0, 3), (0, 5)), 2 * query @ key.T, rtol=1e-12)


def test_tiles_compare_large_integers_exactly_before_they_are_cast():
    numbers = np.array([[2**53], [2**53 + 1]])
    for cast_tiles in (False, True):
        call = bind_call(numbers, numbers, np.ones((2, 1)), score=Exact(), normalizer=Softmax(), cast_tiles=cast_tiles)
        logits = call.logits((0, 2), (0, 2))
        assert logits.tolist() == [[1.0, 0.0], [0.0, 1.0]]
