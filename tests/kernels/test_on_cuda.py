"""The contract suites of the kernels that run on GPUs, on tensors of a GPU; skipped on machines without one."""

from collections.abc import Iterator

import pytest
import torch

import qkv
from qkv import masks, normalizers, readouts, scores
from qkv.kernels import KERNELS
from qkv.testing.kernels import KernelContract

if not torch.cuda.is_available():
    pytest.skip("PyTorch finds no CUDA device", allow_module_level=True)


class OnCuda(KernelContract):
    @pytest.fixture(autouse=True)
    def _tensors_on_the_gpu(self) -> Iterator[None]:
        torch.set_default_device("cuda")
        yield
        torch.set_default_device(None)

    def test_runs_scaled_dot_product_attention(self, setting: object) -> None:
        """The kernels for other scores refuse it."""
        if self.kernel.name in ("fused", "flex", "dense", "tiled", "row_blocks"):
            super().test_runs_scaled_dot_product_attention(setting)


@pytest.mark.parametrize("score", [None, scores.Gaussian(1.0)])
def test_readouts_agree_with_the_dense_kernel_and_wait_for_nothing(score: scores.Score | None) -> None:
    sides = torch.randn(3, 2, 3, 200, 64, device="cuda")
    asked = [readouts.PooledMap(16), readouts.PooledMap(7, "max"), readouts.ColumnSum(), readouts.Entropy()]
    asked += [readouts.LogSumExp(), readouts.MeanDistance(), readouts.TopWeights(8)]
    found = []
    for kernel in ("triton_readouts", "triton_readouts", "dense"):  # the first call compiles
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error" if found and kernel != "dense" else "default")
        try:
            result = qkv.observe(*sides, score=score, mask=masks.Causal(), readouts=asked, kernel=kernel)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        found.append([x for each in result.readouts for x in (each if isinstance(each, tuple) else (each,))])
    for first, second, wanted in zip(*found, strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(first, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="the machine has one GPU")
def test_calls_run_on_the_gpu_of_their_inputs() -> None:
    sides = torch.randn(3, 2, 100, 32, device="cuda:1")
    for kernel in ("triton_products", "row_blocks"):
        output = qkv.attend(*sides, normalizer=normalizers.Sparsemax(), kernel=kernel)
        assert output.device == sides.device
        torch.testing.assert_close(output, qkv.attend(*sides, normalizer=normalizers.Sparsemax(), kernel="dense"))


for _kernel in KERNELS:
    if _kernel.runs_on_gpu and "torch" in _kernel.libraries:
        _twice = _kernel.name in ("dense", "tiled", "row_blocks", "linear")
        _facts = {"kernel": _kernel, "twice": _twice, "quadratic": _kernel.name == "dense"}
        globals()[f"Test_{_kernel.name}"] = type(f"Test_{_kernel.name}", (OnCuda,), _facts)
