"""Plans for GPUs, on a machine without one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import qkv
from qkv import masks, scores
from qkv.kernels import KERNELS
from qkv.plan import devices
from qkv.plan.budget import default_budget
from qkv.plan.devices import CPU, DEFAULT_GPU, GPUS, Device, device_named, device_of
from qkv.testing.cases import MASKS, NORMALIZERS, SCORES, Call, Case

LONG = (16, 2048, 64)


def explain(query: tuple[int, ...] = LONG, key: tuple[int, ...] = LONG, **options: object) -> qkv.Plan:
    return qkv.explain(query, key, key, library="torch", **{"device": "H200", **options})


def explain_call(call: Call, **options: object) -> qkv.Plan:
    return qkv.explain(
        *(tuple(np.shape(x)) for x in (call.query, call.key, call.value)),
        score=call.score,
        normalizer=call.normalizer,
        mask=call.mask,
        positions=call.positions,
        **{"library": "torch", "device": "cuda", **options},
    )


def test_names_of_devices_are_read() -> None:
    assert device_named("cpu") is CPU
    assert device_named("h100") is device_named("H100") is GPUS["H100"]
    assert device_named("RTX4090") is GPUS["RTX 4090"]
    if not torch.cuda.is_available():
        assert device_named("cuda") is device_named("cuda:0") is DEFAULT_GPU
    for name in ("tpu", "cuda:99", "cuda:x", "", None):
        with pytest.raises(qkv.errors.OptionError, match=r"device must be .* got"):
            device_named(name)


def test_a_gpu_is_described_by_its_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = SimpleNamespace(name="NVIDIA L40S", total_memory=48e9, major=8, minor=9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: stated)
    found = devices._torch_gpu.__wrapped__(0)
    assert (found.name, found.memory, found.capability, found.present) == ("NVIDIA L40S", 48_000_000_000, (8, 9), True)
    assert found.is_gpu
    assert str(found) == "NVIDIA L40S: 44.7 GiB, compute capability 8.9"


def test_budgets_are_those_of_the_memory_of_the_device() -> None:
    assert default_budget(GPUS["A10"]) == 3 * 2**30
    assert default_budget(Device("small", 2**30, (8, 0))) == 512 * 2**20
    assert default_budget(CPU) == default_budget()
    for name in ("A10", "H200"):
        assert explain(device=name).requested.memory == GPUS[name].memory // 8
    # 64 numbers for each pair are 32 GiB, which is too much for a GPU of 24 GiB even where it is free.
    score = scores.Additive(np.zeros((64, 64)), np.zeros((64, 64)), None, np.zeros(64))
    with pytest.raises(qkv.errors.RefusedError, match="more than the 3 GiB allowed"):
        explain(device="A10", score=score, kernel="dense")
    assert explain(device="H200", score=score, kernel="dense", memory="100 GiB").kernel.name == "dense"


def test_inner_products_run_on_the_fused_operators_of_pytorch() -> None:
    pairs = {"mask": masks.Causal(), "positions": qkv.Positions("end")}
    for score in (None, scores.Dot(), scores.Gaussian(1.0), scores.Cosine()):
        for options in ({}, pairs, {"gradient": True}, {"dtype": "bfloat16"}):
            assert explain(score=score, **options).kernel.name == "fused"
    assert explain((16, 1, 64), **pairs).kernel.name == "fused"
    assert explain((16, 512, 64), **pairs).kernel.name == "fused"
    text = str(explain(dtype="bfloat16"))
    assert "H200: 131 GiB, compute capability 9.0; not in this machine" in text
    assert "wide\n            bfloat16 in torch\ndevice" in text


def test_kernels_for_the_caches_of_cpus_are_never_planned_for_gpus() -> None:
    for name in SCORES:
        plan = explain_call(Case(name, "sum" if name == "similarity" else "softmax").call())
        assert plan.kernel.runs_on_gpu
        assert all(each.runs_on_gpu for each in KERNELS if each.name in dict(plan.slower))
        assert ("batched", "it is written for the caches and threads of CPUs") in plan.refused
    with pytest.raises(qkv.errors.RefusedError, match="batched cannot run this call: it is written for the caches"):
        explain(kernel="batched")


def test_tiles_on_a_gpu_are_larger_than_a_cache() -> None:
    def tile(device: str) -> str:
        plan = qkv.explain(LONG, LONG, LONG, score=scores.Laplace(1.0), library="torch", device=device, kernel="tiled")
        return plan.kernel.describe(plan.problem)

    assert "512 queries × 512 keys" in tile("cpu")
    assert "2,048 queries × 2,048 keys" in tile("H100")


def test_plans_on_cpus_show_no_device() -> None:
    text = str(explain(device="cpu"))
    assert "device" not in text


def test_gpus_are_planned_for_pytorch_and_jax_alone() -> None:
    assert qkv.explain(LONG, LONG, LONG, library="jax", device="cuda").requested.device is DEFAULT_GPU
    for library in ("numpy", "tensorflow"):
        with pytest.raises(qkv.errors.OptionError, match=f'device must be "cpu" for {library} arrays, got .cuda.'):
            qkv.explain(LONG, LONG, LONG, library=library, device="cuda")


def test_tensors_of_cpus_are_planned_for_cpus() -> None:
    assert device_of(torch.ones(2)) is CPU
    assert device_of(np.ones(2)) is CPU
    assert qkv.explain(*torch.randn(3, 5, 4), device="H100").requested.device is CPU


def test_every_example_call_has_a_plan_for_a_gpu() -> None:
    cases = [Case("dot", name) for name in NORMALIZERS if name != "sum"] + [Case("dot", mask=name) for name in MASKS]
    for case in cases:
        plan = explain_call(case.call(), gradient=True)
        assert not plan.cost.measured
        assert 0 < plan.cost.seconds < 1
