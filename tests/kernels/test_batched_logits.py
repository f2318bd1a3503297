"""Logits that the batched kernel computes within its autograd node: maps, gates, temperatures and masks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

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
from qkv.scores import Score

Draw = Callable[..., torch.Tensor]

SCORES: dict[str, Callable[[Draw, int, tuple[int, ...]], Score]] = {
    "gated": lambda draw, w, heads: scores.Gated(draw(*heads, w), draw(*heads, w)),
    "gated, numbers": lambda draw, w, heads: scores.Gated(draw(w), draw(w), 0.7),
    "gated, zero weights": lambda draw, w, heads: scores.Gated(draw(w) * 0, draw(w) * 0, draw(*heads)),
    "separable gate": lambda draw, w, heads: scores.SeparableGate(draw(*heads, w), draw(w), draw(*heads), 0.3),
    "bilinear": lambda draw, w, heads: scores.Bilinear(draw(*heads, w, w)),
    "factored": lambda draw, w, heads: scores.Bilinear(draw(w, 3), draw(*heads, w, 3)),
    "projected": lambda draw, w, heads: scores.Projected(scores.ScaledDot(-0.5), draw(*heads, 5, w), draw(5, w)),
    "projected keys": lambda draw, w, heads: scores.Projected(scores.ScaledDot(), None, draw(w, w)),
    "cosine": lambda draw, w, heads: scores.Cosine(draw().abs().detach().add(0.5).requires_grad_()),
    "cosine per head": lambda draw, w, heads: scores.Cosine(draw(*heads).abs().detach().add(0.5).requires_grad_()),
    "biased gate": lambda draw, w, heads: scores.Biased(scores.Gated(draw(w), draw(w)), draw(*heads, 1, 1)),
    "softcap": lambda draw, w, heads: scores.Softcap(scores.Bilinear(draw(w, w)), 3.0),
    "Laplace": lambda draw, w, heads: scores.Laplace(1.5),
    "Gaussian": lambda draw, w, heads: scores.Gaussian(1.5),
    "additive": lambda draw, w, heads: scores.Additive(draw(9, w), draw(*heads, 9, w), draw(9), draw(9)),
}
MASKS = (None, masks.Causal("end"), masks.Causal("start"), masks.Window(1, 0))


def calls(name: str, count: int) -> Iterator[tuple[list[torch.Tensor], dict[str, object], list[torch.Tensor]]]:
    """Yield random calls: query, key and value, options, and the tensors that require a gradient."""
    torch.manual_seed(len(name))
    choose = random.Random(name)
    for _ in range(count):
        batch = choose.choice([(), (3,), (2, 3)])
        own = [batch, *(batch if choose.random() < 0.8 else (1,) * len(batch) for _ in range(2))]
        choose.shuffle(own)
        q, k, width = choose.choice([1, 2, 5, 9]), choose.choice([1, 3, 5, 9]), choose.choice([1, 4, 13])
        sides = [
            torch.randn(*axes, *shape, dtype=torch.float64).requires_grad_()
            for axes, shape in zip(own, ((q, width), (k, width), (k, 2)), strict=True)
        ]
        arrays: list[torch.Tensor] = []

        def draw(*shape: int, arrays: list[torch.Tensor] = arrays) -> torch.Tensor:
            arrays.append(torch.randn(shape, dtype=torch.float64).requires_grad_())
            return arrays[-1]

        score = SCORES[name](draw, width, choose.choice([(), batch]))
        normalizer = choose.choice([normalizers.Softmax(), normalizers.Softmax(0.7), normalizers.Sigmoid()])
        allowed = torch.tensor([choose.random() < 0.6 for _ in range(q * k)]).view(q, k)
        mask = choose.choice([*MASKS, masks.AllowedPairs(allowed)])
        options = {"score": score, "normalizer": normalizer, "mask": mask, "positions": qkv.Positions(align="end")}
        yield sides, options, [x for x in (*sides, *score.arrays()) if x.is_leaf and x.requires_grad]


@pytest.mark.parametrize("name", SCORES)
def test_output_and_gradients_are_those_of_the_dense_reference(name: str) -> None:
    for sides, options, leaves in calls(name, 3):
        wanted = attend_dense(*sides, **options).output
        direction = torch.randn_like(wanted)
        gradients = torch.autograd.grad(wanted, leaves, direction, allow_unused=True)
        for _ in range(2):  # the second call is prepared
            found = qkv.attend(*sides, **options, kernel="batched")
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
            for keep in (True, False):  # the graph may be kept for another backward pass
                got = torch.autograd.grad(found, leaves, direction, allow_unused=True, retain_graph=keep)
                for x, y in zip(got, gradients, strict=True):
                    zero = torch.zeros(())
                    torch.testing.assert_close(
                        zero if x is None else x, torch.zeros_like(x if x is not None else zero) if y is None else y,
                        rtol=1e-8, atol=1e-8,
                    )  # fmt: skip


@pytest.mark.parametrize("name", ["gated", "separable gate", "bilinear", "factored", "projected keys", "cosine"])
def test_second_derivatives_are_right(name: str) -> None:
    sides, options, leaves = min(calls(name, 8), key=lambda call: sum(x.numel() for x in call[2]))

    def attend(*tensors: torch.Tensor) -> torch.Tensor:
        return qkv.attend(*sides, **options, kernel="batched")

    assert torch.autograd.gradgradcheck(attend, tuple(leaves), atol=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["gated", "gated, zero weights", "separable gate", "bilinear", "cosine", "Laplace"])
def test_masked_keys_that_are_not_finite_change_nothing(name: str, bad: float) -> None:
    torch.manual_seed(0)
    score = SCORES[name](lambda *shape: torch.randn(shape), 4, ())
    query, key, value = (torch.randn(2, 6, 4) for _ in range(3))
    key[:, -1], value[:, -1] = bad, bad
    options = {"score": score, "mask": masks.AllowedKeys(torch.arange(6)[None] < 5)}
    wanted = qkv.attend(query, key[:, :-1], value[:, :-1], score=score)
    query.requires_grad_()
    for _ in range(2):
        found = qkv.attend(query, key, value, **options, kernel="batched")
        torch.testing.assert_close(found, wanted)
        assert bool(torch.autograd.grad(found.sum(), query)[0].isfinite().all())


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


@pytest.mark.parametrize("kernel", ["dense", "batched"])
@pytest.mark.parametrize("n", [4, 64])
def test_distances_have_second_derivatives_with_respect_to_one_side(kernel: str, n: int) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(n, 16, dtype=torch.float64) for _ in range(3))
    for x, attend in (
        (query, lambda x: qkv.attend(x, key, value, score=scores.Laplace(), kernel=kernel)),
        (key, lambda x: qkv.attend(query, x, value, score=scores.Laplace(), kernel=kernel)),
    ):
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(attend(leaf).square().sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(gradient.sum(), leaf)
        step = 1e-5
        ahead, behind = (
            torch.autograd.grad(attend(y).square().sum(), y)[0].sum()
            for y in (
                (x + step * torch.eye(n, 16)[:1]).requires_grad_(),
                (x - step * torch.eye(n, 16)[:1]).requires_grad_(),
            )
        )
        torch.testing.assert_close((ahead - behind) / (2 * step), second[:, 0].sum(), rtol=1e-4, atol=1e-5)


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
