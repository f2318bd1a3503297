"""Logits that the batched kernel computes within its autograd node: maps, gates, temperatures and masks."""

import math

import numpy as np
import pytest
import torch

import qkv
from qkv import masks, normalizers, scores
from qkv.core.distances import pair_distances
from qkv.core.equation import attend_dense
from qkv.kernels.batched import mask_bias, pair_logits
from qkv.kernels.batched.pair_logits import half_tanh_
from qkv.plan.cache import PLANS


def test_calls_share_the_array_of_a_long_mask_and_do_not_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_bias, "_SHARED", type(mask_bias._SHARED)())
    n = 300
    query, key, value = (torch.randn(1, n, 8) for _ in range(3))
    for score in (scores.ScaledDot(), scores.Laplace(), scores.Gated(torch.ones(8), torch.ones(8))):
        found = qkv.attend(query, key, value, score=score, mask=masks.Causal(), kernel="batched")
        torch.testing.assert_close(
            found, qkv.attend(query, key, value, score=score, mask=masks.Causal(), kernel="dense")
        )
    ((bias, empty),) = mask_bias._SHARED.values()
    assert empty is None
    assert bias is not None
    assert bool((bias == torch.where(torch.ones(n, n).tril() == 1, 0.0, -math.inf)).all())


def test_few_masks_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_bias, "_SHARED", type(mask_bias._SHARED)())
    for n in range(2, 14):
        x = torch.randn(1, n, 4)
        qkv.attend(x, x, x, mask=masks.Causal(), kernel="batched")
    assert len(mask_bias._SHARED) <= 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_tanh_of_half_is_exact_to_some_units_in_the_last_place(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_logits, "_MANY", 0)
    x = torch.cat([torch.linspace(-200, 200, 4001), torch.linspace(-1e-3, 1e-3, 999)]).to(dtype)
    x = torch.cat([x, torch.tensor([0.0, 1e-30, math.inf, -math.inf], dtype=dtype)])
    wanted = np.tanh(x.double().numpy() / 2)
    error = np.abs(half_tanh_(x.clone()).double().numpy() - wanted)
    assert (error <= 8 * torch.finfo(dtype).eps * np.abs(wanted)).all()
    assert math.isnan(half_tanh_(torch.tensor([math.nan], dtype=dtype)).item())


@pytest.mark.parametrize("fast", [False, True])
def test_soft_caps_are_exact_whichever_tanh_is_faster(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_logits, "has_fast_tanh", lambda reference: fast)
    monkeypatch.setattr(pair_logits, "_MANY", 0)
    torch.manual_seed(0)
    sides = [torch.randn(2, 9, 8, requires_grad=True) for _ in range(3)]
    score = scores.Softcap(scores.ScaledDot(3.0), 1.5)
    wanted = [x.detach().double().requires_grad_() for x in sides]
    output = qkv.attend(*sides, score=score, kernel="batched")
    exact = torch.as_tensor(attend_dense(*wanted, score=score, normalizer=normalizers.Softmax()).output)
    torch.testing.assert_close(output.double(), exact, rtol=0, atol=2e-6)
    pairs = zip(*(torch.autograd.grad(x.square().sum(), y) for x, y in ((output, sides), (exact, wanted))), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one.double(), other, rtol=0, atol=2e-5)


def test_distances_of_near_vectors_are_exact() -> None:
    torch.manual_seed(0)
    for distance in (1e-3, 0.3, 1.0, 2.0):
        query = torch.randn(2, 64, 32)
        key = query + torch.nn.functional.normalize(torch.randn(2, 64, 32), dim=-1) * distance
        found, near = pair_distances(query, key)
        wanted = (query.double()[:, :, None] - key.double()[:, None]).square().sum(-1).sqrt()
        assert near is not None
        assert float((found / wanted - 1).abs().max()) < 64 * torch.finfo(torch.float32).eps


def test_calls_with_parameters_in_half_precision_are_prepared() -> None:
    torch.manual_seed(0)
    sides = [torch.randn(2, 5, 8, dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
    arrays = [torch.randn(*shape, dtype=torch.bfloat16).requires_grad_() for shape in ((6, 8), (6, 8), (6,))]
    score = scores.Additive(arrays[0], arrays[1], None, arrays[2])
    PLANS.clear()
    results = []
    for _ in range(2):
        output = qkv.attend(*sides, score=score)
        results.append((output, *torch.autograd.grad(output.sum(), [*sides, *arrays])))
    ((cached),) = PLANS.values()
    assert cached.prepared is not None
    for first, second in zip(*results, strict=True):
        assert second.dtype == torch.bfloat16
        torch.testing.assert_close(first, second)


@pytest.mark.thinned
@pytest.mark.parametrize("normalizer", [normalizers.Softmax(), normalizers.Sigmoid()], ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0])
def test_masked_keys_change_nothing_finite_or_not(bad: float, normalizer: normalizers.Normalizer) -> None:
    torch.manual_seed(0)
    vector, matrix = torch.rand(4), torch.rand(4, 4)
    # Positive, so that the logits of the masked key are −∞ if it is: they show in no output, but in gradients.
    query, key, value = (torch.rand(2, 6, 4) for _ in range(3))
    key[:, -1], value[:, -1] = bad, 0.0 if bad == -math.inf else bad
    query.requires_grad_()
    for score in (
        scores.Gated(vector, vector),
        scores.Gated(vector, -vector),  # whose gate of a key of −∞ is 1
        scores.Gated(0 * vector, 0 * vector, 0.3),
        scores.SeparableGate(vector, vector, 0.2, 0.3),
        scores.Bilinear(matrix),
        scores.Cosine(1.3),
        scores.Laplace(1.5),
        scores.Gaussian(1.5),
        scores.Custom(lambda q, k: q @ k.mT),
    ):
        options = {"score": score, "normalizer": normalizer}
        wanted = qkv.attend(query, key[:, :-1], value[:, :-1], **options, kernel="dense")
        (slope,) = torch.autograd.grad(wanted.sum(), query)
        for _ in range(2):  # the second call is prepared
            mask = masks.AllowedKeys(torch.arange(6)[None] < 5)
            found = qkv.attend(query, key, value, **options, mask=mask, kernel="batched")
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(torch.autograd.grad(found.sum(), query)[0], slope, rtol=1e-4, atol=1e-5)
            # Gates of keys that batch elements share are computed by other code.
            shared = qkv.attend(query, key[:1], value[:1], **options, mask=mask, kernel="batched")
            assert bool(torch.autograd.grad(shared.sum(), query)[0].isfinite().all())


@pytest.mark.parametrize("lead", [(), (2,)], ids=["one vector", "a vector for each batch element"])
def test_gradients_of_the_vector_of_additive_scores_keep_their_digits_over_many_pairs(lead: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    arrays = [torch.randn(2, 200, 8), torch.randn(2, 200, 8), torch.randn(2, 200, 4)]
    arrays += [torch.randn(*lead, 32, 8), torch.randn(*lead, 32, 8), torch.randn(*lead, 32) / 6]
    towards, found = torch.randn(2, 200, 4), []
    for dtype, kernel in ((torch.float32, "batched"), (torch.float64, "dense")):
        query, key, value, weight, key_weight, vector = (x.to(dtype) for x in arrays)
        score = scores.Additive(weight, key_weight, vector=vector.requires_grad_())
        output = qkv.attend(query, key, value, score=score, kernel=kernel)
        found += torch.autograd.grad(output, vector, towards.to(dtype))
    assert float((found[0] - found[1]).abs().max() / found[1].abs().max()) < 1.5e-6
