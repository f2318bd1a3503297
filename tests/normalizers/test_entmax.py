"""Entmax with any alpha: its limits, its peers, and the gradients by logits and alpha."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv.normalizers import Entmax, Entmax15, Softmax, Sparsemax

ROWS = st.lists(st.floats(-30, 30), min_size=1, max_size=8)
ALPHAS = st.floats(1.01, 5)


@given(ROWS, ALPHAS)
def test_weights_sum_to_1_and_satisfy_the_condition_of_optimality(row, alpha):
    """Check that l − ∂(Tsallis entropy)/∂w is equal on the support, and not larger outside."""
    x = np.array(row)
    w = Entmax(alpha).weights(x[None])[0]
    assert abs(w.sum() - 1) < 1e-14
    on = w > 0
    slack = x - w ** (alpha - 1) / (alpha - 1)
    assert np.ptp(slack[on]) < 1e-9 * max(1.0, np.abs(x).max()) / min(1.0, (alpha - 1))
    assert (x[~on] <= slack[on].max() + 1e-9).all()


@given(ROWS)
def test_alpha_2_is_sparsemax_and_1_5_is_entmax15_and_close_to_1_is_softmax(row):
    x = np.array(row)[None]
    assert np.abs(Entmax(2.0).weights(x) - Sparsemax().weights(x)).max() < 1e-12
    assert np.abs(Entmax(1.5).weights(x) - Entmax15().weights(x)).max() < 1e-7  # Entmax15 loses digits near τ
    assert np.abs(Entmax(1 + 1e-6).weights(x) - Softmax().weights(x)).max() < 1e-3


@given(ROWS, st.floats(1.05, 1.9), st.floats(0.05, 1))
def test_a_larger_alpha_gives_weight_to_no_more_keys(row, alpha, more):
    x = np.array(row)[None]
    assert (Entmax(alpha + more).weights(x) > 0).sum() <= (Entmax(alpha).weights(x) > 0).sum()


def test_second_derivatives_by_logits_and_alpha_are_those_of_finite_differences():
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(1)
    x = torch.tensor(draw.normal(size=(2, 1, 5)), requires_grad=True)
    alpha = torch.tensor([1.3, 1.7], dtype=torch.float64, requires_grad=True)

    def weights(x, alpha):
        return Entmax(alpha).weights(x)

    assert torch.autograd.gradgradcheck(weights, (x, alpha), atol=1e-4)


@pytest.mark.parametrize("alpha", [1.1, 1.5, 3.0])
@pytest.mark.parametrize("row", [[math.nan, 0.0], [math.inf, 0.0]])
def test_what_is_no_number_shows_in_the_weights(alpha, row):
    with np.errstate(invalid="ignore"):
        assert np.isnan(Entmax(alpha).weights(np.array([row]))).any()


@pytest.mark.parametrize("alpha", [1.05, 1.25, 2.5])
def test_long_rows_in_single_precision_agree_with_double_precision(alpha):
    row = np.random.default_rng(0).normal(size=(4, 50_000)) * 3
    exact = Entmax(alpha).weights(row)
    single = Entmax(alpha).weights(row.astype(np.float32))
    assert np.abs(single.sum(axis=-1) - 1).max() < 1e-5
    assert np.abs(single - exact).max() < 2e-3 * exact.max()


@pytest.mark.long
def test_entmax_is_exported_with_lengths_that_the_graph_does_not_know() -> None:
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return qkv.attend(x, x, x, normalizer=Entmax(1.3))

    lengths = ({1: torch.export.Dim("n")},)
    exported = torch.export.export(Module(), (torch.randn(1, 5, 4),), dynamic_shapes=lengths).module()
    for n in (3, 40):
        x = 3 * torch.randn(1, n, 4)
        torch.testing.assert_close(exported(x), Module()(x), atol=1e-5, rtol=0)
