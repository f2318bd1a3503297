"""The way of the fused kernel on GPUs, run on CPU tensors: it never reads results back to the host."""

import pytest
import torch

import qkv
from qkv import masks, normalizers, scores
from qkv.testing.kernels import KernelContract
from tests.kernels.on_gpu import fused_on_gpu, no_synchronization


class TestFusedOnGpu(KernelContract):
    kernel = fused_on_gpu()
    twice = False


def test_reads_of_results_are_found() -> None:
    x = torch.ones(3)
    for read in (lambda: x.sum().item(), lambda: bool((x > 0).all()), lambda: x.tolist(), lambda: x.nonzero()):
        with no_synchronization(), pytest.raises(AssertionError):
            read()


def test_a_key_of_nan_reaches_only_the_queries_that_may_attend_to_it() -> None:
    """The Gaussian score is centred on the mean of the keys, which a key of NaN must not reach."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 6, 4)
    key[:, 3] = torch.nan
    for score in (scores.ScaledDot(), scores.Gaussian(1.0)):
        run = {"score": score, "mask": masks.Causal(), "positions": qkv.Positions("end")}
        got = qkv.attend(query, key, value, **run, kernel=fused_on_gpu())
        wanted = qkv.attend(query, key, value, **run, kernel="dense")
        assert torch.allclose(got, wanted, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_a_causal_mask_aligned_with_the_last_keys_is_given_to_the_operators_of_pytorch() -> None:
    """Here PyTorch's own tensor subclass is used, which a check of synchronization would intercept."""
    plan = qkv.prepare(
        qkv.Spec(scores.ScaledDot(), normalizers.Softmax(), masks.Causal(), qkv.Positions("end")),
        ((2, 5, 4), (2, 9, 4), (2, 9, 4)),
        library="torch",
        device="cuda",
    )
    assert plan.plan.kernel.name == "fused"
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 5, 4), *torch.randn(2, 2, 9, 4)
    wanted = qkv.attend(query, key, value, mask=masks.Causal(), positions=qkv.Positions("end"), kernel="dense")
    assert torch.allclose(plan(query, key, value).output, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_reaches_the_operators_as_it_is(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.dtype] = []
    operator = torch.nn.functional.scaled_dot_product_attention

    def recorded(query: torch.Tensor, *rest: torch.Tensor, **options: object) -> torch.Tensor:
        seen.append(query.dtype)
        return operator(query, *rest, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", recorded)
    x = torch.randn(2, 7, 4).to(dtype)
    got = qkv.attend(x, x, x, kernel=fused_on_gpu())
    assert seen == [dtype]
    assert got.dtype == dtype
    # The lift of a Gaussian score subtracts large numbers, so it is computed in single precision.
    qkv.attend(x, x, x, score=scores.Gaussian(1.0), kernel=fused_on_gpu())
    assert seen == [dtype, torch.float32]


@pytest.mark.parametrize("kernel", ["fused", "dense"])
def test_binding_and_running_a_call_read_nothing_back(kernel: str) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 6, 4, generator=generator)
    allowed = masks.AllowedKeys(torch.tensor([True, False, True, True, True, False]))
    for mask in (None, allowed, masks.Causal(), masks.Lengths(torch.tensor([3, 6]))):
        for gradient in (False, True):
            spec = qkv.Spec(scores.ScaledDot(), normalizers.Softmax(), mask, qkv.Positions("end"))
            shapes = [tuple(x.shape) for x in (query, key, value)]
            run = qkv.prepare(spec, shapes, library="torch", device="cuda", kernel=kernel, gradient=gradient)
            sides = [x.clone().requires_grad_(gradient) for x in (query, key, value)]
            with no_synchronization():
                output = run(*sides).output
                if gradient:
                    output.sum().backward()
            wanted = qkv.attend(query, key, value, mask=mask, positions=qkv.Positions("end"), kernel="dense")
            assert torch.allclose(output, wanted, rtol=1e-5, atol=1e-6)
