"""Softmax at its limits, and the sparse projections against what defines them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from qkv.core.tile import Tile
from qkv.normalizers import Entmax15, Softmax, Sparsemax, Sum
from qkv.testing.gradients import torch_gradients

ROWS = st.lists(st.floats(-30, 30), min_size=1, max_size=8)


@given(ROWS)
def test_sparsemax_is_the_nearest_point_of_the_simplex(row):
    """Nearest: the slope of the distance is equal on the support, and not smaller outside."""
    x = np.array(row)
    w = Sparsemax().weights(x[None])[0]
    assert abs(w.sum() - 1) < 1e-12
    slack = w - x
    on = w > 0
    assert slack[on].max() - slack[on].min() < 1e-12 * max(1.0, np.abs(x).max())
    assert (slack[~on] >= slack[on].max() - 1e-12 * max(1.0, np.abs(x).max())).all()


@given(ROWS)
def test_entmax_is_the_square_of_what_lies_above_one_threshold(row):
    x = np.array(row)
    w = Entmax15().weights(x[None])[0]
    assert abs(w.sum() - 1) < 1e-12
    tau = x / 2 - np.sqrt(w)
    on = w > 0
    assert tau[on].max() - tau[on].min() < 1e-7
    assert (x[~on] / 2 <= tau[on].max() + 1e-7).all()


def test_sparsemax_of_two_keys_minimises_the_distance():
    row = np.array([0.4, -0.1])
    best = minimize_scalar(lambda p: np.sum((np.array([p, 1 - p]) - row) ** 2), bounds=(0, 1), method="bounded")
    assert Sparsemax().weights(row[None])[0, 0] == pytest.approx(best.x, abs=1e-6)


@pytest.mark.parametrize("normalizer", [Sparsemax(), Entmax15()], ids=str)
@pytest.mark.parametrize("infinite", [np.nan, np.inf])
def test_what_is_no_number_shows_in_sparse_weights(normalizer, infinite):
    with np.errstate(invalid="ignore"):
        assert np.isnan(normalizer.weights(np.array([[infinite, 0.0]]))).any()


@pytest.mark.parametrize("normalizer", [Sparsemax(), Entmax15()], ids=str)
def test_long_rows_still_add_up_to_one_in_single_precision(normalizer):
    row = np.random.default_rng(0).normal(size=(4, 50_000)).astype(np.float32)
    assert np.abs(normalizer.weights(row).sum(axis=-1) - 1).max() < 1e-5


@pytest.mark.parametrize("sink", [None, 0.7])
def test_log_total_is_the_logarithm_of_the_sum_of_exponentials(sink):
    row = np.array([[1.0, -np.inf, 0.5]])
    terms = [math.exp(1.0), math.exp(0.5)] + ([math.exp(sink)] if sink is not None else [])
    assert Softmax(sink=sink).log_total(row).item() == pytest.approx(math.log(math.fsum(terms)), rel=1e-14)
    empty = Softmax(sink=sink).log_total(np.full((1, 2), -np.inf)).item()
    assert empty == (-math.inf if sink is None else pytest.approx(sink))


def test_gradient_of_log_total_is_the_weights():
    row = np.array([[1.0, -np.inf, 0.5]])
    _, (gradient,) = torch_gradients(lambda x: Softmax().log_total(x).sum(), [row])
    assert np.allclose(gradient, Softmax().weights(row), rtol=1e-14)


def test_gradients_by_temperature_and_sink_are_numbers_although_logits_are_minus_infinity():
    row = np.array([[1.0, -np.inf, 0.5], [-np.inf] * 3])
    inputs = [row, np.array(0.8), np.array(0.3)]
    _, gradients = torch_gradients(lambda x, t, s: (Softmax(t, s).weights(x)[:, 0]).sum(), inputs)
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    assert gradients[1] != 0
    assert gradients[2] != 0
    assert (gradients[0][1] == 0).all()


@pytest.mark.parametrize("row", [[0.25, 0.75], [1.0, 0.0], [2.0, 6.0], [0.0, 0.0], [-math.inf, 1.0]])
def test_the_gradient_of_sum_is_that_of_the_quotient_and_0_for_rows_without_scores(row):
    scores, value = np.array([row]), np.array([[3.0, 5.0]])
    mass = np.where(np.isinf(scores), 0.0, scores)
    total = mass.sum(axis=-1, keepdims=True)
    weights = mass / np.where(total == 0, 1.0, total)
    row_dot = (weights * value).sum(axis=-1, keepdims=True)
    got = Sum().logit_gradient(scores, weights, value, row_dot, (total,), Tile.whole(1, 2))
    wanted = np.where(np.isinf(scores) | (total == 0), 0.0, (value - row_dot) / np.where(total == 0, 1.0, total))
    np.testing.assert_allclose(got, wanted, rtol=1e-15)
