"""Calls in bfloat16 whose matrix products are computed in it, against float64 and PyTorch's operators on bfloat16."""

import math
from typing import Any

import pytest

import qkv
from qkv import masks, normalizers, scores
from qkv.core.equation import attend_dense
from qkv.kernels.batched import attention as batched_attention

torch = pytest.importorskip("torch")

N, WIDTH = 192, 64


@pytest.fixture(autouse=True)
def _fast_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched_attention, "_bfloat16_is_faster", lambda: True)


def _weight(generator: Any) -> Any:
    return torch.randn(WIDTH, WIDTH, generator=generator).mul_(1 / WIDTH)


CALLS = {
    "scaled dot": lambda g: {},
    "causal": lambda g: {"mask": masks.Causal()},
    "bilinear": lambda g: {"score": scores.Bilinear(_weight(g).bfloat16())},
    "Gaussian": lambda g: {"score": scores.Gaussian(6.0), "mask": masks.Lengths(torch.tensor([150, 0]))},
    "soft cap": lambda g: {"score": scores.Softcap(scores.ScaledDot(), 5.0)},
    "bias": lambda g: {"score": scores.Biased(scores.ScaledDot(), torch.randn(N, N, generator=g).bfloat16())},
    "cosine": lambda g: {"score": scores.Cosine(0.2)},
    "custom": lambda g: {"score": scores.Custom(lambda q, k: (q @ k.mT).sin())},
    "sparsemax": lambda g: {"normalizer": normalizers.Sparsemax()},
}


def _by_hand(options: dict[str, Any], sides: list[Any]) -> Any:
    """Return the output computed by PyTorch's operators from query, key and value in their dtype."""
    logits = sides[0] @ sides[1].mT / math.sqrt(WIDTH)
    return (logits + options.get("bias", 0.0)).softmax(-1) @ sides[2]


def _run(name: str, kernel: str | None = "batched") -> tuple[list[Any], list[Any], list[Any], dict[str, Any]]:
    """Return the results of the second call, those in float64, the inputs and the options."""
    generator = torch.Generator().manual_seed(0)
    options = CALLS[name](generator)
    sides = [torch.randn(2, N, WIDTH, generator=generator).bfloat16().requires_grad_() for _ in range(3)]
    direction = torch.randn(2, N, WIDTH, generator=generator).bfloat16()
    for _ in range(2):  # the second call has a cached plan
        output = qkv.attend(*sides, **options, kernel=kernel)
        got = [output.detach(), *torch.autograd.grad(output, sides, direction)]
    exact = [x.detach().double().requires_grad_() for x in sides]
    parts = qkv.Spec(**options).map_arrays(lambda x: x.double() if x.is_floating_point() else x)
    score, normalizer = parts.score or scores.ScaledDot(), parts.normalizer or normalizers.Softmax()
    output = attend_dense(*exact, score=score, normalizer=normalizer, mask=parts.mask).output
    return got, [output.detach(), *torch.autograd.grad(output, exact, direction.double())], [*sides, direction], options


@pytest.mark.parametrize("name", CALLS)
def test_outputs_and_gradients_in_bfloat16_agree_with_float64(name: str) -> None:
    got, wanted, _, _ = _run(name)
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype == torch.bfloat16
        assert float((one.double() - other).abs().max() / other.abs().max()) < 0.015


def test_the_error_is_at_most_twice_that_of_operators_on_bfloat16() -> None:
    got, wanted, (*sides, direction), options = _run("scaled dot")
    output = _by_hand(options, sides)
    by_hand = [output.detach(), *torch.autograd.grad(output, sides, direction)]
    for one, theirs, other in zip(got, by_hand, wanted, strict=True):
        errors = [(x.double() - other).square().mean().sqrt() for x in (one, theirs)]
        assert errors[0] <= 2 * errors[1]


@pytest.mark.parametrize("name", ["scaled dot", "bilinear", "Gaussian"])
def test_calls_in_bfloat16_have_second_derivatives(name: str) -> None:
    _, _, (*sides, direction), options = _run(name)
    output = qkv.attend(*sides, **options, kernel="batched")
    gradients = torch.autograd.grad(output, sides, direction, create_graph=True)
    found = torch.autograd.grad(sum((g.float() ** 2).sum() for g in gradients), sides)
    assert all(bool(x.isfinite().all()) and bool(x.any()) for x in found)


def test_products_of_short_or_narrow_calls_stay_in_single_precision() -> None:
    found = []
    for n, width in ((N, WIDTH), (64, 64), (1024, 16)):
        q = torch.zeros(1, n, width, dtype=torch.bfloat16)
        options = {"score": scores.ScaledDot(), "normalizer": normalizers.Softmax()}
        found.append(batched_attention.half_of(qkv.core.equation.bind_call(q, q, q, **options)))
    assert found == [torch.bfloat16, None, None]
