"""The programs for GPUs, run by Triton's interpreter on tensors of the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
import torch

import qkv
from qkv import masks, normalizers, scores
from qkv.kernels.triton.kernel import TritonKernel
from qkv.plan import Kernel
from tests.effort import seeds
from tests.kernels.interpreted import InterpretedContract
from tests.kernels.on_gpu import no_synchronization

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("the interpreter of Triton is off where there is a GPU", allow_module_level=True)

KERNEL = TritonKernel(interpreted=True, block=(16, 16))


class TestTriton(InterpretedContract):
    kernel = KERNEL
    in_place_of_products = "additive"


Run = Callable[[Kernel | str, torch.dtype], list[torch.Tensor]]


def additive_call(
    q: int,
    k: int,
    *,
    hidden: int = 7,
    width: int = 5,
    values: int = 6,
    batch: tuple[int, ...] = (2,),
    scale: float = 1.0,
    offset: float = 0.0,
    mask: masks.Mask | None = None,
    temperature: float = 1.0,
    seed: int = 0,
) -> Run:
    """Return a function that computes the output and all gradients of a call, by a kernel and in a dtype."""
    rng = np.random.default_rng(seed)
    query, key = rng.normal(size=(*batch, q, width)) * scale, rng.normal(size=(*batch, k, width)) * scale
    query += offset
    key -= offset
    arrays = [query, key, rng.normal(size=(*batch, k, values))]
    weight = rng.normal(size=(hidden, width)) / 2
    # Equal weights of both sides, so that an offset cancels.
    arrays += [weight, weight.copy(), rng.normal(size=hidden), rng.normal(size=hidden)]
    given = rng.normal(size=(*batch, q, values))

    def run(kernel: Kernel | str, dtype: torch.dtype) -> list[torch.Tensor]:
        rounded = dtype if dtype.itemsize < 4 else torch.float64
        tensors = [torch.tensor(x).to(rounded).to(dtype).requires_grad_() for x in arrays]
        output = qkv.attend(
            *tensors[:3],
            score=scores.Additive(*tensors[3:]),
            normalizer=normalizers.Softmax(temperature),
            mask=mask,
            positions=qkv.Positions("end") if mask is not None else None,
            kernel=kernel,
        )
        gradients = torch.autograd.grad(output, tensors, torch.tensor(given).to(output.dtype))
        return [x.detach().double() for x in (output, *gradients)]

    return run


def errors(run: Run, kernel: Kernel | str, dtype: torch.dtype) -> np.ndarray:
    """Return the largest errors of the output and of each gradient, relative to the largest element."""
    wanted = run("dense", torch.float64)
    got = run(kernel, dtype)
    return np.array([float((x - y).abs().max() / (y.abs().max() + 1e-12)) for x, y in zip(got, wanted, strict=True)])


@pytest.mark.parametrize("seed", seeds(5, 2))
def test_calls_drawn_at_random_agree_with_the_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    q, k, hidden, values = (int(rng.integers(1, high)) for high in (30, 30, 9, 20))
    kinds = [
        None,
        masks.Causal(),
        masks.AllowedKeys(rng.random((2, k)) < 0.6),
        masks.Lengths(rng.integers(0, k + 1, 2)),
    ]
    kinds.append(kinds[1] & kinds[2])
    mask = kinds[seed % len(kinds)]
    run = additive_call(q, k, hidden=hidden, values=values, mask=mask, temperature=0.5 + rng.random(), seed=seed)
    assert errors(run, KERNEL, torch.float32).max() < 1e-4, (q, k, hidden, values, mask)


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (30.0, 0.0), (1.0, 200.0), (300.0, -2000.0)])
def test_errors_are_at_most_twice_those_of_the_eager_reference(scale: float, offset: float) -> None:
    """Also where exponentials would overflow, and where both sides are far from 0 but their sum is not."""
    run = additive_call(17, 20, hidden=3, width=3, scale=scale, offset=offset)
    mine, eager = errors(run, KERNEL, torch.float32), errors(run, "dense", torch.float32)
    assert (mine <= 2 * eager + 3e-6).all(), (mine, eager)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_accumulated_in_single_precision(dtype: torch.dtype) -> None:
    run = additive_call(17, 18, hidden=4, mask=masks.Causal())
    wanted, got = run("dense", dtype), run(KERNEL, dtype)
    for x, y in zip(got, wanted, strict=True):
        assert (x - y).abs().max() < 4 * torch.finfo(dtype).eps * y.abs().max()


def test_rows_without_keys_are_0_and_have_no_gradient() -> None:
    query, key = torch.randn(20, 3, requires_grad=True), torch.randn(7, 3, requires_grad=True)
    score = scores.Additive(torch.eye(3), torch.eye(3), None, torch.ones(3))
    run = {"score": score, "mask": masks.Causal(), "positions": qkv.Positions("end"), "kernel": KERNEL}
    output = qkv.attend(query, key, key, **run)
    assert (output[:13] == 0).all()
    assert (output[13] == key[0]).all()
    (gradient,) = torch.autograd.grad(output.sum(), query)
    assert (gradient[:13] == 0).all()
    assert gradient.isfinite().all()
    nothing = qkv.attend(query, key, key, **{**run, "mask": masks.AllowedKeys(torch.zeros(7, dtype=torch.bool))})
    assert (nothing == 0).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_values_that_are_not_finite_reach_only_the_queries_that_may_attend_to_them(bad: float) -> None:
    query, key, value = torch.randn(3, 2, 20, 4)
    value[0, 11, 2], value[1, 15, 1] = bad, -bad
    score = scores.Additive(torch.eye(4), torch.eye(4), None, torch.ones(4))
    for mask in (None, masks.Causal(), masks.Causal() & masks.AllowedKeys(torch.arange(20) != 11)):
        run = {"score": score, "mask": mask, "positions": qkv.Positions("end")}
        wanted = qkv.attend(query, key, value, **run, kernel="dense")
        got = qkv.attend(query, key, value, **run, kernel=KERNEL)
        assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_two_runs_are_equal_to_the_last_bit() -> None:
    run = additive_call(17, 20, hidden=4, mask=masks.Causal())
    first, second = run(KERNEL, torch.float32), run(KERNEL, torch.float32)
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_second_derivatives_are_refused() -> None:
    x = torch.randn(3, 2, requires_grad=True)
    score = scores.Additive(torch.eye(2), torch.eye(2), None, torch.ones(2))
    output = qkv.attend(x, x, x, score=score, kernel=KERNEL)
    with pytest.raises(qkv.errors.GradientError, match="differentiated once"):
        torch.autograd.grad(output.sum(), x, create_graph=True)


def test_nothing_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter copies tensors to run the programs, so that they are not run here."""
    from qkv.kernels.triton import additive_programs

    class Nothing:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            assert all(isinstance(n, int) for n in grid)
            return lambda *_, **__: None

    for name in additive_programs.__all__:
        monkeypatch.setattr(additive_programs, name, Nothing())
    x = torch.randn(2, 9, 3, requires_grad=True)
    score = scores.Additive(torch.eye(3), torch.eye(3), None, torch.ones(3, requires_grad=True))
    allowed = masks.AllowedKeys(torch.arange(9) != 4)
    for mask in (None, allowed, masks.Causal(), masks.Causal() & allowed, masks.Lengths(torch.tensor([3, 9]))):
        spec = qkv.Spec(score, normalizers.Softmax(), mask, qkv.Positions("end"))
        prepared = qkv.prepare(spec, (x.shape, x.shape, x.shape), library="torch", device="H100", gradient=True)
        assert prepared.plan.kernel.name == "triton"
        with no_synchronization():
            prepared(x, x, x).output.sum().backward()


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
