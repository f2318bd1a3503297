"""Weights of short rows against the definitions of the normalizers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv import masks, normalizers, scores
from qkv.kernels.batched.row_weights import row_weights
from tests.effort import cases

NORMALIZERS = [
    normalizers.Softmax(0.5),
    normalizers.TopK(3),
    normalizers.TopK(2, normalizers.Softmax(2.0)),
    normalizers.Sparsemax(),
    normalizers.Entmax15(),
    normalizers.Entmax(1.1),
    normalizers.Entmax(1.7),
    normalizers.Sigmoid(-1.5),
]


@settings(max_examples=cases(60))
@given(
    st.sampled_from(NORMALIZERS),
    st.integers(1, 80),
    st.sampled_from([0.0, 0.01, 1.0, 30.0]),
    st.floats(0, 0.9),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_weights_and_gradients_are_those_of_the_definition(normalizer, keys, spread, gone, ties, seed):
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(17, keys)) * spread
    numbers = np.round(numbers * 2) / 2 if ties else numbers
    excluded = rng.random((17, keys)) < gone
    excluded[:, rng.integers(keys)] = False
    rows = row_weights(normalizer, keys)
    assert rows is not None
    for dtype, limit in ((torch.float64, 1e-7), (torch.float32, 2e-5)):
        logits = torch.tensor(numbers, dtype=dtype).masked_fill(torch.tensor(excluded), -torch.inf)
        exact = logits.double().clone().requires_grad_()
        wanted = normalizer.weights(exact)
        got = rows.weights(logits * rows.scale)
        assert float((got - wanted).detach().abs().max()) <= limit
        gradient = torch.tensor(rng.normal(size=(17, keys)))
        (slope,) = torch.autograd.grad(wanted, exact, gradient)
        found = rows.logit_gradient(wanted.detach().clone(), gradient.clone()) * rows.scale
        assert float((found - slope).abs().max()) <= 1e-6


@settings(max_examples=cases(40))
@given(st.sampled_from([normalizers.Sparsemax(), normalizers.Entmax15()]), st.integers(1, 30), st.integers(0, 2**31))
def test_the_only_key_of_a_row_with_weight_has_exactly_the_weight_1(normalizer, keys, seed):
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(50, keys)) - 10
    best = rng.integers(keys, size=50)
    numbers[np.arange(50), best] = numbers.max(axis=1) + rng.uniform(2, 5, 50)
    rows = row_weights(normalizer, keys)
    assert rows is not None
    for dtype in (torch.float64, torch.float32):
        found = rows.weights(torch.tensor(numbers, dtype=dtype) * rows.scale)
        assert (found == torch.nn.functional.one_hot(torch.tensor(best), keys)).all()


def test_normalizers_with_arrays_and_random_normalizers_have_no_row_weights():
    for normalizer in (
        normalizers.Softmax(torch.ones(2)),
        normalizers.Softmax(sink=0.0),
        normalizers.Sample(),
        normalizers.Entmax(2.5),
        normalizers.Entmax(torch.tensor(1.3)),
        normalizers.TopK(2, normalizers.Sigmoid()),
    ):
        assert row_weights(normalizer, 5) is None


@pytest.mark.thinned
@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=str)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("side", range(3))
def test_prepared_calls_treat_elements_that_are_not_finite_as_the_dense_kernel_does(normalizer, bad, side):
    generator = torch.Generator().manual_seed(side)
    for score in (scores.ScaledDot(), scores.Laplace(), scores.Softcap(scores.ScaledDot(), 2.0)):
        for mask in (None, masks.AllowedKeys(torch.arange(6) != 2)):
            sides = [torch.randn(2, 6, 4, generator=generator, dtype=torch.float64) for _ in range(3)]
            options = {"score": score, "normalizer": normalizer, "mask": mask}
            qkv.attend(*sides, **options, kernel="batched")
            qkv.attend(*sides, **options, kernel="batched")  # the plan is cached now
            sides[side][0, 2, 1] = bad
            got = qkv.attend(*sides, **options, kernel="batched")
            wanted = qkv.attend(*sides, **options, kernel="dense")
            torch.testing.assert_close(got, wanted, equal_nan=True, atol=1e-7, rtol=1e-7)
