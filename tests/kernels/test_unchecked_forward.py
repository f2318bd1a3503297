"""Calls of the tiled kernel without a finiteness check agree with the equation, also for NaN and Inf."""

import pytest

import qkv
from qkv import scores
from qkv.core.equation import attend_dense

torch = pytest.importorskip("torch")

PLANTED = [torch.nan, torch.inf, -torch.inf, 1e38, -1e38]


@pytest.mark.thinned
@pytest.mark.parametrize("score", [scores.ScaledDot(), scores.Gaussian(1.0)], ids=str)
@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.parametrize("side", range(3), ids=["query", "key", "value"])
@pytest.mark.parametrize("row", [0, 9, 699])
def test_one_nonfinite_number_gives_the_result_of_the_equation(score, planted, side, row):
    rng = torch.Generator().manual_seed(0)
    inputs = [torch.randn(n, 8, generator=rng) for n in (70, 700, 700)]
    inputs[side][row % len(inputs[side]), 3] = planted
    got = qkv.attend(*inputs, score=score, kernel="tiled")
    if isinstance(score, scores.Gaussian) and abs(planted) == 1e38:  # the squares overflow, and the mean is no centre
        inputs = [x.double() for x in inputs]
        score = score.by_differences(*inputs[:2])
    wanted = attend_dense(*inputs, score=score, normalizer=qkv.normalizers.Softmax()).output.float()
    assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_finiteness_of_keys_is_not_checked_before_the_sums(monkeypatch):
    asked = []
    monkeypatch.setattr("qkv.core.equation.all_finite", lambda x: asked.append(x.shape) or True)
    query, key, value = (torch.randn(n, 8) for n in (64, 700, 700))
    qkv.attend(query, key, value, kernel="tiled")
    assert not asked
    qkv.attend(query, key, value.requires_grad_(), kernel="tiled")
    assert asked
