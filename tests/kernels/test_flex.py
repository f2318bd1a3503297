"""The kernel that calls FlexAttention, on tensors of the CPU and without a compiler."""

import warnings
from importlib import import_module

import numpy as np
import pytest
import torch
import torch.nn.attention.flex_attention as flex

import qkv
from qkv import masks, normalizers, scores
from qkv.kernels import FlexKernel
from qkv.kernels.flex import kernel as flex_kernel
from qkv.testing.cases import Case
from qkv.testing.execution import oracle, run
from qkv.testing.kernel_harness import assert_agrees
from qkv.testing.kernels import KernelContract
from qkv.testing.libraries import Setting
from tests.kernels.on_gpu import no_synchronization

KERNEL = FlexKernel(eager=True)
FLOAT32 = Setting("torch", "float32")
LONG = (2, 16, 4096, 64)
ON_GPU = {"library": "torch", "dtype": "bfloat16", "device": "cuda"}


@pytest.fixture(autouse=True)
def _definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace FlexAttention's kernel by PyTorch's own definition of it, which autograd differentiates on CPUs."""
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(flex, "flex_attention_hop", math_attention)


def math_attention(*arguments: object) -> tuple[torch.Tensor, ...]:
    output, *statistics = import_module("torch._higher_order_ops.flex_attention").math_attention(*arguments)
    return output.to(arguments[0].dtype), *statistics


class TestFlex(KernelContract):
    kernel = KERNEL
    twice = False


@pytest.mark.parametrize("score", ["relative position", "biased"])
def test_functions_that_a_compiler_traces_have_the_gradients_of_their_arrays(
    score: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # FlexAttention itself, which traces its functions with the compiler's front end
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    case = Case(score, "softmax", "documents")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = run(case.call(), FLOAT32, KERNEL)
    assert_agrees(got, oracle(case, "float32"), FLOAT32, str(case))


def test_nothing_is_read_back() -> None:
    x = torch.randn(2, 9, 16)
    ids = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2])
    allowed = [None, masks.Window(3, 0), masks.Documents(ids) & masks.Causal(), masks.Prefix(torch.tensor([2, 4]))]
    for score in (scores.ALiBi(scores.Dot(), torch.ones(2)), scores.Softcap(scores.ScaledDot(), 5.0)):
        for mask in (*allowed, masks.Lengths(torch.tensor([3, 9]))):
            spec = qkv.Spec(score, normalizers.Softmax(2.0), mask, qkv.Positions("end"))
            sides = [x.clone().requires_grad_() for _ in range(3)]
            prepared = qkv.prepare(spec, (x.shape,) * 3, library="torch", gradient=True, kernel=KERNEL)
            with no_synchronization():
                prepared(*sides).output.sum().backward()


def test_block_masks_that_depend_on_no_arrays_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    created = []
    create = flex.create_block_mask
    monkeypatch.setattr(flex_kernel, "_create_block_mask", lambda _: lambda *a: created.append(a) or create(*a))
    monkeypatch.setattr(flex_kernel, "_block_masks", {})
    x = torch.randn(2, 9, 16)
    for mask in (masks.Window(3, 0), masks.Window(3, 0), masks.Window(2, 0), ~masks.Prefix(3) | masks.Causal()):
        for _ in range(2):
            got = qkv.attend(x, x, x, mask=mask, kernel=KERNEL)
        assert torch.allclose(got, qkv.attend(x, x, x, mask=mask, kernel="dense"), atol=1e-5)
    assert [each[1:3] for each in created] == [(None, None)] * 3


def test_modified_products_are_planned_for_flex_attention_on_gpus() -> None:
    ids = np.arange(4096) // 100
    dot = scores.ScaledDot()
    for score, mask in (
        (scores.Softcap(dot, 30.0), masks.Causal()),
        (scores.ALiBi(dot, np.ones((1, 16))), masks.Causal()),
        (scores.RelativePosition(dot, np.ones((1, 16, 32))), None),
        (scores.Biased(dot, np.ones((1, 1, 4096, 4096))), None),
        (dot, masks.Window(256, 0)),
        (dot, masks.Documents(ids) & masks.Causal()),
        (dot, masks.Prefix(100)),
    ):
        for gradient in (False, True):
            plan = qkv.explain(LONG, LONG, LONG, score=score, mask=mask, gradient=gradient, **ON_GPU)
            assert plan.kernel.name == "flex", str(plan)
            assert "compiled FlexAttention" in str(plan)
            assert "not in this machine" in str(plan) or torch.cuda.is_available()
    heads = (2, 4, 4096, 64)
    plan = qkv.explain(LONG, heads, heads, mask=masks.Window(256, 0), enable_gqa=True, **ON_GPU)
    assert plan.kernel.name == "flex"
    for mask in (None, masks.Causal()):
        assert qkv.explain(LONG, LONG, LONG, mask=mask, **ON_GPU).kernel.name == "fused"
    with pytest.raises(qkv.errors.RefusedError, match="flex cannot run this call: it runs on GPUs"):
        qkv.explain(LONG, LONG, LONG, library="torch", kernel="flex")


def test_what_flex_attention_computes_differently_is_refused() -> None:
    for score, normalizer, reason in (
        (scores.Softcap(scores.Gaussian(1.0), 3.0), None, "only up to a term of the query, which a soft cap changes"),
        (scores.Laplace(1.0), None, "is not an inner product with a soft cap, positions or biases"),
        (None, normalizers.Softmax(1.0, sink=0.0), "does not support the sink"),
        (None, normalizers.Sparsemax(), "supports only softmax"),
    ):
        with pytest.raises(qkv.errors.RefusedError, match=reason):
            qkv.explain(LONG, LONG, LONG, score=score, normalizer=normalizer, kernel="flex", **ON_GPU)
