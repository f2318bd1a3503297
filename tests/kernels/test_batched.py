"""The batched kernel."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv import masks, normalizers, scores
from qkv.core.equation import attend_dense
from qkv.kernels import BatchedKernel
from qkv.kernels.batched import additive
from qkv.testing.kernels import KernelContract


class TestBatched(KernelContract):
    kernel = BatchedKernel()
    quadratic = True


def plain_logits(left: torch.Tensor, right: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    hidden = torch.tanh(left[:, :, None] + right[:, None])
    return (hidden * vector[:, None, None]).sum(-1)


@settings(max_examples=60)
@given(
    st.tuples(*(st.integers(1, 9) for _ in range(4))),
    st.booleans(),
    st.sampled_from([0.01, 1.0, 12.0, 300.0]),
    st.sampled_from([0.0, 50.0, -1e4]),
    st.sampled_from([64, 1 << 20]),
    st.integers(0, 2**31),
)
def test_logits_and_gradients_agree_with_tanh_at_every_range(
    lengths: tuple[int, int, int, int], shared: bool, size: float, shift: float, step: int, seed: int
) -> None:
    batch, q, k, hidden = lengths
    rng = np.random.default_rng(seed)
    left, right = rng.normal(size=(batch, q, hidden)) * size + shift, rng.normal(size=(batch, k, hidden)) - shift
    arrays = [left, right, rng.normal(size=(1 if shared else batch, hidden))]
    direction = torch.tensor(rng.normal(size=(batch, q, k)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(additive, "STEP_BYTES", step)
        for dtype, limit in ((torch.float64, 1e-11), (torch.float32, 2e-5)):
            given_ = [torch.tensor(x, dtype=dtype, requires_grad=True) for x in arrays]
            exact = [x.detach().double().requires_grad_() for x in given_]
            logits, wanted = additive.additive_logits(*given_), plain_logits(*exact)
            assert logits is not None
            scale = float(exact[2].detach().abs().sum()) + 1e-30
            assert float((logits - wanted).detach().abs().max()) <= limit * scale
            logits.backward(direction.to(dtype))
            wanted.backward(direction)
            for x, y in zip(given_, exact, strict=True):
                assert x.grad is not None
                assert y.grad is not None
                assert x.grad.shape == y.grad.shape
                assert float((x.grad.double() - y.grad).abs().max()) <= limit * scale * (q + k) * batch * 10


def test_second_derivatives_of_the_logits_pass_gradgradcheck() -> None:
    torch.manual_seed(0)
    arrays = [torch.randn(2, n, 3, dtype=torch.float64, requires_grad=True) for n in (2, 4)]
    vector = torch.randn(1, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(additive.additive_logits, (*arrays, vector))
    assert torch.autograd.gradgradcheck(additive.additive_logits, (*arrays, vector))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_projections_that_are_not_finite_have_no_expanded_logits(bad: float) -> None:
    for n in range(3):
        arrays = [torch.zeros(1, 2, 3), torch.zeros(1, 4, 3), torch.zeros(1, 3)]
        arrays[n].view(-1)[1] = bad
        assert additive.additive_logits(*arrays) is None


def test_units_of_which_both_sides_are_far_from_0_have_no_expanded_logits() -> None:
    left = torch.tensor([-60.0, 60.0]).view(1, 2, 1)
    assert additive.additive_logits(left, -left, torch.ones(1, 1)) is None
    query = torch.cat([left[0], left[0]], 1)
    score = scores.Additive(torch.eye(2), torch.eye(2), None, torch.tensor([1.0, 2.0]))
    output = qkv.attend(query, -query, query, score=score, kernel="batched")
    wanted = attend_dense(query, -query, query, score=score, normalizer=normalizers.Softmax()).output
    torch.testing.assert_close(output, wanted)


def test_rows_without_keys_are_zero_and_leave_the_gradients_of_others_unchanged() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = masks.Pairs(torch.tensor([[False] * 5, *[[True, False, True, True, False]] * 4]))
    results = []
    for kernel in ("batched", "dense"):
        output = qkv.attend(query, key, value, mask=mask, kernel=kernel)
        results.append([output, *torch.autograd.grad(output.square().sum(), (query, key, value))])
    assert not results[0][0][:, 0].any()
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
