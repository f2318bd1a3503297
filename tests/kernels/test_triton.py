"""The programs for GPUs, run by Triton's interpreter on tensors of the CPU."""

import numpy as np
import pytest
import torch

import qkv
from qkv import masks, normalizers, scores
from qkv.kernels.triton import additive_programs
from qkv.kernels.triton.kernel import TritonKernel
from qkv.plan import Kernel
from tests.effort import sample
from tests.kernels.interpreted import (
    InterpretedContract,
    NoProgram,
    Run,
    check_nothing_is_read_back,
    errors,
    program_names,
)

KERNEL = TritonKernel(interpreted=True, block=(16, 16))


class TestTriton(InterpretedContract):
    kernel = KERNEL
    in_place_of_products = "additive"


def additive_call(scale: float = 1.0, offset: float = 0.0, mask: masks.Mask | None = None) -> Run:
    rng = np.random.default_rng(0)
    query, key = (rng.normal(size=(2, n, 3)) * scale for n in (17, 20))
    arrays = [query + offset, key - offset, rng.normal(size=(2, 20, 6))]
    weight = rng.normal(size=(3, 3)) / 2
    # Equal weights of both sides, so that an offset cancels.
    arrays += [weight, weight.copy(), rng.normal(size=3), rng.normal(size=3)]
    given = rng.normal(size=(2, 17, 6))

    def run(kernel: Kernel | str, dtype: torch.dtype) -> list[torch.Tensor]:
        tensors = [torch.tensor(x).to(dtype).requires_grad_() for x in arrays]
        output = qkv.attend(
            *tensors[:3],
            score=scores.Additive(*tensors[3:]),
            mask=mask,
            positions=qkv.Positions("end") if mask is not None else None,
            kernel=kernel,
        )
        gradients = torch.autograd.grad(output, tensors, torch.tensor(given).to(output.dtype))
        return [x.detach().double() for x in (output, *gradients)]

    return run


@pytest.mark.parametrize(("scale", "offset"), sample([(1.0, 0.0), (30.0, 0.0), (1.0, 200.0), (300.0, -2000.0)], 3))
def test_errors_are_at_most_twice_those_of_the_eager_reference(scale: float, offset: float) -> None:
    """Also where exponentials would overflow, and where both sides are far from 0 but their sum is not."""
    run = additive_call(scale, offset)
    mine, eager = errors(run, KERNEL, torch.float32), errors(run, "dense", torch.float32)
    assert (mine <= 2 * eager + 3e-6).all(), (mine, eager)


def test_two_runs_are_equal_to_the_last_bit() -> None:
    run = additive_call(mask=masks.Causal())
    first, second = run(KERNEL, torch.float32), run(KERNEL, torch.float32)
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_nothing_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in program_names(additive_programs):
        monkeypatch.setattr(additive_programs, name, NoProgram())
    score = scores.Additive(torch.eye(4), torch.eye(4), None, torch.ones(4, requires_grad=True))
    check_nothing_is_read_back("triton", {"score": score})


def test_additive_scores_are_planned_for_gpus_and_never_for_cpus() -> None:
    shape = (16, 2048, 64)
    weights = np.zeros((64, 64))
    for bias, normalizer in ((None, None), (np.zeros(64), normalizers.Softmax(2.0))):
        score = scores.Additive(weights, weights, bias, np.zeros(64))
        for gradient in (False, True):
            options = {"score": score, "normalizer": normalizer, "library": "torch", "gradient": gradient}
            plan = qkv.explain(shape, shape, shape, **options, device="H200")
            assert plan.kernel.name == "triton"
            assert "two hidden units to a division" in str(plan)
            assert qkv.explain(shape, shape, shape, **options).kernel.name == "tiled"
    with pytest.raises(qkv.errors.RefusedError, match="the kernel triton cannot run this call: it runs on GPUs"):
        qkv.explain(shape, shape, shape, score=score, library="torch", kernel="triton")
    long = (1, 65536, 64)
    plan = qkv.explain(long, long, long, score=score, library="torch", gradient=True, device="H200")
    assert plan.cost.scratch < 400 * 10**6
