"""Newton's threshold against the definition by sorting."""

import pytest

from qkv.normalizers import Entmax, Entmax15, Sparsemax

torch = pytest.importorskip("torch")

from qkv.kernels.runtime.sparse_weights import sparse_weights  # noqa: E402 (needs torch)

EACH = pytest.mark.parametrize("normalizer", [Sparsemax(), Entmax15(), Entmax(1.2), Entmax(1.8)], ids=str)


@pytest.mark.thinned
@EACH
@pytest.mark.parametrize("spread", [0.0, 0.001, 0.1, 1.0, 100.0])
def test_long_rows_have_the_weights_of_the_definition(normalizer, spread):
    logits = 1000 + spread * torch.randn(4, 3000, dtype=torch.float64)
    logits[1, :1500], logits[2] = -torch.inf, -torch.inf
    got = sparse_weights(logits, normalizer.power, normalizer.scale)
    assert torch.allclose(got, normalizer.weights(logits), rtol=0, atol=1e-12)
    single = sparse_weights(logits.float(), normalizer.power, normalizer.scale).sum(dim=-1)
    assert torch.allclose(single, torch.tensor([1.0, 1.0, 0.0, 1.0]), rtol=0, atol=1e-5)


@EACH
def test_first_and_second_derivatives_are_right(normalizer):
    logits = torch.randn(3, 9, dtype=torch.float64, requires_grad=True)
    weights = lambda x: sparse_weights(x, normalizer.power, normalizer.scale)  # noqa: E731 (one line, used twice)
    assert torch.autograd.gradcheck(weights, logits)
    assert torch.autograd.gradgradcheck(weights, logits)


@EACH
def test_nan_affects_only_its_row(normalizer):
    logits = torch.tensor([[torch.nan, 0.0, -torch.inf], [torch.inf, 0.0, -torch.inf], [0.0, 0.0, -torch.inf]])
    got = sparse_weights(logits, normalizer.power, normalizer.scale)
    assert got.isnan().tolist() == [[True, True, False], [True, True, False], [False] * 3]


@pytest.mark.parametrize("alpha", [1.001, 1.02, 1.25, 1.99])
@pytest.mark.parametrize("spread", [0.0, 1.0, 50.0])
def test_newton_steps_find_the_weights_for_every_power(alpha, spread):
    normalizer = Entmax(alpha)
    logits = spread * torch.randn(5, 70, dtype=torch.float64)
    got = sparse_weights(logits, normalizer.power, normalizer.scale)
    assert torch.allclose(got, normalizer.weights(logits), rtol=0, atol=1e-10)
    assert torch.allclose(got.sum(dim=-1), torch.ones(5, dtype=torch.float64), rtol=0, atol=1e-12)
