"""Calls on a GPU that nothing waits for, captured by CUDA graphs and compiled as one graph; skipped without a GPU."""

import pytest
import torch

import qkv
from qkv import masks, normalizers, scores

Tensor = torch.Tensor

if not torch.cuda.is_available():
    pytest.skip("PyTorch finds no CUDA device", allow_module_level=True)

WIDTH = 32
CALLS = {
    "fused": {"mask": masks.Causal()},
    "fused, lengths": {"mask": masks.Lengths(torch.tensor([40, 64]))},
    "flex": {"score": scores.Softcap(scores.ScaledDot(), 5.0), "mask": masks.Causal()},
    "triton": {"score": "additive"},
    "triton_products": {"normalizer": normalizers.Sparsemax()},
    "triton_products, top-k": {"normalizer": normalizers.TopK(8)},
    "triton_traced": {"score": scores.Laplace(2.0), "mask": masks.Causal()},
    "dense": {"score": scores.Gaussian(1.0), "normalizer": normalizers.Sigmoid()},
}


def arrays(name: str) -> list[Tensor]:
    torch.manual_seed(0)
    inputs = list(torch.randn(3, 2, 64, WIDTH, device="cuda"))
    if name == "triton":
        inputs += [*torch.randn(2, 16, WIDTH, device="cuda") / 8, torch.randn(16, device="cuda")]
    return [x.requires_grad_() for x in inputs]


def attend(name: str, query: Tensor, key: Tensor, value: Tensor, *parts: Tensor) -> Tensor:
    options = {**CALLS[name], "kernel": name.split(",")[0]}
    if parts:
        options["score"] = scores.Additive(parts[0], parts[1], vector=parts[2])
    if isinstance(options.get("mask"), masks.Lengths):
        options["mask"] = masks.Lengths(torch.tensor([40, 64], device=query.device))
    return qkv.attend(query, key, value, **options)


def step(name: str, inputs: list[Tensor]) -> list[Tensor]:
    output = attend(name, *inputs)
    return [output, *torch.autograd.grad(output.square().sum(), inputs)]


@pytest.mark.parametrize("name", CALLS)
def test_nothing_waits_for_the_gpu(name: str) -> None:
    inputs = arrays(name)
    step(name, inputs)  # compiles programs
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(name, inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", CALLS)
def test_a_captured_call_gives_the_results_of_other_inputs(name: str) -> None:
    inputs = arrays(name)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(name, inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step(name, inputs)
    with torch.no_grad():
        for x in inputs:
            x.copy_(torch.randn_like(x) / 4)
    graph.replay()
    for got, wanted in zip(results, step(name, inputs), strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", CALLS)
def test_the_compiler_takes_a_call_as_one_graph(name: str) -> None:
    inputs = arrays(name)
    compiled = torch.compile(lambda *tensors: attend(name, *tensors), fullgraph=True)
    output = compiled(*inputs)
    results = [output, *torch.autograd.grad(output.square().sum(), inputs)]
    for got, wanted in zip(results, step(name, inputs), strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-3, atol=2e-4)
