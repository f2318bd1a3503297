"""What is masked is never read, and what is read shows: the products that see to it."""

import numpy as np
import pytest

from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.guard import all_finite, apply_weights, guarded_logits, zero_nonfinite
from qkv.testing.gradients import torch_gradients

RNG = np.random.default_rng(0)
QUERY, KEY, VALUE = RNG.normal(size=(4, 3)), RNG.normal(size=(6, 3)), RNG.normal(size=(6, 2))


def test_a_finite_row_beside_nan_has_the_gradient_of_the_finite_inputs():
    def score(query, key):
        return query @ key.mT

    def guarded(query, key):
        return guarded_logits(score, query, key)[:, :2].sum()

    hurt = KEY.copy()
    hurt[3] = np.nan
    wanted = torch_gradients(lambda q, k: score(q, k)[:, :2].sum(), [QUERY, KEY])[1]
    got = torch_gradients(guarded, [QUERY, hurt])[1]
    assert all(np.allclose(mine, theirs) for mine, theirs in zip(got, wanted, strict=True))


@pytest.mark.parametrize(
    ("weights", "column", "wanted"),
    [
        ([0.5, 0.5, 0.0], [1.0, 3.0, np.nan], 2.0),
        ([0.5, 0.5, 0.0], [1.0, 3.0, np.inf], 2.0),
        ([0.5, 0.0, 0.5], [1.0, 3.0, np.inf], np.inf),
        ([0.5, 0.0, 0.5], [1.0, 3.0, -np.inf], -np.inf),
        ([0.5, 0.0, -0.5], [1.0, 3.0, np.inf], -np.inf),
        ([0.5, 0.0, -0.5], [1.0, 3.0, -np.inf], np.inf),
        ([0.5, 0.2, 0.5], [1.0, np.inf, -np.inf], np.nan),
        ([0.5, 0.2, -0.5], [1.0, np.inf, np.inf], np.nan),
        ([0.5, 0.2, 0.5], [1.0, np.inf, np.nan], np.nan),
    ],
)
def test_a_value_that_is_read_is_read_as_it_is_and_no_other(weights, column, wanted):
    weights, value = np.array([weights]), np.array(column)[:, None]
    with ignore_numpy_warnings():
        got = apply_weights(weights, value, lambda: weights != 0, clean=False)
    assert np.array_equal(got, [[wanted]], equal_nan=True)


def test_text_and_integers_are_finite_and_tracers_are_not_known_to_be():
    assert all_finite(np.array(["a", None], dtype=object))
    assert all_finite(np.arange(3))
    assert not all_finite(np.array([1.0, np.inf]))
    jax = pytest.importorskip("jax")
    jax.jit(lambda x: x if not all_finite(x) else 1 / 0)(jax.numpy.ones(2))


def test_non_finite_elements_become_zero_and_the_others_stay():
    x = np.array([[np.inf, 1.5], [np.nan, -np.inf]])
    assert zero_nonfinite(x).tolist() == [[0.0, 1.5], [0.0, 0.0]]
